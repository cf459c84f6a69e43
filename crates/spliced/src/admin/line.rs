//! The connection of a client.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep};

use super::clients::Seat;
use super::reserve::Reserve;

/// How long a client may read nothing of its answer.
const UNREAD_WITHIN: Duration = Duration::from_secs(5);

/// A socket of the event loop.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The socket without the loop.
    fn into_descriptor(self) -> io::Result<OwnedFd>;
}

/// A connection that fails once the client has not read for a while. Its client has a seat until it is closed.
pub(super) struct Line<S: Stream> {
    /// `None` once it is closed, which is before the seat is given back.
    stream: Option<S>,
    _seat: Seat,
    reserve: Arc<Reserve>,
    /// Runs while the client has to read before there is room for more.
    unread: Option<Pin<Box<Sleep>>>,
}

impl Stream for UnixStream {
    fn into_descriptor(self) -> io::Result<OwnedFd> {
        self.into_std().map(OwnedFd::from)
    }
}

impl Stream for TcpStream {
    fn into_descriptor(self) -> io::Result<OwnedFd> {
        self.into_std().map(OwnedFd::from)
    }
}

impl<S: Stream> Line<S> {
    pub(super) fn new(stream: S, seat: Seat, reserve: Arc<Reserve>) -> Self {
        Self {
            stream: Some(stream),
            _seat: seat,
            reserve,
            unread: None,
        }
    }

    fn stream(&mut self) -> Pin<&mut S> {
        // It is there until drop.
        Pin::new(self.stream.as_mut().expect("it is open"))
    }

    fn bounded<T>(
        &mut self,
        cx: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.unread = None;
            return sent;
        }
        let unread = self
            .unread
            .get_or_insert_with(|| Box::pin(sleep(UNREAD_WITHIN)));
        unread
            .as_mut()
            .poll(cx)
            .map(|()| Err(ErrorKind::TimedOut.into()))
    }
}

impl<S: Stream> Drop for Line<S> {
    fn drop(&mut self) {
        if let Some(Ok(socket)) = self.stream.take().map(S::into_descriptor) {
            self.reserve.take(socket);
        }
    }
}

impl<S: Stream> AsyncRead for Line<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.stream().poll_read(cx, buffer)
    }
}

impl<S: Stream> AsyncWrite for Line<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = self.stream().poll_write(cx, bytes);
        self.bounded(cx, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = self.stream().poll_write_vectored(cx, parts);
        self.bounded(cx, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream
            .as_ref()
            .is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}
