//! Which file uses which.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::resolve::Target;
use crate::tree::Tree;

/// One file uses an item that another one defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrow {
    pub(crate) from: Vec<String>,
    pub(crate) to: Vec<String>,
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    /// The path as it is written.
    pub(crate) uses: String,
}

/// The first arrow from each file to each other one. A file goes by its module's path.
pub(crate) fn arrows(tree: &Tree) -> Vec<Arrow> {
    let mut first: BTreeMap<(usize, usize), Arrow> = BTreeMap::new();
    for (index, module) in tree.modules.iter().enumerate() {
        let mut draw = |path: &[String], line: usize, targets: BTreeSet<usize>| {
            for target in targets {
                let (from, to) = (file_of(tree, index), file_of(tree, target));
                if from == to {
                    continue;
                }
                let arrow = Arrow {
                    from: tree.modules[from].path.clone(),
                    to: tree.modules[to].path.clone(),
                    file: module.file.clone(),
                    line,
                    uses: path.join("::"),
                };
                let known = first.entry((from, to)).or_insert_with(|| arrow.clone());
                if arrow.line < known.line {
                    *known = arrow;
                }
            }
        };
        for import in &module.names.imports {
            let targets = tree.resolve(index, &import.path);
            // A module's name alone uses nothing of it: what is reached through the name does.
            let used = match import.name {
                Some(_) => items(targets),
                None => targets.into_iter().map(module_of).collect(),
            };
            draw(&import.path, import.line, used);
        }
        for mention in &module.names.mentions {
            let mut targets = tree.resolve(index, &mention.path);
            if let (true, true, [name]) = (targets.is_empty(), mention.is_macro, &*mention.path) {
                targets = tree.macros(name);
            }
            draw(&mention.path, mention.line, items(targets));
        }
    }
    first.into_values().collect()
}

fn items(targets: BTreeSet<Target>) -> BTreeSet<usize> {
    let items = targets
        .into_iter()
        .filter(|it| matches!(it, Target::Item(_)));
    items.map(module_of).collect()
}

fn module_of(target: Target) -> usize {
    match target {
        Target::Module(module) | Target::Item(module) => module,
    }
}

/// The module whose file holds `module`.
fn file_of(tree: &Tree, module: usize) -> usize {
    let mut module = module;
    while let Some(parent) = tree.modules[module].parent {
        if tree.modules[parent].file != tree.modules[module].file {
            break;
        }
        module = parent;
    }
    module
}
