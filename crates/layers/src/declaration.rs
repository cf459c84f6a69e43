//! layers.toml: the order of each crate's modules, from top to bottom.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::tree::Tree;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Declaration {
    /// Crates that are not checked yet.
    #[serde(default)]
    pub(crate) unchecked: Vec<String>,
    /// By crate, or by crate and module (`splice::session`).
    order: BTreeMap<String, Vec<Vec<String>>>,
}

/// The order of the modules in one parent, from top to bottom.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    /// The parent's path below the crate's root.
    parent: Vec<String>,
    order: Vec<Vec<String>>,
}

impl Declaration {
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = fs::read_to_string(file).with_context(|| {
            format!(
                "cannot read {}: run from the workspace's root",
                file.display()
            )
        })?;
        toml::from_str(&text)
            .with_context(|| format!("{} is not a valid declaration", file.display()))
    }

    /// The orders of one crate; empty if the crate is not in the file.
    pub(crate) fn of(&self, name: &str) -> Vec<Layers> {
        let mut layers = Vec::new();
        for (key, order) in &self.order {
            let mut path = key.split("::");
            if path.next() == Some(name) {
                let parent = path.map(str::to_owned).collect();
                let order = order.clone();
                layers.push(Layers { parent, order });
            }
        }
        layers
    }

    /// The crates in the file.
    pub(crate) fn crates(&self) -> impl Iterator<Item = &str> {
        let ordered = self.order.keys().filter_map(|key| key.split("::").next());
        ordered.chain(self.unchecked.iter().map(String::as_str))
    }
}

impl Layers {
    /// The child of this parent that `file` is, or is in.
    pub(crate) fn child_of<'a>(&self, file: &'a [String]) -> Option<&'a str> {
        let below = file.strip_prefix(&*self.parent)?;
        below.first().map(String::as_str)
    }

    /// The layer of a child, counted from the top.
    pub(crate) fn rank(&self, child: &str) -> Option<usize> {
        self.order
            .iter()
            .position(|layer| layer.iter().any(|it| it == child))
    }

    /// The modules without a layer or with several, and layers without a module.
    pub(crate) fn mismatches(&self, name: &str, tree: &Tree) -> Vec<String> {
        let key = [&[name.to_owned()], &*self.parent].concat().join("::");
        let Some(parent) = tree.modules.iter().find(|it| it.path == self.parent) else {
            return vec![format!(
                "layers.toml orders {key}, but there is no such module; remove it"
            )];
        };
        let listed: Vec<&String> = self.order.iter().flatten().collect();
        let mut sentences = Vec::new();
        // A `mod name { … }` is a part of the parent's file, which is above all of its children.
        let has_file = |child: &usize| tree.modules[*child].file != parent.file;
        let children = parent.children.iter().filter(|(_, child)| has_file(child));
        let mut children: Vec<&String> = children.map(|(name, _)| name).collect();
        children.sort();
        for child in children {
            match listed.iter().filter(|it| **it == child).count() {
                0 => sentences.push(format!(
                    "layers.toml gives {key}::{child} no layer; add {child:?} to {key:?}"
                )),
                1 => {}
                _ => sentences.push(format!(
                    "layers.toml gives {key}::{child} several layers; keep one of them"
                )),
            }
        }
        for module in listed {
            if !parent.children.contains_key(module) {
                sentences.push(format!(
                    "layers.toml gives {key}::{module} a layer, but there is no such module; remove it"
                ));
            }
        }
        sentences
    }
}
