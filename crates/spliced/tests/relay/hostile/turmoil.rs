//! Random conversations while everything goes wrong at once: packets are lost, doubled, delayed and damaged, somebody
//! sprays forged segments, paths become narrower and wider, close and open, and peers come by another device.

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use netlab::{Need, available};

use super::another_device::{divert, lay_second_cable, take_back};
use super::bit_error::{damage_at, damaged_at, fill_in_all_checksums};
use super::connection::Side;
use super::path_mtu::{WIDE_MTU, cable_beyond, narrow, set_mtu};
use super::segment::{ACK, FIN, RST, SYN, Segment};
use super::site::Site;
use super::stage::{BY_RESET, Family, IN_ORDER, Stage};
use crate::bad_path::{BadPath, Disorder};
use crate::payload::Payload;
use crate::peer::{End, Peer};
use crate::random::{Random, run_seed};
use crate::server::answer;

/// The time of each test; `SPLICED_TURMOIL_SECONDS` asks for another.
const TIME: Duration = Duration::from_secs(200);
const TALKERS: u64 = 8;
const MOST_BYTES: usize = 1 << 20;
/// A pair that has lived for 50 ms is spliced, so some say nothing before and some do.
const LONGEST_THOUGHT_MS: u64 = 200;
const LONGEST_CALM_MS: u64 = 300;
/// Most of the time, since pairs are not spliced whose segments come in by another device than they leave.
const CHANGES_BEYOND_THE_RELAY: u64 = 8;
/// One of so many closes a way through the relay's host for a while.
const CHANGES_OF_WAYS: u64 = 4;
/// What closes one with `add`, and opens it again with `del`.
const CLOSING: [fn(&Site<'_>, &str); 3] = [
    |site, how| match how {
        "add" => site.ip(&format!("route del {}", site.network())),
        _ => site.restore_route(),
    },
    |site, how| {
        site.ip(&format!(
            "rule {how} to {} pref 5 blackhole",
            site.network()
        ))
    },
    |site, how| site.block(how),
];
const SPRAYED_AT_ONCE: u64 = 20;
/// On each of the two devices that a segment comes in on, on either side of the relay.
const DISORDER: Disorder = Disorder {
    lost: 100,
    doubled: 50,
    late: 100,
};
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long hosts remember the size of a narrow path, in seconds: no pair is spliced meanwhile that could meet one.
const PATH_MTU_EXPIRES: &str = "1";

/// The two ends of each live connection, and the side that the first is on.
type Ends = Mutex<HashMap<[SocketAddr; 2], Side>>;

/// A connection is among those that are attacked as long as this lives.
struct Target<'a> {
    ends: &'a Ends,
    key: [SocketAddr; 2],
}

impl<'a> Target<'a> {
    fn among(ends: &'a Ends, peer: &Peer, side: Side) -> Self {
        let address = |text: String| text.parse().expect("an address");
        let key = [peer.local_address(), peer.peer_address()].map(address);
        ends.lock().expect("no panic").insert(key, side);
        Self { ends, key }
    }
}

impl Drop for Target<'_> {
    fn drop(&mut self) {
        self.ends.lock().expect("no panic").remove(&self.key);
    }
}

fn time() -> Duration {
    let seconds = env::var("SPLICED_TURMOIL_SECONDS").ok();
    seconds.map_or(TIME, |seconds| {
        Duration::from_secs(
            seconds
                .parse()
                .expect("SPLICED_TURMOIL_SECONDS is a number"),
        )
    })
}

/// Changes the paths until `is_over`.
fn change_paths(stage: &Stage, is_over: &(dyn Fn() -> bool + Sync)) {
    let mut random = Random::of_run(70);
    let mut is_narrow = [false; 2];
    while !is_over() {
        thread::sleep(Duration::from_millis(random.below(LONGEST_CALM_MS)));
        let side = Side::BOTH[random.below(2) as usize];
        let place = side as usize;
        if random.below(CHANGES_OF_WAYS) == 0 {
            // Without a way to the server there are no new connections.
            let side = Side::Client;
            let site = Site { stage, side };
            let close = CLOSING[random.below(CLOSING.len() as u64) as usize];
            close(&site, "add");
            thread::sleep(Duration::from_millis(random.below(LONGEST_CALM_MS)));
            close(&site, "del");
        } else if random.below(CHANGES_BEYOND_THE_RELAY) > 0 {
            let cable = cable_beyond(stage, side);
            if is_narrow[place] {
                for (namespace, device) in cable {
                    set_mtu(namespace, device, WIDE_MTU);
                }
            } else {
                narrow(cable);
            }
            is_narrow[place] = !is_narrow[place];
        } else {
            divert(stage, side);
            thread::sleep(Duration::from_millis(random.below(LONGEST_CALM_MS)));
            take_back(stage, side);
        }
    }
}

