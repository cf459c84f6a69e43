//! Why something that was sent does not come.

use std::collections::BTreeSet;

use splice_base::socket_option::memory;
use splice_sockmap::SocketKind;

use super::{Model, Record, Sockets, ones};
use crate::step::Tally;

/// Why a record does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    /// A socket on its way was closed, or the other end of one.
    Closed,
    /// A datagram socket on its way has dropped datagrams, since its queue was full.
    Full,
}

impl Model<'_> {
    /// How many datagrams an open UDP socket has dropped, since its queue was full.
    fn dropped(&self, socket: usize) -> usize {
        match &self.sockets[socket] {
            Some(open) if self.kind(socket) == SocketKind::Udp => {
                memory(open).expect("read").dropped_packets
            }
            _ => 0,
        }
    }

    /// The sockets that have dropped something.
    pub(super) fn have_dropped(&self) -> Sockets {
        let sockets = (0..self.sockets.len()).filter(|socket| self.dropped(*socket) > 0);
        sockets.fold(0, |all, socket| all | (1 << socket))
    }

    /// Why a record may be lost.
    fn loss(&self, sender: usize, record: &Record, dropped: Sockets) -> Option<Loss> {
        if self.has_closed(ones(record.readers).chain([sender])) {
            return Some(Loss::Closed);
        }
        (record.readers & dropped != 0).then_some(Loss::Full)
    }

    /// The records that are missing without a reason, as sender and number; and how many are lost for each reason. A queue
    /// drops a whole message of a datagram socket, and no socket has dropped more than it has counted.
    pub(super) fn missing(&self) -> (Vec<(usize, usize)>, Tally) {
        let dropped = self.have_dropped();
        let (mut missing, mut lost, mut tally) = (Vec::new(), Vec::new(), Tally::default());
        let mut messages = BTreeSet::new();
        for (sender, records) in self.sent.iter().enumerate() {
            for (number, record) in records.iter().enumerate() {
                match self.loss(sender, record, dropped) {
                    _ if record.has_come => {}
                    None => missing.push((sender, number)),
                    Some(Loss::Closed) => tally.closed += 1,
                    Some(Loss::Full) => {
                        tally.full += 1;
                        lost.push((sender, number));
                        if !self.kind(sender).is_stream() {
                            messages.insert((sender, record.message));
                        }
                    }
                }
            }
        }
        let drops: usize = (0..self.sockets.len())
            .map(|socket| self.dropped(socket))
            .sum();
        if messages.len() > drops {
            missing.extend(lost);
        }
        (missing, tally)
    }
}
