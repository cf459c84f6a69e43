//! What may become of every byte of a sequence.
//!
//! All that is sent is made of records of 16 bytes, which name their sender and their place. So a reader knows whose byte
//! it has, and a byte that is missing, comes twice or goes astray breaks a record or its count.

mod loss;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_tcp_nodelay};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use splice_base::release::Release;
use splice_sockmap::{ErrorKind, Link, PassReason, Redirect, Redirections, SockHash, SocketKind};

use crate::conversation::Pair;
use crate::random::Random;
use crate::step::{Step, Tally};

const RECORD_BYTES: usize = 16;

/// How many records may be on their way before they are read: they fit into every buffer and into one segment
/// (65 483 bytes on loopback), so that no message is cut.
const UNREAD_RECORDS: usize = 400;

/// Far more than a retransmission takes (`TCP_RTO_MIN` is 200 ms) on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a UDP socket may hold, which the kernel doubles: some twenty datagrams.
const QUEUE_BYTES: usize = 16 << 10;

/// More datagrams than that.
const FILL: usize = 60;

/// How long a link may take to leave. A target whose reader does not read keeps it.
const LEAVE_MOST: Duration = Duration::from_millis(5);

/// A set of sockets.
type Sockets = u32;

struct Record {
    /// Who may read it.
    readers: Sockets,
    has_come: bool,
    /// Which of its sender's messages it is in.
    message: usize,
}

struct Linked {
    link: Option<Link>,
    source: usize,
    target: usize,
    redirect: Redirect,
}

impl Linked {
    /// The socket from which redirected bytes are read.
    fn reader(&self) -> usize {
        if self.redirect.is_to_local() {
            self.target
        } else {
            self.target ^ 1
        }
    }

    /// Where the bytes would be read without the link.
    fn usual_reader(&self) -> usize {
        if self.redirect.is_of_sent() {
            self.source ^ 1
        } else {
            self.source
        }
    }
}

pub(crate) struct Model<'a> {
    kinds: Vec<SocketKind>,
    all: &'a [Redirections],
    sockets: Vec<Option<OwnedFd>>,
    held: SockHash<u32>,
    linked: Vec<Linked>,
    /// What each socket has sent.
    sent: Vec<Vec<Record>>,
    /// Bytes of a record that has not come as a whole, for each reader.
    parts: Vec<Vec<u8>>,
    /// The last record of each sender at each reader.
    last: BTreeMap<(usize, usize), usize>,
    /// Readers that get bytes of one sender by two ways: what is redirected to them overtakes what comes over their own
    /// connection. Nothing overtakes where what a source sends is linked to its own peer.
    two_queues: Sockets,
    closed: Sockets,
    /// Whose sent bytes were redirected in vain: the kernel sends nothing more for them (`sk_psock_report_error`).
    broken: Sockets,
    /// Whose sent bytes were redirected at some time.
    were_senders: Sockets,
    salt: u64,
    tally: Tally,
    /// What has happened, for whoever looks into a failure.
    story: Vec<String>,
}

impl<'a> Model<'a> {
    pub(crate) fn of(kinds: &[SocketKind], all: &'a [Redirections]) -> Self {
        let mut sockets = Vec::new();
        for (index, kind) in kinds.iter().enumerate() {
            // Both versions of IP.
            let pair = if index % 2 == 0 {
                Pair::of(*kind)
            } else {
                Pair::of6(*kind)
            };
            if *kind == SocketKind::Udp && queues_may_fill() {
                set_socket_recv_buffer_size(&pair.member, QUEUE_BYTES).expect("set");
                set_socket_recv_buffer_size(&pair.peer, QUEUE_BYTES).expect("set");
            }
            if *kind == SocketKind::Tcp {
                set_tcp_nodelay(&pair.member, true).expect("set");
                set_tcp_nodelay(&pair.peer, true).expect("set");
            }
            sockets.extend([Some(pair.member), Some(pair.peer)]);
        }
        let count = sockets.len();
        Self {
            kinds: kinds.into(),
            all,
            sockets,
            held: SockHash::create(8).expect("a map"),
            linked: Vec::new(),
            sent: (0..count).map(|_| Vec::new()).collect(),
            parts: vec![Vec::new(); count],
            last: BTreeMap::new(),
            two_queues: 0,
            closed: 0,
            broken: 0,
            were_senders: 0,
            tally: Tally::default(),
            story: Vec::new(),
            salt: Random::of_run(77).next(),
        }
    }

