//! What clients hold of answers: a few long ones at once, however many clients there are and however slowly they read.

use std::sync::Arc;

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Request;
use super::clients::Rank;

/// The most answers of one kind at once to clients of one rank.
const AT_ONCE: usize = 2;

/// A shorter one makes room for the next before it is read. A socket takes it whole.
const SHORT_MOST_BYTES: usize = 64 << 10;

/// Those who only read have shares of their own, so that they keep nobody waiting who gives orders. So have answers
/// that come at once, since the main thread may be busy for long with a reload.
pub(super) struct Answers {
    to_readers: Shares,
    to_others: Shares,
}

/// Those of one rank.
struct Shares {
    at_once: Arc<Semaphore>,
    of_main_thread: Arc<Semaphore>,
}

/// A share of what is held, given back on drop. There is none if an answer is short.
#[derive(Default)]
pub(super) struct Share {
    _permit: Option<OwnedSemaphorePermit>,
}

/// An answer that its client has not read to the end.
struct Held {
    text: String,
    _share: Share,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            to_readers: Shares::new(),
            to_others: Shares::new(),
        }
    }
}

impl Shares {
    fn new() -> Self {
        let [at_once, of_main_thread] = [(); 2].map(|()| Arc::new(Semaphore::new(AT_ONCE)));
        Self {
            at_once,
            of_main_thread,
        }
    }
}

impl Answers {
    /// Waits for a share of what answers `request`.
    pub(super) async fn share(&self, rank: Rank, request: &Request) -> Share {
        let shares = match rank {
            Rank::Reads => &self.to_readers,
            Rank::Orders => &self.to_others,
        };
        let shares = match request.needs_main_thread() {
            true => &shares.of_main_thread,
            false => &shares.at_once,
        };
        Share {
            // It fails only once the shares are closed, which they never are.
            _permit: Arc::clone(shares).acquire_owned().await.ok(),
        }
    }
}

impl Share {
    /// What a client gets, which has the share until it is sent.
    pub(super) fn bytes(self, value: &Value) -> Bytes {
        let text = format!("{value}\n");
        match text.len() > SHORT_MOST_BYTES {
            true => Bytes::from_owner(Held { text, _share: self }),
            false => Bytes::from(text),
        }
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}
