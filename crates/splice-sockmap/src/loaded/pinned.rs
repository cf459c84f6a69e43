//! What is loaded, pinned for as long as a lease holds.

use std::sync::Mutex;

use splice_base::error::{Error, Result};
use splice_bpf::types::{Redirection, RedirectionBound, RedirectionsSetting};
use splice_bpf::{Map, Object, Program, SocketMap, SocketMapType};

use super::{Loaded, Own, Place, Plan, SETTING_SECTION};
use crate::bound::Bounds;
use crate::heartbeat;
use crate::key::Cookie;
use crate::pins::{Names, Pins};
use crate::redirect::Redirect;

/// The map with the heartbeat of an owner, and the name of its pin.
pub(super) const LEASE: &str = "lease";

/// The program that looks at targets, and the name of its pin.
pub(super) const LOOK: &str = "look";

/// The map of the sources, which may be the caller's.
const SOURCES: &str = "sources";

/// The maps that are pinned, with the names of their pins.
const PINNED_MAPS: [(&str, &str); 6] = [
    (LEASE, LEASE),
    (SOURCES, SOURCES),
    ("targets", "targets"),
    ("redirections", "redirections"),
    ("unknown", "unknown"),
    // A name in a BPF file system has no dot (`bpf_lookup`).
    (SETTING_SECTION, "setting"),
];

/// The last is the program that looks at targets: without it no source has come yet.
pub(crate) const PINNED: Names = Names {
    kept: &[
        LEASE,
        SOURCES,
        "targets",
        "redirections",
        "unknown",
        "setting",
        LOOK,
    ],
    attached: &[],
};

pub(super) fn pin(object: &mut Object, sources: &mut SocketMap, pins: &Pins) -> Result<()> {
    for (map, name) in PINNED_MAPS {
        match map {
            SOURCES => sources.pin(&pins.path(name))?,
            _ => object.pin_map(map, &pins.path(name))?,
        }
    }
    object.pin_program(LOOK, &pins.path(LOOK))
}

impl Loaded {
    /// Has everything leave that can leave without a loss from what a dead owner has pinned. Whether nothing is left.
    ///
    /// # Errors
    /// If it cannot be opened, or is of another version.
    pub(crate) fn leave_all(pins: &Pins) -> Result<bool> {
        if !pins.are_whole() {
            return Ok(true);
        }
        let lease = heartbeat::left_by(&Map::open(LEASE, &pins.path(LEASE))?)?;
        let lease = lease.ok_or_else(|| foreign(pins))?;
        let of = Self::open(pins)?;
        lease.at(0).end();
        let keys: Vec<u64> = of.redirections.keys();
        let mut is_empty = true;
        for key in keys {
            let slot = of
                .redirection(key)
                .map_or(0, |redirection| redirection.slot);
            let place = Place { key, slot };
            // What a socket receives may come at any moment, when its removal would lose it.
            let may_leave = of.setting.is_sent != 0 || !of.has_source(place);
            if may_leave && of.is_drained(place) {
                of.remove(place);
            } else {
                is_empty = false;
            }
        }
        Ok(is_empty)
    }

    /// Opens what is pinned, to have it leave.
    fn open(pins: &Pins) -> Result<Self> {
        let [_, sources, targets, redirections, unknown, setting] =
            PINNED_MAPS.map(|(name, path)| Map::open(name, &pins.path(path)));
        let (redirections, setting) = (redirections?, setting?);
        let constant: Option<RedirectionsSetting> =
            match setting.is_of::<u32, RedirectionsSetting>() {
                true => setting.read(&0u32),
                false => None,
            };
        let Some(setting) = constant.filter(|_| redirections.is_of::<u64, Redirection>()) else {
            return Err(foreign(pins));
        };
        let (sources, targets) = (sources?.into_socket_map(), targets?.into_socket_map());
        // The keys may be those of the owner's choice, so each source is found by its cookie.
        let members = sources.keys().filter_map(|key| {
            let cookie = Cookie(sources.cookie(&key).ok()??);
            let place = if setting.only != 0 { 0 } else { cookie.0 };
            Some((place, Own { key, cookie }))
        });
        let own = members.collect();
        let redirect = match (setting.is_sent != 0, setting.to_local != 0) {
            (true, true) => Redirect::SendToLocal,
            (true, false) => Redirect::SendToEgress,
            (false, false) => Redirect::IngressToEgress,
            (false, true) => Redirect::IngressToLocal,
        };
        let map_type = match setting.is_hash {
            0 => SocketMapType::Map,
            _ => SocketMapType::Hash,
        };
        Ok(Self {
            plan: Plan {
                redirect,
                map_type,
                entries: targets.entries(),
                only: setting.only != 0,
                raw: setting.raw != 0,
                release: None,
            },
            setting,
            program: None,
            pins: None,
            sources,
            own: Some(Mutex::new(own)),
            targets,
            redirections,
            unknown: unknown?,
            // For nobody: a new one has its own.
            bounds: Bounds::of(Map::create::<u64, RedirectionBound>("bounds", 1)?),
            look: Program::open(LOOK, &pins.path(LOOK))?,
            quiet: None,
            slots: Mutex::default(),
            adding: Mutex::new(()),
        })
    }
}

fn foreign(pins: &Pins) -> Error {
    pins.foreign("remove it when the processes whose sockets it redirects have ended")
}
