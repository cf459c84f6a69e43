//! Owners that are killed, peers that reset their connection, and adopters that are killed, at random moments: peers see what
//! they would have seen, and nothing is left behind.
//!
//! `SPLICED_ADOPT_ROUNDS` asks for more rounds, and `SPLICED_SEED` repeats those of another run.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::net::{connect_unspec, getpeername, sockopt};
use rustix::process::Signal;

use super::flow::in_full_flow;
use super::owner::{Owner, adopt_by, both_ways};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{End, Peer};
use crate::random::{Random, run_seed};
use crate::relay::Relay;

/// Each kind of end is met three times.
const ROUNDS: u64 = 12;

/// Some adoptions have not begun by then, and in some the exchange is under way.
const LONGEST_LIFE_US: u64 = 80_000;

const CHUNK_BYTES: u64 = 40_000;

/// As many as have to be on their way before something ends.
const BYTES_BEFORE: u64 = 10 * CHUNK_BYTES;

/// A variable of the adopter, by which its processes are recognised.
const MARK: &str = "ADOPTED_FOR";

type Start = fn() -> Option<Owner>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Sudden {
    OwnerKilled,
    ClientResets,
    ServerResets,
    AdopterKilled,
}

const ALL: [Sudden; 4] = [
    Sudden::OwnerKilled,
    Sudden::ClientResets,
    Sudden::ServerResets,
    Sudden::AdopterKilled,
];

impl Sudden {
    fn happens(self, owner: &Owner, adopter: Option<&Relay>) {
        match (self, adopter) {
            (Self::OwnerKilled, _) => owner.process.signal(Signal::KILL).expect("killed"),
            (Self::ClientResets, _) => reset(&owner.client),
            (Self::ServerResets, _) => reset(&owner.server),
            (Self::AdopterKilled, Some(adopter)) => adopter.signal(Signal::KILL),
            // There is none.
            (Self::AdopterKilled, None) => {}
        }
    }

    /// The peers that have to meet the end of their connection.
    fn concerned(self, owner: &Owner) -> Vec<&Peer> {
        match self {
            Self::OwnerKilled => vec![&owner.client, &owner.server],
            Self::ClientResets => vec![&owner.server],
            Self::ServerResets => vec![&owner.client],
            Self::AdopterKilled => vec![],
        }
    }
}

fn reset(peer: &Peer) {
    sockopt::set_socket_linger(peer, Some(Duration::ZERO)).expect("SO_LINGER");
    connect_unspec(peer).expect("it is connected");
}

/// What is to happen in a round.
#[derive(Clone, Copy, Debug)]
struct Plan {
    number: u64,
    what: Sudden,
    /// Not before the sockets are adopted.
    is_adopted: bool,
    after: Duration,
}

/// An adopter of an owner's sockets.
struct Adopter<'owner> {
    owner: &'owner Owner,
    relay: Relay,
    mark: String,
}

impl<'owner> Adopter<'owner> {
    fn start(owner: &'owner Owner, plan: Plan) -> Self {
        let mark = format!("{}-{}", std::process::id(), owner.process.id());
        let command = || {
            let mut command: Command = owner.adopting();
            command.env(MARK, &mark).stdout(Stdio::null());
            command
        };
        let relay = match plan.is_adopted {
            true => adopt_by(command),
            false => Relay::spawn_silent(&mut command()),
        };
        if plan.is_adopted {
            let of_bpf = links(relay.id()).into_values();
            assert_eq!(of_bpf.filter(|link| link.contains("bpf")).count(), 0);
        }
        Self { owner, relay, mark }
    }

    /// Whatever the end was, all processes end, and nothing of theirs is left.
    fn leaves_nothing(mut self) {
        self.relay.wait_end();
        let entry = format!("{MARK}={}", self.mark);
        until("no process of spliced is left", || {
            let entries = fs::read_dir("/proc").expect("/proc");
            !entries.filter_map(Result::ok).any(|process| {
                fs::read(process.path().join("environ")).is_ok_and(|all| {
                    all.split(|byte| *byte == 0)
                        .any(|one| one == entry.as_bytes())
                })
            })
        });
        let pid = self.owner.process.id();
        let names = fs::read_to_string("/proc/net/unix").expect("/proc/net/unix");
        assert!(!names.contains(&format!("@spliced/adopt/{pid}/")));
        // An owner that has ended has no threads.
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().filter_map(Result::ok) {
            let Ok(status) = fs::read_to_string(thread.path().join("status")) else {
                continue;
            };
            assert!(status.contains("\nTracerPid:\t0\n"), "{status}");
            assert!(!status.contains("\nState:\tt"), "{status}");
        }
    }
}

