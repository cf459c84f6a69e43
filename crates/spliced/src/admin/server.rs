//! The HTTP server behind the control sockets: JSON over HTTP/1.1, with a thread of its own.
//!
//! Nobody waits for a client: each is a task, with bounds on its time, its header, its body and its answers.

use std::convert::Infallible;
use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{self, ALLOW, CACHE_CONTROL, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::process::geteuid;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::answers::{Answers, Share};
use super::clients::{ASKS_WITHIN, Activity, Clients, Rank, Seat};
use super::facts::Facts;
use super::line::{Line, Stream};
use super::peer::{Peer, admit};
use super::refusal::{Ending, NoListener, Refusal};
use super::reserve::Reserve;
use super::routes::{self, Asked, Route};
use super::scraper::Scraper;
use super::scraping::Scraping;
use super::{Question, Request};
use crate::backend::NoServer;
use crate::metrics::{CONTENT_TYPE, Metrics};
use crate::rate_limited_warning::{RateLimitedWarning, more};
use crate::sessions::NoSession;

/// How long a client may take for a header, for a body, or until its next request.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the end of the process waits for the last answers to be sent.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// How long a client may stay.
const STAY_WITHIN: Duration = Duration::from_secs(180);

const HEADER_MOST_BYTES: usize = 16 << 10;

const HEADER_MOST_FIELDS: usize = 64;

/// No request has a body by now, but a client may send one.
const BODY_MOST_BYTES: usize = 64 << 10;

const JSON: &str = "application/json";

/// What clients of one socket may do.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Access {
    /// Whose members may ask, besides root and the user of this process.
    pub(super) group: Option<u32>,
    pub(super) reads_only: bool,
}

/// Ends when it is dropped.
pub(super) struct Server {
    shared: Arc<Shared>,
    runtime: Handle,
    pub(super) reserve: Arc<Reserve>,
    _end: oneshot::Sender<()>,
}

struct Shared {
    ask: Box<dyn Fn(Question) + Send + Sync>,
    facts: Arc<Facts>,
    scraper: Arc<Scraper>,
    clients: Arc<Clients>,
    answers: Arc<Answers>,
    /// Of those who may only read, and ask for a change.
    refused: RateLimitedWarning,
}

impl Server {
    /// Starts the thread, before descriptors may be short.
    ///
    /// # Errors
    /// If the thread or its event loop cannot be created.
    pub(super) fn start(
        facts: Arc<Facts>,
        metrics: Metrics,
        ask: impl Fn(Question) + Send + Sync + 'static,
    ) -> Result<Self> {
        let reserve =
            Reserve::filled().context("cannot keep descriptors for the control socket")?;
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot create the event loop of the control socket")?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        thread::Builder::new()
            .name("admin-http".into())
            .spawn(move || {
                // It ends with an error when the sender is dropped.
                let _ = runtime.block_on(ended);
                runtime.shutdown_background();
            })
            .context("cannot start the thread of the control socket")?;
        let shared = Shared {
            ask: Box::new(ask),
            scraper: Scraper::new(Arc::clone(&facts), metrics),
            facts,
            clients: Arc::default(),
            answers: Arc::default(),
            refused: RateLimitedWarning::of("changes that a socket for reading refused"),
        };
        Ok(Self {
            shared: Arc::new(shared),
            runtime: handle,
            reserve: Arc::new(reserve),
            _end: end,
        })
    }

    /// Serves `client` from now on, unless there is no seat for it.
    ///
    /// # Errors
    /// If this host cannot watch it.
    pub(super) fn serve(&self, client: UnixStream, access: Access) -> Result<()> {
        let peer = Peer::of(&client, access.group);
        let rank = match access.reads_only || admit(&peer, geteuid().as_raw()).is_err() {
            true => Rank::Reads,
            false => Rank::Orders,
        };
        let Some(seat) = self.shared.clients.seat(rank) else {
            return Ok(());
        };
        client.set_nonblocking(true)?;
        let conversation = Arc::new(Conversation {
            peer,
            access,
            rank,
            shared: Arc::clone(&self.shared),
            activity: Arc::clone(&seat.activity),
        });
        self.begin(
            seat,
            || tokio::net::UnixStream::from_std(client),
            move |request| {
                let conversation = Arc::clone(&conversation);
                async move { conversation.reply(request).await }
            },
        )
    }

