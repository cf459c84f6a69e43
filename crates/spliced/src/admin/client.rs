//! A client of a control socket.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONNECTION, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::control_socket::ControlSocket;

/// The longest answer: 200 000 sessions or servers take a kilobyte each at most.
const ANSWER_MOST_BYTES: usize = 256 << 20;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nobody listens.
    Gone,
    /// This user may not connect.
    Denied,
    /// There is no answer, or none that makes sense.
    Told(String),
    /// The process has answered that it refuses.
    Refused(StatusCode, String),
}

/// What a process has answered.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its number, if this PID namespace has one for it.
    pub(crate) process: Option<i32>,
    pub(crate) told: Result<Value, Failure>,
}

/// Asks the process with this socket for `path`, on a connection that ends with the answer.
pub(crate) async fn ask(
    socket: &ControlSocket,
    method: Method,
    path: &str,
    within: Duration,
) -> Answer {
    let shown = socket.path.display();
    let failed = |process, failure| Answer {
        process,
        told: Err(failure),
    };
    let stream = match socket.connect().await {
        Ok(stream) => stream,
        Err(error) => return failed(None, why_not_connected(&socket.path, &error)),
    };
    let peer = stream.peer_cred().ok();
    let process = peer.and_then(|peer| peer.pid()).filter(|id| *id > 0);
    if let (Some(owner), Some(peer)) = (socket.owner(), peer)
        && owner != peer.uid()
    {
        let why = format!(
            "{shown} belongs to user {owner}, and a process of user {} answers there, so it is not asked; remove it",
            peer.uid()
        );
        // It is the number of somebody who may have been led astray.
        return failed(None, Failure::Told(why));
    }
    if let Some(process) = process.filter(|process| is_stopped(*process)) {
        let why = format!(
            "process {process} is stopped and cannot answer; have it go on with 'kill -CONT {process}'"
        );
        return failed(Some(process), Failure::Told(why));
    }
    let told = timeout(within, converse(stream, &socket.path, method, path))
        .await
        .unwrap_or_else(|_| Err(Failure::silent(socket, within)));
    Answer { process, told }
}

impl Failure {
    /// There is no answer in time.
    pub(crate) fn silent(socket: &ControlSocket, within: Duration) -> Self {
        Self::Told(format!(
            "the process of {} has not answered within {} s; see whether it is stopped, and what it logs",
            socket.path.display(),
            within.as_secs()
        ))
    }
}

fn why_not_connected(socket: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => {
            Failure::Gone
        }
        ErrorKind::PermissionDenied => Failure::Denied,
        // Its backlog is full.
        ErrorKind::WouldBlock => Failure::Told(format!(
            "the process of {} takes no more clients; see whether it is stopped",
            socket.display()
        )),
        _ => Failure::Told(format!("cannot connect to {}: {error}", socket.display())),
    }
}

async fn converse(
    stream: UnixStream,
    socket: &Path,
    method: Method,
    path: &str,
) -> Result<Value, Failure> {
    let has_ended = || {
        Failure::Told(format!(
            "the process of {} has ended before it answered; see what it logs, and ask again once it runs",
            socket.display()
        ))
    };
    let (mut sender, connection) = handshake(TokioIo::new(stream))
        .await
        .map_err(|_| has_ended())?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "spliced")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| Failure::Told(error.to_string()))?;
    let response = sender.send_request(request).await;
    let response = response.map_err(|_| has_ended())?;
    let status = response.status();
    let body = Limited::new(response.into_body(), ANSWER_MOST_BYTES);
    let body = body.collect().await.map_err(|error| {
        if !error.is::<LengthLimitError>() {
            return has_ended();
        }
        Failure::Told(format!(
            "the process of {} answers with more than {} MiB; ask it with curl, for fewer sessions",
            socket.display(),
            ANSWER_MOST_BYTES >> 20
        ))
    })?;
    // The process then has nothing left of this request.
    let _ = connection.await;
    let mut value: Value = serde_json::from_slice(&body.to_bytes()).map_err(|_| has_ended())?;
    if status.is_success() {
        return Ok(value);
    }
    Err(Failure::Refused(
        status,
        match value.get_mut("error").map_or(Value::Null, Value::take) {
            Value::String(sentence) => sentence,
            _ => format!("{} answers without a reason", socket.display()),
        },
    ))
}

/// Whether the process was stopped by a signal or a debugger.
fn is_stopped(process: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
    state.is_some_and(|state| state.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use netlab::Scratch;
    use tokio::runtime::Builder;

    use super::*;

    fn asked(socket: &Path) -> Result<Value, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let within = Duration::from_secs(60);
        let socket = ControlSocket::named(socket);
        let asked = ask(&socket, Method::GET, "/v1/status", within);
        runtime.expect("a loop").block_on(asked).told
    }

    #[test]
    fn a_process_that_ends_before_it_has_answered_is_named_in_words() {
        let scratch = Scratch::new("control").expect("a directory");
        let path = scratch.path().join("sock");
        let listener = UnixListener::bind(&path).expect("bound");
        for answer in [
            "",
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{\"a\"",
            "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n{\"a\"",
            "nonsense\n",
        ] {
            let told = thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut process, _) = listener.accept().expect("a client");
                    let _ = process.read(&mut [0; 512]).expect("a request");
                    process.write_all(answer.as_bytes()).expect("sent");
                });
                asked(&path).expect_err("no answer")
            });
            let Failure::Told(told) = told else {
                panic!("{told:?}");
            };
            assert!(told.contains("has ended before it answered"), "{told}");
        }
        drop(listener);
        assert_eq!(asked(&path), Err(Failure::Gone));
    }

    #[test]
    fn a_socket_with_a_long_path_is_reached() {
        let scratch = Scratch::new("control").expect("a directory");
        let long = scratch.path().join("x".repeat(107));
        let path = scratch.path().join("sock");
        let listener = UnixListener::bind(&path).expect("bound");
        fs::create_dir(&long).expect("made");
        fs::rename(&path, long.join("sock")).expect("moved");
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut process, _) = listener.accept().expect("a client");
                let _ = process.read(&mut [0; 512]).expect("a request");
                process.write_all(answer.as_bytes()).expect("sent");
            });
            asked(&long.join("sock")).expect("an answer");
        });
    }
}
