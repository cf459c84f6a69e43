//! The keeper: a second process of spliced that holds all that the first one holds, and gives the sockets back if the first
//! one is killed.
//!
//! ```text
//!          a request to exchange        a request to give back
//! holding ──────────────────────▶ kept ──────────────────────▶ given back
//!    │ the first process ends      │ the first process ends          ▲
//!    ▼                             ▼                                 │
//!   over                        orphaned ────────────────────────────┘
//! ```
//!
//! It is also the one that stops the owners, so that no exchange remains half done if the first process is killed. The two
//! share a connected pair of UNIX sockets, whose end tells each that the other one has ended.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::retry_on_intr;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};
use serde::{Deserialize, Serialize};

use super::flow::Flow;
use super::frozen::Late;
use super::held::{Exchanged, GivenBack, Held, Told};
use crate::diagnostics::Diagnostics;
use crate::exit_status::Ended;
use crate::signal::{Request as Signalled, Signals};

/// The option that makes a process of spliced a keeper.
const OPTION: &str = "--keeper";

/// The longest message, in bytes: a sentence, or two sides.
const MESSAGE_MOST_BYTES: usize = 16 << 10;

/// How many descriptors two sides have.
const DESCRIPTORS: usize = 16;

/// How often it is tried to stop the owner for a time that is short enough: another process may have had the CPU.
const TRIES: u32 = 5;

/// Between two of them.
const TRY_EVERY: Duration = Duration::from_millis(50);

/// How often an orphan looks whether all has arrived.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long an orphan tries in silence: the owner may be about to end, for example.
const SILENCE: Duration = Duration::from_secs(1);

/// The other process, as the first one sees it.
#[derive(Debug)]
pub(super) struct Keeper {
    channel: Option<OwnedFd>,
    /// Waits for the process.
    waiter: Option<JoinHandle<()>>,
    pub(super) id: u32,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Request {
    Exchange,
    GiveBack,
}

#[derive(Debug, Deserialize, Serialize)]
enum Answer {
    Exchanged(Exchanged),
    GivenBack(Option<GivenBack>),
    Failed(String),
}

/// The keeper has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone;

impl Keeper {
    /// Starts a keeper. `on_end` is called when it has ended.
    ///
    /// # Errors
    /// If the program cannot be executed again, or there are no descriptors left.
    pub(super) fn start(held: &Held, on_end: impl FnOnce() + Send + 'static) -> Result<Self> {
        const CANNOT: &str =
            "cannot start a process that gives the sockets back if this one is killed";
        let flags = SocketFlags::CLOEXEC;
        let (channel, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).context(CANNOT)?;
        let mut child = Command::new("/proc/self/exe")
            .args(["adopt", OPTION])
            .stdin(Stdio::from(other))
            .stdout(Stdio::null())
            // The terminal's signals are for the first process.
            .process_group(0)
            .spawn()
            .context(CANNOT)?;
        let id = child.id();
        let waiter = thread::Builder::new().name("keeper".into()).spawn(move || {
            // It fails only if it was waited for already.
            let _ = child.wait();
            on_end();
        });
        let keeper = Self {
            channel: Some(channel),
            waiter: Some(waiter.context(CANNOT)?),
            id,
        };
        keeper.hand_over(held).context(CANNOT)?;
        Ok(keeper)
    }

