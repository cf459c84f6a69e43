//! The bypass ends, or its owner dies, under traffic.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use libbpf_rs::query::{LinkInfoIter, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle, MapType, libbpf_sys};
use netlab::{Lab, Need, available, until};
use splice::bypass::{Bypass, State, off, status};

use crate::random::Random;
use crate::stage::{Ends, LEAVE, Polled, Stage, bytes};

/// Sends small messages one after the other without waiting for anything, until told to stop.
fn pour(socket: &TcpStream, seed: u64, stop: &AtomicBool) -> u64 {
    let mut polled = Polled(socket);
    let mut random = Random::seeded(seed);
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        let length = 1 + random.below(500) as usize;
        polled.write_all(&bytes(&mut random, length)).expect("sent");
        sent += length as u64;
    }
    socket.shutdown(std::net::Shutdown::Write).expect("shut");
    sent
}

fn drink(socket: &TcpStream, seed: u64, progress: &AtomicU64) -> u64 {
    let mut socket = Polled(socket);
    let mut random = Random::seeded(seed);
    let mut received = 0;
    let mut expected = Vec::new();
    let mut buffer = vec![0; 3000];
    loop {
        let count = socket.read(&mut buffer).expect("received");
        if count == 0 {
            return received;
        }
        while expected.len() < count {
            let length = 1 + random.below(500) as usize;
            expected.extend(bytes(&mut random, length));
        }
        assert!(
            buffer[..count] == expected[..count],
            "other bytes after {received}"
        );
        expected.drain(..count);
        received += count as u64;
        progress.store(received, Ordering::Relaxed);
    }
}

/// Ends the flows of a test that fails, too.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while bytes pour both ways.
fn under_traffic(ends: &Ends, work: impl FnOnce(&dyn Fn())) {
    let stop = AtomicBool::new(false);
    let progress = [AtomicU64::new(0), AtomicU64::new(0)];
    let [to_server, to_client] = &progress;
    let seed = Random::of_run(20).next();
    thread::scope(|scope| {
        let sent = [
            scope.spawn(|| pour(&ends.client, seed, &stop)),
            scope.spawn(|| pour(&ends.server, seed + 1, &stop)),
        ];
        let received = [
            scope.spawn(|| drink(&ends.server, seed, to_server)),
            scope.spawn(|| drink(&ends.client, seed + 1, to_client)),
        ];
        let stops = Stop(&stop);
        // Some more bytes each way.
        let moves = || {
            let now = progress.each_ref().map(|of| of.load(Ordering::Relaxed));
            until("bytes go on", || {
                (progress.iter().zip(now))
                    .all(|(of, before)| of.load(Ordering::Relaxed) > before + 200_000)
            });
        };
        moves();
        work(&moves);
        moves();
        drop(stops);
        for (sent, received) in sent.into_iter().zip(received) {
            assert_eq!(
                sent.join().expect("no panic"),
                received.join().expect("no panic")
            );
        }
    });
}

#[test]
fn it_stops_under_traffic_and_no_byte_is_lost() {
    if !available(Need::Root) {
        return;
    }
    for by_another in [false, true] {
        let stage = Stage::new();
        let running = stage.start();
        let mut ends = stage.connect(Lab::SERVER_V4);
        stage.until_redirected(&mut ends);
        under_traffic(&ends, |_| {
            if by_another {
                // Its owner sees that it is to end, and another process may clear up.
                let ends = thread::scope(|scope| {
                    let ends = scope.spawn(|| off(stage.pins.path(), LEAVE));
                    running.stop();
                    ends.join().expect("no panic")
                });
                ends.expect("it has ended");
            } else {
                running.stop();
            }
            assert!(!stage.pins.path().exists());
        });
        assert!(status(stage.pins.path()).expect("it can be read").is_none());
    }
}

