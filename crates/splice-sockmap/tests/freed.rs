//! What the kernel has loaded for redirects is freed when they are over, with the memory of their process.

#[path = "redirections/conversation.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod conversation;
#[path = "../../splice/tests/support/random.rs"]
#[allow(dead_code, reason = "other tests ask for more")]
mod random;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use libbpf_rs::query::{MapInfoIter, ProgInfoIter};
use netlab::{BpfFileSystem, Need, available, until};
use splice_sockmap::{FourTuple, Lease, MapType, Redirect, Redirections, SockHash, SocketKind};

use crate::conversation::{Pair, put, take};

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the allocator keeps. A thousand leaked sets of maps would be far more.
const MOST_GROWTH_BYTES: usize = 16 << 20;

/// The maps and programs of which this process has a descriptor, by their numbers. The kernel gives each number once.
#[derive(Default)]
struct Loaded {
    maps: BTreeSet<u32>,
    programs: BTreeSet<u32>,
}

impl Loaded {
    fn add_what_is_open(&mut self) {
        let open = fs::read_dir("/proc/self/fdinfo").expect("a list").flatten();
        for info in open.filter_map(|fd| fs::read_to_string(fd.path()).ok()) {
            for line in info.lines() {
                let Some((name, number)) = line.split_once(":\t") else {
                    continue;
                };
                match name {
                    "map_id" => self.maps.insert(number.parse().expect("a number")),
                    "prog_id" => self.programs.insert(number.parse().expect("a number")),
                    _ => continue,
                };
            }
        }
    }

    fn are_freed(&self) -> bool {
        let maps = MapInfoIter::default().any(|map| self.maps.contains(&map.id));
        let programs = ProgInfoIter::default().any(|program| self.programs.contains(&program.id));
        !maps && !programs
    }
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("a line");
    let pages = statm.split(' ').nth(1).expect("resident pages");
    pages.parse::<usize>().expect("a number") * rustix::param::page_size()
}

/// Each way to load a redirect, and each way out.
fn cycle(turn: usize, directory: &Path, loaded: &mut Loaded) {
    let redirect = Redirect::ALL[turn % Redirect::ALL.len()];
    let map_type = MapType::ALL[turn / Redirect::ALL.len() % MapType::ALL.len()];
    let [source, target] = [(); 2].map(|()| Pair::of(SocketKind::Tcp));
    let from = match redirect.is_of_sent() {
        true => &source.member,
        false => &source.peer,
    };
    let to = match redirect.is_to_local() {
        true => &target.member,
        false => &target.peer,
    };
    let converse = || {
        put(from, b"redirected");
        assert_eq!(take(to), b"redirected", "{redirect}");
    };
    let lease = Lease::take(directory, PATIENCE).expect("taken");

    let map = SockHash::<FourTuple>::create(8).expect("a map");
    let attachment = map.attach_leased(&lease, redirect).expect("attached");
    let attachment = attachment.bounded(1 << 20);
    let key = FourTuple::of(&source.member).expect("addresses");
    let mut link = attachment
        .link(key, &source.member, &target.member)
        .expect("linked");
    converse();
    loaded.add_what_is_open();
    let map = attachment
        .detach([(&mut link, &source.member)], PATIENCE)
        .unwrap_or_else(|failed| panic!("{}", failed.1));
    // Else the kernel frees the map some time later, and the source keeps a program until then.
    assert!(map.remove(key).expect("removed"));
    drop((map, link));

    let leased = Redirections::leased(&lease, redirect, map_type, 8).expect("loaded");
    let mut link = leased.link(&source.member, &target.member).expect("linked");
    converse();
    loaded.add_what_is_open();
    link.leave(&source.member, PATIENCE).expect("it leaves");
    drop((leased, link));
    lease.release(PATIENCE).expect("released");

    // Closed, and dropped before.
    let redirections = Redirections::new(redirect, map_type, 8).expect("loaded");
    let link = redirections
        .link(&source.member, &target.member)
        .expect("linked");
    converse();
    loaded.add_what_is_open();
    match turn % 2 {
        0 => drop((source, target, link, redirections)),
        _ => drop((redirections, link, source, target)),
    }
}

fn nothing_is_left_after(turns: usize) {
    if !available(Need::Root) {
        return;
    }
    let pins = BpfFileSystem::new("freed").expect("a BPF file system");
    let directory = pins.path().join("lease");
    let mut loaded = Loaded::default();
    // What is made once stays: libbpf's knowledge of the kernel's types, the allocator's arenas.
    (0..8).for_each(|turn| cycle(turn, &directory, &mut loaded));
    let before = resident_bytes();
    for turn in 0..turns {
        cycle(turn, &directory, &mut loaded);
    }
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < MOST_GROWTH_BYTES, "grown by {growth} bytes");
    assert!(loaded.maps.len() > turns && loaded.programs.len() > turns);
    assert!(!directory.exists());
    // A few links that were dropped are kept until more come: those are cleared, and never more than a few.
    let mut kept = Loaded::default();
    kept.add_what_is_open();
    assert!(kept.maps.len() + kept.programs.len() <= 8 * 12);
    loaded.maps.retain(|id| !kept.maps.contains(id));
    loaded.programs.retain(|id| !kept.programs.contains(id));
    until("the kernel has freed the rest", || loaded.are_freed());
}

#[test]
fn maps_and_programs_are_freed_with_their_redirects() {
    nothing_is_left_after(16);
}

#[test]
#[ignore = "soak: a thousand turns take minutes"]
fn a_thousand_redirects_leave_nothing_behind() {
    nothing_is_left_after(1000);
}
