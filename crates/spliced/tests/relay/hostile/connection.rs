//! A connection through the relay, with both of its ends in this process.

use std::time::Duration;

use crate::payload::Payload;
use crate::peer::Peer;

/// A flow that has ended still translates for 3.2 s. Only a connection that works later has survived.
const LONGER_THAN_TIME_WAIT: Duration = Duration::from_secs(4);

const ROUNDS: u64 = 4;
/// All rounds together move less than a forged segment is ahead: otherwise they would reach its end, and what the
/// relay has believed would be true.
const BYTES_PER_ROUND: u64 = 1000;

/// An end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: Peer,
    pub(super) server: Peer,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Client, Self::Server];

    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl Connection {
    pub(super) fn end(&self, side: Side) -> &Peer {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }

    pub(super) fn moves_a_byte(&self, from: Side) {
        let payload = Payload::new(4);
        self.end(from).send(payload, 0, 1);
        self.end(from.other()).expect(payload, 0, 1);
    }

    pub(super) fn moves_data(&self) {
        let (there, back) = (Payload::new(1), Payload::new(2));
        for round in 0..ROUNDS {
            let position = round * BYTES_PER_ROUND;
            self.client.send(there, position, BYTES_PER_ROUND);
            self.server.expect(there, position, BYTES_PER_ROUND);
            self.server.send(back, position, BYTES_PER_ROUND);
            self.client.expect(back, position, BYTES_PER_ROUND);
        }
    }

    /// `first` ends its stream, and the other direction stays open.
    pub(super) fn stays_half_open(&self, first: Side) {
        let (first, second) = (self.end(first), self.end(first.other()));
        first.end_stream();
        second.expect_end();
        assert!(!first.is_readable_within(LONGER_THAN_TIME_WAIT));
        let payload = Payload::new(3);
        second.send(payload, 0, BYTES_PER_ROUND);
        first.expect(payload, 0, BYTES_PER_ROUND);
        second.end_stream();
        first.expect_end();
    }

    /// Neither end gets a byte, an end of stream or a reset, for as long as an ended flow translates.
    pub(super) fn stays_quiet(&self) {
        let is_quiet = |peer: &Peer, time| !peer.is_readable_within(time);
        assert!(is_quiet(&self.client, LONGER_THAN_TIME_WAIT), "client");
        assert!(is_quiet(&self.server, Duration::ZERO), "server");
    }

    pub(super) fn ends_in_order(&self) {
        self.client.end_stream();
        self.server.expect_end();
        self.server.end_stream();
        self.client.expect_end();
    }
}