    fn hand_over(&self, held: &Held) -> Result<()> {
        let channel = self.channel.as_ref().context("it has ended")?;
        let (told, descriptors) = held.told();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        // There is space for them.
        let _ = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let text = serde_json::to_vec(&told)?;
        sendmsg(
            channel,
            &[IoSlice::new(&text)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Has the owners get the stand-ins. `None` if the keeper has ended.
    ///
    /// # Errors
    /// If the sockets cannot be adopted.
    pub(super) fn exchange(&mut self) -> Result<Result<Exchanged, Gone>> {
        match self.ask(Request::Exchange) {
            Ok(Answer::Exchanged(exchanged)) => Ok(Ok(exchanged)),
            Ok(Answer::Failed(why)) => bail!(why),
            Ok(Answer::GivenBack(_)) | Err(Gone) => Ok(Err(Gone)),
        }
    }

    /// Has the owners get their sockets back.
    ///
    /// # Errors
    /// If an owner cannot take it now.
    pub(super) fn give_back(&mut self) -> Result<Result<Option<GivenBack>, Gone>> {
        match self.ask(Request::GiveBack) {
            Ok(Answer::GivenBack(given)) => Ok(Ok(given)),
            Ok(Answer::Failed(why)) => bail!(why),
            Ok(Answer::Exchanged(_)) | Err(Gone) => Ok(Err(Gone)),
        }
    }

    fn ask(&mut self, request: Request) -> Result<Answer, Gone> {
        let answer = self.channel.as_ref().and_then(|channel| {
            say(channel, &request).ok()?;
            hear(channel).ok()?
        });
        if answer.is_none() {
            self.end();
        }
        answer.ok_or(Gone)
    }

    /// Leaves the rest to it.
    pub(super) fn leave(&mut self) {
        self.channel = None;
        self.waiter = None;
    }

    /// Waits until it has ended: until then it may have stopped an owner.
    fn end(&mut self) {
        self.channel = None;
        if let Some(waiter) = self.waiter.take() {
            let _ = waiter.join();
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the keeper does.
///
/// # Errors
/// If it was not started by spliced.
pub(super) fn keep(signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    let (sender, stops) = mpsc::channel();
    // What asks the first process to end, too, is for that one.
    let progress = signals.watch(diagnostics.clone(), false, move |request| {
        if request == Signalled::Stop {
            let _ = sender.send(());
        }
    })?;
    progress.running();
    let channel = std::io::stdin();
    let Some(mut held) = receive(&channel)? else {
        return Ok(Ended::Well);
    };
    let mut is_kept = false;
    while let Ok(Some(request)) = hear(&channel) {
        let failed = |error: anyhow::Error| Answer::Failed(format!("{error:#}"));
        let answer = match request {
            Request::Exchange => match exchange(&mut held) {
                Ok(exchanged) => {
                    is_kept = true;
                    Answer::Exchanged(exchanged)
                }
                Err(error) => failed(error),
            },
            Request::GiveBack => match give_back(&held) {
                Ok(given) => {
                    is_kept &= given.is_none();
                    Answer::GivenBack(given)
                }
                Err(error) => failed(error),
            },
        };
        if say(&channel, &answer).is_err() {
            break;
        }
    }
    if is_kept {
        tracing::warn!(
            "spliced has ended while it had adopted sockets; its keeper gives them back"
        );
        // A request that came before was for both.
        while stops.try_recv().is_ok() {}
        go_on_alone(&held, &stops)?;
    }
    Ok(Ended::Well)
}

fn exchange(held: &mut Held) -> Result<Exchanged> {
    in_time(|| held.exchange())
}

fn give_back(held: &Held) -> Result<Option<GivenBack>> {
    in_time(|| held.give_back())
}

/// Does it again if the owner stood still for too long, and has it run in between.
fn in_time<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = 1;
    loop {
        match work() {
            Err(error) if error.is::<Late>() && tries < TRIES => {
                tries += 1;
                thread::sleep(TRY_EVERY);
            }
            result => return result,
        }
    }
}

/// Finishes what the other process has begun. A message on `stops` resets both connections.
///
/// # Errors
/// Without a free descriptor or thread.
pub(super) fn go_on_alone(held: &Held, stops: &Receiver<()>) -> Result<()> {
    let mut flows = Vec::new();
    for at in [0, 1] {
        let (taken, other) = (&held.sides[at], &held.sides[1 - at]);
        let real = &taken.side.real;
        flows.push(Flow::drain([real, &other.side.real], &taken.onward)?);
        flows.push(Flow::start(
            [&taken.near, real],
            &taken.from_owner,
            true,
            drop,
        )?);
    }
    let since = Instant::now();
    let mut has_warned = false;
    loop {
        held.pass_failures_on();
        match give_back(held) {
            Ok(Some(given)) => {
                tracing::info!("given back{}", also(&given));
                return Ok(());
            }
            Err(error) if !has_warned && since.elapsed() > SILENCE => {
                has_warned = true;
                tracing::warn!("cannot give the sockets back yet: {error:#}");
            }
            Ok(None) | Err(_) => {}
        }
        if stops.recv_timeout(LOOK_EVERY).is_ok() {
            tracing::warn!(
                "both connections were reset: a signal came before the rest was delivered"
            );
            held.cut();
        }
    }
}

/// Descriptors that the owner has made of a stand-in meanwhile, in words.
pub(super) fn also(given: &GivenBack) -> String {
    match &given.also[..] {
        [] => String::new(),
        also => format!(", also as {}", also.join(", ")),
    }
}

fn receive(channel: impl AsFd) -> Result<Option<Held>> {
    const CANNOT: &str = "this option is for spliced itself: nobody hands sockets over";
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut text = vec![0; MESSAGE_MOST_BYTES];
    let received = recvmsg(
        channel,
        &mut [IoSliceMut::new(&mut text)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .context(CANNOT)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    let told: [Told; 2] = serde_json::from_slice(&text[..received.bytes]).context(CANNOT)?;
    let held = Held::of_told(told, descriptors);
    held.context("descriptors are missing; raise the limit (ulimit -n)")
        .map(Some)
}

fn say(channel: impl AsFd, message: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(message)?;
    retry_on_intr(|| send(&channel, &text, SendFlags::NOSIGNAL))?;
    Ok(())
}

/// `None` if the other process has ended.
fn hear<T: for<'text> Deserialize<'text>>(channel: impl AsFd) -> Result<Option<T>> {
    let mut text = vec![0; MESSAGE_MOST_BYTES];
    let (_, length) = retry_on_intr(|| recv(&channel, &mut text[..], RecvFlags::empty()))?;
    match length {
        0 => Ok(None),
        _ => Ok(Some(serde_json::from_slice(&text[..length])?)),
    }
}
