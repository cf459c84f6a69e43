//! From which size of messages on TCP is faster on this machine.
//!
//! A redirected message costs a copy and an allocation, and no segments; TCP's segments hold up to 64 KiB and share their
//! cost. Which of both is faster for bulk depends on the CPU and the kernel, so it is tried.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use splice_base::error::{Result, ResultExt as _};
use splice_sockmap::{MapType, Redirect, Redirections};

/// What is tried, in bytes; the least is taken if TCP is faster even there.
const SIZES: [usize; 6] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10];

/// How much is sent each time: some milliseconds' worth, and less than a reader may leave unread.
const EACH_BYTES: usize = 2 << 20;

/// How often each is tried, in turn. The fastest counts: others may have had the CPU meanwhile.
const ROUNDS: usize = 5;

/// How long a read or write may take before the trial is given up: it is far beyond what a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The largest size in which redirected bulk is at least as fast as TCP over loopback, its fastest way. It takes some 0.2 s.
///
/// # Errors
/// If there is no loopback, or the kernel refuses the map.
pub(super) fn measure() -> Result<u32> {
    let plain = connected()?;
    let redirected = connected()?;
    let redirections =
        Redirections::new(Redirect::SendToLocal, MapType::Hash, 1)?.despite_defects();
    let _link = redirections.link(&redirected[0], &redirected[1])?;
    let mut best = SIZES[0];
    for size in SIZES {
        let mut fastest = [Duration::MAX; 2];
        for _ in 0..ROUNDS {
            for (fastest, ends) in fastest.iter_mut().zip([&plain, &redirected]) {
                *fastest = time(ends, size)?.min(*fastest);
            }
        }
        let [tcp, direct] = fastest;
        if direct <= tcp {
            best = size;
        }
    }
    // The largest is 32 KiB.
    Ok(best as u32)
}

fn connected() -> Result<[TcpStream; 2]> {
    let failed = "cannot connect over loopback to find the threshold of bulk";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(failed)?;
    let near = TcpStream::connect(listener.local_addr().context(failed)?).context(failed)?;
    let (far, _) = listener.accept().context(failed)?;
    for end in [&near, &far] {
        end.set_nodelay(true).context(failed)?;
        end.set_read_timeout(Some(PATIENCE)).context(failed)?;
        end.set_write_timeout(Some(PATIENCE)).context(failed)?;
    }
    Ok([near, far])
}

/// How long [`EACH_BYTES`] take in messages of a size.
fn time([near, far]: &[TcpStream; 2], size: usize) -> Result<Duration> {
    let failed = "cannot send over loopback to find the threshold of bulk";
    let begun = Instant::now();
    thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let message = vec![0; size];
            (0..EACH_BYTES / size).try_for_each(|_| { near }.write_all(&message))
        });
        let mut buffer = vec![0; 64 << 10];
        let mut left = EACH_BYTES;
        while left > 0 {
            let most = left.min(buffer.len());
            let count = { far }.read(&mut buffer[..most]).context(failed)?;
            left -= count;
        }
        // A panic is none of an allocation or an index.
        sent.join().unwrap_or(Ok(())).context(failed)
    })?;
    Ok(begun.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_one_of_the_sizes() {
        if netlab::available(netlab::Need::Root) {
            let begun = Instant::now();
            let size = measure().expect("measured");
            println!("{size} bytes in {:?}", begun.elapsed());
            assert!(SIZES.contains(&(size as usize)));
        }
    }
}
