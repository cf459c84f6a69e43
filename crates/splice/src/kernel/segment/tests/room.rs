//! A socket that takes its connection up has room for all that it has to keep.

use std::net::TcpStream;

use netlab::connection;
use rustix::io::Errno;
use rustix::net::{SendFlags, send, sockopt};
use splice_base::repair::{self, RepairQueue};

use super::*;

/// Nobody reads, and the last write may have gone far beyond the buffer.
fn fill(socket: &TcpStream) -> usize {
    let mut written = 0;
    loop {
        match send(socket, &[1; 64 << 10], SendFlags::DONTWAIT) {
            Ok(more) => written += more,
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                return written;
            }
        }
    }
}

#[test]
fn a_few_bytes_find_room_in_a_full_buffer() {
    if !available(Need::Root) {
        return;
    }
    for buffer_bytes in [4608, 32 << 10, 90 << 10, 1 << 20] {
        for rest in [1, 1428, 100_000] {
            let (near, mut far) = connection();
            sockopt::set_socket_send_buffer_size(&near, buffer_bytes).expect("set");
            let written = fill(&near);
            repair::write_all(&near, RepairQueue::None, &vec![2; rest]).expect("room");
            drop(near);
            let mut received = Vec::new();
            far.read_to_end(&mut received).expect("all of it");
            assert_eq!(received.len(), written + rest);
            assert!(received[written..].iter().all(|byte| *byte == 2));
        }
    }
}
