//! Who may splice what: the checks of each system, in its order.

use std::borrow::Cow;
use std::os::fd::RawFd;

use rustix::io::Errno;
use splice::{Error, Result};

use crate::personality::Personality;
use crate::request::Request;
use crate::socket::{Protocol, Socket};
use crate::table;

/// An error that a program gets as `errno`, and in words.
pub(crate) fn refused(errno: Errno, why: impl Into<Cow<'static, str>>) -> Error {
    Error::system(why, errno)
}

/// The socket that a program names as `what`.
pub(crate) fn socket<'fd>(number: RawFd, what: &'static str) -> Result<Socket<'fd>> {
    Socket::at(number).map_err(|errno| {
        let why = match errno {
            Errno::BADF => format!("{what} ({number}) is not an open descriptor"),
            Errno::NOTSOCK => format!("{what} ({number}) is not a socket"),
            _ => format!("the kernel does not say what {what} ({number}) is"),
        };
        refused(errno, why)
    })
}

/// Checks a request that does not undo, and returns both sockets.
pub(crate) fn check<'fd>(
    personality: Personality,
    source: &Socket<'fd>,
    request: &Request,
) -> Result<Socket<'fd>> {
    match personality {
        Personality::Linux => linux(source, request),
        Personality::FreeBsd => free_bsd(source, request),
        Personality::OpenBsd => open_bsd(source, request),
    }
}

fn linux<'fd>(source: &Socket<'fd>, request: &Request) -> Result<Socket<'fd>> {
    max(request)?;
    idle(request)?;
    let drain = drain(request)?;
    let can_splice = |socket: &Socket<'_>| match socket.is_stream {
        true => socket.protocol != Protocol::Other,
        false => socket.protocol == Protocol::Udp,
    };
    if !can_splice(source) || !can_splice(&drain) || source.is_stream != drain.is_stream {
        let why = "only two streams (TCP, UNIX) or two UDP sockets can be spliced";
        return Err(refused(Errno::PROTONOSUPPORT, why));
    }
    for (socket, what) in [(source, "source"), (&drain, "drain")] {
        listening(socket, what, Errno::INVAL)?;
        if socket.is_stream || what == "drain" {
            connected(socket, what)?;
        }
    }
    busy(source, &drain)?;
    Ok(drain)
}

/// `sosetopt`, `so_splice`.
fn free_bsd<'fd>(source: &Socket<'fd>, request: &Request) -> Result<Socket<'fd>> {
    let drain = drain(request)?;
    max(request)?;
    if source.protocol != Protocol::Tcp || drain.protocol != Protocol::Tcp {
        let why = "FreeBSD splices TCP sockets only";
        return Err(refused(Errno::PROTONOSUPPORT, why));
    }
    listening(source, "source", Errno::INVAL)?;
    connected(source, "source")?;
    busy_source(source)?;
    listening(&drain, "drain", Errno::INVAL)?;
    connected(&drain, "drain")?;
    busy_drain(&drain)?;
    Ok(drain)
}

/// `sosplice`.
fn open_bsd<'fd>(source: &Socket<'fd>, request: &Request) -> Result<Socket<'fd>> {
    open_bsd_protocol(source)?;
    max(request)?;
    idle(request)?;
    let drain = drain(request)?;
    if source.protocol != drain.protocol {
        let why = "the source and the drain have different protocols";
        return Err(refused(Errno::PROTONOSUPPORT, why));
    }
    listening(source, "source", Errno::OPNOTSUPP)?;
    listening(&drain, "drain", Errno::OPNOTSUPP)?;
    if source.protocol == Protocol::Tcp {
        connected(source, "source")?;
    }
    connected(&drain, "drain")?;
    busy(source, &drain)?;
    Ok(drain)
}

/// Checks a request that undoes. Whether there is something to undo shows later.
pub(crate) fn check_undo(
    personality: Personality,
    source: &Socket<'_>,
    request: &Request,
) -> Result<()> {
    match personality {
        Personality::Linux => Ok(()),
        Personality::FreeBsd => listening(source, "source", Errno::INVAL),
        Personality::OpenBsd => {
            open_bsd_protocol(source)?;
            max(request)?;
            idle(request)
        }
    }
}

/// What a program gets that undoes nothing.
pub(crate) fn nothing_to_undo(personality: Personality) -> Error {
    let errno = match personality {
        Personality::Linux | Personality::FreeBsd => Errno::NOTCONN,
        Personality::OpenBsd => Errno::PROTO,
    };
    refused(errno, "the socket is not the source of a splice")
}

fn open_bsd_protocol(source: &Socket<'_>) -> Result<()> {
    match source.protocol {
        Protocol::Tcp | Protocol::Udp => Ok(()),
        _ => {
            let why = "OpenBSD splices TCP and UDP sockets only";
            Err(refused(Errno::PROTONOSUPPORT, why))
        }
    }
}

fn max(request: &Request) -> Result<()> {
    match request.max_bytes {
        0.. => Ok(()),
        _ => Err(refused(Errno::INVAL, "sp_max is negative")),
    }
}

fn idle(request: &Request) -> Result<()> {
    match request.has_valid_idle() {
        true => Ok(()),
        false => Err(refused(Errno::INVAL, "sp_idle is not a time")),
    }
}

fn drain<'fd>(request: &Request) -> Result<Socket<'fd>> {
    socket(request.drain, "the drain")
}

fn listening(socket: &Socket<'_>, what: &str, errno: Errno) -> Result<()> {
    match socket.is_listening() {
        false => Ok(()),
        true => Err(refused(errno, format!("the {what} is a listening socket"))),
    }
}

fn connected(socket: &Socket<'_>, what: &str) -> Result<()> {
    match socket.is_connected() {
        true => Ok(()),
        false => Err(refused(
            Errno::NOTCONN,
            format!("the {what} is not connected"),
        )),
    }
}

fn busy(source: &Socket<'_>, drain: &Socket<'_>) -> Result<()> {
    busy_source(source)?;
    busy_drain(drain)
}

fn busy_source(source: &Socket<'_>) -> Result<()> {
    match table::is_source(source.cookie) {
        false => Ok(()),
        true => Err(refused(Errno::BUSY, "the source is spliced already")),
    }
}

fn busy_drain(drain: &Socket<'_>) -> Result<()> {
    match table::is_drain(drain.cookie) {
        false => Ok(()),
        true => Err(refused(Errno::BUSY, "the drain is spliced already")),
    }
}