/// Somebody who knows addresses and ports, and no numbers.
fn spray(stage: &Stage, ends: &Ends, is_over: &(dyn Fn() -> bool + Sync)) -> u64 {
    let mut random = Random::of_run(71);
    let mut sprayed = 0;
    while !is_over() {
        let targets: Vec<_> = {
            let ends = ends.lock().expect("no panic");
            ends.iter().map(|(key, side)| (*key, *side)).collect()
        };
        for ([from, to], side) in targets {
            for _ in 0..SPRAYED_AT_ONCE {
                let kinds = [ACK, RST, RST | ACK, FIN | ACK, SYN, SYN | ACK];
                let timestamp = random.below(2) == 0;
                stage.forger(side).send(&Segment {
                    from,
                    to,
                    flags: kinds[random.below(kinds.len() as u64) as usize],
                    seq: random.next() as u32,
                    ack: random.next() as u32,
                    timestamp: timestamp.then(|| random.next() as u32),
                    payload: if random.below(2) == 0 { &[] } else { b"forged" },
                    is_damaged: false,
                });
                sprayed += 1;
            }
        }
        thread::sleep(LOOK_EVERY);
    }
    sprayed
}

/// One conversation after the other; returns how many.
fn talk(stage: &Stage, talker: u64, ends: &Ends, is_over: &(dyn Fn() -> bool + Sync)) -> usize {
    let mut random = Random::of_run(80 + talker);
    let mut held = 0;
    while !is_over() {
        let address = stage.hop().address();
        let client = stage.client().enter(|| Peer::connect(address));
        let client = client.expect("entered");
        let _target = Target::among(ends, &client, Side::Client);
        let [there, back] = [(); 2].map(|()| random.size(MOST_BYTES) as u64);
        let (number, before) = (talker << 32 | held as u64, random.below(there + 1));
        let payload = Payload::new(number);
        for number in [number, there, back] {
            client.write_number(number);
        }
        client.send(payload, 0, before);
        thread::sleep(Duration::from_millis(random.below(LONGEST_THOUGHT_MS)));
        client.send(payload, before, there - before);
        client.end_stream();
        let came = client.read_to_end(Payload::new(!number), 0);
        assert_eq!(came, (back, End::OfStream), "conversation {number}");
        held += 1;
    }
    held
}

fn no_byte_is_wrong(stage: &Stage) {
    if !available(Need::Nft) || !fill_in_all_checksums(stage) {
        return;
    }
    for side in Side::BOTH {
        lay_second_cable(stage, side);
    }
    for host in [stage.lab().relay(), stage.client(), stage.server()] {
        for family in ["ipv4", "ipv6"] {
            let name = format!("net.{family}.route.mtu_expires");
            host.set_sysctl(&name, PATH_MTU_EXPIRES).expect("set");
        }
    }
    let routers = [stage.lab().client(), stage.lab().server()];
    routers.into_iter().for_each(damage_at);
    let path = BadPath::through(&routers, DISORDER, run_seed());
    let ends = Ends::default();
    let end = Instant::now() + time();
    let is_over = || Instant::now() > end;
    let held = thread::scope(|scope| {
        let ends = &ends;
        let of_talkers: Vec<_> = (0..TALKERS)
            .map(|talker| scope.spawn(move || talk(stage, talker, ends, &is_over)))
            .collect();
        scope.spawn(move || change_paths(stage, &is_over));
        let sprayed = scope.spawn(move || spray(stage, ends, &is_over));
        while !of_talkers.iter().all(ScopedJoinHandle::is_finished) {
            if stage.target().is_called_within(LOOK_EVERY) {
                let server = stage.target().accept();
                scope.spawn(move || {
                    let _target = Target::among(ends, &server, Side::Server);
                    answer(&server)
                });
            }
        }
        eprintln!("{} forged segments", sprayed.join().expect("it goes on"));
        let held = of_talkers.into_iter().map(|talker| talker.join());
        held.map(|held| held.expect("no conversation fails")).sum()
    });
    stage.expect_ended(held, &[IN_ORDER, BY_RESET].concat());
    let mut by_reason = BTreeMap::<_, usize>::new();
    for entry in stage.hop().entries() {
        let why = entry["why_engine"].as_str().expect("a reason");
        // Without how many bytes came before.
        let why = why.split("; copy").next().expect("a first part");
        *by_reason.entry(why.to_owned()).or_default() += 1;
    }
    eprintln!(
        "{held} conversations; {} packets lost, {} damaged; {by_reason:#?}",
        path.losses(),
        routers.map(damaged_at).into_iter().sum::<u64>()
    );
    let went_back = |how| by_reason.keys().any(|why| why.contains(how));
    if stage.splices() {
        assert!(went_back("another device") && went_back("too long for the path"));
    }
}

#[test]
#[ignore = "soak: minutes of random conversations"]
fn auto_v4() {
    Stage::routed("auto", Family::V4, no_byte_is_wrong);
}

#[test]
#[ignore = "soak: minutes of random conversations"]
fn auto_v6() {
    Stage::routed("auto", Family::V6, no_byte_is_wrong);
}

#[test]
#[ignore = "soak: minutes of random conversations"]
fn copy_v4() {
    Stage::routed("copy", Family::V4, no_byte_is_wrong);
}

#[test]
#[ignore = "soak: minutes of random conversations"]
fn segment_v4() {
    Stage::routed("segment", Family::V4, no_byte_is_wrong);
}

#[test]
#[ignore = "soak: minutes of random conversations"]
fn segment_v6() {
    Stage::routed("segment", Family::V6, no_byte_is_wrong);
}
