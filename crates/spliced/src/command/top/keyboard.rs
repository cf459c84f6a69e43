//! Reads keys, in a thread of its own.

use std::io;
use std::thread;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};

use super::key::{Decoder, Key};

/// The rest of a key's bytes comes within this time, also over a slow line.
const REST_WITHIN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// Calls `tell` with each key, and with `None` once the terminal is gone.
///
/// # Errors
/// If there can be no thread.
pub(super) fn start(tell: impl Fn(Option<Key>) + Send + 'static) -> Result<()> {
    thread::Builder::new()
        .name("keyboard".into())
        .spawn(move || {
            let mut decoder = Decoder::default();
            while let Some(keys) = keys(&mut decoder) {
                for key in keys {
                    tell(Some(key));
                }
            }
            tell(None);
        })
        .map(drop)
        .context("cannot start the thread that reads keys; raise the limits")
}

/// The next keys; `None` once there are no more.
fn keys(decoder: &mut Decoder) -> Option<Vec<Key>> {
    let input = io::stdin();
    let mut ready = [PollFd::new(&input, PollFlags::IN)];
    let within = decoder.waits().then_some(&REST_WITHIN);
    match poll(&mut ready, within) {
        Ok(0) => return Some(decoder.give_up().into_iter().collect()),
        Ok(_) => {}
        Err(Errno::INTR) => return Some(Vec::new()),
        Err(_) => return None,
    }
    let mut bytes = [0; 1024];
    match read(&input, &mut bytes) {
        // The terminal has hung up, and then EIO comes or nothing.
        Ok(0) => None,
        Ok(count) => Some(decoder.keys(&bytes[..count])),
        Err(Errno::INTR | Errno::AGAIN) => Some(Vec::new()),
        Err(_) => None,
    }
}
