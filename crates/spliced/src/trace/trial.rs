//! One message through connections of our own.
//!
//! Three threads stand for three programs, so that the trace tells them apart by their names: `sender`,
//! `relay` and `receiver`. The recording begins when the relay and the receiver sleep.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::gettid;
use splice::trace::{ConnectionFilter, Recorder, Trace};
use splice::{Endpoint, EngineChoice, EngineName, EventLoop, Handle, Kind, Options, Remote};
use splice_sockmap::{MapType, Redirect, Redirections};

use super::bypassed::Bypassed;
use super::stage::Stage;
use crate::trace_arguments::Way;

/// Less than a segment, as small messages are.
const MESSAGE_BYTES: usize = 1000;

/// How long one trial may take; without load it takes a tenth of a second.
const TRIAL_MOST: Duration = Duration::from_secs(10);

/// How soon to look again for a thread that sleeps, or for further events.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A trial has ended when no event came for so long: a delayed ACK is later, and not of interest.
const QUIET: Duration = Duration::from_millis(20);

/// How many messages a kernel engine gets until it moves one by itself, since a pair begins in user space,
/// and the time between them. Half a second is many times the 20 ms for which `sockmap` leaves it there.
const MESSAGES_BEFORE: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// A socket of the trial, by what it is.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) name: &'static str,
    /// This end and the other one.
    pub(super) socket: (SocketAddr, SocketAddr),
}

/// Sends a message on a way and returns the sockets and what happened.
pub(super) fn run(
    way: Way,
    stage: &Arc<Stage>,
    recorder: &mut Recorder,
) -> Result<(Vec<Place>, Trace)> {
    let deadline = Instant::now() + TRIAL_MOST;
    if way == Way::Bypass {
        return bypassed(stage, recorder, deadline);
    }
    let (client, near) = stage.to_relay()?;
    let mut places = vec![place("client", &client)?];
    let Some(engine) = way.engine() else {
        places.push(place("server", &near)?);
        let redirect = match way {
            Way::SendToLocal => {
                let maps =
                    Redirections::new(Redirect::SendToLocal, MapType::Map, 1)?.despite_defects();
                Some(maps.link(&client, &near)?)
            }
            _ => None,
        };
        let trace = Message::new(client, near)?.trace(&[], &places, recorder, deadline)?;
        drop(redirect);
        return Ok((places, trace));
    };
    let (far, server) = stage.to_server()?;
    places.push(place("relay, to the client", &near)?);
    places.push(place("relay, to the server", &far)?);
    places.push(place("server", &server)?);
    let relay = Relay::start(engine, stage, near, far)?;
    let message = Message::new(client, server)?;
    // On a busy machine a kernel engine may have returned the pair to the process meanwhile.
    loop {
        relay.settle(engine, &message, deadline)?;
        let before = relay.moved_by_kernel();
        let trace = message.trace(&[relay.thread], &places, recorder, deadline)?;
        if !is_in_kernel(engine) || relay.moved_by_kernel() > before {
            return Ok((places, trace));
        }
        if Instant::now() >= deadline {
            bail!("the engine does not keep the pair: this machine is too busy");
        }
    }
}

/// The same from one socket to the other.
fn bypassed(
    stage: &Arc<Stage>,
    recorder: &mut Recorder,
    deadline: Instant,
) -> Result<(Vec<Place>, Trace)> {
    let bypassed = Bypassed::start()?;
    let (client, server) = stage.to_relay_in(Some(bypassed.group()))?;
    let places = vec![place("client", &client)?, place("server", &server)?];
    // It looks for their networks among those of the threads in its group.
    let [group, same] = [(); 2].map(|()| Arc::clone(bypassed.group()));
    let [one, other] = [(); 2].map(|()| Arc::clone(stage));
    let enter_client = move || group.enter_thread().and_then(|()| one.enter_client());
    let enter_server = move || same.enter_thread().and_then(|()| other.enter_relay());
    let message = Message::within(client, server, enter_client, enter_server)?;
    loop {
        let before = bypassed.redirected();
        for _ in 0..MESSAGES_BEFORE {
            message.exchange(deadline)?;
            thread::sleep(PAUSE);
        }
        if bypassed.redirected() > before {
            let trace = message.trace(&[], &places, recorder, deadline)?;
            return Ok((places, trace));
        }
        if Instant::now() >= deadline {
            bail!("the bypass does not take the connection: this machine is too busy");
        }
    }
}

