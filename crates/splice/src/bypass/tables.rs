//! The programs and maps of a bypass, loaded or found pinned.

use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::obstacle::Obstacle;
use splice_bpf::clock::now_ns;
use splice_bpf::types::{
    BypassEnd, BypassKey, BypassMember, BypassPair, BypassQuestion, BypassSettings, bypass_answer,
    bypass_role, bypass_verb, bypass_version,
};
use splice_bpf::{Map, Program, RingBuffer, SharedArray, load, objects};
use splice_sockmap::{Names, Pins};

use super::reason::Reason;
use super::words::{WORDS, Words};

/// The names of pins.
const MEMBERS: &str = "members";
const PAIRS: &str = "pairs";
const MARKS: &str = "marks";
const SETTINGS: &str = "settings";
const CAPTURES: &str = "captures";
const CAPTURE_SETTINGS: &str = "capture-settings";
const CONTROL: &str = "control";

/// All of them. The last of the kept ones is the program that user space asks: without it nobody is a member yet. Each of the
/// attached ones has the name of its program behind a hyphen.
pub(super) const PINNED: Names = Names {
    kept: &[
        MEMBERS,
        PAIRS,
        MARKS,
        SETTINGS,
        CAPTURE_SETTINGS,
        CAPTURES,
        WORDS,
        CONTROL,
    ],
    attached: &[
        "link-bypass_gone",
        "link-bypass_received",
        "link-bypass_sent",
        "link-bypass_spliced",
    ],
};

/// A heartbeat that is older is that of a dead owner. The owner writes one every 20 ms, and may be kept from the CPU.
const STALE: Duration = Duration::from_millis(500);

/// How long after its last word a capture is taken for dead.
const CAPTURE_FORGOTTEN: Duration = Duration::from_secs(5);

/// Where the ring of a capture is.
pub(super) const SLOT: u32 = 0;

/// A program runs for microseconds; a virtual machine's CPU can be away for some milliseconds meanwhile.
pub(super) const PROGRAM_MOST: Duration = Duration::from_millis(100);

pub(super) const ROLES: [u32; 2] = [bypass_role::CLIENT, bypass_role::SERVER];

/// What a bypass loads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) connections: u32,
    pub(super) bulk_bytes: u32,
    pub(super) unread_bytes: u64,
    pub(super) least_reads: u32,
}

/// Maps and the control program.
pub(super) struct Tables {
    members: Map,
    pairs: Map,
    settings: SharedArray<BypassSettings>,
    captures: Map,
    control: Program,
    /// `None` if an older version has pinned none.
    words: Option<Words>,
}

/// What a capture shares with the programs.
pub(super) struct Shared {
    pub(super) settings: SharedArray<BypassSettings>,
    pub(super) capture_settings: Map,
    /// Where its ring is.
    pub(super) captures: Map,
}

/// What only the process has that has loaded the programs.
pub(super) struct News {
    ring: RingBuffer,
    /// Of the ring, edge-triggered: it is readable when a program has said that something cannot wait.
    urgent: OwnedFd,
}

const SET_UP: &str = "the bypass cannot be set up";

/// Why something was refused by bpf(2), with what it was for.
fn explained(what: &str, error: &Error) -> Error {
    let obstacle = Obstacle::of_bpf(error);
    Error::new(
        ErrorKind::BpfRefused,
        format!("{what}: {}", obstacle.reason),
    )
    .with_remedy(obstacle.remedy)
}