/// What each descriptor of a process is.
fn links(pid: u32) -> BTreeMap<u32, String> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let entries = entries.into_iter().flatten().filter_map(Result::ok);
    let link = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let link = fs::read_link(entry.path()).ok()?;
        Some((number, link.to_str()?.to_owned()))
    };
    entries.filter_map(link).collect()
}

/// What an adoption changes at the connections of a process, and has to change back. (Which of them haproxy watches changes
/// with its load.)
fn connections(pid: u32) -> BTreeMap<u32, [String; 3]> {
    let of = |(number, link): (u32, String)| {
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
        let flags = info.lines().find(|line| line.starts_with("flags:"))?;
        let socket = splice_sockmap::of_process(pid, number).ok()?;
        getpeername(&socket).ok()??;
        let linger = sockopt::socket_linger(&socket).ok()?;
        let map = splice_sockmap::id_of_map_with(&socket).ok()?;
        Some((
            number,
            [link, flags.to_owned(), format!("{linger:?} {map:?}")],
        ))
    };
    let sockets = links(pid).into_iter();
    let sockets = sockets.filter(|(_, link)| link.starts_with("socket:"));
    sockets.filter_map(of).collect()
}

/// The end that each peer sees that is concerned, while nothing is on its way.
fn ends_at_rest(start: Start, plan: Plan, adopts: bool) -> Option<Vec<(u64, End)>> {
    let owner = start()?;
    owner.expect_both_ways();
    let before = connections(owner.process.id());
    let adopter = adopts.then(|| Adopter::start(&owner, plan));
    if plan.is_adopted {
        both_ways(&owner.client, &owner.server, plan.number, BYTES_BEFORE);
    }
    thread::sleep(plan.after);
    let relay = adopter.as_ref().map(|adopter| &adopter.relay);
    plan.what.happens(&owner, relay);
    let concerned = plan.what.concerned(&owner).into_iter();
    let ends = concerned.map(|peer| peer.read_to_end(Payload::new(0), 0));
    let ends = ends.collect();
    if let Some(adopter) = adopter {
        adopter.leaves_nothing();
    }
    if plan.what == Sudden::AdopterKilled {
        assert_eq!(connections(owner.process.id()), before);
        owner.expect_both_ways();
        owner.client.end_stream();
        owner.server.expect_end();
    }
    Some(ends)
}

/// The same in full flow both ways. What a peer has received is a beginning of what was sent.
fn ends_in_flow(start: Start, plan: Plan, adopts: bool) -> Option<Vec<End>> {
    let owner = start()?;
    let payloads = [Payload::new(plan.number), Payload::new(!plan.number)];
    let received = [AtomicU64::new(0), AtomicU64::new(0)];
    let (client, server) = (&owner.client, &owner.server);
    let ends = thread::scope(|scope| {
        for (from, payload) in [(client, payloads[0]), (server, payloads[1])] {
            scope.spawn(move || {
                let mut position = 0;
                while from.try_send(payload, position, CHUNK_BYTES).is_ok() {
                    position += CHUNK_BYTES;
                }
            });
        }
        let ways = [(server, payloads[0]), (client, payloads[1])];
        let receivers: Vec<_> = (ways.into_iter().zip(&received))
            .map(|((to, payload), received)| {
                let receiver = scope.spawn(move || receive(to, payload, received));
                (to.local_address(), receiver)
            })
            .collect();
        let further = || {
            let before = received.each_ref().map(|one| one.load(Ordering::Acquire));
            until("bytes arrive", || {
                received.iter().zip(before).all(|(received, before)| {
                    received.load(Ordering::Acquire) > before + BYTES_BEFORE
                })
            });
        };
        further();
        let adopter = adopts.then(|| Adopter::start(&owner, plan));
        if plan.is_adopted {
            further();
        }
        thread::sleep(plan.after);
        let concerned = plan.what.concerned(&owner).into_iter();
        let concerned: Vec<_> = concerned.map(Peer::local_address).collect();
        plan.what.happens(&owner, None);
        let ends = receivers.into_iter().filter_map(|(address, receiver)| {
            let end = receiver.join().expect("a beginning of what was sent");
            concerned.contains(&address).then_some(end)
        });
        let ends = ends.collect();
        if let Some(adopter) = adopter {
            adopter.leaves_nothing();
        }
        ends
    });
    Some(ends)
}