    pub(crate) fn take(&mut self, step: Step) {
        match step {
            Step::Link { source, target, by } => self.link(2 * source, target, by),
            Step::Leave(index) if !self.linked.is_empty() => {
                self.leave(index.index(self.linked.len()))
            }
            Step::Drop(index) if !self.linked.is_empty() => {
                // It stays in force until its source is closed.
                let index = index.index(self.linked.len());
                self.count(index);
                let linked = &mut self.linked[index];
                linked.link = None;
                self.story
                    .push(format!("drop {} to {}", linked.source, linked.target));
            }
            Step::SendThrough(index, records) if !self.linked.is_empty() => {
                let linked = &self.linked[index.index(self.linked.len())];
                self.send(linked.usual_reader() ^ 1, records);
            }
            Step::Leave(_) | Step::Drop(_) | Step::SendThrough(..) => {}
            Step::Hold { socket, put } => self.hold(2 * socket, put),
            Step::Close { socket } => self.close(socket),
            Step::Send { socket, records } => self.send(socket, records),
            Step::Fill { socket } => self.fill(socket),
            Step::Read => self.read(),
        }
    }

    fn kind(&self, socket: usize) -> SocketKind {
        self.kinds[socket / 2]
    }

    fn link(&mut self, source: usize, target: usize, by: usize) {
        let redirect = Redirect::ALL[by / 2];
        // What goes to an egress comes out at the target's peer, which must not be a source itself: no circles.
        let target = if redirect.is_to_local() {
            target
        } else {
            target & !1
        };
        let (Some(from), Some(to)) = (&self.sockets[source], &self.sockets[target]) else {
            return;
        };
        let made = self.all[by].link(from, to);
        let (of, map) = (redirect.name(), ["SOCKMAP", "SOCKHASH"][by % 2]);
        let words = made
            .as_ref()
            .map_or_else(ToString::to_string, |_| "done".into());
        self.story
            .push(format!("link {source} to {target}, {of}, {map}: {words}"));
        let linked = Linked {
            link: None,
            source,
            target,
            redirect,
        };
        let counts_twice = redirect == Redirect::IngressToLocal
            && self.kind(source) == SocketKind::Tcp
            && source == target;
        match redirect.supports(self.kind(source), self.kind(target)) {
            Ok(()) if !counts_twice => {}
            _ => {
                let error = made.expect_err("the redirect does not support it");
                assert_eq!(error.kind(), ErrorKind::UnsupportedSocket, "{error}");
                return;
            }
        }
        let is_to_own_peer = redirect == Redirect::SendToLocal && source == target ^ 1;
        if redirect.is_to_local() && !is_to_own_peer {
            self.two_queues |= 1 << target;
        }
        // One that was undone may have moved something.
        self.linked.push(linked);
        self.extend();
        match made {
            Ok(link) => {
                if redirect.is_of_sent() {
                    self.were_senders |= 1 << source;
                }
                let linked = self.linked.last_mut().expect("just added");
                linked.link = Some(link);
            }
            Err(error) => {
                self.linked.pop();
                self.is_expected(&error, source, target);
            }
        }
    }

    /// A source that is linked already or has something to read, a target in a map already, or one of two ends that the
    /// other has closed.
    fn is_expected(&self, error: &splice_sockmap::Error, source: usize, target: usize) {
        let text = error.to_string();
        let is_linked = self.linked.iter().any(|linked| linked.source == source);
        let has_ended = self.has_closed([source, target].into_iter());
        let has_waiting = text.contains("bytes that came before the link");
        let is_full = text.contains("links already");
        // The program stays with a socket until that is in no map.
        let keeps_program = self.were_senders & (1 << source) != 0
            && text.contains("another program or another user in the kernel has it already");
        assert!(
            is_linked || keeps_program || has_ended || has_waiting || is_full,
            "{source} ({}) to {target} ({}): {error}\n{}",
            self.kind(source),
            self.kind(target),
            self.story.join("\n")
        );
    }

    fn has_closed(&self, mut sockets: impl Iterator<Item = usize>) -> bool {
        let is_closed = |socket: usize| self.closed & (0b11 << (socket & !1)) != 0;
        sockets.any(|socket| is_closed(socket) || self.broken & (1 << socket) != 0)
    }

