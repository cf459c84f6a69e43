//! Receiving what the kernel has forgotten.
//!
//! The kernel leaves a multishot receive armed and forgets what arrives as it leaves its loop, if 128 wake-ups have come since
//! it was there the last time (`IO_POLL_REF_BIAS`): `io_poll_check_events` takes them all back, and does not look at the
//! `IO_POLL_RETRY_FLAG` that the next one has set (seen on 6.18). The byte stays in the socket until another one comes.
//!
//! So a lane that has received much, and nothing since the clock stopped the last time, looks at its socket, and receives afresh
//! if there is something. poll(2) also works for sockets in a BPF map, where FIONREAD does not, and does not consume the socket's
//! error.

use std::collections::BTreeMap;

use super::Ring;
use super::lane_state::{LaneState, ReceiveState};

/// Each wake-up brings a byte at least, so the kernel forgets nothing of fewer than 128. Half of that, to be safe.
const FORGETS_AFTER_BYTES: usize = 64;

/// The lanes from which the kernel may have forgotten a byte, and how many bytes each had received when it became a suspect,
/// or at the last tick.
#[derive(Default)]
pub(super) struct Suspects(BTreeMap<usize, usize>);

impl Suspects {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes what a multishot receive has brought to a lane.
    pub(super) fn note(&mut self, lane: usize, state: &mut LaneState, bytes: usize) {
        let before = state.multishot_bytes;
        state.multishot_bytes = before.saturating_add(bytes);
        if before < FORGETS_AFTER_BYTES && state.multishot_bytes >= FORGETS_AFTER_BYTES {
            self.0.insert(lane, state.multishot_bytes);
        }
    }
}

