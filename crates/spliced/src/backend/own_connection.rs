//! A connection of the relay's own to a server, on the control thread: for a check, or a probe.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout, timeout_at};

use crate::connect_error::{self, Fault, NO_WAY, told};
use crate::outgoing::Outgoing;
use crate::plan::{BackendPlan, ProxyVersion};
use crate::race::{Race, Turn};
use crate::resource_limit::words;
use crate::socket_address::{SocketAddress, has_connected};
use crate::target::{Lookup, Target};

/// The most that is read behind what a check looks for: a page that is made for checks is shorter.
const REST_MOST_BYTES: usize = 1 << 20;

const REST_STEP_BYTES: usize = 4 << 10;

/// How long the rest of an HTTP answer is waited for before the server is told that no request follows.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// The pause before a UNIX server whose accept queue is full is tried again (`unix_stream_connect`).
const FULL_RETRY: Duration = Duration::from_millis(10);

/// The pause before a socket that is reported as ready, but is not connected, is looked at again.
const NOT_YET_RETRY: Duration = Duration::from_millis(10);

/// A PROXY header of version 2 for a connection of the proxy itself.
const LOCAL_HEADER: [u8; 16] = *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// Why a check did not pass: part of a sentence.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server is to blame.
    Server(String),
    /// The server has taken the connection and reset it at once.
    Reset,
    /// This host lacks something, an address of the server included, so that nothing is known of the server.
    Here(String),
}

/// The addresses of `target`, for which nobody waits longer than `within`. A name without one says nothing about the
/// server: its name server may be silent, or its record gone, and connections that are open go on.
///
/// # Errors
/// Why there are none.
pub(super) async fn addresses(
    target: &Arc<Target>,
    within: Duration,
) -> Result<Arc<[SocketAddress]>, Failure> {
    let latest = Instant::now() + within / 2;
    let known = timeout(within, addresses_of(target, latest)).await;
    match known {
        Ok(addresses) if !addresses.is_empty() => Ok(addresses),
        _ => Err(Failure::Here(target.why_nowhere())),
    }
}

/// A connection to the one of `addresses` of `target` that answers first, on which everything has been sent that
/// precedes a client's bytes.
///
/// # Errors
/// Why there is none.
pub(super) async fn open(
    plan: &BackendPlan,
    target: &Arc<Target>,
    addresses: &[SocketAddress],
    within: Duration,
) -> Result<Box<dyn Stream>, Failure> {
    let begin = Instant::now();
    let (index, mut socket) = connect_to_one(plan, addresses, begin, within).await?;
    target.answered(&addresses[index], addresses);
    // A server that requires the header would refuse the connection.
    let header = match plan.send_proxy {
        Some(ProxyVersion::V1) => &b"PROXY UNKNOWN\r\n"[..],
        Some(ProxyVersion::V2) => &LOCAL_HEADER,
        None => &[],
    };
    match socket.write_all(header).await {
        Ok(()) => Ok(socket),
        Err(error) => match connect_error::of_attempt(errno_of(&error)) {
            Fault::Reset => Err(Failure::Reset),
            _ => Err(failure_of(&error)),
        },
    }
}

/// Who ends a connection first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum First {
    Relay,
    /// It takes an end of stream for a client that does not want the answer.
    Server,
}

/// Closes a connection in order. A close with bytes unread, or with more to come, would reset it, and fill
/// the server's log. A server that does not come to an end is reset in the end.
pub(super) async fn end(mut socket: Box<dyn Stream>, first: First, within: Duration) {
    let mut left = REST_MOST_BYTES;
    let ending = async {
        if first == First::Server {
            // One that keeps the connection open for another request learns that there is none.
            let _ = timeout(REST_WITHIN, read_rest(&mut *socket, &mut left)).await;
        }
        socket.shutdown().await?;
        read_rest(&mut *socket, &mut left).await
    };
    // It has been reset already, or it takes too long.
    let _ = timeout(within, ending).await;
}

/// A stream of either kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// What went wrong on a connection that was made.
pub(super) fn failure_of(error: &io::Error) -> Failure {
    match errno_of(error) {
        errno @ (Errno::NOBUFS | Errno::NOMEM) => Failure::Here(words(errno)),
        errno => Failure::Server(words(errno)),
    }
}

