//! The control group of this process.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The directory of this process's control group.
pub(crate) fn directory() -> Result<PathBuf> {
    let read = |path: &str| fs::read_to_string(path).with_context(|| format!("cannot read {path}"));
    let (mounts, groups) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
    mounted_at(&mounts, &groups).context("no control groups of version 2 are mounted")
}

/// From the text of `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn mounted_at(mounts: &str, groups: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        // Before " - ": number, parent, device, what of it is mounted, and where (proc_pid_mountinfo(5)).
        let (mount, kind) = line.split_once(" - ")?;
        if kind.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some(Path::new(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
33 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:7 - cgroup2 cgroup2 rw";

    #[test]
    fn finds_the_directory_where_the_hierarchy_is_mounted() {
        let found =
            |mounts, groups| mounted_at(mounts, groups).map(|path| path.display().to_string());
        let root = "/sys/fs/cgroup/unified".to_owned();
        assert_eq!(
            found(MOUNTS, "4:memory:/m\n0::/a.slice/b"),
            Some(root.clone() + "/a.slice/b")
        );
        assert_eq!(found(MOUNTS, "0::/"), Some(root.clone() + "/"));
        assert_eq!(found(MOUNTS, "4:memory:/m"), None);
        let part = MOUNTS.replace("0:38 / ", "0:38 /a.slice ");
        assert_eq!(found(&part, "0::/a.slice/b"), Some(root + "/b"));
        assert_eq!(found(&part, "0::/other"), None);
        assert_eq!(found("", "0::/"), None);
    }
}
