//! What became of a forwarded connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

use splice_bpf::types::{
    SegmentCold, SegmentFlow, SegmentSide, SegmentTuple, segment_mark as mark,
};

use super::super::sockets::addresses_of;
use crate::outcome::Side;

/// A forwarded connection that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client has connected to.
    pub listener: SocketAddr,
    /// The address and port that the server has seen.
    pub source: SocketAddr,
    /// The server's address.
    pub server: SocketAddr,
    /// How many bytes of the client the server has acknowledged.
    pub client_to_server_bytes: u64,
    /// How many bytes of the server the client has acknowledged.
    pub server_to_client_bytes: u64,
    /// How many of both no [`ForwardEvent::Counted`](crate::ForwardEvent::Counted) has told of.
    pub untold_bytes: [u64; 2],
    /// How long its server took, of which no [`ForwardEvent::Counted`](crate::ForwardEvent::Counted) has told.
    pub untold_times: ForwardTimes,
    /// From its SYN to its last segment.
    pub lasted: Duration,
    /// How it ended.
    pub end: ForwardEnd,
}

/// How long the server of a forwarded connection took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardTimes {
    /// From the client's SYN to the server's answer.
    pub connect: Option<Duration>,
    /// From that answer to the first payload of the server.
    pub first_byte: Option<Duration>,
}

impl ForwardTimes {
    pub(super) fn of(flow: &SegmentFlow, cold: &SegmentCold) -> Self {
        let marks = flow.side[1].marks();
        let opened_ns = flow.opened_ns.load(Relaxed);
        let answered_ns = cold.answered_ns.load(Relaxed);
        let first_ns = cold.first_ns.load(Relaxed);
        let between = |mark, from_ns: u64, to_ns: u64| {
            let is_known = marks & mark != 0;
            is_known.then(|| Duration::from_nanos(to_ns.saturating_sub(from_ns)))
        };
        Self {
            connect: between(mark::NOTED, opened_ns, answered_ns),
            first_byte: between(mark::TIMED, answered_ns, first_ns),
        }
    }

    /// Without those of `told`.
    pub(super) fn beyond(self, told: Self) -> Self {
        Self {
            connect: self.connect.filter(|_| told.connect.is_none()),
            first_byte: self.first_byte.filter(|_| told.first_byte.is_none()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How a forwarded connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardEnd {
    /// Both streams reached their ends, and both ends were acknowledged.
    EndOfStream,
    /// This side has reset it: `A` is the client.
    Reset(Side),
    /// The server, or a router on the way to it, has refused it.
    Refused,
    /// The server did not answer in time. The client was reset.
    TimedOut,
    /// The server has answered, and the client did not go on in time. Both sides were reset.
    Abandoned,
    /// Nothing moved for the idle timeout. Both sides were reset.
    Idle,
    /// One stream had ended, and nothing moved for the timeout of that. Both sides were reset.
    HalfClosed,
    /// An end gave no sign of life for long, and none when it was asked. Both sides were reset.
    Silent,
    /// The packet filters of this host would stop it now. Both sides were reset.
    Filtered,
    /// The [`Forward`](crate::Forward) was dropped, or has [cut](crate::Forward::cut) the server. Both sides were reset.
    Dropped,
}

impl fmt::Display for ForwardEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndOfStream => "end of stream",
            Self::Reset(Side::A) => "reset by client",
            Self::Reset(Side::B) => "reset by target",
            Self::Refused => "refused by target",
            Self::TimedOut => "the target did not answer in time",
            Self::Abandoned => "the client did not complete its handshake",
            Self::Idle => "idle for too long",
            Self::HalfClosed => "half-closed for too long",
            Self::Silent => "an end gave no sign of life",
            Self::Filtered => "stopped by packet filters",
            Self::Dropped => "ended by the relay",
        })
    }
}

/// What its owner was told of a connection.
#[derive(Clone, Copy, Default)]
pub(super) struct Told {
    /// It has ended.
    pub(super) end: bool,
    /// How many bytes of each side the other one has acknowledged.
    pub(super) bytes: [u64; 2],
    pub(super) times: ForwardTimes,
}

/// As the client's segments carry it, and as the translated ones do.
pub(super) fn tuples(flow: &SegmentFlow) -> [SegmentTuple; 2] {
    let to_client = tuple(&flow.side[1]);
    let from_client = SegmentTuple {
        source: to_client.destination,
        destination: to_client.source,
        source_port: to_client.destination_port,
        destination_port: to_client.source_port,
    };
    [from_client, tuple(&flow.side[0])]
}

fn tuple(side: &SegmentSide) -> SegmentTuple {
    let mut bytes = [0; 36];
    for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(&side.out) {
        *bytes = word.load(Relaxed).to_ne_bytes();
    }
    let mut tuple = SegmentTuple::default();
    tuple.source.copy_from_slice(&bytes[..16]);
    tuple.destination.copy_from_slice(&bytes[16..32]);
    tuple.source_port.copy_from_slice(&bytes[32..34]);
    tuple.destination_port.copy_from_slice(&bytes[34..]);
    tuple
}

/// How many bytes of a side's stream the other side has acknowledged.
pub(super) fn acknowledged(flow: &SegmentFlow, side: usize) -> u64 {
    let (first, side) = (flow.first[side].load(Relaxed), &flow.side[side]);
    let acked = side.acked.load(Relaxed);
    // The low half has wrapped around with the sequence numbers; the upper one counts that.
    let bytes = acked.saturating_sub(first.into());
    bytes.saturating_sub(side.has_acknowledged_end().into())
}

/// How the program has ended a connection.
fn end(flow: &SegmentFlow) -> ForwardEnd {
    let marks = [0, 1].map(|side: usize| flow.side[side].marks());
    let is_answered = marks[1] & mark::NOTED != 0;
    if marks[0] & marks[1] & mark::FIN_ACKED != 0 {
        ForwardEnd::EndOfStream
    } else if marks[1] & mark::RST != 0 && !is_answered {
        ForwardEnd::Refused
    } else if marks[1] & mark::RST != 0 {
        ForwardEnd::Reset(Side::B)
    } else {
        ForwardEnd::Reset(Side::A)
    }
}

impl Forwarded {
    /// What the flow tells beyond what its owner was told. `cause`: why user space has ended it, if it has.
    pub(super) fn of(
        flow: &SegmentFlow,
        cold: &SegmentCold,
        told: &Told,
        cause: Option<ForwardEnd>,
    ) -> Self {
        let [from_client, to_server] = tuples(flow);
        let (listener, client) = addresses_of(&from_client);
        let (server, source) = addresses_of(&to_server);
        let opened_ns = flow.opened_ns.load(Relaxed);
        let last_ns = flow.last_ns.load(Acquire);
        let bytes = [0, 1].map(|side| acknowledged(flow, side));
        Self {
            client,
            listener,
            source,
            server,
            client_to_server_bytes: bytes[0],
            server_to_client_bytes: bytes[1],
            untold_bytes: [0, 1].map(|side: usize| bytes[side].saturating_sub(told.bytes[side])),
            untold_times: ForwardTimes::of(flow, cold).beyond(told.times),
            lasted: Duration::from_nanos(last_ns.saturating_sub(opened_ns)),
            end: cause.unwrap_or_else(|| end(flow)),
        }
    }
}