impl Tables {
    /// Loads everything, names the control groups to the programs, attaches those to their tracepoints, and pins it all.
    pub(super) fn load(pins: &Pins, groups: &[PathBuf], sizes: Sizes) -> Result<(Self, News)> {
        let mut object = load("bypass", objects::BYPASS, |opened| {
            opened.resize("bypass_pairs", sizes.connections)?;
            opened.resize("bypass_members", sizes.connections.saturating_mul(2))
        })
        .map_err(|error| explained(SET_UP, &error))?;
        let members = object.map("bypass_members")?;
        let pairs = object.map("bypass_pairs")?;
        let marks = object.map("bypass_marks")?;
        let word = object.map("bypass_control_word")?;
        let shared = [
            ("bypass_members", &members),
            ("bypass_pairs", &pairs),
            ("bypass_marks", &marks),
            ("bypass_control_word", &word),
        ];
        let mut asking = load("bypass_control", objects::BYPASS_CONTROL, |opened| {
            shared
                .iter()
                .try_for_each(|(name, map)| opened.share(name, *map))
        })
        .map_err(|error| explained(SET_UP, &error))?;
        let settings: SharedArray<BypassSettings> = word.share_values()?;
        let of = settings.at(0);
        of.bulk_bytes.store(sizes.bulk_bytes, Ordering::Relaxed);
        of.unread_bytes.store(sizes.unread_bytes, Ordering::Relaxed);
        of.least_reads.store(sizes.least_reads, Ordering::Relaxed);
        of.owner.store(std::process::id(), Ordering::Relaxed);
        of.lease.begin(STALE, bypass_version::LAYOUT);

        object.attach_to_map("bypass_send", &members)?;
        for (name, map) in [
            (MEMBERS, "bypass_members"),
            (PAIRS, "bypass_pairs"),
            (MARKS, "bypass_marks"),
            (SETTINGS, "bypass_control_word"),
            (CAPTURE_SETTINGS, "bypass_capture_settings"),
            (CAPTURES, "bypass_captures"),
        ] {
            object.pin_map(map, &pins.path(name))?;
        }
        let words = Words::create(&pins.path(WORDS), sizes.connections)?;
        asking.pin_program("bypass_control", &pins.path(CONTROL))?;
        let covered = object.map("bypass_groups")?;
        for group in groups {
            let failed = |error| {
                let what = format!("cannot look at the control group {}", group.display());
                Error::system(what, error)
            };
            // The number of its directory is the group's (kernfs_node::id, Linux 5.5).
            let number = std::fs::metadata(group).map_err(failed)?.ino();
            covered
                .update(&number, &1u32)
                .map_err(|errno| failed(errno.into()))?;
        }
        // Last: from here on connections are seen.
        for name in PINNED.attached {
            let program = name.trim_start_matches("link-");
            let attached = object.attach_to_its_tracepoint(program);
            let mut link = attached.map_err(|error| explained(SET_UP, &error))?;
            link.pin(&pins.path(name))?;
        }
        let news = News::of(&object.map("bypass_news")?)?;
        let tables = Self {
            members,
            pairs,
            settings,
            captures: object.map("bypass_captures")?,
            control: asking.program("bypass_control")?,
            words: Some(words),
        };
        Ok((tables, news))
    }

    /// Opens what is pinned.
    pub(super) fn open(pins: &Pins) -> Result<Self> {
        let open = |name| Map::open(name, &pins.path(name));
        let (members, pairs, word) = (open(MEMBERS)?, open(PAIRS)?, open(SETTINGS)?);
        let settings = settings_of(pins, &word, &pairs)?;
        Ok(Self {
            members,
            pairs,
            settings,
            captures: open(CAPTURES)?,
            control: Program::open(CONTROL, &pins.path(CONTROL))?,
            words: Words::open(&pins.path(WORDS)).ok(),
        })
    }

    /// Takes the ring of a dead capture away.
    pub(super) fn end_stale_capture(&self) {
        let until_ns = &self.settings().capture_until_ns;
        let said = until_ns.load(Ordering::Acquire);
        let forgotten = said.saturating_add(CAPTURE_FORGOTTEN.as_nanos() as u64);
        if said == 0 || now_ns() < forgotten {
            return;
        }
        // Nobody else begins meanwhile. One that only stood still finds that it has ended.
        let own = now_ns().saturating_add(CAPTURE_FORGOTTEN.as_nanos() as u64);
        let swap =
            |from, to| until_ns.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        if swap(said, own).is_ok() {
            self.captures.remove(&SLOT);
            let _ = swap(own, 0);
        }
    }

    pub(super) fn settings(&self) -> &BypassSettings {
        self.settings.at(0)
    }

    /// Says that the owner lives.
    pub(super) fn beat(&self) {
        self.settings().lease.beat();
    }

    /// Whether an owner lives.
    pub(super) fn is_alive(&self) -> bool {
        self.settings().lease.is_held()
    }

    pub(super) fn pair(&self, key: BypassKey) -> Option<BypassPair> {
        self.pairs.read(&key)
    }

    pub(super) fn keys(&self) -> Vec<BypassKey> {
        self.pairs.keys()
    }

    pub(super) fn members(&self) -> Vec<BypassMember> {
        self.members.keys()
    }

    /// Takes an end out of the map. Nothing may be redirected to it any more.
    pub(super) fn remove(&self, member: BypassMember) {
        self.members.remove(&member);
    }

    /// Takes both ends out of the map, with what they have not read.
    pub(super) fn remove_both(&self, key: BypassKey) {
        members(key)
            .into_iter()
            .for_each(|member| self.remove(member));
    }

