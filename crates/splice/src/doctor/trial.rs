//! A trial: one engine, one pair of real sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use splice_base::error::{Error, ErrorKind};
use splice_base::obstacle::Obstacle;

use super::TimeBudget;
use super::sockets::{Family, connection};
use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::name::{EngineChoice, EngineName};
use crate::options::Options;
use crate::outcome::{Outcome, Reason};
use crate::reactor::EventLoop;
use crate::session::Handle;
use crate::session::pair::BY_NAME;

/// How much is sent at a time, in bytes: less than a segment, as small messages are.
const MESSAGE_BYTES: usize = 1000;

/// How many messages go each way at least, and how many a kernel engine gets until it moves one by
/// itself, since a pair begins in user space. With [`PAUSE`] between them that is half a second:
/// many times the 20 ms for which `sockmap` leaves a direction there, and an eighth of a trial's
/// time.
const ROUNDS: u32 = 3;
const ROUNDS_MOST: u32 = 50;

/// How long the loop turns between two such messages, at most.
const PAUSE: Duration = Duration::from_millis(10);

/// How soon to look at a socket again: the loop gets no event for bytes that the kernel moves.
const LOOK: Duration = Duration::from_millis(1);

/// Why an engine failed its trial.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) remedy: Option<String>,
}

impl Failure {
    fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            remedy: None,
        }
    }

    fn with_remedy(self, remedy: &str) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }

    /// The failure that an error stands for.
    pub(super) fn of(error: &Error) -> Self {
        // The finding already names the engine.
        let reason = error.reason();
        if let Some(remedy) = error.remedy() {
            return Self::new(reason).with_remedy(remedy);
        }
        if error.kind() == ErrorKind::BpfRefused {
            let Obstacle { reason, remedy } = Obstacle::of_bpf(error);
            return Self::new(reason).with_remedy(&remedy);
        }
        let Some(cause) = error.os_error() else {
            return Self::new(reason).with_remedy(REPORT);
        };
        let remedy = match cause.kind() {
            io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::TimedOut
            | io::ErrorKind::WouldBlock => LOOPBACK,
            io::ErrorKind::PermissionDenied => SANDBOX,
            _ => match Errno::from_io_error(cause) {
                Some(Errno::MFILE) => {
                    return Self::new(reason).with_remedy(&Obstacle::too_many_files().remedy);
                }
                Some(Errno::NFILE) => "raise fs.file-max",
                _ => REPORT,
            },
        };
        Self::new(reason).with_remedy(remedy)
    }
}

/// The remedy if nothing arrives.
const LOOPBACK: &str = "see that loopback is up (ip link set lo up) and that no packet filter drops \
                        its packets, or try again when the machine is less busy";
/// The remedy if a system call is forbidden: the kernel itself lets every process move bytes
/// between its own sockets.
const SANDBOX: &str = "allow the engine's system calls (pipe needs splice(2)) in the seccomp filter \
                       or sandbox that this process is in";
/// The remedy of last resort.
const REPORT: &str = "report it with this kernel's release";

/// A pair under trial, with its two peers.
pub(super) struct Trial {
    engine: EngineName,
    peers: [OwnedFd; 2],
    /// What `peers[i]` sends to the other one.
    sent: [Noise; 2],
    handle: Handle,
    event_loop: EventLoop,
    deadline: Instant,
}

impl Trial {
    pub(super) fn of(
        engine: EngineName,
        family: Family,
        budget: &TimeBudget,
    ) -> Result<Self, Failure> {
        let refused = |error: Error| Failure::of(&error);
        let mut event_loop = EventLoop::new().map_err(refused)?;
        let (peer_a, a) = connection(family, budget.deadline()).map_err(refused)?;
        let (peer_b, b) = connection(family, budget.deadline()).map_err(refused)?;
        let [a, b] = [Endpoint::new(a), Endpoint::new(b)];
        engine.can_take(family.kind()).map_err(refused)?;
        // Tested last, so that a lack of descriptors or memory is the engine's own.
        engine.probe().map_err(refused)?;
        let options = Options {
            engine: EngineChoice::Only(engine),
            // The trial tests whether the engine works. What the filters say is another question.
            bypass_firewall: true,
            ..Options::default()
        };
        let handle = event_loop
            .join(a.map_err(refused)?, b.map_err(refused)?, &options)
            .map_err(refused)?;
        Ok(Self {
            engine,
            peers: [peer_a, peer_b],
            sent: [Noise::new(1), Noise::new(2)],
            handle,
            event_loop,
            deadline: budget.deadline(),
        })
    }

