//! Windows that the kernel takes back.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::panic;
use std::thread;
use std::time::Duration;

use netlab::{Namespace, Need, available};
use rustix::net::sockopt;
use splice_base::socket_option;

use crate::patience::until;
use crate::payload::Payload;
use crate::peer::Peer;

const LOOK_EVERY: Duration = Duration::from_millis(10);

/// So many timeouts in a row (1.4 s and more) are no late thread: nothing is lost on lo, and the kernel acknowledges.
const TIMEOUTS: u8 = 3;

/// Runs `work`, which waits for what an echo sends through `socket`. Where that socket's window was taken back, its
/// buffer gets more room, for until it has some the kernel refuses every acknowledgement (docs/kernels.md): the echo,
/// which does not read before it has sent, would wait for ever. An echo that has missed an event is not helped: then
/// the kernel has sent all that it was given, or waits for a window without timeouts.
pub(crate) fn despite_retraction<T: Send>(
    socket: BorrowedFd<'_>,
    work: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let worker = scope.spawn(work);
        while !worker.is_finished() {
            if let Some(held_bytes) = retracted(socket) {
                eprintln!("the kernel has retracted a window, with {held_bytes} bytes held");
                // The kernel doubles it. Without CAP_NET_ADMIN there is a bound, which is large enough by default.
                let _ = sockopt::set_socket_recv_buffer_size_force(socket, held_bytes)
                    .or_else(|_| sockopt::set_socket_recv_buffer_size(socket, held_bytes));
            }
            thread::sleep(LOOK_EVERY);
        }
        let result = worker.join();
        result.unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

/// What its receive buffer holds, if that is more than its size and nothing that it sends is acknowledged.
fn retracted(socket: BorrowedFd<'_>) -> Option<usize> {
    let memory = socket_option::memory(socket).expect("SO_MEMINFO");
    let timeouts = socket_option::timeouts(socket).expect("TCP_INFO");
    (memory.receive_bytes > memory.receive_limit_bytes && timeouts >= TIMEOUTS)
        .then_some(memory.receive_bytes)
}

/// Between two plain sockets: the kernel does it without a relay.
#[test]
fn what_a_retracted_window_holds_back_comes() {
    /// A segment of lo.
    const LARGE: u64 = 65_483;
    /// Less than a step of the window's scale.
    const SMALL: u64 = 53;
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("retracted").expect("a namespace");
    let connected = namespace.enter(|| {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let client = TcpStream::connect(listener.local_addr().expect("an address"));
        (
            client.expect("connect"),
            listener.accept().expect("accept").0,
        )
    });
    let (client, server) = connected.expect("entered");
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("TCP_NODELAY");
    }
    let [client, server] = [client, server].map(|stream| Peer::new(stream.into()));
    let payload = Payload::new(77);
    let unread_bytes = || rustix::io::ioctl_fionread(&server).expect("FIONREAD");
    sockopt::set_socket_recv_buffer_size(&server, 1 << 18).expect("SO_RCVBUF");
    let mut sent = 3 * LARGE;
    client.send(payload, 0, sent);
    until("it has come", || unread_bytes() == sent);
    // Smaller than what it holds.
    sockopt::set_socket_recv_buffer_size(&server, 60_000).expect("SO_RCVBUF");
    let dropped = || namespace.tcp_counter("TCPRcvQDrop").expect("a counter") > 0;
    while !dropped() {
        client.send(payload, sent, SMALL);
        sent += SMALL;
        until("it has come, or found no room", || {
            unread_bytes() == sent || dropped()
        });
    }
    let held_back = server.send_what_fits(payload, 0);
    despite_retraction(server.as_fd(), || client.expect(payload, 0, held_back));
    server.expect(payload, 0, sent);
}
