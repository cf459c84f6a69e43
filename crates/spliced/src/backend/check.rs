//! One health check of one server, on the control thread.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::datagram_check;
use super::own_connection::{self, Failure, First, Stream, end, open};
use crate::plan::{BackendPlan, Check, HealthPlan};
use crate::socket_address::SocketAddress;
use crate::target::Target;

/// The longest head of an HTTP answer, or other answer, that is read, in bytes: as much as most servers accept
/// of a request.
const HEAD_MOST_BYTES: usize = 8 << 10;

/// The least time for the end of a connection: a check that need not wait long for a status must not reset a
/// server that takes longer to send a page.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A record of a TLS handshake, and in it a ServerHello (RFC 8446, sections 4 and 5.1).
const HANDSHAKE: u8 = 22;
const SERVER_HELLO: u8 = 2;

/// Checks the server at the one of `addresses` of `target` that takes the connection. The caller bounds the time; the
/// connection may last as long again, or [`END_WITHIN`].
///
/// # Errors
/// Why the check does not pass.
pub(super) async fn check(
    plan: &BackendPlan,
    health: &HealthPlan,
    target: &Arc<Target>,
    addresses: &[SocketAddress],
) -> Result<(), Failure> {
    if let Check::Datagram { send, expect } = &health.check {
        return datagram_check::check(plan, send, expect.as_deref(), addresses).await;
    }
    let mut socket = match open(plan, target, addresses, health.timeout).await {
        // The connection was made, and whether its end comes before the check's is luck.
        Err(Failure::Reset) if matches!(health.check, Check::Tcp) => return Ok(()),
        opened => opened?,
    };
    let said = talk(&health.check, &mut *socket).await;
    let first = match health.check {
        Check::Http { .. } => First::Server,
        _ => First::Relay,
    };
    // Its end says nothing, so nobody waits for it.
    drop(tokio::spawn(end(
        socket,
        first,
        health.timeout.max(END_WITHIN),
    )));
    said.map_err(failure_of)
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

fn failure_of(wrong: Wrong) -> Failure {
    Failure::Server(match wrong {
        Wrong::System(error) => return own_connection::failure_of(&error),
        Wrong::Words(words) => words.into(),
        Wrong::Status(status) => format!("it answers with HTTP status {status}"),
    })
}

async fn talk(check: &Check, socket: &mut dyn Stream) -> Result<(), Wrong> {
    match check {
        // A datagram has no stream.
        Check::Tcp | Check::Datagram { .. } => Ok(()),
        Check::Exchange { send, expect } => exchange(socket, send, expect).await,
        Check::Tls { server_name } => tls(socket, server_name.as_deref()).await,
        Check::Http { path, host, status } => http(socket, path, host.as_deref(), *status).await,
    }
}

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
