//! What a program calls: the only place that knows everything.

mod splicer;

use std::sync::Arc;

use splice_base::error::Result;

pub use self::splicer::{Splicer, echo, join};
use crate::endpoint::Endpoint;
use crate::options::Options;
use crate::outcome::Outcome;
use crate::policy;
use crate::reactor::{EventLoop, Readiness, Task};
use crate::session::pair::ends::Ends;
use crate::session::pair::{OnEnd, Pair};
use crate::session::{Handle, Status};

/// Makes the task that joins `a` and `b`, for a program that places tasks on its loops itself.
///
/// With `registered` the two sockets are on the loop already, as sources 0 and 1 with
/// [`Interest::STREAM`](crate::Interest::STREAM), and this is what they were ready for since: a task that made the
/// connections ends with [`Step::Become`](crate::Step::Become) and loses no event.
///
/// `on_end` is called on the loop's thread when the pair has ended and both sockets are closed.
///
/// # Errors
/// [`EngineRefused`](crate::ErrorKind::EngineRefused) when an engine was asked for by name and cannot take this pair,
/// with the reason. Both sockets are closed then, with a reset.
pub fn pair_task(
    a: Endpoint,
    b: Endpoint,
    options: &Options,
    registered: Option<[Readiness; 2]>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<Box<dyn Task>> {
    let on_end = Some(Box::new(on_end) as OnEnd);
    let pair = pair(
        Ends::Apart([a, b]),
        options,
        registered,
        &Arc::new(Status::new()),
        on_end,
    )?;
    Ok(Box::new(pair))
}

/// Makes the task that splices `endpoint` to itself: what comes from its peer goes back to it.
///
/// An echo is a pair with one direction, whose source is its destination, and everything that holds
/// for a pair holds for it. Both ends are [`Side::A`](crate::Side::A); [`Counters::a_to_b`](crate::Counters) counts
/// its bytes. Once the peer's end of stream has come and every byte before it is given back, the
/// socket is closed; with a byte limit, once that many bytes are.
///
/// `registered` and `on_end` are those of [`pair_task`], for one socket.
///
/// # Errors
/// [`EngineRefused`](crate::ErrorKind::EngineRefused) when an engine was asked for by name that
/// needs two sockets. The socket is closed then.
pub fn echo_task(
    endpoint: Endpoint,
    options: &Options,
    registered: Option<Readiness>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<Box<dyn Task>> {
    let registered = registered.map(|readiness| [readiness, Readiness::NONE]);
    let on_end = Some(Box::new(on_end) as OnEnd);
    let pair = pair(
        Ends::Echo(endpoint),
        options,
        registered,
        &Arc::new(Status::new()),
        on_end,
    )?;
    Ok(Box::new(pair))
}

/// Makes the task of a pair. Both sockets are closed, with a reset, where no engine takes it.
fn pair(
    ends: Ends,
    options: &Options,
    registered: Option<[Readiness; 2]>,
    status: &Arc<Status>,
    on_end: Option<OnEnd>,
) -> Result<Pair> {
    let plan =
        policy::plan(&ends, options).inspect_err(|_| ends.each().iter().for_each(Endpoint::cut))?;
    Ok(Pair::new(
        ends,
        options,
        plan,
        registered,
        Arc::clone(status),
        on_end,
    ))
}

fn place(event_loop: &mut EventLoop, pair: Pair, status: &Status) {
    event_loop.spawn_in_turn(Box::new(pair), |key| status.set_key(key));
}

impl EventLoop {
    /// Joins two endpoints on this loop.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) when an engine was asked for
    /// by name and cannot take the pair. Both sockets are closed then.
    pub fn join(&mut self, a: Endpoint, b: Endpoint, options: &Options) -> Result<Handle> {
        self.run_pair(Ends::Apart([a, b]), options)
    }

    /// Splices an endpoint to itself on this loop: see [`echo_task`](crate::echo_task).
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) when an engine was asked for
    /// by name that needs two sockets. The socket is closed then.
    pub fn echo(&mut self, endpoint: Endpoint, options: &Options) -> Result<Handle> {
        self.run_pair(Ends::Echo(endpoint), options)
    }

    fn run_pair(&mut self, ends: Ends, options: &Options) -> Result<Handle> {
        let status = Arc::new(Status::new());
        let pair = pair(ends, options, None, &status, None)?;
        place(self, pair, &status);
        let handle = Handle::new(status, self.remote());
        // The caller may be between two turns and wait for the descriptor next.
        self.settle_between_turns()?;
        Ok(handle)
    }
}
