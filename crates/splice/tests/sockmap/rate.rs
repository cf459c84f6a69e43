//! A sender at a network's rate.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use netlab::{Lab, Namespace, Need, available};
use splice::{Endpoint, Handle, Splicer};

use crate::stage::{Joined, PATIENCE, Payload, SOCKMAP, missing, options, until_redirected};

const MEGABITS: u64 = 500;
const BYTES: u64 = MEGABITS * 1_000_000 / 8 * 2;
/// Per write and read.
const BLOCK_BYTES: usize = 256 << 10;

/// The token bucket of the client's link has room for four of the largest segments.
const BUCKET: &str = "256kb";
/// More than TCP has under way there, so that nothing is dropped.
const QUEUE: &str = "32mb";

#[test]
fn a_sender_at_the_rate_of_its_link_stays_with_the_kernel() {
    if missing() || !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().unwrap();
    lab.set_sysctl("net.ipv4.tcp_congestion_control", "reno")
        .unwrap();
    let limited = lab
        .client()
        .command("tc")
        .args(["qdisc", "replace", "dev", Lab::TO_RELAY, "root", "tbf"])
        .args(["rate", &format!("{MEGABITS}mbit")])
        .args(["burst", BUCKET, "limit", QUEUE])
        .status();
    assert!(limited.unwrap().success(), "tc");
    let splicer = Splicer::new(1).unwrap();
    let [a, near] = connected(lab.client(), lab.relay(), Lab::RELAY_V4);
    let [far, b] = connected(lab.relay(), lab.server(), Lab::SERVER_V4);
    let [near, far] = [near, far].map(|end| Endpoint::new(end).unwrap());
    let handle = splicer.join(near, far, &options(SOCKMAP)).unwrap();
    let mut joined = Joined { a, b, handle };
    until_redirected(&mut joined);
    let share = redirected_of(&joined.a, &joined.b, &joined.handle);
    eprintln!("{share:.3} redirected");
    assert!(
        share >= 0.95,
        "only {share:.3} of the bytes were redirected"
    );
}

fn connected(from: &Namespace, to: &Namespace, address: Ipv4Addr) -> [TcpStream; 2] {
    let listener = to.enter(|| TcpListener::bind((address, 0))).unwrap();
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    let near = from.enter(|| TcpStream::connect(address)).unwrap().unwrap();
    let far = listener.accept().unwrap().0;
    for stream in [&near, &far] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    [near, far]
}

/// Sends as fast as it goes; tells which share the kernel has moved.
fn redirected_of(a: &TcpStream, b: &TcpStream, handle: &Handle) -> f64 {
    let payload = Payload::new(5);
    let before = handle.redirected().a_to_b;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = 0;
            while sent < BYTES {
                let piece = payload.piece(sent, (BYTES - sent).min(BLOCK_BYTES as u64) as usize);
                sent += (&mut &*a).write(piece).unwrap() as u64;
            }
        });
        let mut block = vec![0; BLOCK_BYTES];
        let mut position = 0;
        while position < BYTES {
            let at_most = block.len().min((BYTES - position) as usize);
            let count = (&mut &*b).read(&mut block[..at_most]).unwrap();
            assert!(count > 0, "an end of stream");
            payload.check(position, &block[..count]);
            position += count as u64;
        }
    });
    (handle.redirected().a_to_b - before) as f64 / BYTES as f64
}
