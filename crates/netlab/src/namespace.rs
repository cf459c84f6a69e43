//! A network namespace.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::panic;
use std::path::PathBuf;
use std::process::{self, Command};
use std::thread;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::Process;
use crate::ip::ip;
use crate::registry::{self, Leftover, NAMESPACES};

/// A network namespace with its loopback up, removed on drop.
///
/// A socket belongs to the namespace in which it was created: a socket that [`enter`](Self::enter) returns
/// works on any thread.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    link: File,
}

impl Namespace {
    /// Creates one; `role` becomes the last part of its name.
    pub fn new(role: &str) -> Result<Self> {
        let name = registry::unique_name(role);
        registry::create(Leftover::Namespace(name.clone()), || {
            ip(&["netns", "add", &name])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])
        })?;
        let path = PathBuf::from(NAMESPACES).join(&name);
        match File::open(&path) {
            Ok(link) => Ok(Self { name, link }),
            Err(error) => {
                registry::remove(&Leftover::Namespace(name));
                Err(error).with_context(|| format!("cannot open {}", path.display()))
            }
        }
    }

    /// Its name, as `ip netns` lists it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `work` on a new thread inside this namespace and waits for it. Threads that `work` starts are
    /// inside as well. A panic of `work` becomes a panic of the caller.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let joined = thread::scope(|scope| {
            thread::Builder::new()
                .name(format!("in {}", self.name))
                .spawn_scoped(scope, || {
                    let kind = Some(LinkNameSpaceType::Network);
                    move_into_link_name_space(self.link.as_fd(), kind).map(|()| work())
                })
                .map(|thread| thread.join())
        });
        joined
            .context("cannot start a thread for a namespace")?
            .unwrap_or_else(|panic| panic::resume_unwind(panic))
            .with_context(|| format!("cannot enter the namespace {}: this needs root", self.name))
    }

    /// A command that runs `program` inside this namespace and is killed when the thread that
    /// spawned it ends; see [`Process`].
    pub fn command(&self, program: &str) -> Command {
        let mut command = Process::command("nsenter");
        // By its descriptor, which it has without a name as well.
        let (process, link) = (process::id(), self.link.as_raw_fd());
        command
            .arg(format!("--net=/proc/{process}/fd/{link}"))
            .arg("--")
            .arg(program);
        command
    }

    /// Removes its name, as `ip netns delete` does. It lives on as long as this does, or a process that is in it.
    pub fn unname(&self) {
        registry::remove(&Leftover::Namespace(self.name.clone()));
    }

    /// Sets a sysctl of this namespace, such as `net.ipv4.tcp_timestamps`.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<()> {
        let path = sysctl_path(name);
        // A file below /proc/sys/net belongs to the namespace of the thread that opens it.
        self.enter(|| fs::write(&path, value))?
            .with_context(|| format!("cannot set {name} to {value} in {}", self.name))
    }

    /// Reads a sysctl of this namespace; `None` if this kernel does not have it.
    pub fn sysctl(&self, name: &str) -> Result<Option<String>> {
        let path = sysctl_path(name);
        Ok(self
            .enter(|| fs::read_to_string(&path))?
            .ok()
            .map(|text| text.trim_end().into()))
    }

    /// One of the TCP counters of this namespace that `netstat --statistics` shows (`TcpExt:` in
    /// `/proc/net/netstat`), by the kernel's name.
    pub fn tcp_counter(&self, name: &str) -> Result<u64> {
        // `/proc/net` belongs to the process, which is in another namespace.
        let path = "/proc/thread-self/net/netstat";
        let text = self
            .enter(|| fs::read_to_string(path))?
            .with_context(|| format!("cannot read {path} in {}", self.name))?;
        let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (lines.next().unwrap_or(""), lines.next().unwrap_or(""));
        names
            .split_ascii_whitespace()
            .zip(values.split_ascii_whitespace())
            .find(|&(this, _)| this == name)
            .and_then(|(_, value)| value.parse().ok())
            .with_context(|| format!("this kernel has no TCP counter {name}"))
    }

    /// How many packets an interface of this namespace has received and sent. A packet that is segmented
    /// later (GSO) counts once.
    pub fn packets(&self, interface: &str) -> Result<u64> {
        self.enter(|| -> Result<u64> {
            let path = "/proc/thread-self/net/dev";
            let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
            // `name: bytes packets` and six more for reception, then the same for transmission.
            let line = text
                .lines()
                .find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
            let line = line.with_context(|| format!("there is no interface {interface}"))?;
            let fields: Vec<u64> = line
                .split_ascii_whitespace()
                .map_while(|field| field.parse().ok())
                .collect();
            match fields[..] {
                [_, received, _, _, _, _, _, _, _, sent, ..] => Ok(received + sent),
                _ => bail!("{path} has fewer columns than ten"),
            }
        })?
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        registry::remove(&Leftover::Namespace(self.name.clone()));
    }
}

fn sysctl_path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name.replace('.', "/"))
}
