//! What runs on an event loop.

use std::fmt;

use super::context::Context;
use super::readiness::Readiness;

/// Something that an [`EventLoop`](crate::EventLoop) runs: a pair, a listener, a connection being
/// made.
///
/// A task never blocks. It is told what became possible, does what it can, and says with a
/// [`Step`] how to go on. It owns its file descriptors; they leave the loop when it is dropped.
pub trait Task {
    /// The task has been placed on a loop; the moment to register its descriptors.
    fn start(&mut self, cx: &mut Context<'_>) -> Step;

    /// The descriptor that was registered as `source` became ready.
    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step;

    /// The deadline set with [`Context::set_deadline`] has passed.
    fn deadline_passed(&mut self, _cx: &mut Context<'_>) -> Step {
        Step::Wait
    }

    /// Its turn has come again after [`Step::Again`], or a [`Waker`](crate::Waker) was used.
    fn resume(&mut self, _cx: &mut Context<'_>) -> Step {
        Step::Wait
    }

    /// It only waits for its time to be over, and nobody waits for it:
    /// [`EventLoop::tasks`](crate::EventLoop::tasks) does not count it.
    #[doc(hidden)]
    fn is_aftermath(&self) -> bool {
        false
    }

    /// The task has to end now; it is dropped afterwards.
    fn close(&mut self, _cx: &mut Context<'_>) {}
}

/// How a [`Task`] goes on.
pub enum Step {
    /// Nothing more can be done until something happens.
    Wait,
    /// More can be done at once; let the others have their turn first.
    Again,
    /// The task goes on as another one, which keeps this one's registrations but not its deadline.
    Become(Box<dyn Task>),
    /// The task is finished; drop it.
    Done,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "Wait",
            Self::Again => "Again",
            Self::Become(_) => "Become",
            Self::Done => "Done",
        })
    }
}
