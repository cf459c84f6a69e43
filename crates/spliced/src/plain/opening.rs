//! A connection to the target that is being made.
//!
//! ```text
//!            its addresses             one of them takes the connection
//! resolving ───────────────▶ racing ─────────────────────────────────────▶ connected
//!     │                         │ none is left
//!     └──the time is over───────┴──▶ failed
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;

use super::place::{Known, Place, Resolved};
use crate::race::{Race, Turn};
use crate::resource_limit::words;
use crate::socket_address::has_connected;
use crate::target::Question;

#[derive(Debug)]
pub(super) struct Opening {
    place: Arc<Place>,
    step: Step,
    /// From then on an old answer about its name is used.
    old_answer_at: Instant,
    until: Instant,
    /// When to go on, whatever happens until then.
    next_at: Instant,
    /// What the last address has met.
    failed: Option<Errno>,
}

#[derive(Debug)]
enum Step {
    /// The question, once it is asked.
    Resolving(Option<Question>),
    Racing {
        addresses: Vec<Resolved>,
        race: Race,
        /// By the index of the address.
        under_way: Vec<(usize, Attempt)>,
    },
}

/// A socket that is reset on drop: the connection may be established by then, and the target must not see an end of
/// stream.
#[derive(Debug)]
struct Attempt(Option<OwnedFd>);

/// What has become of it.
#[derive(Debug)]
pub(super) enum Opened {
    Waiting,
    Connected(OwnedFd),
    Failed(String),
}

impl Opening {
    pub(super) fn new(place: Arc<Place>, now: Instant, within: Duration) -> Self {
        Self {
            place,
            step: Step::Resolving(None),
            old_answer_at: now + within / 2,
            until: now + within,
            next_at: now,
            failed: None,
        }
    }

    pub(super) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Does what can be done now. Each new socket is passed to `watch`; `waker` is called when a name is resolved.
    pub(super) fn go_on(
        &mut self,
        now: Instant,
        waker: &Waker,
        watch: impl Fn(&OwnedFd) -> Result<(), Errno>,
    ) -> Opened {
        if let Step::Resolving(question) = &mut self.step {
            match self.place.look_up(self.old_answer_at, waker) {
                Known::Addresses(addresses) => {
                    self.step = Step::Racing {
                        race: Race::new(addresses.len()),
                        addresses,
                        under_way: Vec::new(),
                    };
                }
                Known::Awaited(asked, again) if now < self.until => {
                    *question = Some(asked);
                    self.next_at = again.map_or(self.until, |again| again.min(self.until));
                    return Opened::Waiting;
                }
                Known::Awaited(..) => return Opened::Failed("its name does not resolve".into()),
            }
        }
        self.race(now, watch)
    }

    fn race(&mut self, now: Instant, watch: impl Fn(&OwnedFd) -> Result<(), Errno>) -> Opened {
        let Step::Racing {
            addresses,
            race,
            under_way,
        } = &mut self.step
        else {
            return Opened::Waiting;
        };
        let mut failed = Vec::new();
        for (index, attempt) in &mut *under_way {
            match attempt.is_made() {
                Ok(false) => {}
                Ok(true) => {
                    let index = *index;
                    self.place.answered(&addresses[index], addresses);
                    return match attempt.0.take() {
                        Some(socket) => {
                            under_way.clear();
                            Opened::Connected(socket)
                        }
                        None => Opened::Waiting,
                    };
                }
                Err(errno) => failed.push((*index, errno)),
            }
        }
        loop {
            for (index, errno) in failed.drain(..) {
                self.failed = Some(errno);
                under_way.retain(|(other, _)| *other != index);
                race.failed(index);
            }
            if now >= self.until {
                return Opened::Failed(words(Errno::TIMEDOUT));
            }
            match race.turn(now) {
                Turn::Start(index) => match self.place.begin(&addresses[index], &watch) {
                    Ok((socket, true)) => {
                        under_way.clear();
                        self.place.answered(&addresses[index], addresses);
                        return Opened::Connected(socket);
                    }
                    Ok((socket, false)) => {
                        under_way.push((index, Attempt(Some(socket))));
                        race.started(index, now, self.until);
                    }
                    Err(errno) if is_want_of_room(errno) && race.is_under_way() => {
                        self.failed = Some(errno);
                        if let Some(oldest) = race.postponed(now) {
                            failed.push((oldest, errno));
                        }
                    }
                    Err(errno) => failed.push((index, errno)),
                },
                Turn::GiveUp(index) => failed.push((index, Errno::TIMEDOUT)),
                Turn::Wait(at) => {
                    self.next_at = at.map_or(self.until, |at| at.min(self.until));
                    return Opened::Waiting;
                }
                Turn::Over => {
                    let why = self.failed.map(|errno| self.place.unreached(errno));
                    return Opened::Failed(
                        why.unwrap_or_else(|| "its name does not resolve".into()),
                    );
                }
            }
        }
    }
}

