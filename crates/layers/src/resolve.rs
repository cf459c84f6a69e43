//! Resolves a path to the module that defines its item.

use std::collections::{BTreeSet, HashSet};

use crate::tree::{ROOT, Tree};

/// The target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// A module itself.
    Module(usize),
    /// An item, or a part of an item, by the module that defines the item.
    Item(usize),
}

impl Tree {
    /// Resolves `path` in the module `from` and follows re-exports to the definition. The result is empty if
    /// the path leads out of the crate. A name can stand for a function and a module at once.
    pub(crate) fn resolve(&self, from: usize, path: &[String]) -> BTreeSet<Target> {
        self.follow(from, path, &mut HashSet::new())
    }

    /// The modules that define a macro of this name, which may be in textual scope.
    pub(crate) fn macros(&self, name: &str) -> BTreeSet<Target> {
        let modules = self.modules.iter().enumerate();
        let defining = modules.filter(|(_, module)| module.names.macros.contains(name));
        defining.map(|(index, _)| Target::Item(index)).collect()
    }

    fn follow(
        &self,
        from: usize,
        path: &[String],
        seen: &mut HashSet<(usize, String)>,
    ) -> BTreeSet<Target> {
        let Some((first, mut rest)) = path.split_first() else {
            return BTreeSet::new();
        };
        let mut here = match first.as_str() {
            "crate" => BTreeSet::from([Target::Module(ROOT)]),
            "self" => BTreeSet::from([Target::Module(from)]),
            "super" => BTreeSet::from([Target::Module(self.modules[from].parent.unwrap_or(ROOT))]),
            name => self.look_up(from, name, seen),
        };
        while let Some((name, after)) = rest.split_first() {
            // `::` can follow a module or a type, and a type ends the search.
            let modules: Vec<usize> = here
                .iter()
                .filter_map(|target| match target {
                    Target::Module(module) => Some(*module),
                    Target::Item(_) => None,
                })
                .collect();
            if modules.is_empty() {
                break;
            }
            here = BTreeSet::new();
            for module in modules {
                if name == "super" {
                    here.insert(Target::Module(self.modules[module].parent.unwrap_or(ROOT)));
                    continue;
                }
                let found = self.look_up(module, name, seen);
                if found.is_empty() && !self.imports_from_outside(module, name) {
                    // A macro may have generated the item.
                    here.insert(Target::Item(module));
                }
                here.extend(found);
            }
            rest = after;
        }
        here
    }

    /// Resolves `name` in the scope of `module`.
    fn look_up(
        &self,
        module: usize,
        name: &str,
        seen: &mut HashSet<(usize, String)>,
    ) -> BTreeSet<Target> {
        let mut found = BTreeSet::new();
        // Imports with `*` may form a circle.
        if !seen.insert((module, name.to_owned())) {
            return found;
        }
        let here = &self.modules[module];
        found.extend(here.children.get(name).map(|child| Target::Module(*child)));
        if here.names.defined.contains(name) {
            found.insert(Target::Item(module));
        }
        let named = || {
            here.names
                .imports
                .iter()
                .filter(|it| it.name.as_deref() == Some(name))
        };
        for import in named() {
            found.extend(self.follow(module, &import.path, seen));
        }
        if found.is_empty() && named().next().is_none() {
            for import in here.names.imports.iter().filter(|it| it.name.is_none()) {
                for target in self.follow(module, &import.path, seen) {
                    if let Target::Module(other) = target {
                        found.extend(self.look_up(other, name, seen));
                    }
                }
            }
        }
        seen.remove(&(module, name.to_owned()));
        found
    }

    fn imports_from_outside(&self, module: usize, name: &str) -> bool {
        let imports = &self.modules[module].names.imports;
        imports.iter().any(|it| it.name.as_deref() == Some(name))
    }
}
