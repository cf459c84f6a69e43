//! The control sockets of this host that this user may ask.
//!
//! Sockets in the usual directories are found by their names. Others, as those with a path of their own or those behind
//! another root directory, are found by what the kernel lists: each was bound at its path and a suffix ([`path_of_bound`]).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::directories;
use super::name::{is_of_process, path_of_bound};

/// The sockets of all processes that this user can see, each once; of those that run the configuration `wanted`, if it is
/// given, and of those of which that is not known.
pub(crate) fn all(wanted: Option<&Path>) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut all = in_directories();
    all.extend(listed());
    all.retain(|path| {
        fs::metadata(path).is_ok_and(|found| {
            found.file_type().is_socket() && seen.insert((found.dev(), found.ino()))
        })
    });
    if let Some(wanted) = wanted {
        // Whoever is asked in vain has to answer, and may be slow.
        all.retain(|path| process_of(path).is_none_or(|process| may_run(&process, wanted)));
    }
    all
}

fn in_directories() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for directory in directories::to_look_in() {
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_of_process));
        all.extend(named.map(|entry| entry.path()));
    }
    all.sort();
    all
}

/// The process that has a socket with its number as the name, unless another PID namespace has given that.
fn process_of(socket: &Path) -> Option<PathBuf> {
    let stem = socket.file_name()?.to_str()?.strip_suffix(".sock")?;
    let id: u32 = stem.parse().ok()?;
    let process = Path::new("/proc").join(id.to_string());
    let name = fs::read_to_string(process.join("comm")).ok()?;
    // It has another root directory if the path leads through that of a process.
    (name.trim_end() == "spliced" && !socket.starts_with("/proc")).then_some(process)
}

/// Whether the process may run the configuration `wanted`, by its arguments.
fn may_run(process: &Path, wanted: &Path) -> bool {
    let Ok(arguments) = fs::read(process.join("cmdline")) else {
        return true;
    };
    let mut arguments = arguments.split(|byte| *byte == 0).map(OsStr::from_bytes);
    let mut named = None;
    while let Some(argument) = arguments.next() {
        let bytes = argument.as_bytes();
        if bytes == b"--config" {
            named = arguments.next().map(Path::new);
        } else if let Some(value) = bytes.strip_prefix(b"--config=") {
            named = Some(Path::new(OsStr::from_bytes(value)));
        }
    }
    let Some(named) = named else {
        return false;
    };
    let named = match (named.is_absolute(), fs::read_link(process.join("cwd"))) {
        (true, _) => named.to_owned(),
        (false, Ok(directory)) => directory.join(named),
        // It is hidden from users who may not trace the process.
        (false, Err(_)) => return true,
    };
    std::path::absolute(wanted).is_ok_and(|wanted| wanted == named)
        || match (fs::canonicalize(wanted), fs::canonicalize(named)) {
            (Ok(wanted), Ok(named)) => wanted == named,
            _ => false,
        }
}

/// Those that the kernel lists: in this network namespace, and in those of other processes that are called spliced.
fn listed() -> Vec<PathBuf> {
    let mut all = bound("/proc/self/net/unix");
    let mut seen = BTreeSet::from([here()]);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.map(|entry| entry.path()) {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        if name.trim_end() != "spliced" || !seen.insert(place_of(&process)) {
            continue;
        }
        let root = process.join("root");
        for path in bound(process.join("net/unix")) {
            if let Ok(path) = path.strip_prefix("/") {
                all.push(root.join(path));
            }
        }
    }
    all
}

/// Where paths of a process lead, and which sockets it sees.
type PlaceOfProcess = [Option<PathBuf>; 3];

fn here() -> PlaceOfProcess {
    place_of(Path::new("/proc/self"))
}

/// All of it is hidden from users who may not trace the process.
fn place_of(process: &Path) -> PlaceOfProcess {
    ["root", "ns/mnt", "ns/net"].map(|name| fs::read_link(process.join(name)).ok())
}

/// The paths of control sockets in a list of the kernel.
fn bound(list: impl AsRef<Path>) -> Vec<PathBuf> {
    let text = fs::read(list).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let paths = text.lines().filter_map(|line| {
        // `unix_seq_show`: the path is the last field, and begins with a slash.
        let (_, path) = line.split_once(" /")?;
        path_of_bound(&format!("/{path}"))
    });
    paths.collect()
}
