//! What the clients of a backend report of its servers: who was answered by which one, and who was reset
//! before a first byte. Pure: the caller has the clock.
//!
//! A client can have its connections reset by sending what the servers refuse. So only its last connection to
//! a server counts, and a reset only if at least as many servers answer that client as reset it. A server is
//! bad if it resets enough clients, and more than it answers.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long a connection says something about its server.
const WINDOW: Duration = Duration::from_secs(60);

/// The most clients of a generation, of which two are remembered. All of them are looked at for each reset, which
/// takes some 20 µs.
const MOST_CLIENTS: usize = 1024;

/// The most servers for each of them.
const MOST_SERVERS: usize = 16;

/// The bits of an IPv6 address that make one client: a customer has that network (RFC 6177).
const IPV6_CLIENT: u128 = !0 << 64;

#[derive(Debug, Default)]
pub(super) struct ClientReports {
    /// Clients that have connected of late.
    young: Clients,
    /// Those before them: when there are too many young ones, these go. So a crowd of which each connects once
    /// pushes out no client that comes again.
    old: Clients,
}

type Clients = HashMap<Option<IpAddr>, Vec<Report>>;

/// How a client's last connection to a server has ended.
#[derive(Clone, Copy, Debug)]
struct Report {
    server: u64,
    is_reset: bool,
    at: Instant,
}

impl Report {
    fn is_recent(&self, now: Instant) -> bool {
        now < self.at + WINDOW
    }
}

impl ClientReports {
    /// The server has answered the client on a connection that was made at `began`.
    pub(super) fn answered(
        &mut self,
        client: Option<IpAddr>,
        server: u64,
        began: Instant,
        now: Instant,
    ) {
        let report = Report {
            server,
            is_reset: false,
            at: began,
        };
        self.take(client, report, now);
    }

    /// The server has reset the client.
    pub(super) fn reset(&mut self, client: Option<IpAddr>, server: u64, now: Instant) {
        let report = Report {
            server,
            is_reset: true,
            at: now,
        };
        self.take(client, report, now);
    }

    /// How many clients the server resets that are believed, and how many it answers.
    pub(super) fn of(&self, server: u64, now: Instant) -> Count {
        let mut count = Count::default();
        for reports in self.young.values().chain(self.old.values()) {
            match outcome(reports, server, now) {
                Some(Outcome::Reset) => count.reset += 1,
                Some(Outcome::Answered) => count.answered += 1,
                None => {}
            }
        }
        count
    }

    /// The server has been taken out, so what was reported of it has had its effect.
    pub(super) fn forget(&mut self, server: u64) {
        for reports in self.young.values_mut().chain(self.old.values_mut()) {
            reports.retain(|report| report.server != server);
        }
    }

    fn take(&mut self, client: Option<IpAddr>, report: Report, now: Instant) {
        let client = client.map(one_client);
        if !report.is_recent(now) {
            return;
        }
        if !self.young.contains_key(&client) {
            if self.young.len() >= MOST_CLIENTS {
                self.old = std::mem::take(&mut self.young);
            }
            let before = self.old.remove(&client).unwrap_or_default();
            self.young.insert(client, before);
        }
        let reports = self.young.entry(client).or_default();
        match reports.iter_mut().find(|it| it.server == report.server) {
            Some(before) if before.at <= report.at => *before = report,
            // A connection that lasted longer than a later one.
            Some(_) => {}
            None => {
                if reports.len() >= MOST_SERVERS {
                    reports.remove(0);
                }
                reports.push(report);
            }
        }
    }
}

/// Of clients of one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) reset: usize,
    pub(super) answered: usize,
}

impl Count {
    /// Whether the server is bad: it resets at least `needed` clients, and more than it answers or `holds`.
    pub(super) fn is_bad(&self, needed: usize, holds: usize) -> bool {
        self.reset >= needed && self.reset > self.answered + holds
    }
}

enum Outcome {
    /// And the client is believed.
    Reset,
    Answered,
}

