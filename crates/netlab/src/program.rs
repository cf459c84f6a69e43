//! Programs that may or may not be installed.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Debian does not have these in the search path of a plain user, though `ip`, `haproxy` and `nginx` are
/// there.
const ADMINISTRATION: [&str; 2] = ["/usr/sbin", "/sbin"];

/// The path of a program, or `None` if it is not installed.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(ADMINISTRATION.iter().map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|entry| entry.is_file() && entry.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::program;

    #[test]
    fn an_installed_program_is_found_and_an_invented_one_is_not() {
        assert!(program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(program("no-such-program-anywhere"), None);
    }
}
