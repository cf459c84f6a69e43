//! The maps and programs of one redirect, loaded.

mod caught;
mod pinned;

pub(crate) use self::pinned::PINNED;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};
use splice_base::release::Release;
use splice_bpf::types::{
    Redirection, RedirectionsLook, RedirectionsSetting, RedirectionsUnknown, redirections_verb,
};
use splice_bpf::{Map, Program, SocketMap, SocketMapType, load, objects, wait_for_programs};

use crate::bound::{self, Bounds};
use crate::floor;
use crate::heartbeat::Heartbeat;
use crate::key::Cookie;
use crate::map::{explained, refusal};
use crate::pins::Pins;
use crate::redirect::Redirect;
use crate::socket_kind::SocketKind;

/// Why a source is not linked to its own peer.
pub(crate) const OVERTAKEN: &str = "the target has bytes that came before the link, or are on their way to it, and would read \
     redirected ones first: let its process read them, and try again";

/// The section of `setting` in bpf/redirections.bpf.c.
const SETTING_SECTION: &str = ".rodata.setting";

/// What is loaded, and for whom.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) redirect: Redirect,
    pub(crate) map_type: SocketMapType,
    /// How many sources fit.
    pub(crate) entries: u32,
    /// There is one source. UNIX sources need it, since their messages do not tell who received them.
    pub(crate) only: bool,
    /// Answer the kernel what its helpers answer, which loses what they refuse: to show what the kernel does.
    pub(crate) raw: bool,
    /// The kernel whose defects keep sockets from being linked. `None` if they are to be linked despite of them.
    pub(crate) release: Option<Release>,
}

pub(crate) struct Loaded {
    plan: Plan,
    setting: RedirectionsSetting,
    /// The one that redirects. `None` if it was opened to have everything leave.
    program: Option<Program>,
    /// If there is a lease.
    pins: Option<Pins>,
    sources: SocketMap,
    /// The sources by the keys of their places, if their map is the caller's, or may be.
    own: Option<Mutex<HashMap<u64, Own>>>,
    targets: SocketMap,
    redirections: Map,
    unknown: Map,
    bounds: Bounds,
    look: Program,
    /// `None` if it was opened to have everything leave.
    quiet: Option<Program>,
    slots: Mutex<Slots>,
    /// Held while a source is added: of two threads that add the same one, the second must not undo what the first
    /// has done.
    adding: Mutex<()>,
}

/// A source in a map of the caller's.
#[derive(Clone, Debug)]
struct Own {
    key: Vec<u8>,
    cookie: Cookie,
}

/// Which indices are free, if the maps are arrays.
#[derive(Default)]
struct Slots {
    unused: u32,
    free: VecDeque<u32>,
}

/// Where a source and its target are in the maps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The cookie of the source, or 0 if it is the only one.
    key: u64,
    slot: u32,
}

impl Plan {
    /// That no defect of this kernel harms a target of a kind.
    pub(crate) fn require_sound(self, target: SocketKind) -> Result<()> {
        floor::require(self.redirect, target, self.release)
    }
}

impl Loaded {
    pub(crate) fn load(plan: Plan) -> Result<Self> {
        Self::load_or_explain(plan, None, None, None)
    }

    /// The same for a source that needs a program of its own, with the bounds of others that have the same targets.
    pub(crate) fn load_beside(
        plan: Plan,
        heartbeat: Option<&Heartbeat>,
        others: &Self,
    ) -> Result<Self> {
        Self::load_or_explain(plan, None, heartbeat, Some(&others.bounds))
    }

    /// The same, pinned for as long as the owner of a heartbeat lives.
    pub(crate) fn load_leased(plan: Plan, heartbeat: &Heartbeat) -> Result<Self> {
        Self::load_or_explain(plan, None, Some(heartbeat), None)
    }

    /// The same with a map of the caller's for the sources. Nobody is in it yet: a member keeps the program that its map had
    /// when it came (`sock_map_link`).
    pub(crate) fn load_for(
        plan: Plan,
        sources: &SocketMap,
        heartbeat: Option<&Heartbeat>,
    ) -> Result<Self> {
        Self::load_or_explain(plan, Some(sources), heartbeat, None)
    }

