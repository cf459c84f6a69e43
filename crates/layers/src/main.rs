//! Checks that no module of this workspace imports from a layer above its own.
//!
//! - `layers` checks every crate in `layers.toml`.
//! - `layers NAME...` checks these crates; without an order, only for cycles.
//! - `layers --arrows NAME` lists which file of a crate uses which.
//!
//! The tool reads the syntax only: a method call names no module, so it draws no arrow.

mod arrows;
mod condition;
mod declaration;
mod names;
mod resolve;
mod rule;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use arrows::arrows;
use declaration::Declaration;
use tree::Tree;

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [option, name] = &*arguments
        && option == "--arrows"
    {
        for tree in read(Path::new("."), name)? {
            for arrow in arrows(&tree) {
                let (from, to) = (arrow.from.join("::"), arrow.to.join("::"));
                println!(
                    "{from} -> {to}  {}:{} {}",
                    arrow.file.display(),
                    arrow.line,
                    arrow.uses
                );
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let sentences = check(Path::new("."), &arguments)?;
    for sentence in &sentences {
        eprintln!("{sentence}");
    }
    Ok(if sentences.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Checks the crates of these names below `workspace`, or all. Returns a sentence for each violation.
fn check(workspace: &Path, names: &[String]) -> Result<Vec<String>> {
    let declaration = Declaration::read(&workspace.join("layers.toml"))?;
    let mut sentences = Vec::new();
    let names: BTreeSet<String> = if names.is_empty() {
        let declared: BTreeSet<&str> = declaration.crates().collect();
        for name in crates(workspace)?
            .iter()
            .filter(|name| !declared.contains(&***name))
        {
            sentences.push(format!(
                "layers.toml does not order the modules of {name}; add {name:?} to it"
            ));
        }
        let checked = declared
            .iter()
            .filter(|name| !declaration.unchecked.iter().any(|it| it == *name));
        checked.map(|name| (*name).to_owned()).collect()
    } else {
        names.iter().cloned().collect()
    };
    for name in &names {
        let layers = declaration.of(name);
        for tree in read(workspace, name)? {
            sentences.extend(layers.iter().flat_map(|it| it.mismatches(name, &tree)));
            sentences.extend(rule::broken(&arrows(&tree), &layers));
        }
    }
    Ok(sentences)
}

/// The names of the folders in `crates`.
fn crates(workspace: &Path) -> Result<Vec<String>> {
    let folder = workspace.join("crates");
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
        if entry.path().join("Cargo.toml").exists() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The trees of the crate's library and program.
fn read(workspace: &Path, name: &str) -> Result<Vec<Tree>> {
    // Paths in messages are relative to the workspace's root.
    let source = if workspace == Path::new(".") {
        PathBuf::new()
    } else {
        workspace.to_owned()
    };
    let source = source.join("crates").join(name).join("src");
    let roots = ["lib.rs", "main.rs"].map(|root| source.join(root));
    let trees = roots
        .iter()
        .filter(|root| root.exists())
        .map(|root| Tree::read(root));
    let trees: Vec<Tree> = trees.collect::<Result<_>>()?;
    if trees.is_empty() {
        bail!(
            "{} has neither lib.rs nor main.rs; is {name} a crate?",
            source.display()
        );
    }
    Ok(trees)
}