fn is_in_kernel(engine: EngineName) -> bool {
    [EngineName::Sockmap, EngineName::Segment].contains(&engine)
}

fn place(name: &'static str, socket: &TcpStream) -> Result<Place> {
    let socket = (socket.local_addr()?, socket.peer_addr()?);
    Ok(Place { name, socket })
}

/// A thread with a loop and the pair.
struct Relay {
    thread: i32,
    handle: Option<Handle>,
    remote: Remote,
    joined: Option<JoinHandle<()>>,
}

impl Relay {
    fn start(
        engine: EngineName,
        stage: &Arc<Stage>,
        near: TcpStream,
        far: TcpStream,
    ) -> Result<Self> {
        // In words of their own: that an engine is refused is no wrong usage here.
        let can = engine.probe().and_then(|()| engine.can_take(Kind::Tcp4));
        can.map_err(|error| anyhow!("{error}"))?;
        let (ready, started) = channel();
        let stage = Arc::clone(stage);
        let work = move || {
            let begun = || -> Result<_> {
                // The engines look at the network of their thread.
                stage.enter_relay()?;
                let mut event_loop = EventLoop::new()?;
                let options = Options {
                    engine: EngineChoice::Only(engine),
                    // The trial shows the way. What the filters of this host say is another question.
                    bypass_firewall: true,
                    ..Options::default()
                };
                let pair = [Endpoint::new(near)?, Endpoint::new(far)?];
                let [a, b] = pair;
                let handle = event_loop.join(a, b, &options)?;
                Ok((event_loop, handle))
            };
            match begun() {
                Err(error) => drop(ready.send(Err(error))),
                Ok((mut event_loop, handle)) => {
                    let thread = gettid().as_raw_nonzero().get();
                    let _ = ready.send(Ok((thread, handle, event_loop.remote())));
                    let _ = event_loop.run();
                }
            }
        };
        let joined = named("relay", work)?;
        let (thread, handle, remote) = started.recv().context("the relay's thread has ended")??;
        Ok(Self {
            thread,
            handle: Some(handle),
            remote,
            joined: Some(joined),
        })
    }

