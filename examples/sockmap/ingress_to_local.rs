//! Datagrams from the network for a program that knows UNIX sockets only: what a UDP socket receives is read from a UNIX
//! datagram socket.

use std::error::Error;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;

use splice_sockmap::{MapType, Redirect, Redirections};

fn main() -> Result<(), Box<dyn Error>> {
    let network = UdpSocket::bind("127.0.0.1:0")?;
    let (program, _peer) = UnixDatagram::pair()?;

    let gateway = Redirections::new(Redirect::IngressToLocal, MapType::Hash, 1)?;
    let link = gateway.link(&network, &program)?;

    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.send_to(b"from anywhere", network.local_addr()?)?;
    // One message comes at a time, since the next one is sent later: a larger buffer would take several at once.
    let mut message = [0; 100];
    // The kernel may wake the reader of a member before its message is queued, and return EAGAIN.
    let length = loop {
        match program.recv(&mut message) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            received => break received?,
        }
    };
    assert_eq!(&message[..length], b"from anywhere");
    println!(
        "{} datagram came through the UNIX socket",
        link.counters().messages
    );
    Ok(())
}
