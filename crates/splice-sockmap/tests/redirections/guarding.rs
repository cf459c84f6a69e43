//! Maps to which somebody else has attached a program: the kernel would let everybody remove its sockets, and add others.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::{ObjectBuilder, ProgramAttachType};
use netlab::{Need, available};
use splice_bpf::objects;
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

/// Attaches a program for received messages in one of its places. Nothing else is left of who has done it.
fn leave_received(map: &SockMap, attached_as: &ProgramAttachType) -> u32 {
    let mut opened = ObjectBuilder::default()
        .open_memory(objects::REDIRECT)
        .expect("an object");
    let mut programs = opened.progs_mut();
    let mut program = programs.next().expect("its program");
    program.set_attach_type(attached_as.clone());
    drop((program, programs));
    let loaded = opened.load().expect("loaded");
    let program = loaded.progs_mut().next().expect("its program");
    program
        .attach_sockmap(map.as_fd().as_raw_fd())
        .expect("attached");
    id_of(program.as_fd())
}

/// The same for sent messages, which have one place.
fn leave_sent(map: &SockMap) -> u32 {
    let loaded = splice_bpf::load("redirections", objects::REDIRECTIONS, |opened| {
        opened.retype("sources", MapType::Map)?;
        opened.retype("targets", MapType::Map)
    });
    let loaded = loaded.expect("loaded");
    let attached = loaded.attach_to_map("redirect_sent", map);
    attached.expect("attached");
    id_of(loaded.program("redirect_sent").expect("it has it"))
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
    let is_kept = |name: &str, leave: &dyn Fn(&SockMap) -> u32| {
        let path = pins.path(name);
        let id = leave(&SockMap::new(&path));
        assert_eq!(is_left_alone::<SockMap>(&path, 0), id, "{name}");
    };
    is_kept("sent", &leave_sent);
    for (name, place) in [
        ("verdict", ProgramAttachType::SkSkbVerdict),
        ("stream verdict", ProgramAttachType::SkSkbStreamVerdict),
        ("parser", ProgramAttachType::SkSkbStreamParser),
    ] {
        is_kept(name, &|map| leave_received(map, &place));
    }
}
