//! Two namespaces with a router between them, a control group in each, and a bypass over both groups.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use netlab::{BpfFileSystem, ControlGroup, Lab, Namespace, until_found};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use splice::bypass::{Bypass, Connection, Options, State, Status, off, status};

use crate::random::Random;

/// How long members may take to leave.
pub(crate) const LEAVE: Duration = Duration::from_secs(20);

/// A directory for pins of this test only, cleared at the end.
pub(crate) struct PinDirectory {
    path: PathBuf,
    _file_system: BpfFileSystem,
}

impl PinDirectory {
    pub(crate) fn new() -> Self {
        let file_system = BpfFileSystem::new("pins").expect("a BPF file system");
        Self {
            path: file_system.path().join("bypass"),
            _file_system: file_system,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PinDirectory {
    fn drop(&mut self) {
        // Only a test that fails leaves something.
        let _ = off(&self.path, Duration::from_secs(1));
    }
}

/// A bypass that is turned by a thread.
pub(crate) struct Running {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Bypass>>,
}

impl Running {
    pub(crate) fn start(options: &Options) -> Self {
        let mut bypass = Bypass::start(options).expect("a bypass");
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while bypass.turn() && !told.load(Ordering::Relaxed) {
                bypass.wait();
            }
            bypass
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// What is left when nobody turns it any more, and nothing was undone.
    pub(crate) fn abandon(mut self) -> Bypass {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no panic")
    }

    pub(crate) fn stop(self) {
        self.abandon().stop(LEAVE).expect("nothing is left");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) struct Stage {
    pub(crate) lab: Lab,
    pub(crate) groups: [ControlGroup; 2],
    pub(crate) pins: PinDirectory,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let group = |role| ControlGroup::new(role).expect("a control group");
        Self {
            lab: Lab::new().expect("a lab"),
            groups: [group("near"), group("far")],
            pins: PinDirectory::new(),
        }
    }

    pub(crate) fn options(&self) -> Options {
        let groups = self
            .groups
            .each_ref()
            .map(|group| group.path().to_path_buf());
        Options {
            pins: self.pins.path().to_path_buf(),
            despite_fionread: true,
            // As measured, but the same in each run.
            bulk_bytes: Some(4096),
            ..Options::of(groups.to_vec())
        }
    }

    pub(crate) fn start(&self) -> Running {
        Running::start(&self.options())
    }

    pub(crate) fn status(&self) -> Status {
        let status = status(self.pins.path()).expect("it can be read");
        status.expect("it runs")
    }

    /// A connection from the client's namespace to the server's, each in its group.
    pub(crate) fn connect(&self, to: impl Into<IpAddr>) -> Ends {
        let [near, far] = &self.groups;
        connect(
            (near, self.lab.client()),
            (far, self.lab.server()),
            to.into(),
        )
    }

    /// What status says about a connection.
    pub(crate) fn connection(&self, ends: &Ends) -> Option<Connection> {
        let is_it = |of: &Connection| of.client.is_some_and(|end| end.local == ends.name());
        self.status().connections.into_iter().find(is_it)
    }

    /// Talks until the connection is redirected.
    pub(crate) fn until_redirected(&self, ends: &mut Ends) -> Connection {
        let mut random = Random::of_run(1);
        until_found("it is redirected", || {
            ends.converse(&mut random, 20, 300);
            let of = self.connection(ends)?;
            let both = [of.client?, of.server?];
            let moved = both.iter().all(|end| end.redirected_messages > 0);
            (of.state == State::Redirected && moved).then_some(of)
        })
    }
}

pub(crate) fn connect(
    (near, client): (&ControlGroup, &Namespace),
    (far, server): (&ControlGroup, &Namespace),
    to: IpAddr,
) -> Ends {
    let listener = far
        .enter(|| server.enter(|| TcpListener::bind((to, 0)).expect("a listener")))
        .expect("entered")
        .expect("entered");
    let to = listener.local_addr().expect("bound");
    connect_to((near, client), &listener, to, None)
}

/// A connection to a listener, from a given port if there is one.
pub(crate) fn connect_to(
    (near, client): (&ControlGroup, &Namespace),
    listener: &TcpListener,
    to: SocketAddr,
    from: Option<SocketAddr>,
) -> Ends {
    let dial = || match from {
        None => TcpStream::connect(to).expect("connected"),
        Some(from) => {
            let socket = socket2::Socket::new(
                socket2::Domain::for_address(to),
                socket2::Type::STREAM,
                None,
            )
            .expect("a socket");
            socket.bind(&from.into()).expect("bound");
            socket.connect(&to.into()).expect("connected");
            socket.into()
        }
    };
    let client = near
        .enter(|| client.enter(dial))
        .expect("entered")
        .expect("entered");
    let (server, _) = listener.accept().expect("accepted");
    for end in [&client, &server] {
        end.set_nodelay(true).expect("set");
        end.set_read_timeout(Some(netlab::PATIENCE)).expect("set");
        end.set_write_timeout(Some(netlab::PATIENCE)).expect("set");
    }
    Ends { client, server }
}

/// Both ends of a connection.
pub(crate) struct Ends {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
}

impl Ends {
    pub(crate) fn name(&self) -> SocketAddr {
        self.client.local_addr().expect("bound")
    }

    /// Questions and answers of random lengths and bytes.
    pub(crate) fn converse(&mut self, random: &mut Random, rounds: usize, most: u64) {
        for _ in 0..rounds {
            say(&mut self.client, &mut self.server, random, most);
            say(&mut self.server, &mut self.client, random, most);
        }
    }
}

/// A socket whose calls do not wait in the kernel, as those of a program with an event loop.
pub(crate) struct Polled<'a>(pub(crate) &'a TcpStream);

impl Polled<'_> {
    fn until(
        &self,
        flags: PollFlags,
        mut call: impl FnMut() -> rustix::io::Result<usize>,
    ) -> io::Result<usize> {
        let patience = Timespec {
            tv_sec: netlab::PATIENCE.as_secs() as i64,
            tv_nsec: 0,
        };
        loop {
            match call() {
                Err(Errno::AGAIN) => {
                    let mut waited = [PollFd::new(self.0, flags)];
                    if poll(&mut waited, Some(&patience))? == 0 {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                other => return Ok(other?),
            }
        }
    }
}

impl Read for Polled<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.until(PollFlags::IN, || {
            recv(self.0, &mut *buffer, RecvFlags::DONTWAIT).map(|(count, _)| count)
        })
    }
}

impl Write for Polled<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.until(PollFlags::OUT, || {
            send(self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn say(from: &mut TcpStream, to: &mut TcpStream, random: &mut Random, most: u64) {
    let length = 1 + random.below(most) as usize;
    let message = bytes(random, length);
    from.write_all(&message).expect("sent");
    let mut heard = vec![0; length];
    to.read_exact(&mut heard).expect("received");
    assert!(heard == message, "other bytes");
}

/// Pseudo-random bytes.
pub(crate) fn bytes(random: &mut Random, length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(8)).flat_map(|_| random.next().to_ne_bytes());
    words.take(length).collect()
}
