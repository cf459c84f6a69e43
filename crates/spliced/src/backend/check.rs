//! One health check of one server, on the control thread.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use splice::Kind;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use crate::connect_error::{self, Fault, NO_WAY};
use crate::outgoing::Outgoing;
use crate::plan::{BackendPlan, Check, HealthPlan, ProxyVersion};
use crate::resource_limit::words;
use crate::socket_address::SocketAddress;

/// The longest head of an HTTP answer, or other answer, that is read, in bytes: as much as most servers accept
/// of a request.
const HEAD_MOST_BYTES: usize = 8 << 10;

/// The most that is read behind what a check looks for: a page that is made for checks is shorter.
const REST_MOST_BYTES: usize = 1 << 20;

const REST_STEP_BYTES: usize = 4 << 10;

/// The least time for the end of a connection: a check that need not wait long for a status must not reset a
/// server that takes longer to send a page.
const END_WITHIN: Duration = Duration::from_secs(10);

/// How long the rest of an HTTP answer is waited for before the server is told that no request follows.
const REST_WITHIN: Duration = Duration::from_secs(1);

/// The pause before a UNIX server whose accept queue is full is tried again (`unix_stream_connect`).
const FULL_RETRY: Duration = Duration::from_millis(10);

/// A record of a TLS handshake, and in it a ServerHello (RFC 8446, sections 4 and 5.1).
const HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;

/// Why a check did not pass: part of a sentence.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server is to blame.
    Server(String),
    /// The server has taken the connection and reset it at once.
    Reset,
    /// This host lacks something, so that nothing is known of the server.
    Here(String),
}

