//! A lease: sockets are redirected only for as long as the process lives that has linked them. Others keep theirs.

use std::error::Error;
use std::io::{Read as _, Write as _, stdin};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;
use std::{env, io};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use splice_sockmap::{Lease, MapType, Redirect, Redirections, handover};

const STALE: Duration = Duration::from_secs(2);

/// Links what it is asked to, until it is killed.
fn own(directory: &str) -> Result<(), Box<dyn Error>> {
    let lease = Lease::take(directory, STALE)?;
    let sidecar = Redirections::leased(&lease, Redirect::SendToEgress, MapType::Hash, 64)?;
    thread::spawn(move || {
        while lease.beat() {
            thread::sleep(STALE / 100);
        }
    });
    while let Some(request) = handover::next(stdin())? {
        let linked = sidecar.link(&request.source, &request.target);
        request.answer(linked.as_ref().map(|_| ()))?;
    }
    Ok(())
}

fn connection() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    Ok((stream, listener.accept()?.0))
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = env::args()
        .nth(1)
        .ok_or("give a directory below a BPF file system")?;
    if env::args().nth(2).is_some() {
        return own(&directory);
    }
    let ((mut app, mut inner), (outer, mut server)) = (connection()?, connection()?);
    let flags = SocketFlags::CLOEXEC;
    let (channel, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let stdin = Stdio::from(theirs);
    let mut owner = Command::new(env::current_exe()?);
    let mut owner = owner.args([&directory, "owner"]).stdin(stdin).spawn()?;
    handover::ask(&channel, &app, &outer)?;
    let mut bytes = [0; 5];
    app.write_all(b"first")?;
    server.read_exact(&mut bytes)?;
    println!("'{}' went to the server", String::from_utf8_lossy(&bytes));

    owner.kill()?;
    owner.wait()?;
    thread::sleep(2 * STALE);
    app.write_all(b"later")?;
    inner.read_exact(&mut bytes)?;
    println!("'{}' went to the sidecar", String::from_utf8_lossy(&bytes));
    let lease = Lease::take(&directory, STALE)?;
    println!("{} sets of maps are left behind", lease.left_behind());
    Ok(lease.release(STALE)?)
}
