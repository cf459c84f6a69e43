//! Hooks at the steps of a change-over.

use std::cell::RefCell;
use std::sync::mpsc;

use super::PATIENCE;
use crate::{EventLoop, Splicer};

/// All steps.
pub(super) const STEPS: [&str; 7] = [
    "watching",
    "translatable",
    "overlap",
    "emptying",
    "settled",
    "spliced",
    "asleep",
];

type Told = Box<dyn FnMut(&str)>;

thread_local! {
    static TOLD: RefCell<Option<Told>> = const { RefCell::new(None) };
}

/// Calls `told` at every step of the pairs of this splicer, which has one loop.
pub(super) fn watch(splicer: &Splicer, told: impl FnMut(&str) + Send + 'static) {
    let watch = move |_: &mut EventLoop| TOLD.set(Some(Box::new(told)));
    splicer.remote().run(watch).expect("a loop");
}

/// Halts the loop at steps of a change-over.
pub(super) struct Halt {
    reached: mpsc::Receiver<()>,
    may_go_on: mpsc::Sender<()>,
}

impl Halt {
    /// Halts once at each of these steps, in this order.
    pub(super) fn at<const STEPS: usize>(splicer: &Splicer, steps: [&'static str; STEPS]) -> Self {
        let (told, reached) = mpsc::channel();
        let (may_go_on, awaited) = mpsc::channel();
        let mut steps = steps.into_iter().peekable();
        watch(splicer, move |step| {
            if steps.next_if(|next| *next == step).is_some() {
                told.send(()).expect("awaited");
                awaited.recv().expect("told");
            }
        });
        Self { reached, may_go_on }
    }

    pub(super) fn wait(&self) {
        self.reached.recv_timeout(PATIENCE).expect("the step");
    }

    pub(super) fn go_on(&self) {
        self.may_go_on.send(()).expect("awaited");
    }
}

pub(in super::super) fn reached(step: &str) {
    assert!(STEPS.contains(&step), "{step}");
    TOLD.with_borrow_mut(|told| told.iter_mut().for_each(|told| told(step)));
}
