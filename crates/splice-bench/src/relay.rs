//! A relay that runs as a separate process.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netlab::Process;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::cpu_time::on_cpu;
use crate::site::{PATIENCE, Site};

/// Between two attempts to connect to a relay that starts.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// How long a relay may take to start. Loading BPF programs takes a tenth of a second, and seconds on a busy machine.
const STARTS_WITHIN: Duration = Duration::from_secs(40);

/// How long after accepting a relay may take to reach the server.
const REACH_WITHIN: Duration = Duration::from_secs(1);

/// The exit status of spliced for wrong usage, which includes an engine that this machine lacks.
const REFUSED: i32 = 2;

/// A running relay, killed on drop.
#[derive(Debug)]
pub(crate) struct Relay {
    process: Process,
    log: PathBuf,
    address: SocketAddr,
}

/// The outcome of starting a relay.
#[derive(Debug)]
pub(crate) enum Start {
    Running(Relay),
    /// It did not start, for this reason.
    Refused(String),
}

impl Relay {
    /// Starts `command` and waits until it relays from `address` to the server, where it needs a
    /// client's `first_bytes` for that.
    pub(crate) fn start(
        site: &Site,
        name: &str,
        command: Command,
        address: SocketAddr,
        first_bytes: &[u8],
    ) -> Result<Start> {
        // The first pair makes a relay allocate what it keeps for all of them.
        let relays = |mut client: &TcpStream| {
            // If this fails, nothing reaches the server either.
            let _ = client.write_all(first_bytes);
            site.answers(client, REACH_WITHIN)
        };
        Self::start_when(site, name, command, address, relays)
    }

    /// Starts a program without a server behind it, and waits until it listens at `address`.
    pub(crate) fn start_alone(
        site: &Site,
        name: &str,
        command: Command,
        address: SocketAddr,
    ) -> Result<Start> {
        Self::start_when(site, name, command, address, |_| Ok(true))
    }

    /// Starts `command`, waits until it takes a connection at `address`, and then until `is_ready`.
    fn start_when(
        site: &Site,
        name: &str,
        mut command: Command,
        address: SocketAddr,
        is_ready: impl Fn(&TcpStream) -> Result<bool>,
    ) -> Result<Start> {
        let log = site.scratch.path().join(format!("{}.log", address.port()));
        let file =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            // Ctrl-C interrupts the bench, which then ends its relays.
            .process_group(0);
        let mut relay = Self {
            process: Process::spawn(&mut command)?,
            log,
            address,
        };

        let deadline = Instant::now() + STARTS_WITHIN;
        loop {
            if let Some(status) = relay.process.try_wait()? {
                let said = relay.said();
                if status.code() == Some(REFUSED) {
                    return Ok(Start::Refused(said));
                }
                bail!("{name} ended at once ({status}): {said}");
            }
            if let Ok(stream) = TcpStream::connect_timeout(&address, PATIENCE) {
                let ready = is_ready(&stream)?;
                drop(stream);
                if ready {
                    return Ok(Start::Running(relay));
                }
            }
            if Instant::now() > deadline {
                bail!("{name} does not serve {address}: {}", relay.said());
            }
            thread::sleep(ASK_EVERY);
        }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its last line on stderr.
    pub(crate) fn said(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines()
            .map(str::trim)
            .rfind(|line| !line.is_empty())
            .unwrap_or("it said nothing")
            .into()
    }

    /// Memory that is the processes' own, in bytes: their proportional set size. Sockets, and pages
    /// that wait in pipes, are the kernel's and not in it.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        let own = proportional_bytes(self.pid())?;
        let group = in_group(self.pid());
        let children = group.into_iter().filter(|&pid| pid != self.pid());
        // A child that has just ended has none.
        Ok(own
            + children
                .filter_map(|pid| proportional_bytes(pid).ok())
                .sum::<u64>())
    }

    /// CPU time that its processes have had so far: a child of one thread each, as relays fork them.
    pub(crate) fn cpu_time(&self) -> Result<Duration> {
        let own = self.process.cpu_time()?;
        let group = in_group(self.pid());
        let children = group.into_iter().filter(|&pid| pid != self.pid());
        let nanoseconds = children
            .filter_map(|pid| on_cpu(&format!("/proc/{pid}")))
            .sum();
        Ok(own + Duration::from_nanos(nanoseconds))
    }

    /// Bytes that wait in its pipes.
    pub(crate) fn piped_bytes(&self) -> Result<u64> {
        let directory = format!("/proc/{}/fd", self.pid());
        let entries = fs::read_dir(&directory)
            .with_context(|| format!("cannot read {directory}: this needs root"))?;
        let mut seen = Vec::new();
        let mut bytes = 0;
        for path in entries.flatten().map(|entry| entry.path()) {
            // Both ends of a pipe have the same target, and either tells what is in it.
            let Ok(target) = fs::read_link(&path) else {
                continue;
            };
            if !target.to_string_lossy().starts_with("pipe:") || seen.contains(&target) {
                continue;
            }
            // Opening the link opens the pipe itself once more, whichever end it was.
            if let Ok(pipe) = File::open(&path) {
                bytes += rustix::io::ioctl_fionread(&pipe).context("cannot ask a pipe's length")?;
            }
            seen.push(target);
        }
        Ok(bytes)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // A relay that forks leaves children, which only its process group reaches.
        if let Some(group) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// The proportional set size of one process.
fn proportional_bytes(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    text.lines()
        .find_map(|line| line.strip_prefix("Pss:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kibibytes| kibibytes.trim().parse::<u64>().ok())
        .map(|kibibytes| kibibytes << 10)
        .with_context(|| format!("{path} has no line `Pss: N kB`"))
}

/// The processes of a group. (`/proc/PID/task/TID/children` is not in every kernel.)
fn in_group(group: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            // Fields behind the name, which may hold anything: state, parent, group (proc_pid_stat(5)).
            let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
            fields.split(' ').nth(2) == Some(&group.to_string())
        })
        .collect()
}