    fn load_or_explain(
        plan: Plan,
        own_sources: Option<&SocketMap>,
        heartbeat: Option<&Heartbeat>,
        bounds: Option<&Bounds>,
    ) -> Result<Self> {
        let loaded = Self::load_with(plan, own_sources, heartbeat, bounds);
        loaded.map_err(|error| match error.errno() {
            // At any step.
            Some(Errno::MFILE) => explained(&error),
            _ => error,
        })
    }

    fn load_with(
        plan: Plan,
        own_sources: Option<&SocketMap>,
        heartbeat: Option<&Heartbeat>,
        bounds: Option<&Bounds>,
    ) -> Result<Self> {
        let setting = RedirectionsSetting {
            is_hash: (plan.map_type == SocketMapType::Hash).into(),
            to_local: plan.redirect.is_to_local().into(),
            only: plan.only.into(),
            is_sent: plan.redirect.is_of_sent().into(),
            raw: plan.raw.into(),
        };
        let mut object = load("redirections", objects::REDIRECTIONS, |opened| {
            opened.set_constant(SETTING_SECTION, &setting)?;
            if let Some(heartbeat) = heartbeat {
                opened.share(pinned::LEASE, heartbeat.map())?;
            }
            if own_sources.is_none() {
                opened.retype("sources", plan.map_type)?;
                opened.resize("sources", plan.entries)?;
            }
            opened.retype("targets", plan.map_type)?;
            opened.resize("targets", plan.entries)?;
            match bounds {
                Some(bounds) => opened.share("bounds", bounds.map())?,
                None => {
                    let targets = plan.entries.saturating_add(bound::OF_UNIX_SOURCES);
                    opened.resize("bounds", targets)?;
                }
            }
            opened.resize("redirections", plan.entries)
        })
        .map_err(|error| explained(&error))?;
        let mut sources = match own_sources {
            Some(own) => own.duplicate()?,
            None => object.socket_map("sources")?,
        };
        let program = if plan.redirect.is_of_sent() {
            "redirect_sent"
        } else {
            "redirect_received"
        };
        let pins = match heartbeat {
            Some(heartbeat) => Some(heartbeat.next_set(PINNED)?),
            None => None,
        };
        let pinned = match &pins {
            Some(pins) => pinned::pin(&mut object, &mut sources, pins),
            None => Ok(()),
        };
        // Last, since a program would stay attached to a map of the caller's.
        let attached = pinned.and_then(|()| object.attach_to_map(program, &sources));
        if let Err(error) = attached {
            let _ = pins.as_ref().map(Pins::remove);
            return Err(error);
        }
        Ok(Self {
            plan,
            setting,
            program: Some(object.program(program)?),
            pins,
            sources,
            own: own_sources.map(|_| Mutex::default()),
            targets: object.socket_map("targets")?,
            redirections: object.map("redirections")?,
            unknown: object.map("unknown")?,
            bounds: match bounds {
                Some(bounds) => bounds.clone(),
                None => Bounds::of(object.map("bounds")?),
            },
            look: object.program(pinned::LOOK)?,
            quiet: Some(object.program("quiet")?),
            slots: Mutex::default(),
            adding: Mutex::new(()),
        })
    }

    /// Whether a source that is no member any more has had a verdict while it was one.
    pub(crate) fn has_moved(&self, place: Place) -> bool {
        // It counts before the target has the bytes. Without the wait it may be about to: then it counts as moved,
        // since a source that is linked for good loses nothing.
        let is_over = wait_for_programs().is_ok();
        let counts = self.redirection(place.key).unwrap_or_default();
        !is_over || counts.messages > 0 || counts.passed.iter().any(|count| *count > 0)
    }

