//! What remains of a pair whose segments were translated: late ones still are.

use std::sync::Arc;

use super::flow::Flow;
use crate::context::Context;
use crate::task::{Readiness, Step, Task};

/// Keeps a flow until nothing more comes of it, or until others need its slot.
#[derive(Debug)]
pub(super) struct Linger {
    flow: Arc<Flow>,
}

impl Linger {
    pub(super) fn new(flow: Arc<Flow>) -> Self {
        flow.offer_slot();
        Self { flow }
    }

    fn wait(&self, cx: &mut Context<'_>) -> Step {
        match self.flow.lingers() {
            Some(left) if !left.is_zero() => {
                cx.set_deadline(Some(cx.now() + left));
                Step::Wait
            }
            Some(_) => {
                // Late segments for the sockets may have had it come back.
                self.flow.forget();
                Step::Done
            }
            None => Step::Done,
        }
    }
}

impl Task for Linger {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.wait(cx)
    }

    fn ready(&mut self, _cx: &mut Context<'_>, _source: u8, _readiness: Readiness) -> Step {
        Step::Wait
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        self.wait(cx)
    }

    fn is_aftermath(&self) -> bool {
        true
    }
}
