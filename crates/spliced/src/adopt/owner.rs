//! A process that owns a socket, as `/proc` shows it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use rustix::io::Errno;

/// The fifth byte of an ELF file, which says how wide addresses are, for 64 bits (`ELFCLASS64`).
const ELF_64_BIT: u8 = 2;
const ELF_CLASS_AT: u64 = 4;

/// An epoll instance of a process that watches a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    /// The number of the epoll instance.
    pub(super) epoll: u32,
    pub(super) events: u32,
    pub(super) data: u64,
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner(pub(super) u32);

impl Owner {
    /// Its number and name.
    pub(super) fn name(self) -> String {
        format!("the process {} ({})", self.0, self.command())
    }

    /// Its name alone, which may be that of its first thread (`/proc/PID/comm`).
    pub(super) fn command(self) -> String {
        let name = self.read("comm").unwrap_or_default();
        name.trim_end().into()
    }

    /// Refuses processes into which a system call cannot be put safely.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn refuse_unfit(self) -> Result<()> {
        let status = self
            .read("status")
            .with_context(|| format!("there is no process {}", self.0))?;
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.map(str::trim).unwrap_or_default()
        };
        let name = self.name();
        if self.0 == std::process::id() {
            bail!("the process {} is spliced itself; name another one", self.0);
        }
        if field("Tgid:") != self.0.to_string() {
            bail!(
                "{} is a thread of the process {}; name that one",
                self.0,
                field("Tgid:")
            );
        }
        if field("Kthread:") == "1" {
            bail!("{name} is a thread of the kernel");
        }
        if !matches!(field("TracerPid:"), "0" | "") {
            let tracer = field("TracerPid:");
            bail!("{name} is traced by the process {tracer} already; end that first");
        }
        match field("State:").chars().next() {
            Some('Z' | 'X') => bail!("{name} has ended"),
            Some('T') => bail!(
                "{name} is stopped; continue it first (kill -CONT {})",
                self.0
            ),
            _ => {}
        }
        if !matches!(field("Seccomp:"), "0" | "") {
            bail!(
                "{name} filters its system calls (seccomp), and the filter might end it at a call that is not its own"
            );
        }
        let mut class = [0];
        let is_64_bit = fs::File::open(self.path("exe"))
            .and_then(|exe| exe.read_exact_at(&mut class, ELF_CLASS_AT))
            .map(|()| class == [ELF_64_BIT]);
        match is_64_bit {
            Ok(true) => {}
            Ok(false) => bail!("{name} is a program of 32 bits"),
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot look at {name}; run spliced as the same user, or with CAP_SYS_PTRACE")
                });
            }
        }
        let links = self.links().with_context(|| {
            format!("what {name} has open cannot be found out; run spliced as the same user, or with CAP_SYS_PTRACE")
        })?;
        let is_ring = |(_, link): &(u32, String)| link == "anon_inode:[io_uring]";
        if links.iter().any(is_ring) {
            bail!("{name} uses io_uring, which may have requests on the socket itself");
        }
        Ok(())
    }

    /// The inode of the socket that is open as `number`.
    pub(super) fn inode(self, number: u32) -> Option<u64> {
        socket_inode(
            fs::read_link(self.path(&format!("fd/{number}")))
                .ok()?
                .to_str()?,
        )
    }

    /// Whether the descriptor is closed by execve(2).
    ///
    /// # Errors
    /// If there is no such descriptor.
    pub(super) fn closes_on_exec(self, number: u32) -> Result<bool> {
        // `O_CLOEXEC` of asm-generic/fcntl.h, which proc_pid_fdinfo(5) shows in octal.
        const CLOEXEC: u32 = 0o2_000_000;
        let info = self.read(&format!("fdinfo/{number}"))?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        Ok(flags.is_some_and(|flags| flags & CLOEXEC != 0))
    }

    /// Refuses a socket that has a second descriptor, here or in another process: its owner might go on reading there.
    ///
    /// # Errors
    /// Where the socket is open, too.
    pub(super) fn refuse_shared(self, number: u32, places: &[(Self, u32)]) -> Result<()> {
        match places.iter().find(|place| **place != (self, number)) {
            None => Ok(()),
            Some((other, open_as)) => bail!(
                "the socket {number} of {} is open as {open_as} of {}, too; close that descriptor first",
                self.name(),
                other.name()
            ),
        }
    }

    /// The epoll instances of the process that watch a socket.
    ///
    /// # Errors
    /// If one watches the socket by another number than `number`: the kernel offers no way to end that.
    pub(super) fn registrations(self, number: u32, inode: u64) -> Result<Vec<Registration>> {
        let mut found = Vec::new();
        let links = self
            .links()
            .with_context(|| format!("cannot look at {}", self.name()))?;
        for (epoll, _) in links
            .iter()
            .filter(|(_, link)| link == "anon_inode:[eventpoll]")
        {
            let info = self.read(&format!("fdinfo/{epoll}"))?;
            for watched in info.lines().filter_map(Watched::of_line) {
                if watched.inode != inode {
                    continue;
                }
                if watched.number == number {
                    found.push(Registration {
                        epoll: *epoll,
                        events: watched.events,
                        data: watched.data,
                    });
                } else if self.inode(watched.number) != Some(inode) {
                    bail!(
                        "{} watches the socket {number} as {}, which it has closed since",
                        self.name(),
                        watched.number
                    );
                }
            }
        }
        Ok(found)
    }

    /// The numbers of its sockets, each with its inode.
    ///
    /// # Errors
    /// If they cannot be looked at.
    pub(super) fn sockets(self) -> io::Result<Vec<(u32, u64)>> {
        let links = self.links()?.into_iter();
        let mut sockets: Vec<_> = links
            .filter_map(|(number, link)| Some((number, socket_inode(&link)?)))
            .collect();
        sockets.sort_unstable();
        Ok(sockets)
    }

    /// The numbers of its threads.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn threads(self) -> io::Result<Vec<i32>> {
        numbers(self.path("task"))
    }

    /// Whether a thread has ended, although it may not have gone yet.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub(super) fn has_ended(self, thread: i32) -> io::Result<bool> {
        let stat = match self.read(&format!("task/{thread}/stat")) {
            Err(error) if is_gone(&error) => return Ok(true),
            stat => stat?,
        };
        let state = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        Ok(matches!(state, Some('Z' | 'X') | None))
    }

    /// Whether this thread traces one of the process.
    pub(super) fn is_traced_here(self, thread: i32) -> bool {
        let status = self.read(&format!("task/{thread}/status"));
        let line = format!("TracerPid:\t{}", nix::unistd::gettid());
        status.is_ok_and(|status| status.lines().any(|found| found == line))
    }

    pub(super) fn path(self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.0).into()
    }

    fn read(self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        fs::File::open(self.path(name))?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// What each descriptor is, by its number. Those that are closed meanwhile may be missing.
    ///
    /// # Errors
    /// If one of them cannot be looked at: it may be the one that matters.
    fn links(self) -> io::Result<Vec<(u32, String)>> {
        let mut links = Vec::new();
        for number in numbers(self.path("fd"))? {
            match fs::read_link(self.path(&format!("fd/{number}"))) {
                Ok(link) => links.push((number, link.to_string_lossy().into_owned())),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(links)
    }
}

/// All processes but this one.
///
/// # Errors
/// If `/proc` cannot be read.
pub(super) fn processes() -> Result<Vec<Owner>> {
    let processes = numbers("/proc").context("cannot read /proc")?;
    let is_other = |number: &u32| *number != std::process::id();
    Ok(processes.into_iter().filter(is_other).map(Owner).collect())
}

/// Where a socket is open, as far as this user may look.
///
/// # Errors
/// If a process cannot be looked at for another reason than that it has ended.
pub(super) fn places(inode: u64, among: &[Owner]) -> Result<Vec<(Owner, u32)>> {
    Ok(all_places(among)?.remove(&inode).unwrap_or_default())
}

/// All sockets that are open in processes, as far as this user may look.
///
/// # Errors
/// As [`places`].
pub(super) fn all_places(among: &[Owner]) -> Result<BTreeMap<u64, Vec<(Owner, u32)>>> {
    let mut all: BTreeMap<u64, Vec<_>> = BTreeMap::new();
    for process in among {
        let links = if_visible(process.links())
            .with_context(|| format!("cannot look at {}", process.name()))?;
        for (number, link) in links {
            if let Some(inode) = socket_inode(&link) {
                all.entry(inode).or_default().push((*process, number));
            }
        }
    }
    Ok(all)
}

/// The entries of a directory whose names are numbers.
fn numbers<N: FromStr>(path: impl AsRef<Path>) -> io::Result<Vec<N>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(path)? {
        numbers.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok()),
        );
    }
    Ok(numbers)
}

