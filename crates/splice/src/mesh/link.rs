//! The connection through which the mesh's own frames get into the kernel.

use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// A connection of this process to itself: what is written to the first end comes to the second.
pub(super) fn link() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let own = near.local_addr()?;
    loop {
        let (far, from) = listener.accept()?;
        // Another process may have found the port.
        if from == own {
            near.set_nodelay(true)?;
            return Ok((near, far));
        }
    }
}
