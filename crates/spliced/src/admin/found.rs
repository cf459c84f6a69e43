//! The control sockets of this host that this user may ask.
//!
//! Sockets in the usual directories are found by their names. Others, as those with a path of their own or those behind
//! another root directory, are found by what the kernel lists: each was bound at its path and a suffix ([`path_of_bound`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, open, openat, openat2};
use rustix::io::Errno;

use super::control_socket::ControlSocket;
use super::directories;
use super::facts::inode;
use super::name::{is_of_process, path_of_bound};

/// The most sockets of another user, who could make a command run out of descriptors.
const OF_ANOTHER_MOST: u32 = 256;

/// The sockets of all processes that this user can see, each once; of those that run the configuration `wanted`, if it is
/// given, and of those of which that is not known.
pub(crate) fn all(wanted: Option<&Path>) -> Vec<ControlSocket> {
    let mut seen = BTreeSet::new();
    let mut of_others = BTreeMap::<_, u32>::new();
    let mut all = Vec::new();
    let mut add = |found: ControlSocket| {
        if !seen.insert(found.identity()) {
            return;
        }
        if found.is_anothers() {
            let count = of_others.entry(found.owner()).or_default();
            *count += 1;
            if *count > OF_ANOTHER_MOST {
                return;
            }
        }
        // Whoever is asked in vain has to answer, and may be slow.
        let asks = |wanted| process_of(&found.path).is_none_or(|it| may_run(&it, wanted));
        if wanted.is_none_or(asks) {
            all.push(found);
        }
    };
    in_directories(&mut add);
    listed(&mut add);
    all
}

fn in_directories(add: &mut impl FnMut(ControlSocket)) {
    for directory in directories::to_look_in() {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(handle) = open(&directory, flags, Mode::empty()) else {
            continue;
        };
        let entries = Dir::read_from(&handle).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_owned());
        let of_process = names.filter(|name| name.to_str().is_ok_and(is_of_process));
        let mut names: Vec<_> = of_process.collect();
        names.sort();
        for name in names {
            let path = directory.join(OsStr::from_bytes(name.as_bytes()));
            if let Ok(pin) = openat(&handle, name, PIN, Mode::empty()) {
                ControlSocket::found(path, pin).map(&mut *add);
            }
        }
    }
}

/// Of a file itself, not of what it leads to.
const PIN: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The process that has a socket with its number as the name, unless another PID namespace has given that, or it has another
/// root directory.
fn process_of(socket: &Path) -> Option<PathBuf> {
    let stem = socket.file_name()?.to_str()?.strip_suffix(".sock")?;
    let id: u32 = stem.parse().ok()?;
    let process = Path::new("/proc").join(id.to_string());
    let name = fs::read_to_string(process.join("comm")).ok()?;
    // What it names would be another file elsewhere.
    let is_here = place_of(&process)[..2] == here()[..2];
    (name.trim_end() == "spliced" && is_here).then_some(process)
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
    match (inode(wanted), inode(&named)) {
        (Ok(wanted), Ok(named)) => wanted == named,
        _ => true,
    }
}

/// Those that the kernel lists: in this network namespace, and in those of other processes that are called spliced.
fn listed(add: &mut impl FnMut(ControlSocket)) {
    add_bound("/proc/self/net/unix", Path::new("/"), add);
    let mut seen = BTreeSet::from([here()]);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.map(|entry| entry.path()) {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        if name.trim_end() != "spliced" || !seen.insert(place_of(&process)) {
            continue;
        }
        add_bound(process.join("net/unix"), &process.join("root"), add);
    }
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

/// The control sockets in a list of the kernel, of a process with this root directory.
fn add_bound(list: impl AsRef<Path>, root: &Path, add: &mut impl FnMut(ControlSocket)) {
    let text = fs::read(list).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(handle) = open(root, flags, Mode::empty()) else {
        return;
    };
    for line in text.lines() {
        // `unix_seq_show`: the path is the last field, and begins with a slash.
        let Some((_, path)) = line.split_once(" /") else {
            continue;
        };
        if let Some(path) = path_of_bound(path)
            && let Ok(pin) = pin_below(&handle, root, &path)
        {
            ControlSocket::found(root.join(path), pin).map(&mut *add);
        }
    }
}

/// Whatever links are on the way, they lead to nothing outside of `root`.
fn pin_below(handle: &OwnedFd, root: &Path, path: &Path) -> rustix::io::Result<OwnedFd> {
    match openat2(handle, path, PIN, Mode::empty(), ResolveFlags::IN_ROOT) {
        // A filter of system calls may not know it.
        Err(Errno::NOSYS | Errno::PERM) => openat(CWD, root.join(path), PIN, Mode::empty()),
        opened => opened,
    }
}
