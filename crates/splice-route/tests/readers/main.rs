//! Readers against chance: whatever comes, they keep their word, and agree with another implementation.

mod corpus;
mod oracle;
mod random;

use std::path::{Path, PathBuf};

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(name)
}

/// The contents of the files with the extension `bin`, in the order of their names.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| {
        panic!("cannot list {}: {error}", directory.display());
    });
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|it| it == "bin"))
        .map(|path| {
            let name = path
                .file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            (name, std::fs::read(path).expect("a readable file"))
        })
        .collect();
    files.sort();
    files
}