    /// Sends messages until the engine moves them. The first ones also warm up caches.
    fn settle(&self, engine: EngineName, message: &Message, deadline: Instant) -> Result<()> {
        for _ in 0..MESSAGES_BEFORE {
            let before = self.moved_by_kernel();
            message.exchange(deadline)?;
            if !is_in_kernel(engine) || self.moved_by_kernel() >= before + MESSAGE_BYTES as u64 {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        let why = self.handle.as_ref().map(Handle::engine);
        let (name, why) = why.ok_or_else(|| anyhow!("the pair has ended"))?;
        bail!("the process moved the bytes, not the kernel ({name}: {why})")
    }

    /// How many bytes the kernel has moved towards the server without the process.
    fn moved_by_kernel(&self) -> u64 {
        let handle = self.handle.as_ref();
        handle.map_or(0, |handle| handle.redirected().a_to_b)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Its end closes the sockets in the loop, which has to run for that.
        if let Some(handle) = self.handle.take() {
            drop(handle);
        }
        self.remote.end();
        if let Some(joined) = self.joined.take() {
            let _ = joined.join();
        }
    }
}

/// The two peers, each with a thread. A thread ends when its orders end.
struct Message {
    send: Sender<()>,
    receive: Sender<()>,
    received: Receiver<Result<()>>,
    sender: i32,
    receiver: i32,
}

impl Message {
    fn new(client: TcpStream, server: TcpStream) -> Result<Self> {
        Self::within(client, server, || Ok(()), || Ok(()))
    }

    /// The same, with threads that first do what they are given.
    fn within(
        mut client: TcpStream,
        mut server: TcpStream,
        enter_client: impl FnOnce() -> Result<()> + Send + 'static,
        enter_server: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (send, sends) = channel();
        let (receive, receives) = channel();
        let (tell, received) = channel();
        let (tell_id, id) = channel();
        let sent = tell.clone();
        let tell_sender = tell_id.clone();
        named("sender", move || {
            let id = gettid().as_raw_nonzero().get();
            let _ = tell_sender.send(enter_client().map(|()| (true, id)));
            for () in sends {
                if let Err(error) = client.write_all(&[b'm'; MESSAGE_BYTES]) {
                    let _ = sent.send(Err(anyhow!(error).context("cannot send the message")));
                }
            }
        })?;
        named("receiver", move || {
            let id = gettid().as_raw_nonzero().get();
            let _ = tell_id.send(enter_server().map(|()| (false, id)));
            for () in receives {
                let mut buffer = [0; MESSAGE_BYTES];
                let mut wait = || -> Result<()> {
                    poll(&mut [PollFd::new(&server, PollFlags::IN)], None)?;
                    server.read_exact(&mut buffer)?;
                    Ok(())
                };
                let _ = tell.send(wait().context("cannot receive the message"));
            }
        })?;
        let (mut sender, mut receiver) = (0, 0);
        for _ in 0..2 {
            match id.recv().context("a thread has ended")?? {
                (true, thread) => sender = thread,
                (false, thread) => receiver = thread,
            }
        }
        Ok(Self {
            send,
            receive,
            received,
            sender,
            receiver,
        })
    }

    fn exchange(&self, deadline: Instant) -> Result<()> {
        self.receive.send(())?;
        self.send.send(())?;
        let patience = deadline.saturating_duration_since(Instant::now());
        let received = self.received.recv_timeout(patience);
        received.context("the message did not arrive in time")?
    }

    /// One message, recorded.
    fn trace(
        &self,
        relay: &[i32],
        places: &[Place],
        recorder: &mut Recorder,
        deadline: Instant,
    ) -> Result<Trace> {
        let filters: Vec<_> = places
            .iter()
            .map(|place| ConnectionFilter::between(place.socket.0, place.socket.1))
            .collect();
        // What comes after the last message, such as an ACK.
        for thread in relay.iter().chain([&self.sender, &self.receiver]) {
            asleep(*thread, deadline)?;
        }
        recorder.start(&filters, true)?;
        self.receive.send(())?;
        asleep(self.receiver, deadline)?;
        self.send.send(())?;
        let patience = deadline.saturating_duration_since(Instant::now());
        let received = self.received.recv_timeout(patience);
        let mut events = recorder.events();
        let mut last = Instant::now();
        while last.elapsed() < QUIET && Instant::now() < deadline {
            thread::sleep(LOOK_AGAIN);
            let now = recorder.events();
            if now != events {
                (events, last) = (now, Instant::now());
            }
        }
        let trace = recorder.finish_first_message()?;
        received.context("the message did not arrive in time")??;
        Ok(trace)
    }
}

fn named<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let thread = thread::Builder::new().name(name.into()).spawn(work);
    thread.with_context(|| format!("cannot start the thread {name}"))
}

/// Waits until a thread of this process sleeps.
fn asleep(thread: i32, deadline: Instant) -> Result<()> {
    let path = format!("/proc/self/task/{thread}/stat");
    loop {
        let state = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // The state follows the name, which is in parentheses (proc_pid_stat(5)).
        if state
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('S'))
        {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!("a thread of the trial does not come to rest");
        }
        thread::sleep(LOOK_AGAIN);
    }
}