    /// Redirects what a source sends or receives to a target, from now on. Only a map of the caller's has a key for the source
    /// that is not that of its place.
    pub(crate) fn add(
        &self,
        own_key: Option<Vec<u8>>,
        (source, source_kind): (BorrowedFd<'_>, SocketKind),
        (target, target_kind): (BorrowedFd<'_>, SocketKind),
    ) -> Result<Place> {
        let cookie = Cookie::of(source)?;
        let key = if self.plan.only { 0 } else { cookie.0 };
        let _one = lock(&self.adding);
        if self.redirection(key).is_some() {
            return Err(linked_already());
        }
        let slot = self.take_slot()?;
        let place = Place { key, slot };
        if let (Some(own), Some(own_key)) = (&self.own, own_key) {
            let source = Own {
                key: own_key,
                cookie,
            };
            lock(own).insert(key, source);
        }
        let added = self.add_at(place, (source, source_kind), (target, target_kind));
        if added.is_err() {
            self.remove(place);
        }
        added.map(|()| place)
    }

    fn add_at(
        &self,
        place: Place,
        (source, source_kind): (BorrowedFd<'_>, SocketKind),
        (target, target_kind): (BorrowedFd<'_>, SocketKind),
    ) -> Result<()> {
        let key = self.key_bytes(place);
        let inserted = self.targets.insert(&key, target);
        inserted.map_err(|errno| refusal(target_kind, errno).about("the target"))?;
        self.note(place, source_kind, target_kind, Cookie::of(target)?)?;
        self.aim(place)?;
        // Last: from here on messages go to the target.
        let key = self.source_key(place).unwrap_or(key);
        let inserted = self.sources.insert(&key, source);
        inserted.map_err(|errno| refusal(source_kind, errno).about("the source"))
    }

    /// Tells the program of a source.
    fn note(&self, place: Place, source: SocketKind, target: SocketKind, to: Cookie) -> Result<()> {
        let redirection = Redirection {
            slot: place.slot,
            most_bytes: target.most_bytes().unwrap_or(0),
            is_tcp: (source == SocketKind::Tcp).into(),
            is_stream: source.is_stream().into(),
            target: if self.bounds.are_set() { to.0 } else { 0 },
            ..Redirection::default()
        };
        (self.redirections)
            .update(&place.key, &redirection)
            .map_err(|errno| Error::system("cannot note a redirection", errno))?;
        match redirection.target {
            0 => Ok(()),
            bounded => self.bounds.add(bounded, target),
        }
    }

    /// Takes a source out of its map, and leaves it its place.
    pub(crate) fn remove_source(&self, place: Place) {
        // What is not there needs no removal, and what has come in its stead gets none.
        if let Some(key) = self.source_key(place).filter(|_| self.has_source(place)) {
            let _ = self.sources.remove(&key);
        }
    }

    /// Makes a source a member without a redirection, as it is for a moment when it comes or leaves.
    #[cfg(test)]
    pub(crate) fn lose(&self, place: Place) {
        self.redirections.remove(&place.key);
    }

    /// Takes a source and its target out of the maps.
    pub(crate) fn remove(&self, place: Place) {
        self.remove_source(place);
        if let Some(redirection) = self.redirection(place.key) {
            self.bounds.remove(redirection.target);
        }
        self.redirections.remove(&place.key);
        let _ = self.targets.remove(&self.key_bytes(place));
        if let Some(own) = &self.own {
            lock(own).remove(&place.key);
        }
        lock(&self.slots).free.push_back(place.slot);
    }

    /// Whether the source is a member. The kernel removes it when it is closed.
    pub(crate) fn has_source(&self, place: Place) -> bool {
        let Some(key) = self.source_key(place) else {
            return false;
        };
        match (self.sources.cookie(&key), self.own(place)) {
            (Ok(None), _) => false,
            // The key may have another socket since.
            (Ok(Some(cookie)), Some(own)) => cookie == own.cookie.0,
            _ => true,
        }
    }

    /// Whether nothing waits for the target of a source, or there is none any more.
    pub(crate) fn is_drained(&self, place: Place) -> bool {
        match self.look(place) {
            Ok(None) => true,
            Ok(Some(look)) => look.backlog == 0 && look.unread == 0,
            Err(_) => false,
        }
    }

    /// Whether there is no place for another link.
    pub(crate) fn is_full(&self) -> bool {
        self.has_no_slot() || self.bounds.are_full()
    }

    fn has_no_slot(&self) -> bool {
        let slots = lock(&self.slots);
        slots.free.is_empty() && slots.unused == self.plan.entries
    }

    /// How much went where, if the source is still linked.
    pub(crate) fn counts(&self, place: Place) -> Option<Redirection> {
        self.redirection(place.key)
    }

    /// How many messages were passed of sources that have no link, as those that leave at this moment.
    pub(crate) fn passed_without_link(&self) -> u64 {
        let counted: Option<RedirectionsUnknown> = self.unknown.read(&0u32);
        counted.unwrap_or_default().passed
    }

    /// What the kernel holds for the target of a source. `None` if it has been closed.
    pub(crate) fn look(&self, place: Place) -> Result<Option<RedirectionsLook>> {
        let answer = self.ask(place, redirections_verb::LOOK, 0)?;
        Ok((answer.found != 0).then_some(answer))
    }

    /// Whether it has the same targets, as others for single sources have.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        self.bounds.are_of(&other.bounds)
    }

    /// Tells the bound of a target where that is.
    fn aim(&self, place: Place) -> Result<()> {
        if self.bounds.are_set() {
            self.ask(place, redirections_verb::AIM, 0)?;
        }
        Ok(())
    }

    /// Bounds what is outstanding at each target that gets its first link from now on.
    pub(crate) fn bound(&self, most_bytes: u64) {
        self.bounds.set(most_bytes);
    }

    /// Redirects a stream again that was passed since its target was full. Whether it does: only if so many passed bytes
    /// were seen as there have been.
    pub(crate) fn resume(&self, place: Place, seen: u64) -> Result<bool> {
        let answer = self.ask(place, redirections_verb::RESUME, seen)?;
        Ok(answer.resumed != 0)
    }

    fn ask(&self, place: Place, verb: u32, seen: u64) -> Result<RedirectionsLook> {
        let target = self.redirection(place.key).map_or(0, |of| of.target);
        let question = RedirectionsLook {
            key: place.key,
            slot: place.slot,
            bound: target,
            verb,
            seen,
            ..RedirectionsLook::default()
        };
        let _one = lock(&self.slots);
        let answer = self.look.run(&question);
        answer.map_err(|errno| Error::system("cannot look at a target", errno))
    }

    /// The filter that holds a source still.
    pub(crate) fn quiet(&self) -> Option<BorrowedFd<'_>> {
        self.quiet.as_ref().map(AsFd::as_fd)
    }

    fn redirection(&self, key: u64) -> Option<Redirection> {
        self.redirections.read(&key)
    }

    fn key_bytes(&self, place: Place) -> Vec<u8> {
        match self.plan.map_type {
            SocketMapType::Map => place.slot.to_ne_bytes().into(),
            SocketMapType::Hash => place.key.to_ne_bytes().into(),
        }
    }

    /// The key of a source in its map. `None` if it is not in the caller's.
    fn source_key(&self, place: Place) -> Option<Vec<u8>> {
        match self.own {
            Some(_) => Some(self.own(place)?.key),
            None => Some(self.key_bytes(place)),
        }
    }

    /// The key of a source that is in a map of the caller's.
    pub(crate) fn own_key(&self, place: Place) -> Option<Vec<u8>> {
        let own = self.own(place).filter(|_| self.has_source(place));
        own.map(|own| own.key)
    }

    /// The kernel's id of the program that redirects.
    pub(crate) fn program_id(&self) -> Option<u32> {
        self.program.as_ref()?.id().ok()
    }

    /// Takes the program from a map without sources, and the pins with it.
    pub(crate) fn detach(&self, sources: &SocketMap) -> Result<()> {
        if let Some(program) = &self.program {
            program
                .detach_from_map(sources, self.plan.redirect.is_of_sent())
                .map_err(|errno| Error::system("cannot detach a program from its map", errno))?;
        }
        // What stays there has no source, and the next lease clears it.
        let _ = self.pins.as_ref().map(Pins::remove);
        Ok(())
    }

    fn own(&self, place: Place) -> Option<Own> {
        lock(self.own.as_ref()?).get(&place.key).cloned()
    }

    fn take_slot(&self) -> Result<u32> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.free.pop_front() {
            return Ok(slot);
        }
        if slots.unused == self.plan.entries {
            return Err(Error::system(
                format!("there are {} links already", self.plan.entries),
                Errno::NOSPC,
            ));
        }
        slots.unused += 1;
        Ok(slots.unused - 1)
    }
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Loaded").field(&self.plan).finish()
    }
}

fn linked_already() -> Error {
    Error::new(ErrorKind::System, "the source has a link already")
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is a single step, so a panic leaves none half done.
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