    /// Serves `client`, who has come by TCP, with the metrics and nothing else.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub(super) fn serve_metrics(&self, client: TcpStream) -> Result<()> {
        let Some(seat) = self.shared.clients.seat(Rank::Scrapes) else {
            return Ok(());
        };
        client.set_nonblocking(true)?;
        let scraping = Arc::new(Scraping {
            scraper: Arc::clone(&self.shared.scraper),
            answers: Arc::clone(&self.shared.answers),
        });
        self.begin(
            seat,
            || tokio::net::TcpStream::from_std(client),
            move |request| {
                let scraping = Arc::clone(&scraping);
                async move { scraping.reply(request).await }
            },
        )
    }

    /// Answers what comes on `stream`.
    fn begin<S: Stream, R>(
        &self,
        seat: Seat,
        stream: impl FnOnce() -> io::Result<S>,
        reply: impl Fn(HttpRequest<Incoming>) -> R + Send + 'static,
    ) -> Result<()>
    where
        R: Future<Output = Response<Full<Bytes>>> + Send + 'static,
    {
        let activity = Arc::clone(&seat.activity);
        let line = {
            let _runtime = self.runtime.enter();
            Line::new(stream()?, seat, Arc::clone(&self.reserve))
        };
        let task = self.runtime.spawn(async move {
            // A client that goes away misses only its own answer.
            let _ = timeout(STAY_WITHIN, converse(line, reply)).await;
        });
        self.shared
            .clients
            .can_leave(&activity, task.abort_handle());
        Ok(())
    }

    /// Descriptors are short: one is given up for the next client, as soon as there is one.
    pub(super) fn make_room(&self) {
        self.shared.clients.dismiss_silent();
        self.reserve.give_up(ASKS_WITHIN);
    }

    /// Sends what has been answered so far. The order to end the last session may end the process.
    pub(super) fn finish(&self) {
        let (sender, sent) = mpsc::channel();
        self.runtime.spawn(async move {
            // The tasks that have an answer come before this one.
            yield_now().await;
            let _ = sender.send(());
        });
        let _ = sent.recv_timeout(LAST_ANSWERS);
    }
}

/// What is answered.
enum Told {
    Json(Value),
    Metrics(String),
}

/// What the requests of one client have in common.
struct Conversation {
    peer: Result<Peer, String>,
    access: Access,
    rank: Rank,
    shared: Arc<Shared>,
    activity: Arc<Activity>,
}