#[test]
fn connections_open_and_close_while_it_goes_on_and_off() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let mut long = stage.connect(Lab::SERVER_V4);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..2u64)
            .map(|number| {
                let (stage, stop) = (&stage, &stop);
                scope.spawn(move || {
                    let mut random = Random::of_run(30 + number);
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let mut ends = stage.connect(Lab::SERVER_V4);
                        let rounds = random.size(200);
                        ends.converse(&mut random, rounds, 500);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        for _ in 0..10 {
            let running = stage.start();
            long.converse(&mut Random::of_run(32), 100, 500);
            thread::sleep(Duration::from_millis(100));
            running.stop();
            assert!(!stage.pins.path().exists());
        }
        stop.store(true, Ordering::Relaxed);
        let counts: Vec<i32> = threads
            .into_iter()
            .map(|of| of.join().expect("no panic"))
            .collect();
        println!("{counts:?} connections");
    });
}

#[test]
fn after_its_owner_has_died_everything_goes_over_tcp_and_the_next_start_clears_up() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    under_traffic(&ends, |moves| {
        drop(running.abandon());
        until("it is dead", || !stage.status().is_alive);
        let redirected = || {
            let of = stage.connection(&ends).expect("it is there");
            [of.client, of.server].map(|end| end.expect("seen").redirected_messages)
        };
        let before = redirected();
        moves();
        assert_eq!(redirected(), before);
        // Nothing new is taken.
        let mut late = stage.connect(Lab::SERVER_V4);
        late.converse(&mut Random::of_run(21), 100, 100);
        assert!(stage.connection(&late).is_none());
        assert_eq!(stage.status().members, 2);

        let again = stage.start();
        assert_eq!(stage.status().members, 0);
        moves();
        again.stop();
    });
    assert!(!stage.pins.path().exists());
    // `off` does the same.
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    drop(running.abandon());
    assert!(off(stage.pins.path(), LEAVE).expect("cleared"));
    assert!(!off(stage.pins.path(), LEAVE).expect("nothing to do"));
    ends.converse(&mut Random::of_run(22), 100, 100);
}

#[test]
fn a_second_one_is_refused() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let error = Bypass::start(&stage.options()).expect_err("one runs");
    assert!(error.to_string().contains("runs already"), "{error}");
    running.stop();
}

#[test]
fn what_nobody_reads_keeps_it_from_ending_and_is_not_lost() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    ends.client.write_all(b"unread").expect("sent");
    let error = running
        .abandon()
        .stop(Duration::from_millis(200))
        .expect_err("unread");
    assert!(error.to_string().contains("1 connections"), "{error}");
    ends.client.write_all(b", and behind it").expect("sent");
    let mut heard = [0; 21];
    ends.server.read_exact(&mut heard).expect("received");
    assert_eq!(&heard, b"unread, and behind it");
    assert!(off(stage.pins.path(), LEAVE).expect("it ends now"));
    assert_eq!(stage_state(&stage, &ends), None);
}

/// What the kernel has of a bypass, by its numbers.
#[derive(Debug, Default)]
struct Loaded {
    maps: HashSet<u32>,
    programs: HashSet<u32>,
    links: HashSet<u32>,
}

impl Loaded {
    /// All that has to do with what is pinned.
    fn of(stage: &Stage) -> Self {
        let pinned = |name: &str| MapHandle::from_pinned_path(stage.pins.path().join(name));
        let pinned = PINNED[..6].iter().map(|name| {
            let map = pinned(name).expect("a map");
            map.info().expect("known").info.id
        });
        let pinned: Vec<u32> = pinned.collect();
        let mut loaded = Self::default();
        let options = ProgInfoQueryOptions::default().include_map_ids(true);
        for program in ProgInfoIter::with_query_opts(options) {
            if program.map_ids.iter().any(|id| pinned.contains(id)) {
                loaded.programs.insert(program.id);
                loaded.maps.extend(program.map_ids);
            }
        }
        let links = LinkInfoIter::default();
        loaded.links = links
            .filter(|link| loaded.programs.contains(&link.prog_id))
            .map(|link| link.id)
            .collect();
        loaded
    }

    /// What of it is there still.
    fn left(&self) -> [usize; 3] {
        [
            MapInfoIter::default()
                .filter(|of| self.maps.contains(&of.id))
                .count(),
            ProgInfoIter::default()
                .filter(|of| self.programs.contains(&of.id))
                .count(),
            LinkInfoIter::default()
                .filter(|of| self.links.contains(&of.id))
                .count(),
        ]
    }
}