    fn leave(&mut self, index: usize) {
        let linked = &mut self.linked[index];
        let (Some(link), Some(source)) = (&mut linked.link, &self.sockets[linked.source]) else {
            return;
        };
        let left = link.leave(source, LEAVE_MOST);
        let words = left
            .as_ref()
            .map_or_else(ToString::to_string, |()| "done".into());
        self.story.push(format!(
            "leave {} to {}: {words}",
            linked.source, linked.target
        ));
        if left.is_ok() {
            self.count(index);
            let linked = &self.linked[index];
            let (source, reader) = (linked.source, linked.reader());
            if linked.redirect.is_of_sent() && self.has_closed([reader].into_iter()) {
                self.broken |= 1 << source;
            }
            self.linked.swap_remove(index);
        }
    }

    fn hold(&mut self, socket: usize, put: bool) {
        let key = socket as u32;
        match (&self.sockets[socket], put) {
            (Some(held), true) => {
                // It may be there already, or have ended.
                let _ = self.held.insert(key, held);
            }
            // A member of no other map would lose what it has not read.
            (_, false)
                if self
                    .linked
                    .iter()
                    .all(|linked| ![linked.source, linked.target].contains(&socket)) =>
            {
                self.held.remove(key).expect("removed, or not there");
            }
            _ => {}
        }
    }

    /// What a link has redirected, before it is gone.
    fn count(&mut self, index: usize) {
        let counted = self.linked[index].link.as_ref().map(Link::counters);
        let counted = counted.unwrap_or_default();
        self.tally.redirected += counted.bytes as usize / RECORD_BYTES;
        self.tally.beyond += counted.passed_for(PassReason::Full) as usize;
    }

    fn close(&mut self, socket: usize) {
        self.story.push(format!("close {socket}"));
        self.closed |= 1 << socket;
        self.sockets[socket] = None;
        for index in (0..self.linked.len()).rev() {
            if self.linked[index].source == socket {
                self.count(index);
                self.linked.swap_remove(index);
            }
        }
    }

    /// Nobody reads meanwhile.
    fn fill(&mut self, socket: usize) {
        if queues_may_fill()
            && matches!(
                self.kind(socket),
                SocketKind::Udp | SocketKind::UnixDatagram
            )
        {
            (0..FILL).for_each(|_| self.send_now(socket, 1));
        }
    }

    fn send(&mut self, socket: usize, records: usize) {
        let dropped = self.have_dropped();
        let waiting = self.sent.iter().flatten();
        let waiting = waiting.filter(|record| !record.has_come && record.readers & dropped == 0);
        if waiting.count() + records > UNREAD_RECORDS {
            self.read();
        }
        self.send_now(socket, records);
    }

    fn send_now(&mut self, socket: usize, records: usize) {
        let Some(sender) = &self.sockets[socket] else {
            return;
        };
        let first = self.sent[socket].len();
        let bytes: Vec<u8> = (first..first + records)
            .flat_map(|number| self.record(socket, number))
            .collect();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = send(sender, &bytes, flags);
        self.story
            .push(format!("send {first} + {records} on {socket}: {sent:?}"));
        match sent {
            Ok(count) => assert_eq!(count, bytes.len(), "a message was cut"),
            // Refused as a whole: the other end is closed, or its queue is full.
            Err(error) => {
                let is_full = error == Errno::AGAIN && !self.kind(socket).is_stream();
                let has_ended =
                    self.has_closed(ones(self.readers(1 << (socket ^ 1))).chain([socket]));
                assert!(
                    is_full || has_ended,
                    "send(2) on {socket} ({}): {error}",
                    self.kind(socket)
                );
                return;
            }
        }
        let readers = self.readers(1 << (socket ^ 1));
        let message = self.sent[socket].last().map_or(0, |last| last.message + 1);
        self.sent[socket].extend((0..records).map(|_| Record {
            readers,
            has_come: false,
            message,
        }));
    }

