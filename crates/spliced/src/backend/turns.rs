//! Which client may ask a name server next.
//!
//! First come, first served would give every question to those that ask for most. Here each client may have a part of
//! what is free, so that a few of them always leave some for the next, and those that wait are served in turn.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::lock;

/// A client may have one more if it has less than this part of what is free: eight clients leave more than a third of
/// all, and thirty leave some.
const PART: usize = 8;

/// A number of turns, shared by clients of whom `C` tells them apart.
#[derive(Debug)]
pub(super) struct Turns<C>(Arc<Mutex<State<C>>>);

#[derive(Debug)]
struct State<C> {
    free: usize,
    /// Those that have a turn, or wait for one.
    shares: HashMap<C, Share>,
    /// Those that wait, the next one first.
    order: VecDeque<C>,
    next_number: u64,
}

#[derive(Debug, Default)]
struct Share {
    taken: usize,
    /// By a number that grows.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
}

/// It ends on drop.
#[derive(Debug)]
pub(super) struct Turn<C: Copy + Eq + Hash> {
    state: Arc<Mutex<State<C>>>,
    client: C,
    /// While it waits.
    number: Option<u64>,
}

impl<C: Copy + Eq + Hash> Turns<C> {
    pub(super) fn new(most: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: most,
            shares: HashMap::new(),
            order: VecDeque::new(),
            next_number: 0,
        })))
    }

    /// Waits until `client` has a turn. Dropped before, it waits no longer.
    pub(super) async fn take(&self, client: C) -> Turn<C> {
        let mut turn = Turn {
            state: Arc::clone(&self.0),
            client,
            number: None,
        };
        let called = self.lock().enter(client);
        if let Some((number, called)) = called {
            turn.number = Some(number);
            // The sender is dropped only by `turn` itself.
            let _ = called.await;
            turn.number = None;
        }
        turn
    }

    fn lock(&self) -> MutexGuard<'_, State<C>> {
        lock(&self.0)
    }
}

impl<C: Copy + Eq + Hash> State<C> {
    /// Takes a turn, or a place among those that wait.
    fn enter(&mut self, client: C) -> Option<(u64, oneshot::Receiver<()>)> {
        let share = self.shares.entry(client).or_default();
        if share.may_take(self.free) {
            share.taken += 1;
            self.free -= 1;
            return None;
        }
        if share.waiting.is_empty() {
            self.order.push_back(client);
        }
        let (call, called) = oneshot::channel();
        let number = self.next_number;
        self.next_number += 1;
        share.waiting.insert(number, call);
        Some((number, called))
    }

    /// Ends a turn, or the wait for one: a call may have come that nobody has seen.
    fn leave(&mut self, client: C, number: Option<u64>) {
        if let Some(share) = self.shares.get_mut(&client) {
            let waited = number.and_then(|number| share.waiting.remove(&number));
            if waited.is_none() {
                share.taken -= 1;
                self.free += 1;
            }
            let (is_idle, is_over) = (share.waiting.is_empty(), share.taken == 0);
            if is_idle && waited.is_some() {
                self.order.retain(|other| *other != client);
            }
            if is_idle && is_over {
                self.shares.remove(&client);
            }
        }
        while self.call_next() {}
    }

    /// Gives a turn to the first of those that may have one, who then waits behind all others.
    fn call_next(&mut self) -> bool {
        for at in 0..self.order.len() {
            let client = self.order[at];
            let Some(share) = self.shares.get_mut(&client) else {
                continue;
            };
            if !share.may_take(self.free) {
                continue;
            }
            let Some((_, call)) = share.waiting.pop_first() else {
                continue;
            };
            share.taken += 1;
            self.free -= 1;
            self.order.remove(at);
            if !share.waiting.is_empty() {
                self.order.push_back(client);
            }
            // If it is dropped just now, it gives the turn back.
            let _ = call.send(());
            return true;
        }
        false
    }
}

impl Share {
    fn may_take(&self, free: usize) -> bool {
        self.taken < free.div_ceil(PART)
    }
}

impl<C: Copy + Eq + Hash> Drop for Turn<C> {
    fn drop(&mut self) {
        lock(&self.state).leave(self.client, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    const MOST: usize = 256;

    type Taking<'t> = Pin<Box<dyn Future<Output = Turn<u8>> + 't>>;

    fn poll(taking: &mut (impl Future<Output = Turn<u8>> + Unpin)) -> Option<Turn<u8>> {
        match pin!(taking).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    /// `count` of a client: those that have a turn at once, and those that wait.
    fn crowd(turns: &Turns<u8>, client: u8, count: usize) -> (Vec<Turn<u8>>, Vec<Taking<'_>>) {
        let (mut taken, mut waiting) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut taking: Taking<'_> = Box::pin(turns.take(client));
            match poll(&mut taking) {
                Some(turn) => taken.push(turn),
                None => waiting.push(taking),
            }
        }
        (taken, waiting)
    }

    #[test]
    fn a_client_that_comes_later_finds_a_turn() {
        let turns = Turns::new(MOST);
        let crowds: Vec<_> = (0..30).map(|client| crowd(&turns, client, MOST)).collect();
        assert_eq!(crowds[0].0.len(), 29, "an eighth of what it leaves");
        assert!(crowds.iter().all(|(taken, _)| !taken.is_empty()));
        assert_eq!(crowd(&turns, 30, 1).0.len(), 1);
    }

    #[test]
    fn those_that_wait_are_served_in_turn() {
        let turns = Turns::new(1);
        let (mut taken, mut first) = crowd(&turns, 0, 3);
        let (_, mut second) = crowd(&turns, 1, 2);
        let (_, mut third) = crowd(&turns, 2, 1);
        let mut served = Vec::new();
        while let Some(turn) = taken.pop() {
            served.push(turn.client);
            drop(turn);
            for waiting in [&mut first, &mut second, &mut third] {
                waiting.retain_mut(|taking| match poll(taking) {
                    Some(turn) => {
                        taken.push(turn);
                        false
                    }
                    None => true,
                });
            }
        }
        assert_eq!(served, [0, 0, 1, 2, 0, 1]);
        assert_eq!(turns.lock().free, 1);
    }

    #[test]
    fn those_that_leave_leave_nothing() {
        let turns = Turns::new(1);
        let (taken, waiting) = crowd(&turns, 0, 2);
        let (_, others) = crowd(&turns, 1, 2);
        drop(taken);
        // It has been called, and has not seen it.
        drop(waiting);
        assert_eq!(turns.lock().shares.len(), 1);
        drop(others);
        let state = turns.lock();
        assert_eq!(
            (state.free, state.shares.len(), state.order.len()),
            (1, 0, 0)
        );
    }
}
