//! Both ends of a TCP connection within this process, over loopback: what a trial joins or redirects.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use std::{io, thread};

use crate::error::{Result, ResultExt as _};

/// How soon to look again for a connection on its way.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The end that has connected, and the one that was accepted.
///
/// # Errors
/// [`ErrorKind::System`](crate::ErrorKind::System) if there is no loopback, or it does not connect before the deadline.
pub fn connection(deadline: Instant) -> Result<(TcpStream, TcpStream)> {
    connected(deadline).context("cannot make a TCP connection on loopback")
}

fn connected(deadline: Instant) -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    // `connect_timeout` rejects a zero timeout.
    let patience = deadline
        .saturating_duration_since(Instant::now())
        .max(LOOK_AGAIN);
    let client = TcpStream::connect_timeout(&listener.local_addr()?, patience)?;
    let own_address = client.local_addr()?;
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((server, address)) if address == own_address => return Ok((client, server)),
            // A stranger has connected, as a port scan does.
            Ok(_) => {}
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => thread::sleep(LOOK_AGAIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_of_one_connection() {
        let (one, other) = connection(Instant::now() + Duration::from_secs(30)).expect("loopback");
        let address = |of: io::Result<SocketAddr>| of.expect("an address");
        assert_eq!(address(one.local_addr()), address(other.peer_addr()));
        assert_eq!(address(one.peer_addr()), address(other.local_addr()));
    }
}
