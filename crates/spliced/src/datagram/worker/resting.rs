//! Sockets of sessions that have ended. An answer that comes late is not to reach the next session that gets the port.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::sockopt;

use super::Relaying;
use crate::datagram::service::DatagramService;
use crate::datagram::session::Session;
use crate::datagram::socket::DatagramSocket;

/// How long after a session's last datagram its port rests: longer than most answers take.
const REST: Duration = Duration::from_secs(2);

/// As many sockets of a listener may rest as it may have sessions, and no fewer than this.
const LEAST: usize = 1024;

/// Those of a thread, the oldest first.
pub(super) struct Resting {
    service: Arc<DatagramService>,
    sockets: VecDeque<(Instant, DatagramSocket)>,
}

impl Resting {
    pub(super) fn new(service: &Arc<DatagramService>) -> Self {
        Self {
            service: Arc::clone(service),
            sockets: VecDeque::new(),
        }
    }

    fn add(&mut self, until: Instant, socket: DatagramSocket, most: usize) {
        if self.service.resting.fetch_add(1, Ordering::Relaxed) >= most {
            self.close_oldest();
        }
        self.sockets.push_back((until, socket));
    }

    /// The next one that closes does so at this time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.sockets.front().map(|(until, _)| *until)
    }

    pub(super) fn close_until(&mut self, now: Instant) {
        while self.next().is_some_and(|until| until <= now) {
            self.close_oldest();
        }
    }

    /// Makes room for another socket or port. Returns false if there are none.
    pub(super) fn close_oldest(&mut self) -> bool {
        let is_one = self.sockets.pop_front().is_some();
        if is_one {
            self.service.resting.fetch_sub(1, Ordering::Relaxed);
        }
        is_one
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        while self.close_oldest() {}
    }
}

impl Relaying {
    /// Keeps the socket of a session that has ended, if an answer may still come.
    pub(super) fn rest(&mut self, session: Session) {
        let Session { socket, used, .. } = session;
        let until = used + REST;
        if !socket.is_udp() || until <= Instant::now() {
            return;
        }
        // What comes is never read.
        let _ = epoll::delete(&self.epoll, socket.fd());
        let _ = sockopt::set_socket_recv_buffer_size(socket.fd(), 0);
        let most = self.terms.sessions.max_sessions.max(LEAST);
        self.resting.add(until, socket, most);
    }
}
