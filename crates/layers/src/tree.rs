//! The modules of one crate, from its sources, without code that is compiled for tests only.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::{Attribute, Item, ItemMod, Meta, ext::IdentExt};

use crate::condition::is_for_tests;
use crate::names::{Names, attributes};

/// The crate root's place in [`Tree::modules`].
pub(crate) const ROOT: usize = 0;

/// Every module of a crate.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The root first, each parent before its children.
    pub(crate) modules: Vec<Module>,
}

/// A module: a file, or a `mod name { … }` in one.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its names below the crate root.
    pub(crate) path: Vec<String>,
    /// Its file: for an inline module, that of the module around it.
    pub(crate) file: PathBuf,
    pub(crate) parent: Option<usize>,
    pub(crate) children: HashMap<String, usize>,
    pub(crate) names: Names,
}

impl Tree {
    /// Reads the crate whose root is `file`, a lib.rs or main.rs.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let mut tree = Self {
            modules: Vec::new(),
        };
        let directory = folder_of(file);
        tree.read_file(None, None, file, &directory)?;
        Ok(tree)
    }

    /// Reads a module's own file; files of its children are under `directory`.
    fn read_file(
        &mut self,
        parent: Option<usize>,
        name: Option<&str>,
        file: &Path,
        directory: &Path,
    ) -> Result<usize> {
        let text = fs::read_to_string(file)
            .with_context(|| format!("cannot read the module file {}", file.display()))?;
        let syntax = syn::parse_file(&text)
            .with_context(|| format!("cannot parse {} as Rust", file.display()))?;
        let index = self.add(parent, name, file);
        self.read_items(index, &syntax.items, directory)?;
        Ok(index)
    }

    fn add(&mut self, parent: Option<usize>, name: Option<&str>, file: &Path) -> usize {
        let mut path = parent.map_or_else(Vec::new, |parent| self.modules[parent].path.clone());
        path.extend(name.map(str::to_owned));
        self.modules.push(Module {
            path,
            file: file.to_owned(),
            parent,
            children: HashMap::new(),
            names: Names::default(),
        });
        self.modules.len() - 1
    }

    fn read_items(&mut self, module: usize, items: &[Item], directory: &Path) -> Result<()> {
        for item in items {
            if is_for_tests(attributes(item)) {
                continue;
            }
            if let Item::Mod(declared) = item {
                let name = declared.ident.unraw().to_string();
                let child = self.read_module(module, &name, declared, directory)?;
                self.modules[module].children.insert(name, child);
            } else {
                self.modules[module].names.collect(item);
            }
        }
        Ok(())
    }

    fn read_module(
        &mut self,
        parent: usize,
        name: &str,
        declared: &ItemMod,
        directory: &Path,
    ) -> Result<usize> {
        if let Some((_, items)) = &declared.content {
            let file = self.modules[parent].file.clone();
            let child = self.add(Some(parent), Some(name), &file);
            self.read_items(child, items, &directory.join(name))?;
            return Ok(child);
        }
        let (file, below) = match path_attribute(&declared.attrs) {
            Some(path) => {
                // Children of such a file are looked up as for a mod.rs.
                let own = folder_of(&self.modules[parent].file);
                let file = own.join(path);
                let below = folder_of(&file);
                (file, below)
            }
            None => {
                let flat = directory.join(format!("{name}.rs"));
                let below = directory.join(name);
                if flat.exists() {
                    (flat, below)
                } else {
                    (below.join("mod.rs"), below)
                }
            }
        };
        self.read_file(Some(parent), Some(name), &file, &below)
    }
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(text),
                    ..
                }) => Some(text.value()),
                _ => None,
            },
            _ => None,
        })
}

fn folder_of(file: &Path) -> PathBuf {
    file.parent().map(Path::to_owned).unwrap_or_default()
}