    /// Gives a pair a new state. Counters of redirects that are under way count until programs have ended.
    pub(super) fn turn(&self, key: BypassKey, state: u32, reason: Option<Reason>) {
        // A pair that has ended needs no state.
        let _ = self.ask(BypassQuestion {
            key,
            verb: bypass_verb::TURN,
            state,
            reason: reason.map_or(0, |reason| reason as u32),
            ..BypassQuestion::default()
        });
    }

    /// Keeps the reason of a pair in words, or forgets it.
    pub(super) fn explain(&self, key: BypassKey, why: Option<&str>) {
        match (&self.words, why) {
            (Some(words), Some(why)) => words.set(key, why),
            (Some(words), None) => words.remove(key),
            (None, _) => {}
        }
    }

    pub(super) fn explanation(&self, key: BypassKey) -> Option<String> {
        self.words.as_ref()?.get(key)
    }

    /// Forgets the reasons of pairs that are gone.
    pub(super) fn forget_explanations(&self) {
        if let Some(words) = &self.words {
            words.keep(|key| self.pair(key).is_some());
        }
    }

    pub(super) fn ask(
        &self,
        question: BypassQuestion,
    ) -> std::result::Result<BypassQuestion, Errno> {
        self.control.run(&question)
    }

    /// Whether what was redirected to this member waits in its queue.
    pub(super) fn has_unread(&self, member: BypassMember) -> bool {
        let answer = self.ask(BypassQuestion {
            key: member.key,
            role: member.role,
            verb: bypass_verb::INSPECT,
            ..BypassQuestion::default()
        });
        answer.is_ok_and(|of| of.answer == bypass_answer::DONE && of.has_unread != 0)
    }
}

impl Shared {
    /// Opens what is pinned.
    pub(super) fn open(pins: &Pins) -> Result<Self> {
        let open = |name| Map::open(name, &pins.path(name));
        let (pairs, word) = (open(PAIRS)?, open(SETTINGS)?);
        Ok(Self {
            settings: settings_of(pins, &word, &pairs)?,
            capture_settings: open(CAPTURE_SETTINGS)?,
            captures: open(CAPTURES)?,
        })
    }
}

fn settings_of(pins: &Pins, word: &Map, pairs: &Map) -> Result<SharedArray<BypassSettings>> {
    let foreign = || pins.foreign("end it with the program that has started it");
    if !word.is_of::<u32, BypassSettings>() || !pairs.is_of::<BypassKey, BypassPair>() {
        return Err(foreign());
    }
    let settings: SharedArray<BypassSettings> = word.share_values()?;
    match settings.at(0).lease.is_of(bypass_version::LAYOUT) {
        true => Ok(settings),
        false => Err(foreign()),
    }
}

impl News {
    fn of(ring: &Map) -> Result<Self> {
        let failed = |errno| Error::system("cannot wait for the programs of the bypass", errno);
        let urgent = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&urgent, ring, EventData::new_u64(0), flags).map_err(failed)?;
        Ok(Self {
            ring: ring.consume()?,
            urgent,
        })
    }

    /// Waits until something cannot wait, for `most` at the longest.
    pub(super) fn wait(&self, most: Duration) {
        let most = Timespec {
            tv_sec: most.as_secs() as i64,
            tv_nsec: most.subsec_nanos().into(),
        };
        let mut events = [MaybeUninit::uninit()];
        // A signal ends it as well, and does no harm.
        let _ = epoll::wait(&self.urgent, &mut events[..], Some(&most));
    }

    pub(super) fn take(&mut self) -> Vec<BypassKey> {
        let mut keys = Vec::new();
        self.ring.take_values(|key: &BypassKey| keys.push(*key));
        keys
    }
}

/// Both ends of a pair, as keys.
pub(super) fn members(key: BypassKey) -> [BypassMember; 2] {
    ROLES.map(|role| BypassMember {
        key,
        role,
        _reserved: 0,
    })
}

/// How many redirected bytes of each end its peer has not read; never too few.
pub(super) fn unread(pair: &BypassPair) -> [u64; 2] {
    let [client, server] = &pair.ends;
    [(client, server), (server, client)].map(|(from, to)| {
        let read = to.received_bytes.wrapping_sub(to.tcp_bytes) as i64;
        let left = (from.redirected_bytes as i64).wrapping_sub(read);
        left.max(0) as u64
    })
}

pub(super) fn address(bytes: [u8; 16]) -> IpAddr {
    IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
}

/// The end's own address. Ports have 16 bits.
pub(super) fn end_address(end: &BypassEnd) -> SocketAddr {
    SocketAddr::new(address(end.local), end.local_port as u16)
}

/// What the end takes for its peer's.
pub(super) fn peer_address(end: &BypassEnd) -> SocketAddr {
    SocketAddr::new(address(end.remote), end.remote_port as u16)
}
