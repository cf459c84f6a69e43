//! Change-overs at random places in a stream, and at unlucky ones.

use std::os::fd::AsFd as _;

use super::*;

/// Bytes each way.
const BYTES: usize = 64 << 20;

/// A pair changes over before this many bytes have gone, both ways together. Then neither stream has ended,
/// not even in the buffers between its sender and the relay, which hold less than the rest.
const LAST_PLACE: u64 = 48 << 20;

/// Counters of receivers and senders in some namespaces.
#[derive(Debug, Default, PartialEq, Eq)]
struct Losses {
    /// Segments dropped for an old timestamp (PAWS).
    paws: u64,
    /// Retransmission timeouts without the spurious ones.
    timeouts: u64,
    /// Segments dropped beyond the receiver's window.
    beyond_window: u64,
}

impl Losses {
    /// `None` where something else has lost segments.
    fn between(before: &[(String, u64)], after: &[(String, u64)]) -> Option<Self> {
        let grown = |wanted: &str| -> u64 {
            let both = before.iter().zip(after);
            both.filter(|((name, _), _)| name == wanted)
                .map(|((_, before), (_, after))| after - before)
                .sum()
        };
        // A receiver that runs out of memory drops what its window had room for (`tcp_prune_queue`), and all
        // sockets of the machine share that memory.
        (grown("PruneCalled") == 0).then(|| Self {
            paws: grown("PAWSEstab"),
            timeouts: grown("TCPTimeouts").saturating_sub(grown("TCPSpuriousRTOs")),
            beyond_window: grown("BeyondWindow"),
        })
    }

    fn add(&mut self, other: &Self) {
        self.paws += other.paws;
        self.timeouts += other.timeouts;
        self.beyond_window += other.beyond_window;
    }
}

/// Where client, relay and server are, and how they are connected.
struct Path<'a> {
    spaces: &'a [&'a Namespace],
    relay: &'a Namespace,
    connect: &'a dyn Fn() -> Connected,
}

impl Path<'_> {
    fn prepare(&self, timestamps: bool) -> Splicer {
        for (name, value) in [
            (
                "net.ipv4.tcp_timestamps",
                if timestamps { "1" } else { "0" },
            ),
            ("net.ipv4.tcp_congestion_control", "reno"),
        ] {
            for space in self.spaces {
                space.set_sysctl(name, value).expect("sysctl");
            }
        }
        splicer_in(self.relay)
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.spaces.iter().copied().flat_map(counters_in).collect()
    }

    /// Sends bytes both ways at once. With a `place` the pair changes over once that many have passed.
    fn transfer(&self, splicer: &Splicer, place: Option<u64>, seed: u64) -> Option<Losses> {
        let before = self.counters();
        let (outcome, _, pause) = both_ways((self.connect)(), splicer, place, BYTES, seed);
        let after = self.counters();
        eprintln!(
            "{place:?}: {outcome:?}, pause {pause:?}; {}",
            changes(&before, &after)
        );
        let is_spliced = outcome.engine == EngineName::Segment;
        assert_eq!(is_spliced, place.is_some(), "{}", outcome.why_engine);
        Losses::between(&before, &after)
    }

    fn hunt(&self, timestamps: bool) {
        let splicer = self.prepare(timestamps);
        let mut random = Random::seeded(seed());
        for _ in 0..rounds(2) {
            let place = random.below(LAST_PLACE);
            let losses = self.transfer(&splicer, Some(place), random.next());
            assert_eq!(losses.map_or(0, |losses| losses.beyond_window), 0);
        }
    }

    /// Alternates transfers with and without a change-over.
    fn compare(&self, times: usize) -> [Losses; 2] {
        let splicer = self.prepare(true);
        let mut random = Random::seeded(seed());
        let mut sums = [Losses::default(), Losses::default()];
        let mut compared = 0;
        // A machine that is always short of memory gives no result.
        for _ in 0..2 * times {
            let place = random.below(LAST_PLACE);
            let both =
                [Some(place), None].map(|place| self.transfer(&splicer, place, random.next()));
            if let [Some(with), Some(without)] = &both {
                compared += 1;
                for (sum, losses) in sums.iter_mut().zip([with, without]) {
                    sum.add(losses);
                }
            }
            if compared == times {
                return sums;
            }
        }
        panic!("only {compared} of {times} could be compared");
    }
}

