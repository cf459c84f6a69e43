//! A splice and its reverse become a pair once the program has closed both sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use netlab::{connection, until};
use so_splice::{Personality, Request, Splice};

fn spliced(source: &TcpStream, drain: &TcpStream) -> Arc<Splice> {
    let request = Request::to(drain.as_raw_fd());
    let splice = so_splice::splice(Personality::Linux, source.as_raw_fd(), &request, |_| ());
    splice.expect("two TCP sockets").expect("a drain")
}

/// The kernel may have what nobody can take back.
#[test]
fn not_before_the_last_descriptor_is_closed() {
    let (mut client, source) = connection();
    let (drain, mut server) = connection();
    let ways = [spliced(&source, &drain), spliced(&drain, &source)];
    let [forth, back] = ways.map(|way| way.handle().expect("it runs"));

    client.write_all(b"before").unwrap();
    let mut seen = [0; 6];
    server.read_exact(&mut seen).unwrap();
    drop(source);
    // A duplicate counts, too.
    let kept = drain.try_clone().unwrap();
    drop(drain);
    // The process looks several times in this time.
    thread::sleep(Duration::from_millis(200));
    assert!(!forth.is_merged());
    drop(kept);
    until("the sockets are a pair's", || {
        forth.is_merged() && back.is_merged()
    });
    assert!(!forth.undo());

    client.write_all(b"after!").unwrap();
    server.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"after!");
    until("it is counted", || forth.moved_bytes() == 12);
}
