//! What the clients of a backend have seen of its servers: who was answered by which one, and who was reset
//! before a first byte. Pure: the caller has the clock.
//!
//! A client can have its connections reset by sending what the servers refuse. So one client is one voice
//! about a server, that of its last connection, and a complaint counts only from a client that at least as
//! many servers answer as reset it. A server is bad if enough clients complain about it, and more than it
//! answers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long a connection says something about its server.
const WINDOW: Duration = Duration::from_secs(60);

/// The most clients that are remembered. Further ones are not heard, so that a crowd takes no server out by
/// pushing others from memory. All of them are asked at each reset, which takes some 10 µs.
const MOST_CLIENTS: usize = 1024;

/// The most servers for each of them.
const MOST_SERVERS: usize = 16;

/// The least time between two searches for clients that can be forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(1);

/// The bits of an IPv6 address that make one client: a customer has that network (RFC 6177).
const IPV6_CLIENT: u128 = !0 << 64;

#[derive(Debug, Default)]
pub(super) struct Witnesses {
    clients: HashMap<Option<IpAddr>, Vec<Voice>>,
    forgot_at: Option<Instant>,
}

/// What a client says about a server.
#[derive(Clone, Copy, Debug)]
struct Voice {
    server: u64,
    is_complaint: bool,
    at: Instant,
}

impl Voice {
    fn is_heard(&self, now: Instant) -> bool {
        now < self.at + WINDOW
    }
}

impl Witnesses {
    /// The server has answered the client on a connection that was made at `began`.
    pub(super) fn answered(
        &mut self,
        client: Option<IpAddr>,
        server: u64,
        began: Instant,
        now: Instant,
    ) {
        let voice = Voice {
            server,
            is_complaint: false,
            at: began,
        };
        self.hear(client, voice, now);
    }

    /// The server has reset the client. Returns how many clients complain about the server, if they are
    /// enough to believe them: `needed`, and more than it answers.
    pub(super) fn reset(
        &mut self,
        client: Option<IpAddr>,
        server: u64,
        needed: usize,
        now: Instant,
    ) -> Option<usize> {
        let voice = Voice {
            server,
            is_complaint: true,
            at: now,
        };
        self.hear(client, voice, now);
        let (mut complaints, mut answered) = (0, 0);
        for voices in self.clients.values() {
            match say(voices, server, now) {
                Some(Say::Complains) => complaints += 1,
                Some(Say::IsAnswered) => answered += 1,
                None => {}
            }
        }
        (complaints >= needed && complaints > answered).then_some(complaints)
    }

    /// The server has been taken out, so what was said about it has had its effect.
    pub(super) fn forget(&mut self, server: u64) {
        for voices in self.clients.values_mut() {
            voices.retain(|voice| voice.server != server);
        }
    }

    fn hear(&mut self, client: Option<IpAddr>, voice: Voice, now: Instant) {
        let client = client.map(one_client);
        if !voice.is_heard(now) {
            return;
        }
        if self.clients.len() >= MOST_CLIENTS && !self.clients.contains_key(&client) {
            self.forget_old(now);
            if self.clients.len() >= MOST_CLIENTS {
                return;
            }
        }
        let voices = self.clients.entry(client).or_default();
        match voices.iter_mut().find(|it| it.server == voice.server) {
            Some(before) if before.at <= voice.at => *before = voice,
            // A connection that lasted longer than a later one.
            Some(_) => {}
            None => {
                if voices.len() >= MOST_SERVERS {
                    voices.remove(0);
                }
                voices.push(voice);
            }
        }
    }

    fn forget_old(&mut self, now: Instant) {
        if self.forgot_at.is_some_and(|at| now < at + FORGET_EVERY) {
            return;
        }
        self.forgot_at = Some(now);
        self.clients.retain(|_, voices| {
            voices.retain(|voice| voice.is_heard(now));
            !voices.is_empty()
        });
    }
}

enum Say {
    /// And is believed.
    Complains,
    IsAnswered,
}

/// What a client with these voices says about a server.
fn say(voices: &[Voice], server: u64, now: Instant) -> Option<Say> {
    let heard = || voices.iter().filter(|voice| voice.is_heard(now));
    if !heard().find(|voice| voice.server == server)?.is_complaint {
        return Some(Say::IsAnswered);
    }
    let all = heard().count();
    let complaints = heard().filter(|voice| voice.is_complaint).count();
    (all - complaints >= complaints).then_some(Say::Complains)
}