impl Ring {
    /// At each tick: restarts the receive of each lane that has been quiet since the last one although its socket has something.
    pub(super) fn receive_forgotten(&mut self) {
        let (mut quiet, mut sockets) = (Vec::new(), Vec::new());
        self.suspects.0.retain(|lane, bytes| {
            let Some(pair) = self.lanes.0.get_mut(lane / 2) else {
                return false;
            };
            let state = &mut pair.states[lane % 2];
            if state.multishot_bytes < FORGETS_AFTER_BYTES {
                // The lane was released; another pair may have its index.
                return false;
            }
            let was = std::mem::replace(bytes, state.multishot_bytes);
            if was != state.multishot_bytes {
                return true;
            }
            state.multishot_bytes = 0;
            if state.receive == ReceiveState::Multishot && !state.cancelled {
                quiet.push(*lane);
                sockets.push(libc::pollfd {
                    fd: state.source,
                    events: libc::POLLIN,
                    revents: 0,
                });
            }
            false
        });
        if sockets.is_empty() {
            return;
        }
        // SAFETY: the pointer and the length are those of an array that outlives the call, which does not wait. A number whose
        // descriptor is closed, as one that a task which has panicked had, is reported as such.
        let found = unsafe { libc::poll(sockets.as_mut_ptr(), sockets.len() as libc::nfds_t, 0) };
        for (lane, socket) in quiet.into_iter().zip(sockets) {
            // A socket that could not be looked at may have something.
            if found < 0 || socket.revents != 0 {
                self.lanes.state(lane).cancelled = true;
                self.cancel(lane);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use netlab::PATIENCE;
    use rustix::net::sockopt::set_socket_send_buffer_size;

    use super::super::tests::{SOON, is_available, join, turn_until};
    use super::FORGETS_AFTER_BYTES;
    use crate::carrier::Carriers;
    use crate::reactor::EventLoop;

    /// More than 128.
    const BURST: usize = 200;
    /// So many single bytes fit in, with the kernel's overhead.
    const BUFFER_BYTES: usize = 200_000;
    const ROUNDS: usize = 20_000;
    /// By how much the last byte comes later than it did in the round before, or earlier, in nanoseconds.
    const STEP: usize = 53;
    const JITTER: usize = 600;

    /// When the last byte of a round is written.
    #[derive(Default)]
    struct Aim {
        /// The round that has begun.
        begun: AtomicUsize,
        /// How long after that, in nanoseconds.
        delay: AtomicUsize,
    }

    impl Aim {
        fn write_last_bytes(&self, mut client: UnixStream) {
            for round in 1..=ROUNDS {
                while self.begun.load(Ordering::Relaxed) < round {
                    thread::yield_now();
                }
                let start = Instant::now();
                let delay = self.delay.load(Ordering::Relaxed) + round * 7919 % JITTER;
                while start.elapsed() < Duration::from_nanos(delay as u64) {
                    std::hint::spin_loop();
                }
                if self.begun.load(Ordering::Relaxed) == round {
                    client.write_all(&[1]).unwrap();
                }
            }
        }
    }

    /// Ends the other thread, whatever happens.
    struct Ending<'a>(&'a Aim);

    impl Drop for Ending<'_> {
        fn drop(&mut self) {
            self.0.begun.store(usize::MAX, Ordering::Relaxed);
        }
    }

    fn suspects(event_loop: &mut EventLoop) -> usize {
        let ring = event_loop.local::<Carriers>().ring.as_ref();
        ring.unwrap().suspects.0.len()
    }

    /// A quiet lane does not keep the clock running, and receives on.
    #[test]
    fn a_quiet_lane_is_no_suspect_for_long_and_receives_on() {
        if !is_available() {
            return;
        }
        let mut event_loop = EventLoop::new().unwrap();
        let (mut client, near) = UnixStream::pair().unwrap();
        let (far, mut server) = UnixStream::pair().unwrap();
        let _handle = join(&mut event_loop, [near, far]);
        server.set_nonblocking(true).unwrap();
        for round in 1..4 {
            client.write_all(&[round; FORGETS_AFTER_BYTES]).unwrap();
            let mut bytes = [0; FORGETS_AFTER_BYTES];
            turn_until(&mut event_loop, SOON, |_| {
                server.read_exact(&mut bytes).is_ok()
            });
            assert_eq!(bytes, [round; FORGETS_AFTER_BYTES]);
            turn_until(&mut event_loop, SOON, |event_loop| {
                suspects(event_loop) == 0
            });
        }
    }

    /// A byte that comes just as the kernel leaves the loop in which it has received a burst.
    #[test]
    fn the_byte_after_a_burst_arrives() {
        if !is_available() {
            return;
        }
        let mut event_loop = EventLoop::new().unwrap();
        let (mut client, near) = UnixStream::pair().unwrap();
        let (far, mut server) = UnixStream::pair().unwrap();
        set_socket_send_buffer_size(&client, BUFFER_BYTES).unwrap();
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        server.set_nonblocking(true).unwrap();
        let _handle = join(&mut event_loop, [near, far]);
        let aim = Aim::default();
        aim.delay.store(20_000, Ordering::Relaxed);
        thread::scope(|scope| {
            let last = client.try_clone().unwrap();
            scope.spawn(|| aim.write_last_bytes(last));
            let _ending = Ending(&aim);
            for round in 1..=ROUNDS {
                for _ in 0..BURST {
                    client.write_all(&[0]).unwrap();
                }
                aim.begun.store(round, Ordering::Relaxed);
                let (start, mut arrived) = (Instant::now(), 0);
                while arrived < BURST + 1 {
                    assert!(
                        start.elapsed() < PATIENCE,
                        "{arrived} bytes in round {round}"
                    );
                    event_loop.turn(Some(Duration::ZERO)).unwrap();
                    let mut bytes = [0; 2 * BURST];
                    let count = server.read(&mut bytes).unwrap_or(0);
                    if arrived == 0 && count > 0 {
                        // It approaches the moment in which the kernel has received the burst.
                        let was = aim.delay.load(Ordering::Relaxed);
                        let next = if count > BURST {
                            was + STEP
                        } else {
                            was.saturating_sub(STEP)
                        };
                        aim.delay.store(next, Ordering::Relaxed);
                    }
                    arrived += count;
                }
            }
        });
    }
}
