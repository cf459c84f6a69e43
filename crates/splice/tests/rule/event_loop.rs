//! The loop, driven by the caller's loop and running the caller's tasks.

use std::cell::Cell;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use splice::{
    Context, Endpoint, EventLoop, Interest, Kind, Limits, Options, Outcome, Readiness, Reason,
    Step, Task, pair_task,
};

use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::patience::PATIENCE;
use crate::support::peer::Peer;
use crate::support::relay::{FROM_A, payloads};
use crate::support::transfer::{Pace, receive_to_end, send};

const EACH_WAY_BYTES: u64 = 4 << 20;
const IDLE: Duration = Duration::from_millis(250);
/// A timer wheel looks a few times before a deadline; a spinning loop looks thousands of times.
const MOST_TURNS_WHILE_IDLE: usize = 20;

/// Waits as a foreign loop does: only on the descriptor.
fn poll_and_turn(event_loop: &mut EventLoop) {
    let patience = Timespec::try_from(PATIENCE).unwrap();
    let mut fds = [PollFd::new(event_loop, PollFlags::IN)];
    // A signal may interrupt a loop, which then turns as well.
    let ready = poll(&mut fds, Some(&patience));
    assert!(
        matches!(ready, Ok(1) | Err(Errno::INTR)),
        "the loop's descriptor never became readable: {ready:?}"
    );
    event_loop.turn(Some(Duration::ZERO)).unwrap();
}

pub(crate) fn driven_by_the_caller(engine: &Contestant) {
    let [from_a, from_b] = payloads();
    engine.with_each_mix(|mix| {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        let mut event_loop = EventLoop::new().unwrap();
        let [near, far] = [near, far].map(|fd| Endpoint::new(fd).unwrap());
        let handle = event_loop.join(near, far, &engine.options()).unwrap();
        thread::scope(|scope| {
            for (from, to, payload) in [(&a, &b, from_a), (&b, &a, from_b)] {
                scope.spawn(move || {
                    send(from, payload, 0..EACH_WAY_BYTES, Pace::random(FROM_A));
                    from.end_stream();
                });
                scope.spawn(move || receive_to_end(to, payload, 0..EACH_WAY_BYTES, Pace::Steady));
            }
            while handle.outcome().is_none() {
                poll_and_turn(&mut event_loop);
            }
        });
        assert_eq!(handle.outcome().unwrap().reason, Reason::EndOfStream);
        assert_eq!(event_loop.tasks(), 0);
    });
}

pub(crate) fn idle_timeout_through_the_descriptor(engine: &Contestant) {
    let options = Options {
        limits: Limits {
            idle_timeout: Some(IDLE),
            ..Limits::default()
        },
        ..engine.options()
    };
    engine.with_each_kind(|mix| {
        let (_a, near) = Peer::connected(mix.a);
        let (_b, far) = Peer::connected(mix.b);
        let mut event_loop = EventLoop::new().unwrap();
        let [near, far] = [near, far].map(|fd| Endpoint::new(fd).unwrap());
        let start = Instant::now();
        let handle = event_loop.join(near, far, &options).unwrap();
        let mut turns = 0;
        while handle.outcome().is_none() {
            poll_and_turn(&mut event_loop);
            turns += 1;
        }
        assert_eq!(handle.outcome().unwrap().reason, Reason::Idle);
        assert!(start.elapsed() >= IDLE);
        assert!(turns <= MOST_TURNS_WHILE_IDLE, "{turns} turns");
    });
}

/// Accepts, connects, and hands over both connections.
struct Listening {
    listener: TcpListener,
    target: std::net::SocketAddr,
    options: Options,
    outcomes: mpsc::Sender<Outcome>,
}

impl Task for Listening {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.listener.set_nonblocking(true).unwrap();
        cx.register(&self.listener, 7, Interest::TAKE).unwrap();
        Step::Wait
    }

    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        assert_eq!(source, 7);
        assert!(readiness.is_readable() && !readiness.is_broken());
        while let Ok((accepted, _)) = self.listener.accept() {
            let connected = TcpStream::connect(self.target).unwrap();
            let a = Endpoint::new(OwnedFd::from(accepted)).unwrap();
            let b = Endpoint::new(OwnedFd::from(connected)).unwrap();
            let outcomes = self.outcomes.clone();
            let told = move |outcome| outcomes.send(outcome).unwrap();
            let task = pair_task(a, b, &self.options, None, told).unwrap();
            cx.spawn(task);
        }
        Step::Wait
    }
}

pub(crate) fn a_listening_task(engine: &Contestant) {
    const CLIENTS: usize = 5;
    let [from_a, from_b] = payloads();
    let mut event_loop = EventLoop::new().unwrap();
    let remote = event_loop.remote();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let (sender, outcomes) = mpsc::channel();
    let waker = event_loop.spawn(Box::new(Listening {
        listener,
        target: target.local_addr().unwrap(),
        options: engine.options(),
        outcomes: sender,
    }));
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..CLIENTS {
                let client = Peer::new(TcpStream::connect(address).unwrap().into(), Kind::Tcp4);
                let server = Peer::new(target.accept().unwrap().0.into(), Kind::Tcp4);
                let bytes = 100_000;
                for (from, to, payload) in [(&client, &server, from_a), (&server, &client, from_b)]
                {
                    send(from, payload, 0..bytes, Pace::Steady);
                    from.end_stream();
                    receive_to_end(to, payload, 0..bytes, Pace::Steady);
                }
                let outcome = outcomes.recv_timeout(PATIENCE).unwrap();
                assert_eq!(outcome.reason, Reason::EndOfStream);
                assert_eq!([outcome.moved.a_to_b, outcome.moved.b_to_a], [bytes; 2]);
            }
            waker.close();
            remote.end();
        });
        event_loop.run().unwrap();
    });
    assert_eq!(event_loop.tasks(), 0);
}

struct Alarm {
    deadline: Instant,
    rang: Rc<Cell<bool>>,
}

impl Task for Alarm {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        cx.set_deadline(Some(self.deadline));
        Step::Wait
    }

    fn ready(&mut self, _: &mut Context<'_>, _: u8, _: Readiness) -> Step {
        unreachable!("nothing is registered")
    }

    fn deadline_passed(&mut self, _: &mut Context<'_>) -> Step {
        assert!(Instant::now() >= self.deadline);
        self.rang.set(true);
        Step::Done
    }
}

/// A driver places pairs and tasks on the loop between two turns.
pub(crate) fn a_deadline_set_between_turns(engine: &Contestant) {
    let mut event_loop = EventLoop::new().unwrap();
    event_loop.turn(Some(Duration::ZERO)).unwrap();
    let rang = Rc::new(Cell::new(false));
    let alarm = Alarm {
        deadline: Instant::now() + IDLE,
        rang: Rc::clone(&rang),
    };
    event_loop.spawn(Box::new(alarm));
    while !rang.get() {
        poll_and_turn(&mut event_loop);
    }
    let (a, near) = Peer::connected(Mix::TCP4.a);
    let (b, far) = Peer::connected(Mix::TCP4.b);
    let [near, far] = [near, far].map(|fd| Endpoint::new(fd).unwrap());
    let mut options = engine.options();
    options.limits.idle_timeout = Some(IDLE);
    let handle = event_loop.join(near, far, &options).unwrap();
    while handle.outcome().is_none() {
        poll_and_turn(&mut event_loop);
    }
    assert_eq!(handle.outcome().unwrap().reason, Reason::Idle);
    drop((a, b));
}
