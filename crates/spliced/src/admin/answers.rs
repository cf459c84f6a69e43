//! What clients hold of answers: a few are made at once, and those that wait to be read are bounded in bytes, however many
//! clients there are and however slowly they read.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Request;
use super::clients::Rank;
use super::refusal::Refusal;

/// The most answers of one kind that are made at once for clients of one rank.
const AT_ONCE: usize = 2;

/// A shorter one is not counted. A socket takes it whole.
const SHORT_MOST_BYTES: usize = 64 << 10;

/// The most that clients who give orders hold of long answers, together. All sessions of a process with 10 000 are 4 MiB.
const HELD_MOST_BYTES: usize = 64 << 20;

/// The most that those hold who only read.
const HELD_BY_READERS_MOST_BYTES: usize = 16 << 20;

/// What a permit is for, of what is held.
const PERMIT_BYTES: usize = 64 << 10;

/// Those who only read have shares of their own, so that they keep nobody waiting who gives orders. So have answers
/// that come at once, since the main thread may be busy for long with a reload.
pub(super) struct Answers {
    to_scrapers: Shares,
    to_readers: Shares,
    to_others: Shares,
}

/// Those of one rank.
struct Shares {
    at_once: Arc<Semaphore>,
    of_main_thread: Arc<Semaphore>,
    room: Room,
}

/// What long answers may hold until they are read.
#[derive(Clone)]
struct Room {
    left: Arc<Semaphore>,
    permits: u32,
}

/// A share of what is made, given back once it is.
pub(super) struct Share {
    room: Room,
    _made: Option<OwnedSemaphorePermit>,
}

/// An answer that its client has not read to the end.
struct Held {
    text: String,
    _permit: OwnedSemaphorePermit,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            to_scrapers: Shares::new(HELD_BY_READERS_MOST_BYTES),
            to_readers: Shares::new(HELD_BY_READERS_MOST_BYTES),
            to_others: Shares::new(HELD_MOST_BYTES),
        }
    }
}

impl Shares {
    fn new(held_most_bytes: usize) -> Self {
        let [at_once, of_main_thread] = [(); 2].map(|()| Arc::new(Semaphore::new(AT_ONCE)));
        let permits = held_most_bytes / PERMIT_BYTES;
        let room = Room {
            left: Arc::new(Semaphore::new(permits)),
            // A few hundred.
            permits: permits as u32,
        };
        Self {
            at_once,
            of_main_thread,
            room,
        }
    }

    async fn share(&self, making: &Arc<Semaphore>) -> Share {
        Share {
            room: self.room.clone(),
            // It fails only once the shares are closed, which they never are.
            _made: Arc::clone(making).acquire_owned().await.ok(),
        }
    }
}

impl Answers {
    /// Waits for a share of what answers `request`.
    pub(super) async fn share(&self, rank: Rank, request: &Request) -> Share {
        let shares = self.of(rank);
        match request.needs_main_thread() {
            true => shares.share(&shares.of_main_thread).await,
            false => shares.share(&shares.at_once).await,
        }
    }

    /// Waits for a share of the metrics, which the main thread has no part in.
    pub(super) async fn share_of_metrics(&self, rank: Rank) -> Share {
        let shares = self.of(rank);
        shares.share(&shares.at_once).await
    }

    /// One that waits for nobody, of an answer that is short.
    pub(super) fn of_short(&self, rank: Rank) -> Share {
        Share {
            room: self.of(rank).room.clone(),
            _made: None,
        }
    }

    fn of(&self, rank: Rank) -> &Shares {
        match rank {
            Rank::Scrapes => &self.to_scrapers,
            Rank::Reads => &self.to_readers,
            Rank::Orders => &self.to_others,
        }
    }
}

impl Share {
    /// What a client gets, which counts until it is sent.
    ///
    /// # Errors
    /// If others hold too much. An answer that is longer than all may hold is given to one at a time.
    pub(super) fn bytes(self, text: String) -> Result<Bytes, Refusal> {
        if text.len() <= SHORT_MOST_BYTES {
            return Ok(Bytes::from(text));
        }
        let permits = u32::try_from(text.len().div_ceil(PERMIT_BYTES));
        let permits = permits.map_or(self.room.permits, |it| it.min(self.room.permits));
        match self.room.left.try_acquire_many_owned(permits) {
            Ok(permit) => Ok(Bytes::from_owner(Held {
                text,
                _permit: permit,
            })),
            Err(_) => Err(Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "clients hold too many long answers that they have not read; ask again, or for less",
            )),
        }
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_answers_are_bounded_in_bytes_and_short_ones_are_not_counted() {
        let answers = Answers::default();
        let give = |bytes| answers.of_short(Rank::Reads).bytes("x".repeat(bytes));
        let half = HELD_BY_READERS_MOST_BYTES / 2;
        let unread = [give(half), give(half)].map(|it| it.expect("there is room"));
        for bytes in [SHORT_MOST_BYTES + 1, half] {
            let refused = give(bytes).expect_err("no room");
            assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert!(give(SHORT_MOST_BYTES).is_ok());
        // Those who give orders have room of their own.
        let order = answers.of_short(Rank::Orders);
        assert!(order.bytes("x".repeat(half)).is_ok());
        drop(unread);
        // More than all may hold, but to one.
        let whole = give(3 * half).expect("there is room");
        assert!(give(SHORT_MOST_BYTES + 1).is_err());
        drop(whole);
        assert!(give(half).is_ok());
    }
}