/// Compares what arrives with what was sent, to the end of any kind.
fn receive(peer: &Peer, payload: Payload, received: &AtomicU64) -> End {
    let mut position = 0;
    loop {
        match peer.read_some(payload, position) {
            Ok(0) => return End::OfStream,
            Ok(count) => {
                position += count;
                received.store(position, Ordering::Release);
            }
            // Our own reset, or that of the other end.
            Err(error) if !peer.was_reset() => panic!("{error}"),
            Err(_) => return End::Reset,
        }
    }
}

fn adopter_killed_in_flow(start: Start, plan: Plan) -> Option<()> {
    let owner = start()?;
    owner.expect_both_ways();
    let before = connections(owner.process.id());
    in_full_flow(&owner, |wait_further| {
        wait_further();
        let adopter = Adopter::start(&owner, plan);
        thread::sleep(plan.after);
        plan.what.happens(&owner, Some(&adopter.relay));
        adopter.leaves_nothing();
        wait_further();
    });
    assert_eq!(connections(owner.process.id()), before);
    owner.client.end_stream();
    owner.server.expect_end();
    Some(())
}

#[test]
fn whoever_ends_suddenly_peers_see_what_they_would_have_seen() {
    let rounds = env::var("SPLICED_ADOPT_ROUNDS").map_or(ROUNDS, |rounds| {
        rounds.parse().expect("SPLICED_ADOPT_ROUNDS is a number")
    });
    eprintln!("SPLICED_SEED={}", run_seed());
    let mut random = Random::of_run(31);
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let starts: [(&str, Start); 3] = [
        ("socat", Owner::socat),
        ("nginx", Owner::nginx),
        ("haproxy", Owner::haproxy),
    ];
    for number in 0..rounds {
        let what = ALL[number as usize % ALL.len()];
        let (name, start) = starts[random.below(starts.len() as u64) as usize];
        let plan = Plan {
            number,
            what,
            is_adopted: random.below(2) == 0,
            after: Duration::from_micros(random.below(LONGEST_LIFE_US)),
        };
        let in_flow = random.below(2) == 0;
        eprintln!("{name}, in flow: {in_flow}, {plan:?}");
        let mut note = |ends: &str| {
            *seen
                .entry(format!("{what:?} {name} in flow: {in_flow}: {ends}"))
                .or_default() += 1;
        };
        match (in_flow, what) {
            (false, _) => {
                let (Some(without), Some(with)) = (
                    ends_at_rest(start, plan, false),
                    ends_at_rest(start, plan, true),
                ) else {
                    continue;
                };
                assert_eq!(with, without, "{name}: {plan:?}");
                note(&format!("{with:?} as without"));
            }
            (true, Sudden::AdopterKilled) => {
                if adopter_killed_in_flow(start, plan).is_some() {
                    note("everything arrives");
                }
            }
            // Whether something is unread decides between an end and a reset, and so chance does.
            (true, _) => {
                let (Some(without), Some(with)) = (
                    ends_in_flow(start, plan, false),
                    ends_in_flow(start, plan, true),
                ) else {
                    continue;
                };
                note(&format!("without {without:?}, with {with:?}"));
            }
        }
    }
    for (what, times) in seen {
        eprintln!("{times:4} {what}");
    }
}

/// Whatever owners make of the failure of a connection, they make it of that of a stand-in.
#[test]
fn a_reset_is_what_the_owner_makes_of_it() {
    for start in [Owner::socat, Owner::nginx, Owner::haproxy] {
        for what in [Sudden::ClientResets, Sudden::ServerResets] {
            let plan = Plan {
                number: 77,
                what,
                is_adopted: true,
                after: Duration::ZERO,
            };
            let (Some(without), Some(with)) = (
                ends_at_rest(start, plan, false),
                ends_at_rest(start, plan, true),
            ) else {
                continue;
            };
            assert_eq!(with, without, "{what:?}");
        }
    }
}