/// The addresses of `target`, once they are known. An old answer is used from `latest` on.
async fn addresses_of(target: &Arc<Target>, latest: Instant) -> Arc<[SocketAddress]> {
    loop {
        let again = match target.look_up(latest, || Waker::noop().clone()) {
            Lookup::Known(addresses) => return addresses,
            Lookup::Awaited(_, again) => again,
        };
        let mut awaited = None;
        let known = poll_fn(|cx| match target.look_up(latest, || cx.waker().clone()) {
            Lookup::Known(addresses) => Poll::Ready(addresses),
            Lookup::Awaited(question, _) => {
                awaited = Some(question);
                Poll::Pending
            }
        });
        match again {
            None => return known.await,
            Some(again) => {
                if let Ok(addresses) = timeout_at(again.into(), known).await {
                    return addresses;
                }
            }
        }
    }
}

/// A connection to the one of `addresses` that answers first, as for a client, and its index.
async fn connect_to_one(
    plan: &BackendPlan,
    addresses: &[SocketAddress],
    begin: Instant,
    within: Duration,
) -> Result<(usize, Box<dyn Stream>), Failure> {
    let until = begin + within;
    let mut race = Race::new(addresses.len());
    let mut under_way = Vec::new();
    let mut failure = None;
    loop {
        let now = Instant::now();
        let next_at = match race.turn(now) {
            Turn::Start(index) => {
                under_way.push((index, Box::pin(connect(plan, &addresses[index]))));
                race.started(index, now, until);
                continue;
            }
            Turn::GiveUp(index) => {
                under_way.retain(|(other, _)| *other != index);
                race.failed(index);
                continue;
            }
            Turn::Wait(at) => at.map_or(until, |at| at.min(until)),
            Turn::Over => break,
        };
        let (errno, fault) = match timeout_at(next_at.into(), first_of(&mut under_way)).await {
            Ok((index, Ok(socket))) => return Ok((index, socket)),
            Ok((_, Err((_, Fault::Reset)))) => return Err(Failure::Reset),
            Ok((index, Err(error))) => {
                race.failed(index);
                error
            }
            Err(_) if Instant::now() < until => continue,
            Err(_) => (Errno::TIMEDOUT, Fault::Server),
        };
        // An address that could not be tried may be the good one, and one without a way cannot.
        let is_worse = match (&failure, fault) {
            (None, _) | (_, Fault::Shortage) => true,
            (Some((_, known)), Fault::Server) => *known != Fault::Shortage,
            (Some(_), Fault::NoWay | Fault::Reset) => false,
        };
        if is_worse {
            failure = Some((errno, fault));
        }
        if errno == Errno::TIMEDOUT && Instant::now() >= until {
            break;
        }
    }
    Err(match failure {
        Some((Errno::TIMEDOUT, _)) => {
            let time = humantime::format_duration(within);
            Failure::Server(format!("it does not answer within {time}"))
        }
        Some((errno, Fault::Server | Fault::Reset)) => {
            Failure::Server(told(errno, addresses.first().map(SocketAddress::kind)))
        }
        Some((errno, Fault::Shortage)) => Failure::Here(words(errno)),
        Some((_, Fault::NoWay)) => Failure::Here(NO_WAY.into()),
        // Without addresses.
        None => Failure::Here("it has no address".into()),
    })
}

/// The first of `futures` that ends, which is removed, and its number.
async fn first_of<F: Future + Unpin>(futures: &mut Vec<(usize, F)>) -> (usize, F::Output) {
    poll_fn(|cx| {
        for at in 0..futures.len() {
            let (number, future) = &mut futures[at];
            if let Poll::Ready(output) = Pin::new(future).poll(cx) {
                let number = *number;
                drop(futures.remove(at));
                return Poll::Ready((number, output));
            }
        }
        Poll::Pending
    })
    .await
}

/// Reads to the end of the stream, or as much as is `left` to read.
async fn read_rest(socket: &mut dyn Stream, left: &mut usize) -> io::Result<()> {
    let mut rest = vec![0; REST_STEP_BYTES];
    while *left > 0 {
        match socket.read(&mut rest).await? {
            0 => break,
            count => *left = left.saturating_sub(count),
        }
    }
    Ok(())
}

