//! The clients of the control sockets: how many there are at once, and who makes room for another one.
//!
//! A client counts until its descriptor is closed. Those who may only read have a bound of their own, so that they keep
//! nobody out who gives orders, and so have those who read the metrics by TCP.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

/// The most clients at once.
const CLIENTS_MOST: usize = 256;

/// The most of them who may only read.
const READERS_MOST: usize = 192;

/// The most clients by TCP, who may read the metrics. They take no seat of the others.
const SCRAPERS_MOST: usize = 32;
/// Whoever has connected asks within milliseconds. Where descriptors are short, nobody else is waited for longer.
pub(super) const ASKS_WITHIN: Duration = Duration::from_millis(100);

/// What a client may do. Nobody makes room for those of a lower rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// To read the metrics by TCP.
    Scrapes,
    /// To read, or nothing at all.
    Reads,
    /// To change something, too.
    Orders,
}

#[derive(Default)]
pub(super) struct Clients {
    /// In the order in which they came.
    seated: Mutex<VecDeque<Client>>,
    one_has_left: Condvar,
}

struct Client {
    rank: Rank,
    since: Instant,
    activity: Arc<Activity>,
    /// What is to end if it has to make room.
    task: Option<AbortHandle>,
    /// It is being disconnected.
    leaves: bool,
}

/// What a client does. It is no other client's, so it also tells which one it is.
#[derive(Default)]
pub(super) struct Activity {
    /// It waits for an answer.
    pub(super) waits: AtomicBool,
    /// It has asked for something.
    pub(super) has_asked: AtomicBool,
}

/// A client's place among the others, until it is dropped.
pub(super) struct Seat {
    clients: Arc<Clients>,
    pub(super) activity: Arc<Activity>,
}

impl Clients {
    /// Takes a seat. If there is none, the first client of this rank or a lower one that does not wait for an answer has
    /// to leave. If there is no such client either, neither is there a seat.
    pub(super) fn seat(self: &Arc<Self>, rank: Rank) -> Option<Seat> {
        let mut seated = self.seated();
        while is_full(&seated, rank) {
            let mut lower = seated.iter_mut().filter(|client| client.rank <= rank);
            // Somebody may have been asked to leave for another client, who then comes back to this.
            if lower.all(|client| !client.leaves) {
                let mut lower = seated.iter_mut().filter(|client| client.rank <= rank);
                lower.find_map(Client::dismiss)?;
            }
            let left = self.one_has_left.wait(seated);
            seated = left.unwrap_or_else(PoisonError::into_inner);
        }
        let activity = Arc::default();
        seated.push_back(Client {
            rank,
            since: Instant::now(),
            activity: Arc::clone(&activity),
            task: None,
            leaves: false,
        });
        Some(Seat {
            clients: Arc::clone(self),
            activity,
        })
    }

    /// The client that `activity` belongs to can leave from now on: `task` has its [`Seat`].
    pub(super) fn can_leave(&self, activity: &Arc<Activity>, task: AbortHandle) {
        let mut seated = self.seated();
        // It may be gone.
        if let Some(client) = seated
            .iter_mut()
            .find(|client| Arc::ptr_eq(&client.activity, activity))
        {
            client.task = Some(task);
        }
    }

    /// There are no descriptors for more: those leave that have asked for nothing, as others have by then.
    pub(super) fn dismiss_silent(&self) {
        for client in self.seated().iter_mut() {
            let is_silent = !client.activity.has_asked.load(Ordering::Relaxed);
            if is_silent && !client.leaves && client.since.elapsed() >= ASKS_WITHIN {
                client.dismiss();
            }
        }
    }

    fn seated(&self) -> MutexGuard<'_, VecDeque<Client>> {
        self.seated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Has it leave, unless it waits for an answer.
    fn dismiss(&mut self) -> Option<()> {
        let task = self.task.as_ref()?;
        if self.activity.waits.load(Ordering::Relaxed) {
            return None;
        }
        task.abort();
        self.leaves = true;
        Some(())
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let is_other = |client: &Client| !Arc::ptr_eq(&client.activity, &self.activity);
        self.clients.seated().retain(is_other);
        self.clients.one_has_left.notify_all();
    }
}

fn is_full(seated: &VecDeque<Client>, rank: Rank) -> bool {
    let most = match rank {
        Rank::Scrapes => SCRAPERS_MOST,
        Rank::Reads => READERS_MOST,
        Rank::Orders => CLIENTS_MOST,
    };
    let of_rank = seated.iter().filter(|client| client.rank == rank);
    seated.len() >= CLIENTS_MOST || of_rank.count() >= most
}