fn one_client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & IPV6_CLIENT).into(),
        ip @ IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: usize = 3;
    const GOOD: u64 = 1;
    const BAD: u64 = 2;

    fn client(number: u8) -> Option<IpAddr> {
        Some([10, 0, 0, number].into())
    }

    /// Each of `clients` is answered by GOOD and reset by BAD; returns what is said about BAD at last.
    fn all_say(
        witnesses: &mut Witnesses,
        clients: impl Iterator<Item = Option<IpAddr>>,
        now: Instant,
    ) -> Option<usize> {
        let mut said = None;
        for client in clients {
            witnesses.answered(client, GOOD, now, now);
            said = witnesses.reset(client, BAD, NEEDED, now);
        }
        said
    }

    #[test]
    fn several_clients_that_others_answer_are_believed() {
        let now = Instant::now();
        let mut witnesses = Witnesses::default();
        assert_eq!(
            all_say(&mut witnesses, (0..2).map(client), now),
            None,
            "two are too few"
        );
        assert_eq!(
            all_say(&mut witnesses, (2..3).map(client), now),
            Some(NEEDED)
        );
        witnesses.forget(BAD);
        assert_eq!(all_say(&mut witnesses, (0..1).map(client), now), None);
    }

    #[test]
    fn one_client_is_one_voice() {
        let now = Instant::now();
        let mut witnesses = Witnesses::default();
        let same = std::iter::repeat_n(client(1), 100);
        assert_eq!(all_say(&mut witnesses, same, now), None);
        let network = (0..100).map(|number| {
            let address = Ipv6Addr::from_bits((0x2001_0db8 << 96) | number);
            Some(IpAddr::V6(address))
        });
        assert_eq!(all_say(&mut witnesses, network, now), None);
        let unknown = std::iter::repeat_n(None, 100);
        assert_eq!(all_say(&mut witnesses, unknown, now), Some(NEEDED));
    }

    #[test]
    fn clients_that_nobody_answers_or_most_reset_are_not_believed() {
        let now = Instant::now();
        let mut witnesses = Witnesses::default();
        for number in 0..100 {
            assert_eq!(witnesses.reset(client(number), BAD, NEEDED, now), None);
        }
        // They are reset by another one, too, and answered by one.
        let mut witnesses = Witnesses::default();
        for number in 0..100 {
            witnesses.answered(client(number), GOOD, now, now);
            witnesses.reset(client(number), BAD + 1, NEEDED, now);
            assert_eq!(witnesses.reset(client(number), BAD, NEEDED, now), None);
        }
    }

    #[test]
    fn a_server_that_answers_as_many_clients_as_complain_is_not_bad() {
        let now = Instant::now();
        let mut witnesses = Witnesses::default();
        for number in 100..103 {
            witnesses.answered(client(number), BAD, now, now);
        }
        assert_eq!(all_say(&mut witnesses, (0..3).map(client), now), None);
        assert_eq!(all_say(&mut witnesses, (3..4).map(client), now), Some(4));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let start = Instant::now();
        let later = start + WINDOW;
        let mut witnesses = Witnesses::default();
        assert_eq!(all_say(&mut witnesses, (0..2).map(client), start), None);
        assert_eq!(all_say(&mut witnesses, (2..3).map(client), later), None);
        // A long connection that ends now.
        witnesses.answered(client(3), GOOD, start, later);
        assert_eq!(witnesses.reset(client(3), BAD, 1, later), Some(1));
        witnesses.answered(client(4), GOOD, start, later);
        assert_eq!(witnesses.reset(client(4), BAD, 2, later), None);
    }

    #[test]
    fn no_crowd_pushes_others_from_memory() {
        let now = Instant::now();
        let mut witnesses = Witnesses::default();
        for number in 0..3 {
            witnesses.answered(client(number), BAD, now, now);
        }
        let crowd = (0..).map(|number: u32| Some(IpAddr::from(number.to_be_bytes())));
        all_say(&mut witnesses, crowd.take(MOST_CLIENTS * 2), now);
        assert_eq!(witnesses.clients.len(), MOST_CLIENTS);
        assert!(witnesses.clients.contains_key(&client(1)));
        let later = now + WINDOW;
        all_say(&mut witnesses, (200..201).map(client), later);
        assert_eq!(witnesses.clients.len(), 1);
    }
}