fn is_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::SRCH)
    )
}

/// Nothing of a process that has ended, or that this user may not look at.
///
/// # Errors
/// Those that say nothing about the process.
fn if_visible(links: io::Result<Vec<(u32, String)>>) -> io::Result<Vec<(u32, String)>> {
    match links.as_ref().map_err(Errno::from_io_error) {
        Err(Some(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM)) => Ok(Vec::new()),
        _ => links,
    }
}

/// What an epoll instance watches: a line of its fdinfo (`ep_show_fdinfo`).
#[derive(Debug, PartialEq, Eq)]
struct Watched {
    number: u32,
    events: u32,
    data: u64,
    inode: u64,
}

impl Watched {
    fn of_line(line: &str) -> Option<Self> {
        let words: Vec<_> = line
            .split([' ', ':'])
            .filter(|word| !word.is_empty())
            .collect();
        let field = |name| {
            let at = words.iter().position(|word| *word == name)?;
            words.get(at + 1).copied()
        };
        Some(Self {
            number: field("tfd")?.parse().ok()?,
            events: u32::from_str_radix(field("events")?, 16).ok()?,
            data: u64::from_str_radix(field("data")?, 16).ok()?,
            inode: u64::from_str_radix(field("ino")?, 16).ok()?,
        })
    }
}

fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_looked_at_for_want_of_descriptors_may_share_the_socket() {
        let looked = |errno: Errno| if_visible(Err(errno.into())).map(|links| links.len());
        for errno in [Errno::NOENT, Errno::SRCH, Errno::ACCESS, Errno::PERM] {
            assert_eq!(looked(errno).ok(), Some(0), "{errno}");
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO] {
            assert!(looked(errno).is_err(), "{errno}");
        }
    }

    #[test]
    fn a_line_of_an_epoll_instance_is_read() {
        let line = "tfd:        5 events: 80002019 data: 7f0000000009  pos:0 ino:2a sdev:9";
        let watched = Watched {
            number: 5,
            events: 0x8000_2019,
            data: 0x7f00_0000_0009,
            inode: 42,
        };
        assert_eq!(Watched::of_line(line), Some(watched));
        assert_eq!(Watched::of_line("flags:\t02000002"), None);
    }
}
