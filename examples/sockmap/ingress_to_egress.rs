//! A proxy whose bytes the kernel moves: what arrives from a client is sent to the server, and the other way round.
//!
//! The kernel bounds nothing here: what a side does not read waits in memory. `spliced relay --engine sockmap` bounds it.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;
use std::{env, thread};

use rustix::event::{PollFd, PollFlags, poll};
use splice_sockmap::{ErrorKind, Link, MapType, Redirect, Redirections};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result {
    let mut arguments = env::args().skip(1);
    let both = arguments.next().zip(arguments.next());
    let (listen, server) = both.ok_or("usage: ingress_to_egress LISTEN SERVER")?;
    let proxy = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 1024)?;
    let listener = TcpListener::bind(listen)?;
    println!("listening on {}", listener.local_addr()?);
    thread::scope(|scope| {
        for client in listener.incoming() {
            scope.spawn(|| relay(&proxy, &client?, &TcpStream::connect(&server)?));
        }
        Ok(())
    })
}

fn relay(proxy: &Redirections, client: &TcpStream, server: &TcpStream) -> Result {
    thread::scope(|scope| {
        let back = scope.spawn(|| one_way(proxy, server, client));
        one_way(proxy, client, server)?;
        back.join().map_err(|_| "a thread has panicked")?
    })
}

/// Redirects until the source's peer has sent everything, and ends the target's stream then.
fn one_way(proxy: &Redirections, source: &TcpStream, target: &TcpStream) -> Result {
    let mut link = link(proxy, source, target)?;
    poll(&mut [PollFd::new(source, PollFlags::RDHUP)], None)?;
    let is_whole = link.leave(source, Duration::from_secs(30)).is_ok();
    Ok(target.shutdown(if is_whole {
        Shutdown::Write
    } else {
        Shutdown::Both
    })?)
}

/// What came before the link belongs to the source's reader, who is this proxy.
fn link(proxy: &Redirections, mut source: &TcpStream, mut target: &TcpStream) -> Result<Link> {
    loop {
        match proxy.link(source, target) {
            Err(error) if error.kind() == ErrorKind::System => {
                let mut bytes = [0; 4096];
                let count = source.read(&mut bytes)?;
                target.write_all(&bytes[..count])?;
            }
            linked => return Ok(linked?),
        }
    }
}