/// How a client with these reports fares at a server.
fn outcome(reports: &[Report], server: u64, now: Instant) -> Option<Outcome> {
    let recent = || reports.iter().filter(|report| report.is_recent(now));
    if !recent().find(|report| report.server == server)?.is_reset {
        return Some(Outcome::Answered);
    }
    let all = recent().count();
    let resets = recent().filter(|report| report.is_reset).count();
    (all - resets >= resets).then_some(Outcome::Reset)
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

    fn is_bad(reports: &ClientReports, now: Instant) -> bool {
        reports.of(BAD, now).is_bad(NEEDED, 0)
    }

    /// Each of `clients` is answered by GOOD and reset by BAD.
    fn all_report(
        reports: &mut ClientReports,
        clients: impl Iterator<Item = Option<IpAddr>>,
        now: Instant,
    ) -> bool {
        for client in clients {
            reports.answered(client, GOOD, now, now);
            reports.reset(client, BAD, now);
        }
        is_bad(reports, now)
    }

    #[test]
    fn several_clients_that_others_answer_are_believed() {
        let now = Instant::now();
        let mut reports = ClientReports::default();
        assert!(!all_report(&mut reports, (0..2).map(client), now));
        assert!(all_report(&mut reports, (2..3).map(client), now));
        reports.forget(BAD);
        assert!(!all_report(&mut reports, (0..1).map(client), now));
    }

    #[test]
    fn a_network_is_one_client() {
        let now = Instant::now();
        let mut reports = ClientReports::default();
        let same = std::iter::repeat_n(client(1), 100);
        assert!(!all_report(&mut reports, same, now));
        let network = (0..100).map(|number| {
            let address = Ipv6Addr::from_bits((0x2001_0db8 << 96) | number);
            Some(IpAddr::V6(address))
        });
        assert!(!all_report(&mut reports, network, now));
        let unknown = std::iter::repeat_n(None, 100);
        assert!(all_report(&mut reports, unknown, now));
    }

    #[test]
    fn clients_that_nobody_answers_or_most_reset_are_not_believed() {
        let now = Instant::now();
        let mut reports = ClientReports::default();
        for number in 0..100 {
            reports.reset(client(number), BAD, now);
        }
        assert_eq!(reports.of(BAD, now), Count::default());
        // They are reset by another one, too, and answered by one.
        for number in 0..100 {
            reports.answered(client(number), GOOD, now, now);
            reports.reset(client(number), BAD + 1, now);
        }
        assert_eq!(reports.of(BAD, now), Count::default());
    }

    #[test]
    fn a_server_that_answers_or_holds_as_many_clients_as_it_resets_is_not_bad() {
        let now = Instant::now();
        let mut reports = ClientReports::default();
        for number in 100..103 {
            reports.answered(client(number), BAD, now, now);
        }
        assert!(!all_report(&mut reports, (0..3).map(client), now));
        assert!(all_report(&mut reports, (3..4).map(client), now));
        assert!(!reports.of(BAD, now).is_bad(NEEDED, 1));
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let start = Instant::now();
        let later = start + WINDOW;
        let mut reports = ClientReports::default();
        assert!(!all_report(&mut reports, (0..2).map(client), start));
        assert!(!all_report(&mut reports, (2..3).map(client), later));
        // A long connection that ends now, and so says nothing of today.
        reports.answered(client(4), GOOD, start, later);
        reports.reset(client(4), BAD, later);
        let count = Count {
            reset: 1,
            answered: 0,
        };
        assert_eq!(reports.of(BAD, later), count);
    }

    #[test]
    fn no_crowd_pushes_out_a_client_that_comes_again() {
        let now = Instant::now();
        let mut reports = ClientReports::default();
        let crowd = (0..).map(|number: u32| Some(IpAddr::from(number.to_be_bytes())));
        for (number, one) in crowd.take(MOST_CLIENTS * 10).enumerate() {
            reports.answered(one, GOOD, now, now);
            if number.is_multiple_of(MOST_CLIENTS / 2) {
                reports.answered(client(1), BAD, now, now);
            }
        }
        assert_eq!(reports.of(BAD, now).answered, 1);
        assert!(reports.young.len() <= MOST_CLIENTS && reports.old.len() <= MOST_CLIENTS);
        // Several regular ones are believed, whatever the crowd.
        assert!(all_report(&mut reports, (2..6).map(client), now));
    }
}
