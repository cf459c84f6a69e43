//! A running `spliced relay`, and its state as seen from outside.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use netlab::Process;
use rustix::fs::OFlags;
use rustix::io::ioctl_fionread;
use rustix::net::{getpeername, getsockname, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use splice::{Endpoint, Kind};

use crate::patience::{PATIENCE, until, until_found};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_spliced");

/// The descriptors in the epoll instance of an idle thread: a mailbox, a timer, a listener.
pub(crate) const IDLE_WATCHED: usize = 3;

/// The exit status of a relay that has reset connections.
pub(crate) const CUT_SHORT: i32 = 3;

/// Signals within this time are one request.
pub(crate) const SAME_REQUEST: Duration = Duration::from_secs(1);

/// `/proc/PID/stat` counts in hundredths of a second for every program (`USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

pub(crate) struct Relay {
    process: Process,
    told: Arc<Told>,
    /// The thread that reads stderr to its end.
    reader: JoinHandle<()>,
    /// The address that it listens on.
    pub(crate) address: String,
}

/// The lines on stderr so far.
#[derive(Default)]
struct Told {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

/// `spliced` with `arguments`, without its variables in the environment of the tests.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Process::command(BINARY);
    command.args(arguments).env_remove("SPLICED_LOG");
    command
}

/// Runs a command that is expected to end by itself.
pub(crate) fn output(command: &mut Command) -> Output {
    output_within(PATIENCE, command)
}

/// Runs a command that is expected to end by itself in this time.
pub(crate) fn output_within(time: Duration, command: &mut Command) -> Output {
    let mut process = Process::spawn(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )
    .expect("it starts");
    let child = process.child_mut();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // A program whose output is longer than a pipe ends only if it is read.
    thread::scope(|scope| {
        let stdout = scope.spawn(|| whole(stdout));
        let stderr = scope.spawn(|| whole(stderr));
        let status = process.wait_at_most(time);
        let status = status.expect("it can be waited for");
        if status.is_none() {
            // Its end ends the threads, too.
            let _ = process.child_mut().kill();
        }
        Output {
            status: status.unwrap_or_else(|| panic!("{command:?} does not end")),
            stdout: stdout.join().expect("its stdout"),
            stderr: stderr.join().expect("its stderr"),
        }
    })
}

/// All that comes from `pipe`.
fn whole(pipe: Option<impl Read>) -> Vec<u8> {
    let mut all = Vec::new();
    pipe.expect("a pipe").read_to_end(&mut all).expect("read");
    all
}

/// The numbers of the descriptors that a child of this process inherits.
fn inherited() -> BTreeSet<usize> {
    let is_passed_on = |number: &usize| {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap_or_default();
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
        flags.is_some_and(|flags| flags & OFlags::CLOEXEC.bits() == 0)
    };
    let all = fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    let numbers = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    // The child has these, whatever they are here.
    (0..=2).chain(numbers.filter(is_passed_on)).collect()
}

/// The limit on descriptors that leaves a child of this process `spare` beside those that it inherits. The
/// kernel compares it with descriptor numbers.
pub(crate) fn limit_with(spare: usize) -> usize {
    let inherited = inherited();
    let mut free = (0..).filter(|number| !inherited.contains(number));
    free.nth(spare).expect("numbers do not end")
}

impl Relay {
    /// A relay from a free port to `target`.
    pub(crate) fn to(target: &str, options: &[&str]) -> Self {
        Self::between("127.0.0.1:0", target, options)
    }

    pub(crate) fn between(listen: &str, target: &str, options: &[&str]) -> Self {
        let arguments = [&["relay", listen, target], options].concat();
        Self::spawn(&mut command(&arguments))
    }

    /// An echo on `listen`.
    pub(crate) fn echo(listen: &str, options: &[&str]) -> Self {
        Self::spawn(&mut command(&[&["echo", listen], options].concat()))
    }

    /// Starts `command`, and waits until it listens.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut relay = Self::spawn_silent(command);
        let line = relay.wait_logged("listening on ");
        let after = line.split_once("listening on ").expect("found above").1;
        // The destination follows in the line.
        let (address, _) = after.split_once(", ").expect("where it listens");
        address.clone_into(&mut relay.address);
        relay
    }

    /// Starts `command`, which does not log its address.
    pub(crate) fn spawn_silent(command: &mut Command) -> Self {
        let mut process =
            Process::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped())).expect("it starts");
        let stderr = process.child_mut().stderr.take().expect("its stderr");
        let told = Arc::new(Told::default());
        let teller = Arc::clone(&told);
        let reader = thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                teller.lines.lock().expect("no panic").push(line);
                teller.more.notify_all();
            }
        });
        Self {
            process,
            told,
            reader,
            address: String::new(),
        }
    }

    /// Waits until it has logged a line with `words`, and returns the line.
    pub(crate) fn wait_logged(&self, words: &str) -> String {
        self.wait_logged_any(&[words])
    }

    /// Waits until it has logged a line with some of these words, and returns the line.
    pub(crate) fn wait_logged_any(&self, words: &[&str]) -> String {
        let has_some = |line: &&String| words.iter().any(|words| line.contains(words));
        let has = |lines: &Vec<String>| lines.iter().find(has_some).cloned();
        let lines = self.told.lines.lock().expect("no panic");
        let (lines, _) = self
            .told
            .more
            .wait_timeout_while(lines, PATIENCE, |lines| has(lines).is_none())
            .expect("no panic");
        let found = has(&lines);
        drop(lines);
        found.unwrap_or_else(|| panic!("it never says {words:?}"))
    }

    /// All lines that it has logged so far.
    pub(crate) fn logged(&self) -> Vec<String> {
        self.told.lines.lock().expect("no panic").clone()
    }

    pub(crate) fn lines_logged(&self, words: &str) -> usize {
        let lines = self.told.lines.lock().expect("no panic");
        lines.iter().filter(|line| line.contains(words)).count()
    }

    pub(crate) fn port(&self) -> &str {
        self.address.rsplit_once(':').expect("a port").1
    }

    /// Reads its standard output, which must be a pipe, to the end.
    pub(crate) fn take_stdout(&mut self) -> ChildStdout {
        self.process.child_mut().stdout.take().expect("its stdout")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal).expect("it can be signalled");
    }

    /// Sends the signal repeatedly: a second one counts only [`SAME_REQUEST`] after the first.
    pub(crate) fn signal_until_it_ends(&mut self, signal: Signal) {
        until("it ends", || {
            // The process may have ended. It stays a zombie until it is reaped.
            self.signal(signal);
            !self.is_running()
        });
    }

    /// Stops all its threads until [`go_on`](Self::go_on).
    pub(crate) fn hold_still(&self) {
        self.signal(Signal::STOP);
        until("all its threads have stopped", || {
            let states = self.of_threads("stat", |stat| {
                let after_name = stat.rsplit_once(") ").expect("a state").1;
                after_name.starts_with('T')
            });
            states.into_iter().all(|stopped| stopped)
        });
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("wait").is_none()
    }

    /// Waits until it has ended and its stderr has been read.
    pub(crate) fn wait_end(&mut self) -> ExitStatus {
        let ended = self.process.wait_at_most(PATIENCE).expect("wait");
        let status = ended.expect("it ends");
        until("all is read", || self.reader.is_finished());
        status
    }

    /// Sends SIGTERM, and expects exit status 0.
    pub(crate) fn terminate(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.wait_end().code(), Some(0));
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether the process has `signal` in its set `name` (`SigCgt`, `SigIgn`).
    pub(crate) fn has_in_set(&self, name: &str, signal: Signal) -> bool {
        let status = self.file("status");
        let set = status.lines().find_map(|line| line.strip_prefix(name));
        let set = set.and_then(|set| set.strip_prefix(':'));
        let set = u64::from_str_radix(set.expect("a set").trim(), 16).expect("a mask");
        // Before exec(2) the set belongs to another program.
        status.starts_with("Name:\tspliced") && set >> (signal.as_raw() - 1) & 1 == 1
    }

    fn file(&self, name: &str) -> String {
        let path = format!("/proc/{}/{name}", self.process.id());
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn entries(&self, directory: &str) -> Vec<String> {
        let path = format!("/proc/{}/{directory}", self.process.id());
        fs::read_dir(&path)
            .unwrap_or_else(|error| panic!("{path}: {error}"))
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect()
    }

    /// Applies `read` to the file `name` of each thread.
    pub(crate) fn of_threads<T>(&self, name: &str, read: impl Fn(&str) -> T) -> Vec<T> {
        let id = self.process.id();
        self.entries("task")
            .iter()
            // A thread may have ended.
            .filter_map(|thread| {
                fs::read_to_string(format!("/proc/{id}/task/{thread}/{name}")).ok()
            })
            .map(|text| read(&text))
            .collect()
    }

    /// Waits until it has its control socket, which it makes beside everything else.
    fn settle(&self) {
        let arguments = self.file("cmdline");
        let mut arguments = arguments.split('\0');
        if !arguments.any(|argument| ["relay", "run", "echo"].contains(&argument)) {
            return;
        }
        let id = self.process.id();
        until("it has its control socket", || {
            let links = self.entries("fd").into_iter().filter_map(|number| {
                let link = fs::read_link(format!("/proc/{id}/fd/{number}")).ok()?;
                link.into_os_string().into_string().ok()
            });
            let links: Vec<String> = links.collect();
            let has = |words: &str| links.iter().any(|link| link.contains(words));
            // Those of its directory are open until it listens.
            has(".spliced-")
                && !links
                    .iter()
                    .any(|link| link.ends_with("spliced") || link.ends_with("/lock"))
        });
    }

    /// The number of its descriptors, whatever they are.
    pub(crate) fn all_descriptors(&self) -> usize {
        self.entries("fd").len()
    }

    /// The number of its descriptors, without those of BPF programs, which stay open after their first
    /// use.
    pub(crate) fn descriptors(&self) -> usize {
        self.settle();
        let is_bpf = |number: &String| {
            let path = format!("/proc/{}/fd/{number}", self.process.id());
            let found = fs::read_link(path).unwrap_or_default();
            found.to_string_lossy().starts_with("anon_inode:bpf")
        };
        let all = self.entries("fd");
        all.iter().filter(|number| !is_bpf(number)).count()
    }

    /// The same without inherited ones.
    pub(crate) fn own_descriptors(&self) -> usize {
        self.descriptors() - inherited().len()
    }

    /// Waits until it has as many descriptors as `before`.
    pub(crate) fn wait_descriptors(&self, before: usize) {
        let start = Instant::now();
        while self.descriptors() != before {
            assert!(
                start.elapsed() < PATIENCE,
                "{before} descriptors have become {:?}",
                self.entries("fd")
                    .iter()
                    .map(|fd| fs::read_link(format!("/proc/{}/fd/{fd}", self.process.id())))
                    .collect::<Vec<_>>()
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The numbers of its threads.
    pub(crate) fn threads(&self) -> Vec<i32> {
        let tasks = self.entries("task");
        tasks.iter().filter_map(|id| id.parse().ok()).collect()
    }

    /// The numbers of its threads that have none of these names.
    pub(crate) fn threads_but(&self, names: &[&str]) -> Vec<i32> {
        let id = self.process.id();
        let has_it = |thread: &i32| {
            // The thread may have ended.
            fs::read_to_string(format!("/proc/{id}/task/{thread}/comm"))
                .is_ok_and(|found| names.contains(&found.trim_end()))
        };
        let mut threads = self.threads();
        threads.retain(|thread| !has_it(thread));
        threads
    }

    /// The `fdinfo` of each of its descriptors.
    pub(crate) fn descriptor_infos(&self) -> Vec<String> {
        self.entries("fdinfo")
            .iter()
            // A descriptor may have been closed.
            .filter_map(|fd| {
                fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.process.id())).ok()
            })
            .collect()
    }

    /// The number of descriptors in each epoll instance: [`IDLE_WATCHED`] without connections.
    pub(crate) fn watched(&self) -> Vec<usize> {
        self.descriptor_infos()
            .iter()
            .map(|info| info.lines().filter(|line| line.starts_with("tfd:")).count())
            // The loop of the control socket has one.
            .filter(|count| *count > 1)
            .collect()
    }

    /// Of memory of its own. How much of its files is there changes with what else the machine does.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = self.file("status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.expect("RssAnon") << 10
    }

    /// How often its threads have gone to sleep.
    pub(crate) fn switches(&self) -> u64 {
        let voluntary = |status: &str| {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|count| count.trim().parse::<u64>().ok())
                .expect("a count")
        };
        self.of_threads("status", voluntary).into_iter().sum()
    }

    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = self.file("stat");
        let after_name = stat.rsplit_once(") ").expect("a name").1;
        let ticks: u32 = after_name
            .split(' ')
            .skip(11)
            .take(2)
            .map(|ticks| ticks.parse::<u32>().expect("ticks"))
            .sum();
        TICK * ticks
    }

    /// Duplicates of its descriptors of a kind.
    fn descriptors_of(&self, sort: &str) -> Vec<OwnedFd> {
        let pid = Pid::from_raw(self.process.id().cast_signed()).expect("a pid");
        let process = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd");
        self.entries("fd")
            .iter()
            .filter(|fd| {
                fs::read_link(format!("/proc/{}/fd/{fd}", self.process.id()))
                    .is_ok_and(|link| link.to_string_lossy().starts_with(sort))
            })
            .filter_map(|fd| {
                let fd = fd.parse().expect("a number");
                // It may have been closed.
                pidfd_getfd(process.as_fd(), fd, PidfdGetfdFlags::empty()).ok()
            })
            .collect()
    }

    /// The bytes in its pipes.
    pub(crate) fn piped_bytes(&self) -> usize {
        let bytes = |pipe: &OwnedFd| ioctl_fionread(pipe).expect("FIONREAD") as usize;
        // Both ends of a pipe report the same number.
        self.descriptors_of("pipe:")
            .iter()
            .map(bytes)
            .sum::<usize>()
            / 2
    }

    /// Its listening sockets of TCP.
    pub(crate) fn listening_sockets(&self) -> Vec<OwnedFd> {
        let mut sockets = self.descriptors_of("socket:");
        sockets.retain(|socket| {
            let name = getsockname(socket).ok();
            sockopt::socket_acceptconn(socket) == Ok(true)
                && name.is_some_and(|name| SocketAddr::try_from(name).is_ok())
        });
        assert!(!sockets.is_empty(), "it listens on none");
        sockets
    }

    /// Waits until it has `count` TCP connections, and returns their sockets.
    pub(crate) fn connected_sockets(&self, count: usize) -> Vec<OwnedFd> {
        let is_connected = |socket: &OwnedFd| {
            getpeername(socket)
                .is_ok_and(|name| name.is_some_and(|name| SocketAddr::try_from(name).is_ok()))
        };
        until_found("it has its connections", || {
            let mut sockets = self.descriptors_of("socket:");
            sockets.retain(is_connected);
            (sockets.len() == count).then_some(sockets)
        })
    }
}

/// The bytes in the kernel's buffers of these sockets.
pub(crate) fn held_bytes(sockets: &[OwnedFd]) -> usize {
    sockets
        .iter()
        .map(|socket| {
            let socket = socket.try_clone().expect("a descriptor");
            // The kind of the socket does not matter here.
            let memory = Endpoint::prepared(socket, Kind::Unix).memory();
            memory.expect("SO_MEMINFO").held_bytes()
        })
        .sum()
}

impl Drop for Relay {
    fn drop(&mut self) {
        if thread::panicking() {
            let lines = self.told.lines.lock();
            eprintln!("the relay has said: {:#?}", lines.as_deref());
        }
    }
}