/// Checks the server at the first of `addresses` that can be connected to. The caller bounds the time; the
/// connection may last as long again, or [`END_WITHIN`].
///
/// # Errors
/// Why the check does not pass.
pub(super) async fn check(
    plan: &BackendPlan,
    health: &HealthPlan,
    addresses: &[SocketAddress],
) -> Result<(), Failure> {
    let mut socket = match open(plan, addresses, health.timeout).await {
        // The connection was made, and whether its end comes before the check's is luck.
        Err(Failure::Reset) if matches!(health.check, Check::Tcp) => return Ok(()),
        opened => opened?,
    };
    let said = talk(&health.check, &mut *socket).await;
    let first = match health.check {
        Check::Http { .. } => First::Server,
        Check::Tcp | Check::Exchange { .. } | Check::Tls { .. } => First::Relay,
    };
    // Its end says nothing, so nobody waits for it.
    drop(tokio::spawn(end(
        socket,
        first,
        health.timeout.max(END_WITHIN),
    )));
    said.map_err(failure_of)
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

/// A connection to the first of `addresses` that can be connected to, on which everything has been sent that
/// precedes a client's bytes. Each has an equal share of the time that is left of `within`.
///
/// # Errors
/// Why there is none.
pub(super) async fn open(
    plan: &BackendPlan,
    addresses: &[SocketAddress],
    within: Duration,
) -> Result<Box<dyn Stream>, Failure> {
    let deadline = Instant::now() + within;
    let mut failure = None;
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / (addresses.len() - index) as u32;
        let connected = timeout(share, connect(plan, address)).await;
        match connected.unwrap_or(Err((Errno::TIMEDOUT, Fault::Server))) {
            Ok(mut socket) => {
                // A server that requires the header would refuse the connection.
                let header = match plan.send_proxy {
                    Some(ProxyVersion::V1) => &b"PROXY UNKNOWN\r\n"[..],
                    Some(ProxyVersion::V2) => &LOCAL_HEADER,
                    None => &[],
                };
                return match socket.write_all(header).await {
                    Ok(()) => Ok(socket),
                    Err(error) => match connect_error::of_attempt(errno_of(&error)) {
                        Fault::Reset => Err(Failure::Reset),
                        _ => Err(failure_of(error)),
                    },
                };
            }
            Err((_, Fault::Reset)) => return Err(Failure::Reset),
            Err((errno, fault)) => {
                // An address that could not be tried may be the good one, and one without a way cannot.
                let is_worse = match (&failure, fault) {
                    (None, _) | (_, Fault::Shortage) => true,
                    (Some((_, known)), Fault::Server) => *known != Fault::Shortage,
                    (Some(_), Fault::NoWay | Fault::Reset) => false,
                };
                if is_worse {
                    failure = Some((errno, fault));
                }
            }
        }
    }
    Err(match failure {
        Some((Errno::TIMEDOUT, _)) => {
            let time = humantime::format_duration(within);
            Failure::Server(format!("it does not answer within {time}"))
        }
        Some((errno, Fault::Server | Fault::Reset)) => Failure::Server(words(errno)),
        Some((errno, Fault::Shortage)) => Failure::Here(words(errno)),
        Some((_, Fault::NoWay)) => Failure::Here(NO_WAY.into()),
        None => Failure::Server("its name does not resolve".into()),
    })
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

/// A stream of either kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

async fn connect(
    plan: &BackendPlan,
    address: &SocketAddress,
) -> Result<Box<dyn Stream>, (Errno, Fault)> {
    // What the runtime cannot register is a shortage, too.
    let of_runtime = |error: io::Error| (errno_of(&error), Fault::Shortage);
    let socket = Outgoing::default()
        .socket(plan, address, None)
        .map_err(|errno| (errno, connect_error::of_socket(errno)))?;
    loop {
        match address.connect(&socket) {
            Ok(()) | Err(Errno::INPROGRESS) => break,
            // The server's accept queue is full. The kernel does not tell when it is no more.
            Err(Errno::AGAIN) if address.kind() == Kind::Unix => sleep(FULL_RETRY).await,
            Err(errno) => return Err((errno, connect_error::of_connect(errno, address))),
        }
    }
    if address.kind() == Kind::Unix {
        let stream = UnixStream::from_std(socket.into()).map_err(of_runtime)?;
        return Ok(Box::new(stream));
    }
    let stream = TcpStream::from_std(socket.into()).map_err(of_runtime)?;
    stream.writable().await.map_err(of_runtime)?;
    match stream.take_error().map_err(of_runtime)? {
        Some(error) => {
            let errno = errno_of(&error);
            Err((errno, connect_error::of_attempt(errno)))
        }
        None => Ok(Box::new(stream)),
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// What went wrong after the connection was made.
enum Wrong {
    System(io::Error),
    Words(&'static str),
    Status(u16),
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

fn failure_of(wrong: impl Into<Wrong>) -> Failure {
    Failure::Server(match wrong.into() {
        Wrong::System(error) => match errno_of(&error) {
            errno @ (Errno::NOBUFS | Errno::NOMEM) => return Failure::Here(words(errno)),
            errno => words(errno),
        },
        Wrong::Words(words) => words.into(),
        Wrong::Status(status) => format!("it answers with HTTP status {status}"),
    })
}

async fn talk(check: &Check, socket: &mut dyn Stream) -> Result<(), Wrong> {
    match check {
        Check::Tcp => Ok(()),
        Check::Exchange { send, expect } => exchange(socket, send, expect).await,
        Check::Tls { server_name } => tls(socket, server_name.as_deref()).await,
        Check::Http { path, host, status } => http(socket, path, host.as_deref(), *status).await,
    }
}

/// A PROXY header of version 2 for a connection of the proxy itself.
const LOCAL_HEADER: [u8; 16] = *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

async fn exchange(socket: &mut dyn Stream, send: &[u8], expect: &[u8]) -> Result<(), Wrong> {
    socket.write_all(send).await?;
    let mut answer = Vec::new();
    let mut searched: usize = 0;
    loop {
        let head = &answer[..answer.len().min(HEAD_MOST_BYTES)];
        // What was expected may have begun in the last bytes that were searched.
        let from = searched.saturating_sub(expect.len());
        if head[from..]
            .windows(expect.len())
            .any(|part| part == expect)
        {
            return Ok(());
        }
        searched = head.len();
        if searched == HEAD_MOST_BYTES {
            return Err(Wrong::Words("it does not say what is expected"));
        }
        if !read(socket, &mut answer).await? {
            return Err(Wrong::Words(
                "it ends the connection before it says what is expected",
            ));
        }
    }
}

async fn tls(socket: &mut dyn Stream, server_name: Option<&str>) -> Result<(), Wrong> {
    let hello = hello(server_name).ok_or(Wrong::Words("no TLS hello can be made for its name"))?;
    socket.write_all(&hello).await?;
    let mut answer = Vec::new();
    loop {
        if answer.len() > 5 {
            return match (answer[0], answer[5]) {
                (HANDSHAKE, SERVER_HELLO) => Ok(()),
                _ => Err(Wrong::Words("it does not answer a TLS hello with a hello")),
            };
        }
        if !read(socket, &mut answer).await? {
            return Err(Wrong::Words("it ends the connection at a TLS hello"));
        }
    }
}

/// A hello of today's clients. Nothing is verified: nobody talks on this connection.
fn hello(server_name: Option<&str>) -> Option<Vec<u8>> {
    static CONFIG: OnceLock<Option<Arc<ClientConfig>>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .ok()?;
        let config = versions.with_root_certificates(RootCertStore::empty());
        Some(Arc::new(config.with_no_client_auth()))
    });
    // An address is no SNI.
    let name = server_name.unwrap_or("127.0.0.1").to_owned();
    let name = ServerName::try_from(name).ok()?;
    let mut connection = ClientConnection::new(Arc::clone(config.as_ref()?), name).ok()?;
    let mut hello = Vec::new();
    connection.write_tls(&mut hello).ok()?;
    Some(hello)
}

async fn http(
    socket: &mut dyn Stream,
    path: &str,
    host: Option<&str>,
    expected: Option<u16>,
) -> Result<(), Wrong> {
    let host = host.unwrap_or("localhost");
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: spliced\r\nConnection: close\r\n\r\n"
    );
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(&answer);
        let status = match parsed {
            // The status line is enough.
            Ok(_) | Err(httparse::Error::TooManyHeaders) => response.code,
            Err(_) => return Err(Wrong::Words("it does not answer in HTTP/1")),
        };
        match (status, parsed) {
            // Another answer follows it (RFC 9110, 15.2).
            (Some(100..200), Ok(httparse::Status::Complete(length))) => {
                answer.drain(..length);
                continue;
            }
            (None | Some(100..200), _) => {}
            (Some(status), _) => {
                let is_good = match expected {
                    Some(expected) => status == expected,
                    None => (200..400).contains(&status),
                };
                return if is_good {
                    Ok(())
                } else {
                    Err(Wrong::Status(status))
                };
            }
        }
        if answer.len() > HEAD_MOST_BYTES {
            return Err(Wrong::Words("it does not answer in HTTP/1"));
        }
        if !read(socket, &mut answer).await? {
            return Err(Wrong::Words("it ends the connection at an HTTP request"));
        }
    }
}

/// Adds what has come; returns false at the end of the stream.
async fn read(socket: &mut dyn Stream, bytes: &mut Vec<u8>) -> Result<bool, Wrong> {
    Ok(socket.read_buf(bytes).await? > 0)
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
        let plan = BackendPlan::of_one("test", address, within);
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let opened = runtime
            .expect("a runtime")
            .block_on(open(&plan, &addresses, within));
        opened.map(drop)
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