/// A program and a map that refer to each other would stay for ever.
#[test]
fn nothing_stays_in_the_kernel_however_it_ends() {
    if !available(Need::Root) {
        return;
    }
    for is_stopped in [true, false] {
        let stage = Stage::new();
        let running = stage.start();
        let mut ends = stage.connect(Lab::SERVER_V4);
        stage.until_redirected(&mut ends);
        let loaded = Loaded::of(&stage);
        // Six programs, four of them at tracepoints.
        assert_eq!(loaded.programs.len(), 6, "{loaded:?}");
        assert_eq!(loaded.left()[2], 4, "{loaded:?}");
        assert!(loaded.left()[0] >= 9, "{loaded:?}");
        if is_stopped {
            running.stop();
        } else {
            drop(running.abandon());
            assert_eq!(loaded.left()[2], 4, "{loaded:?}");
            assert!(off(stage.pins.path(), LEAVE).expect("cleared"));
        }
        // The kernel frees them behind a grace period.
        until("nothing is left", || loaded.left() == [0; 3]);
        ends.converse(&mut Random::of_run(23), 20, 100);
    }
}

/// In the order in which they are pinned; they are removed in reverse.
const PINNED: [&str; 12] = [
    "members",
    "pairs",
    "marks",
    "settings",
    "capture-settings",
    "captures",
    "words",
    "control",
    "link-bypass_gone",
    "link-bypass_received",
    "link-bypass_sent",
    "link-bypass_spliced",
];

#[test]
fn what_a_killed_owner_has_pinned_or_removed_in_part_is_no_obstacle() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    for gone in 0..=PINNED.len() {
        drop(stage.start().abandon());
        for name in PINNED.iter().rev().take(gone) {
            fs::remove_file(stage.pins.path().join(name)).expect("it was pinned");
        }
        if gone % 2 == 1 {
            let was_there = off(stage.pins.path(), LEAVE).expect("cleared, or nothing to do");
            let is_whole = gone < 5;
            assert_eq!(was_there, is_whole, "{gone}");
        }
    }
    stage.start().stop();
    assert!(!stage.pins.path().exists());
}

#[test]
fn what_another_version_has_pinned_is_left_alone_with_a_sentence() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    drop(stage.start().abandon());
    let settings = MapHandle::from_pinned_path(stage.pins.path().join("settings")).expect("pinned");
    let first = 0u32.to_ne_bytes();
    let value = settings.lookup(&first, MapFlags::ANY);
    let mut value = value.expect("read").expect("there");
    // The third number of the lease is the layout.
    value[16] += 1;
    settings
        .update(&first, &value, MapFlags::ANY)
        .expect("written");
    let refused = [
        off(stage.pins.path(), LEAVE).map(drop),
        Bypass::start(&stage.options()).map(drop),
        status(stage.pins.path()).map(drop),
    ];
    for refused in refused {
        let said = refused.expect_err("it is of another version").to_string();
        assert!(said.contains("is of another version"), "{said}");
        assert!(said.contains("end it with the program"), "{said}");
    }
    value[16] -= 1;
    settings
        .update(&first, &value, MapFlags::ANY)
        .expect("written");
    assert!(off(stage.pins.path(), LEAVE).expect("cleared"));
}

/// A directory that somebody names by mistake, as /sys/fs/bpf itself.
#[test]
fn pins_of_others_in_the_same_directory_stay() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    fs::create_dir(stage.pins.path()).expect("made");
    let theirs = stage.pins.path().join("of-others");
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        ..Default::default()
    };
    let map = MapHandle::create(MapType::Array, Some("others"), 4, 4, 1, &options);
    map.expect("a map").pin(&theirs).expect("pinned");
    stage.start().stop();
    drop(stage.start().abandon());
    assert!(off(stage.pins.path(), LEAVE).expect("cleared"));
    let names = fs::read_dir(stage.pins.path())
        .expect("a directory")
        .count();
    assert_eq!((names, theirs.exists()), (1, true));
}

fn stage_state(stage: &Stage, _ends: &Ends) -> Option<State> {
    let status = status(stage.pins.path()).expect("it can be read");
    status.and_then(|of| of.connections.first().map(|of| of.state))
}
