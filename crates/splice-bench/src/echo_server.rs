//! Echo servers of the bench's own, one connection at a time, as the original's servers have it. What
//! spliced does is `spliced echo`; these stand beside it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;

use crate::bpf_object::BpfObject;
use crate::reproduce::arguments::{EchoServer, OwnEcho};
use crate::workload::echo::set_busy_poll;

/// Per read: the original's 128 KiB.
const BUFFER_BYTES: usize = 128 << 10;

/// The original's send buffer under SOCKMAP, 32 MiB: "a bug when the send buffer is full".
const SEND_BUFFER_BYTES: usize = 32 << 20;

const SOCKMAP_2019: &[u8] = include_bytes!("../bpf/prebuilt/sockmap_2019.bpf.o");

/// What a connection is given to.
enum Echo {
    ReadWrite(Vec<u8>),
    Sockmap2019 { object: BpfObject, tuned: bool },
}

/// Serves until it is killed.
pub(crate) fn serve(arguments: &EchoServer) -> Result<()> {
    let mut echo = match arguments.kind {
        OwnEcho::ReadWrite => Echo::ReadWrite(vec![0; BUFFER_BYTES]),
        OwnEcho::Sockmap2019 | OwnEcho::Sockmap2019Untuned => Echo::Sockmap2019 {
            object: load_sockmap_2019()?,
            tuned: arguments.kind == OwnEcho::Sockmap2019,
        },
    };
    let listener = listen(arguments.listen)?;
    for stream in listener.incoming() {
        let stream = stream.context("cannot accept")?;
        // A connection that failed is its client's to report; the next may do better.
        if let Err(error) = serve_one(&stream, &mut echo, arguments.busy_poll) {
            eprintln!("echo: {error:#}");
        }
    }
    Ok(())
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
}

fn load_sockmap_2019() -> Result<BpfObject> {
    let object = BpfObject::load(SOCKMAP_2019)?;
    // The programs before the sockets: a member keeps what was attached when it came in.
    object.attach("take_all", "echoed")?;
    object.attach("send_back", "echoed")?;
    Ok(object)
}

fn serve_one(stream: &TcpStream, echo: &mut Echo, busy_poll: bool) -> Result<()> {
    stream.set_nodelay(true)?;
    if busy_poll {
        set_busy_poll(stream)?;
    }
    match echo {
        Echo::ReadWrite(buffer) => read_write(stream, buffer),
        Echo::Sockmap2019 { object, tuned } => {
            if *tuned {
                sockopt::set_socket_send_buffer_size_force(stream, SEND_BUFFER_BYTES)
                    .context("cannot enlarge the send buffer")?;
            }
            object.insert("echoed", 0, stream)?;
            // Nothing is left to do here until the client ends the stream.
            poll(&mut [PollFd::new(stream, PollFlags::RDHUP)], None)?;
            Ok(())
        }
    }
}

fn read_write(mut stream: &TcpStream, buffer: &mut [u8]) -> Result<()> {
    loop {
        match stream.read(buffer).context("cannot read")? {
            0 => return Ok(()),
            count => stream.write_all(&buffer[..count]).context("cannot write")?,
        }
    }
}
