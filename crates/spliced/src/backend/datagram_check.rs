//! One check of a server of datagrams, on the control thread: what it answers, or that nothing refuses what is sent to
//! it.

use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, send, socket_with,
};
use splice::Kind;
use tokio::net::{UdpSocket, UnixDatagram};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::own_connection::Failure;
use crate::connect_error::{self, Fault, NO_WAY};
use crate::outgoing::Outgoing;
use crate::plan::BackendPlan;
use crate::resource_limit::words;
use crate::socket_address::SocketAddress;

/// The longest answer that is looked at, in bytes: as much as is read of a stream.
const ANSWER_MOST_BYTES: usize = 8 << 10;

/// How long the port of a check rests that was not answered: as long as those of sessions.
const REST: Duration = Duration::from_secs(2);

/// Sends `question` to the first of `addresses` that does not refuse it, and waits for an answer that contains `expected`.
/// The caller bounds the time.
///
/// # Errors
/// Why the check does not pass.
pub(super) async fn check(
    plan: &BackendPlan,
    question: &[u8],
    expected: Option<&[u8]>,
    addresses: &[SocketAddress],
) -> Result<(), Failure> {
    let mut why = Failure::Here("it has no address".into());
    for address in addresses {
        match ask(plan, question, expected, address).await {
            Ok(()) => return Ok(()),
            Err(failure) => why = failure,
        }
    }
    Err(why)
}

async fn ask(
    plan: &BackendPlan,
    question: &[u8],
    expected: Option<&[u8]>,
    address: &SocketAddress,
) -> Result<(), Failure> {
    let socket = connected(plan, address).map_err(|(errno, fault)| match fault {
        Fault::Server | Fault::Reset => Failure::Server(words(errno)),
        Fault::Shortage => Failure::Here(words(errno)),
        Fault::NoWay => Failure::Here(NO_WAY.into()),
    })?;
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    send(&socket, question, flags).map_err(of_exchange)?;
    // The caller may give up waiting, and a late answer is not to reach a client's session that gets the port.
    let mut rest = Rest(socket.try_clone().ok());
    let mut answer = vec![0; ANSWER_MOST_BYTES];
    let received = match address {
        SocketAddress::Inet(_) => match UdpSocket::from_std(socket.into()) {
            Ok(socket) => socket.recv(&mut answer).await,
            Err(error) => return Err(Failure::Here(error.to_string())),
        },
        _ => match UnixDatagram::from_std(socket.into()) {
            Ok(socket) => socket.recv(&mut answer).await,
            Err(error) => return Err(Failure::Here(error.to_string())),
        },
    };
    let length =
        received.map_err(|error| of_exchange(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    rest.0 = None;
    let says = |expected: &[u8]| {
        let mut parts = answer[..length].windows(expected.len());
        parts.any(|part| part == expected)
    };
    match expected {
        Some(expected) if !says(expected) => {
            let why = "it does not answer what is expected";
            Err(Failure::Server(why.into()))
        }
        _ => Ok(()),
    }
}

/// A socket that has not been answered.
struct Rest(Option<OwnedFd>);

impl Drop for Rest {
    fn drop(&mut self) {
        if let (Some(socket), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(async move {
                sleep(REST).await;
                drop(socket);
            });
        }
    }
}

/// A socket that is connected to `address`, so that it is told what becomes of its datagrams.
fn connected(plan: &BackendPlan, address: &SocketAddress) -> Result<OwnedFd, (Errno, Fault)> {
    let family = match address.kind() {
        Kind::Tcp4 => AddressFamily::INET,
        Kind::Tcp6 => AddressFamily::INET6,
        _ => AddressFamily::UNIX,
    };
    let of_socket = |errno| (errno, connect_error::of_socket(errno));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None).map_err(of_socket)?;
    let outgoing = Outgoing::default();
    let prepared = outgoing.prepare(&socket, plan, address, None);
    prepared.map_err(of_socket)?;
    if family == AddressFamily::UNIX {
        // The kernel picks a name to which the server can answer (unix(7), autobind).
        bind(&socket, &SocketAddrUnix::new_unnamed()).map_err(of_socket)?;
    }
    let connected = address.connect(&socket);
    connected.map_err(|errno| (errno, connect_error::of_connect(errno, address)))?;
    Ok(socket)
}

/// What an error of send(2) or recv(2) says.
fn of_exchange(errno: Errno) -> Failure {
    match errno {
        Errno::NOBUFS | Errno::NOMEM | Errno::PERM => Failure::Here(words(errno)),
        Errno::AGAIN => Failure::Server("it does not read what is sent to it".into()),
        errno => Failure::Server(words(errno)),
    }
}
