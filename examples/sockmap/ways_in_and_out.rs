//! A socket gets into maps from this process, from another one that hands it over, or by its number in another one. It gets out
//! when it is closed, when its link leaves, and when it is disconnected.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;
use std::{process, thread};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use splice_sockmap::{MapType, Redirect, Redirections, handover, of_process};

const PATIENCE: Duration = Duration::from_secs(30);

fn connection() -> std::io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    Ok((client, listener.accept()?.0))
}

fn main() -> Result<(), Box<dyn Error>> {
    let redirections = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 8)?;
    let (mut client, source) = connection()?;
    let (target, mut server) = connection()?;
    let mut bytes = [0; 5];

    // In: by its number in another process (here it is this one).
    let duplicate = of_process(process::id(), source.as_raw_fd().cast_unsigned())?;
    let mut link = redirections.link(&duplicate, &target)?;
    client.write_all(b"hello")?;
    server.read_exact(&mut bytes)?;

    // Out: both are plain sockets again.
    link.leave(&source, PATIENCE)?;
    client.write_all(b"plain")?;
    (&source).read_exact(&mut bytes)?;

    // In: handed over by its owner, who keeps it.
    let (owner, linker) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut link = thread::scope(|scope| {
        let asks = scope.spawn(|| handover::ask(&owner, &source, &target));
        let request = handover::next(&linker)?.ok_or("the owner has gone")?;
        let link = redirections.link(&request.source, &request.target)?;
        request.answer(Ok(()))?;
        asks.join().map_err(|_| "a thread has panicked")??;
        Ok::<_, Box<dyn Error>>(link)
    })?;
    client.write_all(b"again")?;
    server.read_exact(&mut bytes)?;

    // Out: the connection of the source is reset, after all that came before has reached the target.
    link.disconnect(&source, PATIENCE)?;
    println!("in by two ways, out by two ways");
    Ok(())
}
