//! Whether the kernel hands over consecutive datagrams in one piece (`UDP_GRO`).
//!
//! Trains of one sender go on much faster that way. Other datagrams are slower by a tenth: before it looks for their socket,
//! the kernel looks for one that wants trains, and holds each datagram back for the next (`udp_gro_receive`).
//!
//! ```text
//!         ┌──fewer than TRAINS of WINDOW messages were several datagrams──┐
//!         ▼                                                               │
//!       apart ──TRAINS of WINDOW could have been one with the last──▶ together
//! ```

use crate::datagram::batch::Message;

/// How many messages decide.
const WINDOW: u32 = 64;

/// What pays: one of eight.
const TRAINS: u32 = WINDOW / 8;

/// What came since the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Merging {
    is_together: bool,
    messages: u32,
    trains: u32,
}

impl Merging {
    /// Notes what one call has received. Returns what is to change.
    pub(super) fn note(&mut self, received: &[Message]) -> Option<bool> {
        let trains = match self.is_together {
            true => received.iter().filter(|one| one.is_many()).count(),
            false => received
                .windows(2)
                .filter(|two| matches!(two, [first, next] if first.goes_before(next)))
                .count(),
        };
        // A batch is short.
        self.messages += received.len() as u32;
        self.trains += trains as u32;
        let is_together = self.trains >= TRAINS;
        if self.messages < WINDOW && !is_together {
            return None;
        }
        let is_new = is_together != self.is_together;
        *self = Self {
            is_together,
            ..Self::default()
        };
        is_new.then_some(is_together)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::datagram::sender::Sender;

    const NOTHING: [bool; 0] = [];

    /// Messages of these clients, of a length and with datagrams of a length.
    fn messages(of: &[(u16, usize, usize)]) -> Vec<Message> {
        let message = |&(port, length, stride): &(u16, usize, usize)| Message {
            sender: Sender::Udp {
                client: (Ipv4Addr::LOCALHOST, port).into(),
                own: None,
            },
            length,
            stride,
            congestion: None,
            ttl: None,
            is_cut: false,
        };
        of.iter().map(message).collect()
    }

    /// Notes so many times what was received, and returns what changed.
    fn noted(merging: &mut Merging, times: u32, received: &[(u16, usize, usize)]) -> Vec<bool> {
        let received = messages(received);
        (0..times).filter_map(|_| merging.note(&received)).collect()
    }

    #[test]
    fn clients_in_turn_stay_apart() {
        let mut merging = Merging::default();
        let in_turn = [(1, 64, 64), (2, 64, 64), (1, 64, 64), (2, 64, 64)];
        assert_eq!(noted(&mut merging, 3 * WINDOW, &in_turn), NOTHING);
        let of_other_lengths = [(1, 64, 64), (1, 65, 65), (1, 66, 66)];
        assert_eq!(noted(&mut merging, 3 * WINDOW, &of_other_lengths), NOTHING);
    }

    #[test]
    fn trains_are_merged_until_none_come() {
        let mut merging = Merging::default();
        let train = [(1, 1200, 1200), (1, 1200, 1200), (1, 700, 700)];
        assert_eq!(noted(&mut merging, TRAINS, &train), [true]);
        let merged = [(1, 3100, 1200)];
        assert_eq!(noted(&mut merging, 3 * WINDOW, &merged), NOTHING);
        let in_turn = [(1, 64, 64), (2, 64, 64)];
        assert_eq!(noted(&mut merging, 3 * WINDOW, &in_turn), [false]);
    }

    #[test]
    fn a_seldom_train_changes_nothing() {
        let mut merging = Merging::default();
        for _ in 0..10 {
            assert_eq!(noted(&mut merging, 1, &[(1, 64, 64), (1, 64, 64)]), NOTHING);
            assert_eq!(noted(&mut merging, WINDOW, &[(1, 64, 64)]), NOTHING);
        }
    }
}
