//! Whether the kernel hands over consecutive datagrams in one piece (`UDP_GRO`).
//!
//! Trains of one sender go on much faster that way. Other datagrams are slower by a tenth: before it looks for their socket,
//! the kernel looks for one that wants trains, and holds each datagram back for the next (`udp_gro_receive`).
//!
//! ```text
//! apart ──TRAINS of WINDOW messages could have been one with the last──▶ together
//! ```
//!
//! There is no way back: of what is in the socket's queue by then, the kernel would no longer tell where a datagram ends
//! (`udp_recvmsg` looks at the option, not at what it hands over).

use crate::datagram::batch::Message;

/// How many messages decide.
const WINDOW: u32 = 64;

/// What pays: one of eight.
const TRAINS: u32 = WINDOW / 8;

/// What came in this window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Merging {
    is_together: bool,
    messages: u32,
    trains: u32,
}

impl Merging {
    /// Notes what one call has received. Returns whether the kernel is to merge from now on.
    pub(super) fn begins_with(&mut self, received: &[Message]) -> bool {
        if self.is_together {
            return false;
        }
        let trains = received
            .windows(2)
            .filter(|two| matches!(two, [first, next] if first.goes_before(next)));
        // A batch is short.
        self.trains += trains.count() as u32;
        self.messages += received.len() as u32;
        self.is_together = self.trains >= TRAINS;
        if self.messages >= WINDOW {
            (self.messages, self.trains) = (0, 0);
        }
        self.is_together
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::datagram::sender::Sender;

    /// Messages of these clients and lengths.
    fn messages(of: &[(u16, usize)]) -> Vec<Message> {
        let message = |&(port, length): &(u16, usize)| Message {
            sender: Sender::Udp {
                client: (Ipv4Addr::LOCALHOST, port).into(),
                own: None,
            },
            length,
            stride: length,
            congestion: None,
            ttl: None,
            is_cut: false,
        };
        of.iter().map(message).collect()
    }

    /// Receives this so many times, and returns how often merging began.
    fn begun(merging: &mut Merging, times: u32, received: &[(u16, usize)]) -> usize {
        let received = messages(received);
        let begins = |_: &u32| merging.begins_with(&received);
        (0..times).filter(begins).count()
    }

    #[test]
    fn clients_in_turn_stay_apart() {
        let mut merging = Merging::default();
        let in_turn = [(1, 64), (2, 64), (1, 64), (2, 64)];
        assert_eq!(begun(&mut merging, 3 * WINDOW, &in_turn), 0);
        let longer_and_longer = [(1, 64), (1, 65), (1, 66)];
        assert_eq!(begun(&mut merging, 3 * WINDOW, &longer_and_longer), 0);
    }

    #[test]
    fn trains_are_merged_once_and_for_all() {
        let mut merging = Merging::default();
        let train = [(1, 1200), (1, 1200), (1, 700)];
        assert_eq!(begun(&mut merging, TRAINS, &train), 1);
        assert_eq!(begun(&mut merging, 3 * WINDOW, &[(1, 64), (2, 64)]), 0);
        assert_eq!(begun(&mut merging, 3 * WINDOW, &train), 0);
    }

    #[test]
    fn a_rare_train_changes_nothing() {
        let mut merging = Merging::default();
        for _ in 0..10 {
            assert_eq!(begun(&mut merging, 1, &[(1, 64), (1, 64)]), 0);
            assert_eq!(begun(&mut merging, WINDOW, &[(1, 64)]), 0);
        }
    }
}