/// Whether this host has no room for one more socket.
fn is_want_of_room(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::NOSPC
    )
}

impl Attempt {
    fn is_made(&self) -> Result<bool, Errno> {
        self.0.as_ref().map_or(Ok(false), has_connected)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            // This fails only on a connection that is already gone.
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use rustix::event::Timespec;
    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
    use socket2::{Domain, Socket, Type};

    use super::*;
    use crate::socket_address::SocketAddress;

    const WITHIN: Duration = Duration::from_secs(2);

    /// As in `race.rs`.
    const DELAY: Duration = Duration::from_millis(250);

    /// Goes on as the loop does, and says how long it took.
    fn open(addresses: &[SocketAddr]) -> (Opened, Duration) {
        open_if(addresses, || Ok(()))
    }

    /// The same, if `has_room` lets it.
    fn open_if(
        addresses: &[SocketAddr],
        has_room: impl Fn() -> Result<(), Errno>,
    ) -> (Opened, Duration) {
        let addresses = addresses.iter().copied().map(SocketAddress::Inet);
        let place = Arc::new(Place::at(addresses.collect()));
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("an epoll instance");
        let watch = |socket: &OwnedFd| {
            has_room()?;
            let flags = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
            epoll::add(&epoll, socket, EventData::new_u64(0), flags)
        };
        let begin = Instant::now();
        let mut opening = Opening::new(place, begin, WITHIN);
        loop {
            let now = Instant::now();
            match opening.go_on(now, Waker::noop(), watch) {
                Opened::Waiting => {}
                opened => return (opened, now - begin),
            }
            let left = opening.next_at().saturating_duration_since(now);
            let left = Timespec::try_from(left).expect("a short time");
            let mut events = Vec::with_capacity(8);
            let spare = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&epoll, spare, Some(&left)).expect("it waits");
        }
    }

    fn full() -> (Socket, SocketAddr, TcpStream) {
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        silent.bind(&any.into()).expect("bound");
        silent.listen(0).expect("it listens");
        let address = silent.local_addr().expect("its address");
        let address = address.as_socket().expect("an IP address");
        // Its backlog is full from now on.
        let first = TcpStream::connect(address).expect("connected");
        (silent, address, first)
    }

    #[test]
    fn a_silent_address_makes_room_for_the_next_one() {
        let (_silent, silent_at, _first) = full();
        let good = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let good_at = good.local_addr().expect("its address");
        let asked = Cell::new(0);
        // For the first one, and for the second one once it has taken the place of the first.
        let has_room = || match asked.replace(asked.get() + 1) {
            1 => Err(Errno::MFILE),
            _ => Ok(()),
        };
        let (opened, after) = open_if(&[silent_at, good_at], has_room);
        assert!(matches!(opened, Opened::Connected(_)), "{opened:?}");
        assert!((DELAY..WITHIN).contains(&after), "{after:?}");
        assert_eq!(asked.get(), 3);
    }

    #[test]
    fn a_silent_address_costs_a_part_of_the_time_and_one_that_refuses_none() {
        let (_silent, silent_at, _first) = full();
        let good = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let good_at = good.local_addr().expect("its address");
        let gone = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let refuses_at = gone.local_addr().expect("its address");
        drop(gone);
        let (opened, after) = open(&[silent_at, good_at]);
        assert!(matches!(opened, Opened::Connected(_)), "{opened:?}");
        assert!((DELAY..WITHIN).contains(&after), "{after:?}");
        let (opened, after) = open(&[refuses_at, good_at]);
        assert!(matches!(opened, Opened::Connected(_)), "{opened:?}");
        assert!(after < DELAY, "{after:?}");
        let (opened, after) = open(&[silent_at, refuses_at]);
        assert!(matches!(opened, Opened::Failed(_)), "{opened:?}");
        assert!(after >= WITHIN, "{after:?}");
        let (opened, after) = open(&[refuses_at]);
        let is_told = |why: &str| why.contains("refused");
        assert!(
            matches!(&opened, Opened::Failed(why) if is_told(why)),
            "{opened:?}"
        );
        assert!(after < DELAY, "{after:?}");
    }
}
