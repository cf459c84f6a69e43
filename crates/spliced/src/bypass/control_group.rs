//! Control groups: which may be covered, and what they are called.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2: rustix::fs::FsWord = 0x6367_7270;

/// How many hexadecimal digits the name of a container has.
const CONTAINER_DIGITS: usize = 64;

/// As many as container engines show.
const SHORT_DIGITS: usize = 12;

/// The directory of a group that may be covered, as its canonical path.
///
/// # Errors
/// Why it may not, in a sentence.
pub(crate) fn check(path: &Path, all: bool) -> Result<PathBuf, String> {
    let shown = path.display();
    let canonical = fs::canonicalize(path).map_err(|error| {
        format!("the control group {shown} cannot be used ({error}); name its directory")
    })?;
    let kind = rustix::fs::statfs(&canonical).map(|of| of.f_type);
    if kind != Ok(CGROUP2) || !canonical.is_dir() {
        return Err(format!(
            "{shown} is no directory of a control group of version 2; 'mount -t cgroup2' shows where those are"
        ));
    }
    // The root has no type.
    if !all && !canonical.join("cgroup.type").exists() {
        return Err(format!(
            "{shown} is the root of all control groups: with it every process of this host is covered; say so with --all \
             (all = true), or name the groups"
        ));
    }
    Ok(canonical)
}

/// The directories of all groups, by their numbers.
pub(super) fn by_number() -> HashMap<u64, String> {
    let mut found = HashMap::new();
    for root in mounted() {
        visit(&root, &root, &mut found);
    }
    found
}

/// The directory of the group that this process is in.
pub(super) fn own() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let all = mounted().into_iter().map(|root| root.join(path));
    all.into_iter().find(|path| path.is_dir())
}

/// Where file systems of control groups are mounted.
pub(crate) fn mounted() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // mountinfo(5): the fifth field is the place, and the kind of file system is behind a dash.
    let places = mounts.lines().filter_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ")
            .then(|| fields.split(' ').nth(4).map(PathBuf::from))?
    });
    places.collect()
}

fn visit(root: &Path, directory: &Path, found: &mut HashMap<u64, String>) {
    let Ok(metadata) = fs::metadata(directory) else {
        return;
    };
    let name = directory.strip_prefix(root).unwrap_or(directory);
    found.insert(metadata.ino(), format!("/{}", name.display()));
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|of| of.is_dir()) {
            visit(root, &entry.path(), found);
        }
    }
}

/// The container that a group belongs to, as Docker, containerd, CRI-O, podman and Kubernetes name theirs: 64 hexadecimal
/// digits, of which the first are shown.
pub(super) fn container(group: &str) -> Option<String> {
    let is_hexadecimal = |of: &char| of.is_ascii_hexdigit();
    group.rsplit('/').find_map(|part| {
        let words = part.split(|of: char| !is_hexadecimal(&of));
        let mut whole = words.filter(|word| word.len() == CONTAINER_DIGITS);
        whole.next().map(|word| word[..SHORT_DIGITS].to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_in_the_names_of_groups() {
        let digits = "0123456789abcdef".repeat(4);
        for group in [
            format!("/docker/{digits}"),
            format!("/system.slice/docker-{digits}.scope"),
            format!("/machine.slice/libpod-{digits}.scope/container"),
            format!("/kubepods/burstable/pod8c6a/{digits}"),
            format!("/kubepods.slice/kubepods-pod8c6a_1.slice/cri-containerd-{digits}.scope"),
            format!("/kubepods.slice/crio-{digits}.scope"),
        ] {
            assert_eq!(
                container(&group).as_deref(),
                Some("0123456789ab"),
                "{group}"
            );
        }
        for group in [
            "/",
            "/system.slice/ssh.service",
            "/user.slice/user-1000.slice",
        ] {
            assert_eq!(container(group), None, "{group}");
        }
    }

    #[test]
    fn the_root_is_covered_only_if_that_is_said() {
        // In a container the mounted one is no root.
        let is_root = |path: &PathBuf| !path.join("cgroup.type").exists();
        for root in mounted().into_iter().filter(is_root) {
            let refused = check(&root, false).expect_err("the root");
            assert!(refused.contains("--all"), "{refused}");
            assert_eq!(
                check(&root, true),
                fs::canonicalize(&root).map_err(|error| error.to_string())
            );
        }
    }

    #[test]
    fn what_is_no_group_is_refused() {
        for path in ["/", "/nowhere", "/etc/passwd"] {
            let refused = check(Path::new(path), true).expect_err("no group");
            assert!(refused.contains(path), "{refused}");
        }
    }
}