async fn connect(
    plan: &BackendPlan,
    address: &SocketAddress,
) -> Result<Box<dyn Stream>, (Errno, Fault)> {
    // What the runtime cannot register is a shortage, too.
    let of_runtime = |error: io::Error| (errno_of(&error), Fault::Shortage);
    let socket = Outgoing::default()
        .socket(plan, address, None)
        .map_err(|errno| (errno, connect_error::of_socket(errno)))?;
    if address.kind().is_tcp() {
        // One that loses the race may be established when it is closed, and the server must not see an end of stream.
        let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    }
    loop {
        match address.connect(&socket) {
            Ok(()) | Err(Errno::INPROGRESS) => break,
            // The server's accept queue is full. The kernel does not tell when it is no more.
            Err(Errno::AGAIN) if address.kind().is_unix() => sleep(FULL_RETRY).await,
            Err(errno) => return Err((errno, connect_error::of_connect(errno, address))),
        }
    }
    if address.kind().is_unix() {
        let stream = UnixStream::from_std(socket.into()).map_err(of_runtime)?;
        return Ok(Box::new(stream));
    }
    // The runtime knows no VSOCK, whose calls are the same.
    let stream = TcpStream::from_std(socket.into()).map_err(of_runtime)?;
    until_connected(&stream)
        .await
        .map_err(of_runtime)?
        .map_err(|errno| {
            let errno = connect_error::as_of_tcp(errno, address);
            (errno, connect_error::of_attempt(errno))
        })?;
    let _ = sockopt::set_socket_linger(&stream, None);
    Ok(Box::new(stream))
}

/// Waits until the connection is made, or has failed.
///
/// # Errors
/// Of the runtime.
async fn until_connected(stream: &TcpStream) -> io::Result<Result<(), Errno>> {
    loop {
        stream.writable().await?;
        match has_connected(stream) {
            Ok(true) => return Ok(Ok(())),
            Err(errno) => return Ok(Err(errno)),
            // The runtime never forgets that it was told of a hang-up, so waiting for it again would spin.
            Ok(false) => sleep(NOT_YET_RETRY).await,
        }
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};

    use socket2::{Domain, Socket, Type};
    use splice::Address;
    use tokio::runtime;

    use super::*;

    fn open_at(addresses: &[SocketAddr], within: Duration) -> Result<(), Failure> {
        let addresses: Vec<_> = addresses.iter().copied().map(SocketAddress::Inet).collect();
        let address: Address = "127.0.0.1:80".parse().expect("an address");
        let plan =
            BackendPlan::of_one("test", crate::plan::ServerAddress::Address(address), within);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let opened = runtime.expect("a runtime").block_on(connect_to_one(
            &plan,
            &addresses,
            Instant::now(),
            within,
        ));
        opened.map(drop)
    }

    /// epoll reports a socket that nobody has connected as writable (`tcp_poll`).
    #[test]
    fn a_socket_without_a_peer_is_waited_for() {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let address = SocketAddress::Inet(listener.local_addr().expect("its address"));
        let socket = address.socket().expect("a socket");
        let same = socket.try_clone().expect("a duplicate");
        runtime.block_on(async {
            let stream = TcpStream::from_std(socket.into()).expect("registered");
            stream.writable().await.expect("reported as writable");
            let early = timeout(Duration::from_millis(50), until_connected(&stream)).await;
            assert!(early.is_err(), "{early:?}");
            let begun = address.connect(&same);
            assert!(
                matches!(begun, Ok(()) | Err(Errno::INPROGRESS)),
                "{begun:?}"
            );
            let connected = until_connected(&stream).await.expect("the runtime works");
            assert_eq!(connected, Ok(()));
        });
    }

    /// As clients do: a name may have an address that leads nowhere.
    #[test]
    fn a_silent_address_leaves_time_for_the_others() {
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        silent.bind(&any.into()).expect("bound");
        silent.listen(0).expect("it listens");
        let address = silent.local_addr().expect("its address");
        let silent_at = address.as_socket().expect("an IP address");
        // Its backlog is full from now on.
        let _first = std::net::TcpStream::connect(silent_at).expect("connected");
        let good = TcpListener::bind(any).expect("it listens");
        let good_at = good.local_addr().expect("its address");

        assert!(open_at(&[silent_at, good_at], Duration::from_secs(1)).is_ok());
        let failure = open_at(&[silent_at], Duration::from_millis(50));
        assert!(
            matches!(&failure, Err(Failure::Server(why)) if why == "it does not answer within 50ms"),
            "{failure:?}"
        );
    }
}
