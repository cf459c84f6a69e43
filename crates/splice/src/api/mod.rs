//! What a program calls: the layer that puts all others together.

mod splicer;

use std::sync::Arc;

use splice_base::error::Result;

pub use self::splicer::{Splicer, echo, join};
use crate::counters::Counters;
use crate::endpoint::Endpoint;
use crate::options::Options;
use crate::outcome::{Outcome, Reason};
use crate::policy;
use crate::reactor::{EventLoop, Readiness, Task};
use crate::session::one_way::{OneWay, Reverses};
use crate::session::pair::ends::Ends;
use crate::session::pair::{OnEnd, Pair, Plan};
use crate::session::{Handle, Observer, Status};

/// Creates the task that joins `a` and `b`, for a program that places tasks on its loops itself.
///
/// With `registered` the two sockets are already on the loop, as sources 0 and 1 with
/// [`Interest::STREAM`](crate::Interest::STREAM), and it holds their readiness since. So a task
/// that made the connections can end with [`Step::Become`](crate::Step::Become) and lose no event.
///
/// The loop's thread calls `on_end` when the pair has ended and both sockets are closed.
///
/// # Errors
/// [`EngineRefused`](crate::ErrorKind::EngineRefused), with the reason, if an engine was chosen by
/// name and cannot take this pair; [`System`](crate::ErrorKind::System) if a socket does not take
/// [`Options::keepalive`] or [`Options::user_timeout`]. Then both sockets are closed, with a reset.
pub fn pair_task(
    a: Endpoint,
    b: Endpoint,
    options: &Options,
    registered: Option<[Readiness; 2]>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<Box<dyn Task>> {
    observed_pair_task(a, b, options, registered, on_end).map(|(task, _)| task)
}

/// As [`pair_task`], for a program that reads the pair while it runs.
///
/// # Errors
/// As [`pair_task`].
pub fn observed_pair_task(
    a: Endpoint,
    b: Endpoint,
    options: &Options,
    registered: Option<[Readiness; 2]>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<(Box<dyn Task>, Observer)> {
    let on_end = Some(Box::new(on_end) as OnEnd);
    let status = Arc::new(Status::new());
    let pair = pair(Ends::Two([a, b]), options, registered, &status, on_end)?;
    Ok((Box::new(pair), Observer::new(status)))
}

/// Creates the task that splices `endpoint` to itself, so that its peer gets back what it sends.
///
/// An echo is a pair with one direction, whose source is its destination. Everything that holds for
/// a pair holds for it. Both ends are [`Side::A`](crate::Side::A);
/// [`Counters::a_to_b`](crate::Counters) counts its bytes. The socket is closed once the peer has
/// sent EOF and got every byte back or, with a byte limit, that many bytes.
///
/// `registered` and `on_end` are as for [`pair_task`], for one socket.
///
/// # Errors
/// [`EngineRefused`](crate::ErrorKind::EngineRefused) if an engine was chosen by name
/// that needs two sockets. Then the socket is closed.
pub fn echo_task(
    endpoint: Endpoint,
    options: &Options,
    registered: Option<Readiness>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<Box<dyn Task>> {
    observed_echo_task(endpoint, options, registered, on_end).map(|(task, _)| task)
}

/// As [`echo_task`], for a program that reads the echo while it runs.
///
/// # Errors
/// As [`echo_task`].
pub fn observed_echo_task(
    endpoint: Endpoint,
    options: &Options,
    registered: Option<Readiness>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<(Box<dyn Task>, Observer)> {
    let registered = registered.map(|readiness| [readiness, Readiness::NONE]);
    let on_end = Some(Box::new(on_end) as OnEnd);
    let status = Arc::new(Status::new());
    let ends = Ends::Echo(endpoint);
    let pair = pair(ends, options, registered, &status, on_end)?;
    Ok((Box::new(pair), Observer::new(status)))
}

/// Creates the task that makes a pair of two one-way splices that are each other's reverse, and
/// takes their sockets. Nobody can take them back then, so the pair may go into the kernel. The
/// caller must not use its own descriptors any more. Both splices end with the pair.
///
/// `None` if one of them has ended, or holds bytes that its destination has not taken yet.
///
/// # Errors
/// As [`pair_task`], and [`System`](crate::ErrorKind::System) if a socket cannot be an
/// [`Endpoint`]. Then both splices have ended.
pub fn merged_task(
    forth: &OneWay,
    back: &OneWay,
    options: &Options,
) -> Result<Option<Box<dyn Task>>> {
    let status = Arc::new(Status::new());
    let merged = Reverses::of(forth, back).and_then(|reverses| reverses.merge(&status));
    let Some((sources, on_end)) = merged else {
        return Ok(None);
    };
    let ends = sources.map(Endpoint::new);
    let [Ok(a), Ok(b)] = ends else {
        on_end(Reason::Shutdown, Counters::default());
        let error = ends.into_iter().find_map(Result::err);
        return error.map_or(Ok(None), Err);
    };
    let on_end = Box::new(move |outcome: Outcome| on_end(outcome.reason, outcome.moved));
    let pair = pair(Ends::Two([a, b]), options, None, &status, Some(on_end))?;
    Ok(Some(Box::new(pair)))
}

/// Creates the task of a pair. If no engine takes it, or a socket takes an option not, both sockets
/// are closed with a reset.
fn pair(
    ends: Ends,
    options: &Options,
    registered: Option<[Readiness; 2]>,
    status: &Arc<Status>,
    on_end: Option<OnEnd>,
) -> Result<Pair> {
    let plan = plan(&ends, options).inspect_err(|_| ends.each().iter().for_each(Endpoint::cut))?;
    Ok(Pair::new(
        ends,
        options,
        plan,
        registered,
        Arc::clone(status),
        on_end,
    ))
}

/// How the pair may move into the kernel. Its sockets have the options of the pair then.
fn plan(ends: &Ends, options: &Options) -> Result<Plan> {
    let plan = policy::plan(ends, options)?;
    ends.set_options(options)?;
    Ok(plan)
}

fn place(event_loop: &mut EventLoop, pair: Pair, status: &Status) {
    event_loop.spawn_in_turn(Box::new(pair), |key| status.set_key(key));
}

impl EventLoop {
    /// Joins two endpoints on this loop.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) if an engine was chosen by
    /// name and cannot take the pair. Then both sockets are closed.
    pub fn join(&mut self, a: Endpoint, b: Endpoint, options: &Options) -> Result<Handle> {
        self.run_pair(Ends::Two([a, b]), options)
    }

    /// Splices an endpoint to itself on this loop: see [`echo_task`].
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) if an engine was chosen by
    /// name that needs two sockets. Then the socket is closed.
    pub fn echo(&mut self, endpoint: Endpoint, options: &Options) -> Result<Handle> {
        self.run_pair(Ends::Echo(endpoint), options)
    }

    fn run_pair(&mut self, ends: Ends, options: &Options) -> Result<Handle> {
        let status = Arc::new(Status::new());
        let pair = pair(ends, options, None, &status, None)?;
        place(self, pair, &status);
        let handle = Handle::new(status, self.remote());
        // The caller may wait for the descriptor next.
        self.settle_between_turns()?;
        Ok(handle)
    }
}
