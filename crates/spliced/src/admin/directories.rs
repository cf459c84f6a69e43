//! Where control sockets are if nobody says where.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

/// The directories in which a process of this user may have its socket, the best one first.
pub(super) fn of_this_user() -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from);
    of(geteuid().as_raw(), of_unit(), variable("XDG_RUNTIME_DIR"))
}

/// The directory that systemd has made for the unit of this process.
pub(super) fn of_unit() -> Option<PathBuf> {
    // It lists all directories of a unit, with colons between them.
    let all = env::var("RUNTIME_DIRECTORY").ok()?;
    let first = all.split(':').next().map(PathBuf::from);
    first.filter(|path| path.is_absolute())
}

fn of(user: u32, of_unit: Option<PathBuf>, of_session: Option<PathBuf>) -> Vec<PathBuf> {
    let shared = PathBuf::from("/run/spliced");
    let last = PathBuf::from(format!("/tmp/spliced-{user}"));
    let absolute = |path: &PathBuf| path.is_absolute();
    let mut all: Vec<_> = of_unit.filter(absolute).into_iter().collect();
    if user != 0 {
        // What root has from a session is another user's, or goes with the session.
        all.extend(of_session.filter(absolute).map(|path| path.join("spliced")));
        all.push(PathBuf::from(format!("/run/user/{user}/spliced")));
    }
    all.extend([shared, last]);
    let mut seen = Vec::new();
    for path in all {
        if !seen.contains(&path) {
            seen.push(path);
        }
    }
    seen
}

/// The directories in which processes may have their sockets that this user may ask: root may ask everybody's.
pub(super) fn to_look_in() -> Vec<PathBuf> {
    let user = geteuid();
    let mut all = of_this_user();
    if user.is_root() {
        let below = |directory: &str| {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.path())
        };
        all.extend(below("/run/user").map(|path| path.join("spliced")));
        all.extend(below("/tmp").filter(|path| is_last_resort(path)));
    }
    // Anybody can make a directory in /tmp with the name that another user's would have.
    all.retain(|path| {
        !is_last_resort(path)
            || fs::symlink_metadata(path).is_ok_and(|found| {
                found.is_dir() && (user.is_root() || found.uid() == user.as_raw())
            })
    });
    all
}

fn is_last_resort(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent() == Some(Path::new("/tmp"))
        && name.is_some_and(|name| name.starts_with("spliced-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_directories_in_order() {
        let given = |path: &str| Some(PathBuf::from(path));
        let all = |user, unit, session| {
            let all = of(user, unit, session);
            let all: Vec<_> = all.iter().filter_map(|path| path.to_str()).collect();
            all.join(" ")
        };
        assert_eq!(all(0, None, None), "/run/spliced /tmp/spliced-0");
        // As sudo -E leaves it.
        assert_eq!(
            all(0, None, given("/run/user/1000")),
            "/run/spliced /tmp/spliced-0"
        );
        assert_eq!(
            all(1000, None, given("/run/user/1000")),
            "/run/user/1000/spliced /run/spliced /tmp/spliced-1000"
        );
        assert_eq!(
            all(999, given("/run/web"), None),
            "/run/web /run/user/999/spliced /run/spliced /tmp/spliced-999"
        );
        assert_eq!(
            all(999, given("relative"), given("")),
            "/run/user/999/spliced /run/spliced /tmp/spliced-999"
        );
    }
}
