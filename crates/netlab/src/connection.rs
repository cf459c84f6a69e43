//! A TCP connection on this host.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::PATIENCE;

/// Both ends of a connection over the loopback device of the caller's namespace: the connecting end, with
/// `TCP_NODELAY`, and the accepted end. Reads and writes time out after [`PATIENCE`].
///
/// # Panics
/// If the connection cannot be made.
pub fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
    let address = listener.local_addr().expect("its address");
    let near = TcpStream::connect(address).expect("a connection");
    let (far, _) = listener.accept().expect("the other end");
    near.set_nodelay(true).expect("TCP_NODELAY");
    for end in [&near, &far] {
        end.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        end.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    }
    (near, far)
}
