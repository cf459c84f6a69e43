//! Connections that wait for a place at a server, in the order in which they came.
//!
//! ```text
//! enter() ──▶ waiting ──a place may be free──▶ called ──┬──it got one──▶ served()
//!                ▲                                      ├──it died──▶ the next one is called
//!                └──────────none that it can use────────┘
//! ```
//!
//! Nobody may wait while there is a place that nobody was called for. So whoever is called and does not
//! take the place calls another one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use splice::Waker;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    line: Mutex<Line>,
    /// Who waits or was called, so that those who end need not lock the line.
    length: AtomicUsize,
}

#[derive(Debug, Default)]
struct Line {
    /// In the order of their numbers.
    waiting: VecDeque<(u64, Waker)>,
    /// How many were called and have not decided yet.
    called: usize,
    next_number: u64,
}

/// A place in the queue, which a drop leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    queue: Arc<Queue>,
    number: u64,
    is_done: bool,
}

impl Queue {
    /// Waits in the queue; `None` if `most` do already. Look for a free place again afterwards: it may
    /// have become free when nobody waited.
    pub(super) fn enter(
        self: &Arc<Self>,
        most: u32,
        waker: impl FnOnce() -> Waker,
    ) -> Option<Ticket> {
        let mut line = self.lock();
        if line.waiting.len() >= most as usize {
            return None;
        }
        let number = line.next_number;
        line.next_number += 1;
        line.waiting.push_back((number, waker()));
        self.measure(&line);
        // Pairs with the fence of `call_next`: either the one sees the free place, or the other this
        // ticket.
        fence(Ordering::SeqCst);
        Some(Ticket {
            queue: Arc::clone(self),
            number,
            is_done: false,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// A place has become free.
    pub(super) fn call_next(&self) {
        fence(Ordering::SeqCst);
        if self.is_empty() {
            return;
        }
        let mut line = self.lock();
        line.call(0);
    }

    /// A place is free, and the one who says so does not take it.
    pub(super) fn call_if_none_is(&self) {
        if self.is_empty() {
            return;
        }
        let mut line = self.lock();
        if line.called == 0 {
            line.call(0);
        }
    }

    fn measure(&self, line: &Line) {
        let length = line.waiting.len() + line.called;
        self.length.store(length, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        // A panic cannot leave it half changed.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Calls the first one with this number or a later one.
    fn call(&mut self, from: u64) {
        let index = self.waiting.partition_point(|(number, _)| *number < from);
        if let Some((_, waker)) = self.waiting.remove(index) {
            self.called += 1;
            waker.wake();
        }
    }

    fn find(&self, number: u64) -> Result<usize, usize> {
        self.waiting.binary_search_by_key(&number, |(it, _)| *it)
    }
}

impl Ticket {
    /// Goes back to its place in the queue. If there is a place that others could use, and nobody is about
    /// to look, the next one behind is called.
    pub(super) fn stay(&self, place_for_others: bool, waker: impl FnOnce() -> Waker) {
        let mut line = self.queue.lock();
        if let Err(index) = line.find(self.number) {
            line.waiting.insert(index, (self.number, waker()));
            line.called -= 1;
            if place_for_others && line.called == 0 {
                line.call(self.number + 1);
            }
        }
        self.queue.measure(&line);
        fence(Ordering::SeqCst);
    }

    /// It has got its place.
    pub(super) fn served(mut self) {
        self.is_done = true;
        let mut line = self.queue.lock();
        line.leave(self.number);
        self.queue.measure(&line);
    }
}

impl Line {
    /// Returns whether it was called.
    fn leave(&mut self, number: u64) -> bool {
        match self.find(number) {
            Ok(index) => {
                self.waiting.remove(index);
                false
            }
            Err(_) => {
                self.called -= 1;
                true
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut line = self.queue.lock();
        if line.leave(self.number) {
            line.call(0);
        }
        self.queue.measure(&line);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use splice::{Context, EventLoop, Readiness, Step, Task};

    use super::*;

    /// Notes when it is called.
    struct Waiting {
        name: u32,
        called: Rc<RefCell<Vec<u32>>>,
    }

    impl Task for Waiting {
        fn start(&mut self, _: &mut Context<'_>) -> Step {
            Step::Wait
        }

        fn ready(&mut self, _: &mut Context<'_>, _: u8, _: Readiness) -> Step {
            Step::Wait
        }

        fn resume(&mut self, _: &mut Context<'_>) -> Step {
            self.called.borrow_mut().push(self.name);
            Step::Wait
        }
    }

    /// A queue, and those who wait in it.
    struct Stage {
        event_loop: EventLoop,
        queue: Arc<Queue>,
        waiting: Vec<(Waker, Option<Ticket>)>,
        called: Rc<RefCell<Vec<u32>>>,
    }

    impl Stage {
        fn with(count: u32) -> Self {
            let mut event_loop = EventLoop::new().expect("a loop");
            let queue = Arc::<Queue>::default();
            let called = Rc::default();
            let waiting = (0..count).map(|name| {
                let called = Rc::clone(&called);
                let waker = event_loop.spawn(Box::new(Waiting { name, called }));
                let ticket = queue.enter(u32::MAX, || waker.clone());
                (waker, ticket)
            });
            let waiting = waiting.collect();
            Self {
                event_loop,
                queue,
                waiting,
                called,
            }
        }

        fn ticket(&mut self, name: usize) -> Ticket {
            self.waiting[name].1.take().expect("a ticket")
        }

        fn waker(&self, name: usize) -> Waker {
            self.waiting[name].0.clone()
        }

        /// Who was called since the last look.
        fn called(&mut self) -> Vec<u32> {
            for _ in 0..3 {
                self.event_loop.turn(Some(Duration::ZERO)).expect("a turn");
            }
            self.called.take()
        }
    }

    #[test]
    fn one_that_dies_after_it_was_called_passes_the_call_on() {
        let mut stage = Stage::with(3);
        stage.queue.call_next();
        assert_eq!(stage.called(), [0]);
        drop(stage.ticket(0));
        assert_eq!(stage.called(), [1]);
        stage.ticket(1).served();
        assert_eq!(stage.called(), [0; 0]);
        assert_eq!(stage.queue.len(), 1);
        // One that was not called leaves alone.
        drop(stage.ticket(2));
        assert!(stage.queue.is_empty());
    }

    #[test]
    fn one_that_cannot_use_the_place_keeps_its_own_and_calls_the_next_behind() {
        let mut stage = Stage::with(3);
        let waker = stage.waker(0);
        stage.queue.call_next();
        assert_eq!(stage.called(), [0]);
        let first = stage.ticket(0);
        first.stay(true, || waker.clone());
        assert_eq!(stage.called(), [1]);
        stage.ticket(1).served();
        stage.queue.call_next();
        assert_eq!(stage.called(), [0]);
        first.stay(false, || waker);
        assert_eq!(stage.called(), [0; 0]);
        assert_eq!(stage.queue.len(), 2);
    }

    #[test]
    fn nobody_is_called_beside_one_that_has_not_decided() {
        let mut stage = Stage::with(2);
        stage.queue.call_if_none_is();
        stage.queue.call_if_none_is();
        assert_eq!(stage.called(), [0]);
        stage.ticket(0).served();
        stage.queue.call_if_none_is();
        assert_eq!(stage.called(), [1]);
    }
}