    /// Sends messages, checks what arrives and which engine moved it, ends both streams, and checks
    /// the outcome.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        let mut rounds = 0;
        loop {
            let before = self.handle.redirected();
            self.exchange()?;
            rounds += 1;
            let alone = self.is_moved_by_engine(before);
            if alone && rounds >= ROUNDS {
                break;
            }
            if !alone && (rounds >= ROUNDS_MOST || !self.engine.is_in_kernel()) {
                let (name, why) = self.handle.engine();
                let who = if self.engine.is_in_kernel() {
                    "the process moved the bytes, not the kernel"
                } else {
                    "another engine moved the bytes"
                };
                return Err(Failure::new(format!("{who} ({name}: {why})")).with_remedy(REPORT));
            }
            if !alone {
                self.turn(PAUSE)?;
            }
        }
        self.end()
    }

    /// Whether the engine moved the last message of both directions; `before` is what the kernel
    /// had moved before.
    fn is_moved_by_engine(&self, before: Counters) -> bool {
        let (name, why) = self.handle.engine();
        if name != self.engine {
            return false;
        }
        if !name.is_in_kernel() {
            return why == BY_NAME;
        }
        let after = self.handle.redirected();
        let message = MESSAGE_BYTES as u64;
        after.a_to_b >= before.a_to_b + message && after.b_to_a >= before.b_to_a + message
    }

    /// Exchanges one message per direction, at the same time.
    fn exchange(&mut self) -> Result<(), Failure> {
        let messages = [self.sent[0].message(), self.sent[1].message()];
        for (peer, message) in self.peers.iter().zip(&messages) {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match send(peer, message, flags) {
                Ok(MESSAGE_BYTES) => {}
                Ok(_) => return Err(Failure::new("a buffer is full").with_remedy(REPORT)),
                Err(errno) => return Err(self.cut(errno)),
            }
        }
        for (from, message) in messages.iter().enumerate() {
            let mut received = Vec::new();
            while received.len() < MESSAGE_BYTES {
                match self.receive(1 - from, &mut received)? {
                    Some(0) => return Err(self.cut(Errno::PIPE)),
                    Some(_) => {}
                    None => self.wait("bytes did not arrive in time")?,
                }
            }
            if received != message {
                return Err(
                    Failure::new("other bytes arrived than were sent").with_remedy(
                        "do not use this engine on this kernel, and report it with its release",
                    ),
                );
            }
        }
        Ok(())
    }

    /// Ends both streams. Each peer must see EOF, and nothing before it.
    fn end(mut self) -> Result<(), Failure> {
        for peer in &self.peers {
            shutdown(peer, Shutdown::Write).map_err(|errno| self.cut(errno))?;
        }
        for peer in 0..2 {
            loop {
                match self.receive(peer, &mut Vec::new())? {
                    Some(0) => break,
                    Some(_) => {
                        let twice = Failure::new("more bytes arrived than were sent");
                        return Err(twice.with_remedy(REPORT));
                    }
                    None => self.wait("the end of a stream did not arrive in time")?,
                }
            }
        }
        let outcome = loop {
            match self.handle.outcome() {
                Some(outcome) => break outcome,
                None => self.wait("the pair did not end in time")?,
            }
        };
        let Outcome { reason, moved, .. } = outcome;
        let [a_to_b, b_to_a] = self.sent.map(|noise| noise.bytes);
        if reason != Reason::EndOfStream || moved != (Counters { a_to_b, b_to_a }) {
            let wrong = format!(
                "the pair ended with {reason} and counted {} bytes of {}",
                moved.total(),
                a_to_b + b_to_a
            );
            return Err(Failure::new(wrong).with_remedy(REPORT));
        }
        Ok(())
    }

    /// How many bytes a peer got, 0 at EOF; `None` if there is nothing yet.
    fn receive(&self, peer: usize, into: &mut Vec<u8>) -> Result<Option<usize>, Failure> {
        let mut buffer = [0; MESSAGE_BYTES];
        match recv(&self.peers[peer], &mut buffer, RecvFlags::DONTWAIT) {
            Ok((count, _)) => {
                into.extend_from_slice(&buffer[..count]);
                Ok(Some(count))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(self.cut(errno)),
        }
    }

    /// Turns the loop once. After the deadline, the failure is `late`.
    fn wait(&mut self, late: &str) -> Result<(), Failure> {
        if Instant::now() >= self.deadline {
            return Err(Failure::new(late).with_remedy(LOOPBACK));
        }
        self.turn(LOOK)
    }

    fn turn(&mut self, at_most: Duration) -> Result<(), Failure> {
        let turned = self.event_loop.turn(Some(at_most));
        turned.map_err(|error| Failure::of(&error))
    }

    /// The failure of a broken pair: its outcome knows more than the peer that noticed.
    fn cut(&self, errno: Errno) -> Failure {
        let Some(outcome) = self.handle.outcome() else {
            return Failure::new(format!("the pair was cut: {errno}")).with_remedy(REPORT);
        };
        let (reason, why) = (outcome.reason, outcome.why_engine);
        let remedy = match reason {
            Reason::Failed { errno, .. }
                if [Errno::PERM, Errno::NOSYS].contains(&Errno::from_raw_os_error(errno)) =>
            {
                SANDBOX
            }
            _ => REPORT,
        };
        let words = if why == BY_NAME {
            format!("the pair was cut: {reason}")
        } else {
            format!("the pair was cut: {reason} ({why})")
        };
        Failure::new(words).with_remedy(remedy)
    }
}

/// Pseudo-random bytes, so that a lost, duplicated or misplaced byte shows.
#[derive(Clone, Copy, Debug)]
struct Noise {
    state: u64,
    bytes: u64,
}

impl Noise {
    fn new(seed: u64) -> Self {
        Self {
            state: seed,
            bytes: 0,
        }
    }

    fn message(&mut self) -> [u8; MESSAGE_BYTES] {
        self.bytes += MESSAGE_BYTES as u64;
        std::array::from_fn(|_| {
            // Knuth's MMIX generator, whose high bits are the random ones.
            self.state = self
                .state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.state >> 56) as u8
        })
    }
}
