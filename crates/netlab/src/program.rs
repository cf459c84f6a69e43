//! Programs that may or may not be installed.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Debian keeps these out of the search path of a plain user, though `ip`, `haproxy` and `nginx`
/// live there.
const ADMINISTRATION: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Where the program called `name` is, or `None` when it is not installed.
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
    fn finds_a_shell_and_nothing_invented() {
        assert!(program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(program("no-such-program-anywhere"), None);
    }
}