async fn converse<S: Stream, R>(
    line: Line<S>,
    reply: impl Fn(HttpRequest<Incoming>) -> R,
) -> Result<()>
where
    R: Future<Output = Response<Full<Bytes>>>,
{
    let service = service_fn(move |request| {
        let response = reply(request);
        async move { Ok::<_, Infallible>(response.await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(HEADER_MOST_BYTES)
        .max_headers(HEADER_MOST_FIELDS)
        // As of socat and nc, which end their stream behind the request.
        .half_close(true)
        .serve_connection(TokioIo::new(line), service)
        .await?;
    Ok(())
}

impl Conversation {
    async fn reply(&self, request: HttpRequest<Incoming>) -> Response<Full<Bytes>> {
        self.activity.has_asked.store(true, Ordering::Relaxed);
        let mut kind = JSON;
        let answered = self.answer(request).await;
        let answered = answered.and_then(|(told, share)| match told {
            Told::Json(value) => share.bytes(format!("{value}\n")),
            Told::Metrics(text) => {
                let body = share.bytes(text)?;
                kind = CONTENT_TYPE;
                Ok(body)
            }
        });
        let (status, body, allow) = match answered {
            Ok(body) => (StatusCode::OK, body, None),
            Err(refusal) => {
                let value = json!({ "error": refusal.sentence });
                let body = Bytes::from(format!("{value}\n"));
                (refusal.status, body, refusal.allow)
            }
        };
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(allow) = allow.and_then(|allow| HeaderValue::try_from(allow).ok()) {
            headers.insert(ALLOW, allow);
        }
        response
    }

    /// What is answered, with its share of what all clients together hold.
    async fn answer(&self, request: HttpRequest<Incoming>) -> Result<(Told, Share), Refusal> {
        admit(&self.peer, geteuid().as_raw())?;
        let uri = request.uri();
        let found = routes::find(request.method(), uri.path(), uri.query())?;
        let asked = match uri.query() {
            Some(query) => format!("{} {}?{query}", found.route.method, found.path),
            None => format!("{} {}", found.route.method, found.path),
        };
        if found.route.changes && self.access.reads_only {
            self.shared.refused.emit(|suppressed| {
                let by = self.by();
                tracing::warn!(
                    "{asked} of {by} was refused: the socket is for reading only{}",
                    more(suppressed)
                );
            });
            return Err(Refusal::new(
                StatusCode::FORBIDDEN,
                "this socket is for reading only; ask the control socket",
            ));
        }
        read_body(request.into_body()).await?;
        match found.asked {
            Asked::Index => Ok((Told::Json(routes::index()), self.short())),
            Asked::Process => Ok((Told::Json(self.process()), self.short())),
            Asked::Metrics => Ok(self.metrics().await),
            Asked::Main(request) => {
                let has_process = request == Request::Status;
                let (mut told, share) = self.ask(found.route, &asked, request).await?;
                if has_process {
                    told["process"] = self.process();
                }
                Ok((Told::Json(told), share))
            }
        }
    }

    /// What is counted.
    async fn metrics(&self) -> (Told, Share) {
        let share = self.shared.answers.share_of_metrics(self.rank).await;
        (Told::Metrics(self.shared.scraper.text().await), share)
    }

    /// Who asks, in words.
    fn by(&self) -> String {
        let peer = self.peer.as_ref();
        peer.map_or_else(Clone::clone, Peer::to_string)
    }

    fn short(&self) -> Share {
        self.shared.answers.of_short(self.rank)
    }

    /// What the process says of itself on this socket.
    fn process(&self) -> Value {
        let mut told = self.shared.facts.told();
        told["reads_only"] = self.access.reads_only.into();
        told
    }

    async fn ask(
        &self,
        route: &Route,
        asked: &str,
        request: Request,
    ) -> Result<(Value, Share), Refusal> {
        let by = self.by();
        if route.changes {
            tracing::info!("{asked} was asked for by {by}");
        }
        let logs_failure = request == Request::Reload;
        self.activity.waits.store(true, Ordering::Relaxed);
        let answered = timeout(route.within, async {
            let share = match route.changes {
                // The answer is short, and waits for nobody who reads.
                true => self.short(),
                false => self.shared.answers.share(self.rank, &request).await,
            };
            let (sender, answer) = oneshot::channel();
            (self.shared.ask)(Question {
                request,
                by: by.clone(),
                answer: sender,
            });
            answer.await.map(|answer| (answer, share))
        });
        let answered = answered.await;
        self.activity.waits.store(false, Ordering::Relaxed);
        let refusal = match answered {
            Ok(Ok((Ok(value), share))) => {
                if let Some(count) = value["ending"].as_u64() {
                    tracing::info!("{asked} of {by} ends so many sessions: {count}");
                }
                return Ok((value, share));
            }
            Ok(Ok((Err(error), _))) => {
                let is_nowhere =
                    error.is::<NoSession>() || error.is::<NoServer>() || error.is::<NoListener>();
                let status = match is_nowhere {
                    true => StatusCode::NOT_FOUND,
                    false if error.is::<Ending>() => StatusCode::SERVICE_UNAVAILABLE,
                    false => StatusCode::UNPROCESSABLE_ENTITY,
                };
                Refusal::new(status, format!("{error:#}"))
            }
            Ok(Err(_)) => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, Ending.to_string()),
            Err(_) => Refusal::new(
                StatusCode::GATEWAY_TIMEOUT,
                format!(
                    "the process has not answered within {} s; see what it logs",
                    route.within.as_secs()
                ),
            ),
        };
        if route.changes && !logs_failure {
            tracing::warn!("{asked} of {by} failed: {}", refusal.sentence);
        }
        Err(refusal)
    }
}

/// Reads what a client sends beside its request, and forgets it.
async fn read_body(body: Incoming) -> Result<(), Refusal> {
    let too_long = || {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is longer than {BODY_MOST_BYTES} bytes; leave it out"),
        )
    };
    if body.size_hint().lower() > BODY_MOST_BYTES as u64 {
        return Err(too_long());
    }
    match timeout(PATIENCE, Limited::new(body, BODY_MOST_BYTES).collect()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_long()),
        Ok(Err(error)) => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("the body cannot be read: {error}"),
        )),
        Err(_) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not come within {} s", PATIENCE.as_secs()),
        )),
    }
}
