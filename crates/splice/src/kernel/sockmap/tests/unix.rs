//! Why UNIX ends are refused: what the kernel does to their bytes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use netlab::{PATIENCE, connection, until};
use rustix::net::sockopt::socket_cookie;

use super::super::shared;
use super::{Nobody, Opened, missing};
use crate::EventLoop;

/// Why a UNIX target is refused: `unix_shutdown` calls `sock_map_unhash` for the other end.
#[test]
fn a_unix_target_loses_its_backlog_when_its_peer_half_closes() {
    if missing() {
        return;
    }
    /// More than a UNIX stream holds (`net.core.wmem_default`).
    const BYTES: usize = 4 << 20;
    for half_closes in [false, true] {
        let (mut peer, source) = connection();
        let (target, mut far) = UnixStream::pair().unwrap();
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        let opened = Opened::new(&source, &target);
        peer.write_all(&vec![7; BYTES]).unwrap();
        until("all of it is redirected", || {
            opened.redirected() == BYTES as u64
        });
        assert!(opened.is_target_there());
        if !half_closes {
            far.read_exact(&mut vec![0; BYTES]).unwrap();
            assert!(opened.is_target_there());
            continue;
        }
        // The peer half-closes, and goes on reading.
        far.shutdown(Shutdown::Write).unwrap();
        assert!(!opened.is_target_there());
        target.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        far.read_to_end(&mut received).unwrap();
        eprintln!("{} of {BYTES} bytes arrived", received.len());
        assert!(received.len() < BYTES);
    }
}

/// Why a UNIX source is refused. Each arrival brings about the verdict of one packet, the oldest
/// (`unix_stream_read_skb`), and nothing else does. So a packet that came between the last read and the
/// insertion delays everything after it by one packet, for good. No filter in front of a UNIX stream could
/// keep it out, or take the source out of its map without loss.
#[test]
fn a_unix_source_lags_behind_by_what_waited_when_it_was_put_in() {
    if missing() {
        return;
    }
    for waits in [false, true] {
        let (mut peer, source) = UnixStream::pair().unwrap();
        let (target, mut far) = connection();
        let shared = shared::found().unwrap();
        // A UNIX packet belongs to its sender, so the program sees the sender.
        let cookie = socket_cookie(&peer).unwrap();
        let index = shared.claim(EventLoop::new().unwrap().spawn(Box::new(Nobody)).into());
        let index = index.unwrap();
        shared.entry(index).limit.store(u64::MAX, Ordering::Relaxed);
        shared.indices.update(&cookie, &index).unwrap();
        shared
            .targets
            .insert_socket(&cookie, target.as_fd())
            .unwrap();
        if waits {
            peer.write_all(b"first").unwrap();
        }
        shared
            .sources
            .insert_socket(&cookie, source.as_fd())
            .unwrap();
        let last: &[u8] = if waits { b"second" } else { b"first" };
        // The verdict runs within the sender's call.
        peer.write_all(last).unwrap();
        let redirected = shared.entry(index).redirected.load(Ordering::Acquire);
        let mut received = [0; 5];
        far.read_exact(&mut received).unwrap();
        assert_eq!((redirected, &received), (5, b"first"));
        let mut left = [0; 16];
        source.set_nonblocking(true).unwrap();
        let left = (&source)
            .read(&mut left)
            .map(|count| left[..count].to_vec());
        match waits {
            true => assert_eq!(left.unwrap(), b"second"),
            false => assert_eq!(left.unwrap_err().kind(), std::io::ErrorKind::WouldBlock),
        }
        shared.sources.remove(&cookie);
        shared.targets.remove(&cookie);
        shared.indices.remove(&cookie);
        shared.give_back(index);
    }
}
