//! A bound: what a target has not read may grow so far. The rest is left to the source's own reader, and nothing is lost.

use std::error::Error;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use splice_sockmap::{MapType, PassReason, Redirect, Redirections};

const MOST_BYTES: u64 = 64 << 10;

fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    Ok((stream, listener.accept()?.0))
}

/// Reads what has come, which is so many bytes. A read of a member may have to be tried again.
fn drain(mut from: &TcpStream, mut bytes: u64) -> io::Result<()> {
    while bytes > 0 {
        match from.read(&mut [0; 4096]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => bytes -= read? as u64,
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let ((mut client, source), (target, _peer)) = (connection()?, connection()?);
    let redirections = Redirections::new(Redirect::IngressToLocal, MapType::Hash, 8)?;
    let redirections = redirections.bounded(MOST_BYTES);
    let link = redirections.link(&source, &target)?;

    let mut sent = 0;
    while link.counters().passed_for(PassReason::Full) == 0 {
        client.write_all(&[7; 1000])?;
        sent += 1000;
    }
    assert!(link.outstanding()? <= Some(MOST_BYTES));
    println!("the target is full, and the rest stays with the source");

    let redirected = link.counters().bytes;
    drain(&target, redirected)?;
    assert_eq!(link.outstanding()?, Some(0));
    let passed = sent - redirected;
    drain(&source, passed)?;
    println!("it goes on: {}", link.resume(passed)?);
    client.write_all(b"later")?;
    drain(&target, 5)?;
    println!("5 bytes went to the target again");
    Ok(())
}
