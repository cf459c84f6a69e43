//! Maps to which somebody else has attached a program: the kernel would let everybody remove its sockets, and add others.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::thread;
use std::time::Duration;

use netlab::{Need, available};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use splice_bpf::{Object, objects};
use splice_sockmap::{
    Attachment, Cookie, Error, ErrorKind, MapType, Redirect, Result, SockHash, SockMap, SocketKind,
};

use crate::attaching::Own;
use crate::conversation::{Pair, is_empty, put, take};
use crate::linking::ends;
use crate::pins::Pins;

/// Far more than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What everybody can do who has the pin of a map.
trait Pinned: Own {
    fn new(path: &Path) -> Self;
    fn open(path: &Path) -> Self;
    fn put_in(&self, key: u32, socket: impl AsFd) -> Result<()>;
    fn take_out(&self, key: u32) -> Result<bool>;
    fn redirect(self, by: Redirect) -> Result<Attachment<Self>>;
}

impl Pinned for SockMap {
    fn new(path: &Path) -> Self {
        let mut map = Self::create(4).expect("a map");
        map.pin(path).expect("pinned");
        map
    }

    fn open(path: &Path) -> Self {
        Self::open_pinned(path).expect("opened")
    }

    fn put_in(&self, key: u32, socket: impl AsFd) -> Result<()> {
        self.insert(key, socket)
    }

    fn take_out(&self, key: u32) -> Result<bool> {
        self.remove(key)
    }

    fn redirect(self, by: Redirect) -> Result<Attachment<Self>> {
        self.attach(by)
    }
}

impl Pinned for SockHash<u32> {
    fn new(path: &Path) -> Self {
        let mut map = Self::create(4).expect("a map");
        map.pin(path).expect("pinned");
        map
    }

    fn open(path: &Path) -> Self {
        Self::open_pinned(path).expect("opened")
    }

    fn put_in(&self, key: u32, socket: impl AsFd) -> Result<()> {
        self.insert(key, socket)
    }

    fn take_out(&self, key: u32) -> Result<bool> {
        self.remove(key)
    }

    fn redirect(self, by: Redirect) -> Result<Attachment<Self>> {
        self.attach(by)
    }
}

/// One sentence, which names the program and says what to do instead.
fn says_so<T>(refused: Result<T>, done: &str, remedy: &str) -> u32 {
    let error: Error = refused.map(drop).expect_err("a program is attached");
    assert_eq!(error.kind(), ErrorKind::System, "{error}");
    let said = error.to_string();
    assert_eq!(said.lines().count(), 1, "{said}");
    let begin = format!("cannot {done}: program ");
    let rest = said
        .strip_prefix(&begin)
        .unwrap_or_else(|| panic!("{said}"));
    assert!(said.ends_with(remedy), "{said}");
    let (id, _) = rest
        .split_once(" is attached to it")
        .expect("what there is");
    id.parse().expect("a number")
}

/// The number of the program, which each refusal names.
fn is_left_alone<M: Pinned>(path: &Path, key: u32) -> u32 {
    let stranger = Pair::of(SocketKind::Tcp);
    let ids = [
        says_so(
            M::open(path).take_out(key),
            "remove the socket from the map",
            "or close the socket",
        ),
        says_so(
            M::open(path).put_in(3, &stranger.member),
            "insert the socket into the map",
            "or use another map",
        ),
        says_so(
            M::open(path).redirect(Redirect::SendToLocal),
            "attach a redirect to the map",
            "or create another map",
        ),
    ];
    assert_eq!(ids, [ids[0]; 3]);
    ids[0]
}

#[test]
fn a_redirect_keeps_its_sources_from_whoever_has_the_pin_of_the_map() {
    if !available(Need::Root) {
        return;
    }
    for redirect in Redirect::ALL {
        keeps_its_sources::<SockMap>(redirect);
        keeps_its_sources::<SockHash<u32>>(redirect);
    }
}

