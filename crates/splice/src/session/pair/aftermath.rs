//! The task that replaces a pair that has ended.

use crate::kernel::Aftermath;
use crate::reactor::{Context, Readiness, Step, Task};

/// Looks after what an engine has left in the kernel, until that is gone.
pub(super) struct AftermathTask(pub(super) Box<dyn Aftermath>);

impl AftermathTask {
    fn look(&mut self, cx: &mut Context<'_>) -> Step {
        match self.0.look(cx.now()) {
            Some(at) => {
                cx.set_deadline(Some(at));
                Step::Wait
            }
            None => Step::Done,
        }
    }
}

impl Task for AftermathTask {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.look(cx)
    }

    fn ready(&mut self, _cx: &mut Context<'_>, _source: u8, _readiness: Readiness) -> Step {
        Step::Wait
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        self.look(cx)
    }

    fn is_aftermath(&self) -> bool {
        true
    }
}