    fn record(&self, sender: usize, number: usize) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        let seal = Random::seeded(self.salt ^ ((sender as u64) << 32) ^ number as u64).next();
        record[..4].copy_from_slice(&(sender as u32).to_ne_bytes());
        record[4..8].copy_from_slice(&(number as u32).to_ne_bytes());
        record[8..].copy_from_slice(&seal.to_ne_bytes());
        record
    }

    /// Who may read what these may read, by the links that there are.
    fn readers(&self, mut of: Sockets) -> Sockets {
        loop {
            let more = self
                .linked
                .iter()
                .filter(|linked| of & (1 << linked.usual_reader()) != 0);
            let with = more.fold(of, |all, linked| all | (1 << linked.reader()));
            if with == of {
                return of;
            }
            of = with;
        }
    }

    /// What is on its way may take a new link.
    fn extend(&mut self) {
        for sender in 0..self.sent.len() {
            for number in 0..self.sent[sender].len() {
                let record = &self.sent[sender][number];
                if !record.has_come {
                    self.sent[sender][number].readers = self.readers(record.readers);
                }
            }
        }
    }

    /// Reads all that has come.
    fn read(&mut self) {
        for reader in 0..self.sockets.len() {
            while let Some(bytes) = self.next(reader) {
                self.has_come(reader, &bytes);
            }
        }
    }

    fn next(&self, reader: usize) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 64 << 10];
        match recv(
            self.sockets[reader].as_ref()?,
            &mut buffer[..],
            RecvFlags::DONTWAIT,
        ) {
            Ok((_, 0)) => {
                let has_ended = self.has_closed([reader].into_iter());
                assert!(
                    has_ended,
                    "the end of a stream on {reader} ({})",
                    self.kind(reader)
                );
                None
            }
            Ok((_, count)) => {
                buffer.truncate(count);
                Some(buffer)
            }
            Err(Errno::AGAIN) => None,
            // The kernel's worker leaves it where it sends for it in vain, also through a link of its own.
            Err(error) => {
                let sent_to = ones(self.readers(1 << (reader ^ 1)));
                let has_ended = self.has_closed(sent_to.chain([reader]));
                assert!(
                    has_ended,
                    "recv(2) on {reader} ({}): {error}",
                    self.kind(reader)
                );
                None
            }
        }
    }

    fn has_come(&mut self, reader: usize, bytes: &[u8]) {
        let mut all = std::mem::take(&mut self.parts[reader]);
        all.extend_from_slice(bytes);
        self.story
            .push(format!("{reader} reads {} bytes", bytes.len()));
        for piece in all.chunks(RECORD_BYTES) {
            if piece.len() < RECORD_BYTES {
                self.parts[reader] = piece.into();
                return;
            }
            let number_at = |at: usize| {
                let bytes = piece[at..at + 4].try_into().expect("four bytes");
                u32::from_ne_bytes(bytes) as usize
            };
            let (sender, number) = (number_at(0), number_at(4));
            let is_whole = sender < self.sent.len()
                && number < self.sent[sender].len()
                && piece == self.record(sender, number);
            assert!(
                is_whole,
                "{reader} ({}) reads no record: {piece:?}",
                self.kind(reader)
            );
            let record = &mut self.sent[sender][number];
            assert!(
                !record.has_come,
                "record {number} of {sender} came twice, at last to {reader}"
            );
            assert!(
                record.readers & (1 << reader) != 0,
                "record {number} of {sender} came to {reader}, and not to one of {:b}",
                record.readers
            );
            record.has_come = true;

            let last = self.last.insert((sender, reader), number);
            let is_later = last.is_none_or(|last| last < number);
            assert!(
                is_later || self.two_queues & (1 << reader) != 0,
                "record {number} of {sender} came to {reader} after {last:?}\n{}",
                self.story.join("\n")
            );
        }
    }

    /// Waits for all that has to come.
    pub(crate) fn finish(mut self) -> Tally {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.read();
            let (missing, lost) = self.missing();
            if missing.is_empty() {
                for index in 0..self.linked.len() {
                    self.count(index);
                }
                let records = || self.sent.iter().flatten();
                let come = records().filter(|record| record.has_come).count();
                self.tally += lost;
                self.tally += Tally {
                    sent: records().count(),
                    come,
                    ..Tally::default()
                };
                return self.tally;
            }
            assert!(
                Instant::now() < deadline,
                "lost, as sender and number of each record: {missing:?}; kinds {:?}\n{}",
                self.kinds,
                self.story.join("\n")
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// On 6.12.117 a non-blocking UDP reader whose queue is full stalls if something is redirected to it (`udp_bpf_recvmsg`).
pub(crate) fn queues_may_fill() -> bool {
    Release::here().is_none_or(|release| release.series() >= (6, 18))
}

/// The sockets of a set.
fn ones(of: Sockets) -> impl Iterator<Item = usize> {
    (0..Sockets::BITS as usize).filter(move |socket| of & (1 << socket) != 0)
}