fn keeps_its_sources<M: Pinned>(redirect: Redirect) {
    const MESSAGES: u32 = 50;
    let pins = Pins::new();
    let path = pins.path("sources");
    let attachment = M::new(&path).redirect(redirect).expect("attached");
    // Also while it has none.
    is_left_alone::<M>(&path, 2);
    let kind = match redirect.is_of_sent() {
        true => SocketKind::Tcp,
        false => SocketKind::Udp,
    };
    let [source, target] = [(); 2].map(|()| Pair::of(kind));
    let mut link = attachment
        .link(2, &source.member, &target.member)
        .expect("linked");
    let (from, to) = ends(redirect, &source, &target);
    for number in 0..MESSAGES {
        put(from, &number.to_ne_bytes());
        is_left_alone::<M>(&path, 2);
        assert_eq!(take(to), number.to_ne_bytes(), "{redirect}");
    }
    assert_eq!(link.counters().messages, u64::from(MESSAGES));
    let other = M::open(&path);
    let cookie = Cookie::of(&source.member).expect("a cookie");
    assert_eq!(other.members(), [(2, cookie)], "everybody may look");

    // Without the redirect the map is everybody's.
    let detached = attachment.detach([(&mut link, &source.member)], PATIENCE);
    drop(detached.unwrap_or_else(|failed| panic!("{}", failed.1)));
    assert!(other.take_out(2).expect("removed"));
    other.put_in(2, &source.member).expect("inserted");
    assert!(other.take_out(2).expect("removed"));
    other.redirect(redirect).expect("attached");
    assert!(is_empty(to) && is_empty(&source.member));
}

/// Attaches a program, and leaves nothing else of who has done it.
fn leave(loaded: Result<Object>, program: &'static str, map: &SockMap) -> u32 {
    let loaded = loaded.expect("loaded");
    loaded.attach_to_map(program, map).expect("attached");
    id_of(loaded.program(program).expect("it has it"))
}

fn redirections() -> Result<Object> {
    splice_bpf::load("redirections", objects::REDIRECTIONS, |opened| {
        opened.retype("sources", MapType::Map)?;
        opened.retype("targets", MapType::Map)
    })
}

fn mesh() -> Result<Object> {
    splice_bpf::load("mesh", objects::MESH, |opened| {
        opened.resize("mesh_records", rustix::param::page_size() as u32)
    })
}

fn id_of(program: impl AsFd) -> u32 {
    let descriptor = program.as_fd().as_raw_fd();
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).expect("known");
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("prog_id:\t"));
    id.expect("a number").parse().expect("a number")
}

#[test]
fn the_program_of_an_owner_that_is_gone_keeps_its_map_in_each_place() {
    if !available(Need::Root) {
        return;
    }
    let pins = Pins::new();
    let places = [
        ("redirect_sent", redirections as fn() -> _),
        ("redirect_received", redirections),
        ("mesh_parser", mesh),
        ("mesh_verdict", mesh),
    ];
    for (program, load) in places {
        let path = pins.path(program);
        let id = leave(load(), program, &SockMap::new(&path));
        assert_eq!(is_left_alone::<SockMap>(&path, 0), id, "{program}");
    }
}

/// The kernel lets everybody replace the program who has the map. The sources that are linked keep theirs.
#[test]
fn a_source_is_not_linked_under_the_program_of_another() {
    if !available(Need::Root) {
        return;
    }
    let pins = Pins::new();
    for program in ["redirect_received", "redirect_sent"] {
        let path = pins.path(program);
        let attachment = SockMap::new(&path).redirect(Redirect::IngressToEgress);
        let attachment = attachment.expect("attached");
        let [first, second, target] = [(); 3].map(|()| Pair::of(SocketKind::Tcp));
        let mut link = attachment
            .link(0, &first.member, &target.member)
            .expect("linked");
        let id = leave(redirections(), program, &SockMap::open(&path));
        let refused = attachment.link(1, &second.member, &target.member);
        let said = refused.expect_err("it has another program").to_string();
        let begin = format!("cannot link a source: the map has the program {id}, ");
        assert!(said.starts_with(&begin), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        put(&first.peer, b"redirected");
        assert_eq!(take(&target.peer), b"redirected");
        put(&second.peer, b"plain");
        assert_eq!(take(&second.member), b"plain");
        link.leave(&first.member, PATIENCE).expect("it leaves");
    }
}

/// Whoever may use bpf(2) and may not ask for programs cannot know what a removal would lose.
#[test]
fn without_the_right_to_ask_a_map_stays_as_it_is() {
    if !available(Need::Root) {
        return;
    }
    let map = SockMap::create(2).expect("a map");
    let pair = Pair::of(SocketKind::Tcp);
    map.insert(0, &pair.member).expect("inserted");
    // Capabilities are those of a thread, which ends with this.
    let said = thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let mut kept = capabilities(None).expect("known");
            kept.effective = CapabilitySet::BPF | CapabilitySet::PERFMON;
            set_capabilities(None, kept).expect("dropped");
            [map.remove(0).map(drop), map.insert(1, &pair.member)]
                .map(|refused| refused.expect_err("it cannot ask").to_string())
        });
        asked.join().expect("it has ended")
    });
    for said in said {
        assert!(said.contains("does not tell whether a program"), "{said}");
        assert!(said.ends_with("run it with CAP_NET_ADMIN"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(map.iter().count(), 1);
    assert!(map.remove(0).expect("removed"));
}