fn over_lo(ip: &str, work: impl FnOnce(&Path<'_>)) {
    let namespace = Namespace::new("seg").expect("a namespace");
    work(&Path {
        spaces: &[&namespace],
        relay: &namespace,
        connect: &|| namespace.enter(|| Connected::here(ip)).expect("entered"),
    });
}

fn over_veths(connect: fn(&Lab) -> Connected, work: impl FnOnce(&Path<'_>)) {
    let lab = Lab::new().expect("a lab");
    work(&Path {
        spaces: &[lab.client(), lab.relay(), lab.server()],
        relay: lab.relay(),
        connect: &|| connect(&lab),
    });
}

#[test]
fn change_overs_at_random_places_over_lo() {
    if available(Need::Root) {
        over_lo("127.0.0.1:0", |path| path.hunt(true));
    }
}

#[test]
fn change_overs_at_random_places_over_lo_without_timestamps() {
    if available(Need::Root) {
        over_lo("127.0.0.1:0", |path| path.hunt(false));
    }
}

#[test]
fn change_overs_at_random_places_over_lo_v6() {
    if available(Need::Root) {
        over_lo("[::1]:0", |path| path.hunt(true));
    }
}

#[test]
fn change_overs_at_random_places_over_veths() {
    if available(Need::Root) {
        over_veths(Connected::across, |path| path.hunt(true));
    }
}

#[test]
fn change_overs_at_random_places_over_veths_without_timestamps() {
    if available(Need::Root) {
        over_veths(Connected::across, |path| path.hunt(false));
    }
}

#[test]
fn change_overs_at_random_places_over_veths_v6() {
    if available(Need::Root) {
        over_veths(Connected::across_v6, |path| path.hunt(true));
    }
}

/// A segment that arrives just before the change-over begins goes through the sockets. The next one must not
/// overtake it.
#[test]
fn bytes_that_arrive_as_it_begins_are_not_overtaken() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let connected = Connected::across(&lab);
    let near = connected.a.as_fd().try_clone_to_owned();
    let near = near.expect("a second descriptor");
    let (client, server, handle) = connected.join(&splicer, &by_volume(10));
    let halt = Halt::at(&splicer, ["translatable", "overlap"]);
    let at_relay = || rustix::io::ioctl_fionread(&near).expect("FIONREAD");
    let overtaken = || count(lab.server(), &["TCPOFOQueue"]);
    let before = overtaken();

    ping(&client, &server);
    halt.wait();
    (&client).write_all(b"first").expect("write");
    netlab::until("it is at the relay", || at_relay() == 5);
    halt.go_on();
    halt.wait();
    (&client).write_all(b"later").expect("write");
    netlab::until("it is there, too", || {
        at_relay() == 10 || overtaken() > before
    });
    halt.go_on();
    drop(near);
    let mut words = [0; 10];
    (&server).read_exact(&mut words).expect("read");
    assert_eq!((&words, overtaken()), (b"firstlater", before));
    for _ in 0..10 {
        ping(&client, &server);
    }
    drop((client, server));
    assert_eq!(ended(&handle).engine, EngineName::Segment);
}

/// Under load, connections over lo drop segments for old timestamps and time out even without a relay. So the
/// difference is what a change-over costs.
#[test]
#[ignore = "soak: 200 change-overs beside two busy loops, some ten minutes"]
fn change_overs_lose_no_more_than_transfers_without() {
    if !available(Need::Root) {
        return;
    }
    let done = AtomicBool::new(false);
    let compared = thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let compared = std::panic::catch_unwind(|| {
            let mut both = Vec::new();
            over_veths(Connected::across, |path| {
                both.push(path.compare(rounds(100)))
            });
            over_lo("127.0.0.1:0", |path| both.push(path.compare(rounds(100))));
            both
        });
        done.store(true, Relaxed);
        compared
    });
    let compared = compared.expect("every byte arrived");
    eprintln!("with and without, over veths and over lo: {compared:?}");
    for [with, without] in compared {
        assert!(with.paws <= without.paws && with.timeouts <= without.timeouts);
    }
}

/// The highest priority (setpriority(2)).
const FIRST: i32 = -20;

/// How many round trips of at least 15 µs pass until the sockets sleep and the last look is over. Two looks
/// follow the first one, a millisecond apart.
const CHANGING_ROUND_TRIPS: usize = 300;

/// Exchanges requests and responses while pairs change over one after the other. Gives the longest round trip
/// across a change-over, and the longest elsewhere, which the machine causes.
fn longest_round_trips(pairs: usize) -> [Duration; 2] {
    const ROUND_TRIPS: usize = 2000;
    // Keeps other work on the machine out of the measurement, if it may; the loop's thread inherits the
    // priority.
    let _ = rustix::process::setpriority_process(None, FIRST);
    let (lab, splicer, _first) = spliced_lab();
    let mut random = Random::seeded(seed());
    let mut worst = [Duration::ZERO; 2];
    for _ in 0..pairs {
        let before = counters_across(&lab);
        let place = 1 + random.below(ROUND_TRIPS as u64 * 10 - 1);
        let (client, server, handle) = Connected::across(&lab).join(&splicer, &by_volume(place));
        let witness = Witness::of(&splicer, &[&handle]);
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("TCP_NODELAY");
        }
        // Five bytes go each way.
        let change_at = place as usize / 10;
        let changing = change_at.saturating_sub(1)..change_at + CHANGING_ROUND_TRIPS;
        let mut longest = [Duration::ZERO; 2];
        for number in 0..ROUND_TRIPS {
            let longest = &mut longest[usize::from(!changing.contains(&number))];
            let start = Instant::now();
            ping(&client, &server);
            *longest = start.elapsed().max(*longest);
        }
        witness.wait_for_sleep();
        drop((client, server));
        let outcome = ended(&handle);
        witness.end(&[(&outcome, handle.forwarded_bytes())]);
        let changes = changes(&before, &counters_across(&lab));
        eprintln!("longest round trip across the change-over and elsewhere {longest:?}; {changes}");
        worst = [0, 1].map(|place: usize| worst[place].max(longest[place]));
    }
    worst
}

#[test]
fn every_answer_comes_across_a_change_over() {
    if available(Need::Root) {
        longest_round_trips(rounds(5));
    }
}

#[test]
#[ignore = "soak: 200 change-overs; needs a quiet machine"]
fn a_conversation_pauses_for_five_milliseconds_at_most() {
    if available(Need::Root) {
        let worst = longest_round_trips(rounds(200));
        eprintln!("worst {worst:?}");
        assert!(worst[0] <= Duration::from_millis(5));
    }
}
