//! The filters of one network namespace, as they were read last, with the devices and their traffic control.
//!
//! nftables, devices and tc tell when they change. Tables of iptables-legacy and programs that are attached by links of
//! BPF do not, and are looked at every second.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use splice_bpf::program_on_device;
use splice_firewall::{
    Changes, Connection, Device, End, Family, Filters, Forwarded, Hook, HookCounts, Link,
    LinkChanges, Links, Reader, Tracking, Verdict,
};

use super::way::{Part, Station};
use crate::firewall::Hooks;

/// How often to look for what changes silently.
const LOOK_EVERY: Duration = Duration::from_millis(700);

/// The rest after a reading, as a multiple of its duration, and the longest one.
const REST_FACTOR: u32 = 9;
const LONGEST_REST: Duration = Duration::from_millis(700);

/// Queueing disciplines that neither delay a segment nor drop one before others, and those that only hold filters.
const HARMLESS: [&str; 10] = [
    "noqueue",
    "noop",
    "pfifo",
    "bfifo",
    "pfifo_fast",
    "mq",
    "fq",
    "fq_codel",
    "clsact",
    "ingress",
];

/// Kinds of devices that decide about packets by programs or rules of their own.
const DECIDING: [&str; 2] = ["netkit", "openvswitch"];

/// What is asked about a connection.
#[derive(Clone, Debug)]
pub(super) struct Question {
    pub(super) family: Family,
    /// What hooks may see as its client and its server: more than one with address translation.
    pub(super) views: Vec<[End; 2]>,
    pub(super) translated: bool,
    /// The same for connection tracking.
    pub(super) tuples: Vec<(SocketAddr, SocketAddr)>,
}

/// A namespace on the way of some connection.
pub(super) struct Site {
    pub(super) namespace: File,
    pub(super) used_at: Instant,
    reader: Reader,
    changes: Changes,
    filters: Filters,
    tracking: Tracking,
    links: Links,
    link_changes: LinkChanges,
    devices: Vec<Link>,
    /// What is on devices that were asked for, by index.
    traffic: HashMap<u32, Option<String>>,
    /// Hooks that are accounted for, or why not; for forwarded connections or own ones.
    accounted: HashMap<(u32, Family, bool), (HookCounts, Option<String>)>,
    looked_at: Instant,
    rests_until: Instant,
}

/// What has changed in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) any: bool,
    /// Connections may take other ways.
    pub(super) of_devices: bool,
}

impl Site {
    /// Reads the filters of this thread's network namespace and watches them.
    ///
    /// # Errors
    /// What cannot be read, in words.
    pub(super) fn open(namespace: File) -> Result<Self, String> {
        let words = |error: io::Error| format!("its devices cannot be read: {error}");
        // Subscribe first, so that no change after the first look is missed.
        let changes = Changes::new().map_err(words)?;
        let link_changes = LinkChanges::new().map_err(words)?;
        let mut reader = Reader::new().map_err(|error| error.to_string())?;
        let mut links = Links::new().map_err(words)?;
        let now = Instant::now();
        Ok(Self {
            namespace,
            used_at: now,
            filters: reader.read().map_err(|error| error.to_string())?,
            reader,
            changes,
            tracking: Tracking::new().map_err(words)?,
            devices: links.all().map_err(words)?,
            links,
            link_changes,
            traffic: HashMap::new(),
            accounted: HashMap::new(),
            looked_at: now,
            rests_until: now,
        })
    }

    /// What becomes readable with a change.
    pub(super) fn watched(&self) -> [BorrowedFd<'_>; 2] {
        use std::os::fd::AsFd as _;
        [self.changes.as_fd(), self.link_changes.as_fd()]
    }

    /// Whether it is time to look, since something was told or some time has passed.
    pub(super) fn is_due(&self, now: Instant, told: bool) -> bool {
        now >= self.rests_until && (told || now - self.looked_at >= LOOK_EVERY)
    }

    pub(super) fn devices(&self) -> &[Link] {
        &self.devices
    }

    pub(super) fn translates(&self) -> bool {
        self.filters.translates()
    }

    /// Reads again what may have changed. Call it in the namespace.
    ///
    /// # Errors
    /// What cannot be read any more: nothing is known then.
    pub(super) fn look(&mut self, hooks: &Hooks) -> Result<Change, String> {
        let words = |error: io::Error| format!("its devices cannot be read: {error}");
        let began = Instant::now();
        self.looked_at = began;
        let mut change = Change::default();
        // A failed socket tells nothing any more.
        let told = self.changes.any().unwrap_or(true);
        match self.reader.read_again(&self.filters, told) {
            Ok(Some(filters)) => {
                self.filters = filters;
                change.any = true;
            }
            Ok(None) => {}
            // The next look reads them again, whatever is told.
            Err(error) if error.is_borne() => {}
            Err(error) => return Err(error.to_string()),
        }
        // Read in any case, since programs come and go silently.
        let _ = self.link_changes.any();
        let devices = self.links.all().map_err(words)?;
        if devices != self.devices {
            self.devices = devices;
            change = Change {
                any: true,
                of_devices: true,
            };
        }
        let asked: Vec<u32> = self.traffic.keys().copied().collect();
        let before = std::mem::take(&mut self.traffic);
        if !asked.is_empty() {
            self.read_traffic(&asked);
        }
        change.any |= before != self.traffic;
        let has_other_hooks = self.accounted.iter().any(|((device, ..), (counts, _))| {
            let now = hooks.counts(*device);
            now.map_or(true, |now| now != *counts)
        });
        if has_other_hooks {
            change.any = true;
        }
        if change.any {
            self.accounted.clear();
        }
        let now = Instant::now();
        self.rests_until = now + ((now - began) * REST_FACTOR).min(LONGEST_REST);
        Ok(change)
    }

    /// Whether this namespace's filters would let every segment pass, and do nothing else with it. Call it in the
    /// namespace.
    ///
    /// # Errors
    /// What they would do, in words.
    pub(super) fn judge(
        &mut self,
        hooks: &Hooks,
        station: &Station,
        question: &Question,
    ) -> Result<(), String> {
        let indices: Vec<u32> = station.devices.iter().map(|device| device.index).collect();
        let unknown: Vec<u32> = (indices.iter().copied())
            .filter(|index| !self.traffic.contains_key(index))
            .collect();
        if !unknown.is_empty() {
            self.read_traffic(&unknown);
        }
        for index in &indices {
            if let Some(Some(why)) = self.traffic.get(index) {
                return Err(why.clone());
            }
        }
        for device in &station.devices {
            if let Some(why) = self.unaccounted(hooks, device, question.family, station.part) {
                return Err(why);
            }
        }
        if self.judge_rules(station, question, false).is_ok() {
            return Ok(());
        }
        let is_tracked = question
            .tuples
            .iter()
            .any(|(from, to)| self.tracking.knows(*from, *to).unwrap_or(false));
        self.judge_rules(station, question, is_tracked)
    }

    fn judge_rules(
        &self,
        station: &Station,
        question: &Question,
        tracked: bool,
    ) -> Result<(), String> {
        for [client, server] in &question.views {
            let own = |local: &End, peer: &End, device: Option<&Device>, accepted| Connection {
                family: question.family,
                local: *local,
                peer: *peer,
                device: device.cloned(),
                accepted,
                tracked,
                opening: false,
            };
            let forwarded = |devices: [Option<&Device>; 2]| Forwarded {
                family: question.family,
                client: *client,
                server: *server,
                devices: devices.map(|device| device.cloned()),
                translated: question.translated,
                tracked,
            };
            let [near_client, near_server] = station.routed.each_ref().map(|of| known(of));
            if matches!(station.part, Part::Client | Part::Both) {
                for device in &near_server {
                    accepts(self.filters.judge(&own(client, server, *device, false)))?;
                }
            }
            if matches!(station.part, Part::Server | Part::Both) {
                for device in &near_client {
                    accepts(self.filters.judge(&own(server, client, *device, true)))?;
                }
            }
            if station.part == Part::Between {
                for from in &near_client {
                    for to in &near_server {
                        accepts(self.filters.judge_forwarded(&forwarded([*from, *to])))?;
                    }
                }
            }
            for device in &station.devices {
                let passing = forwarded([Some(device); 2]);
                accepts(self.filters.judge_on_device(&passing, device))?;
            }
            if station.has_bridge {
                accepts(self.filters.judge_bridged(&forwarded([None, None])))?;
            }
        }
        Ok(())
    }

    /// What the kernel calls for packets of a device beside the rules.
    fn unaccounted(
        &mut self,
        hooks: &Hooks,
        device: &Device,
        family: Family,
        part: Part,
    ) -> Option<String> {
        let is_between = part == Part::Between;
        let key = (device.index, family, is_between);
        if let Some((_, why)) = self.accounted.get(&key) {
            return why.clone();
        }
        let passed: &[Hook] = if is_between {
            &Hook::FORWARDED
        } else {
            &Hook::OWN
        };
        let ask = |filters: &Filters| {
            let registry = hooks
                .list(device.index)
                .map_err(|error| error.to_string())?;
            let accounted = filters.account_for(&registry, family, passed, &device.name);
            Ok::<_, String>((registry.counts, accounted.err()))
        };
        let mut answer = ask(&self.filters);
        // The rules may be older than the hooks.
        if let Ok((_, Some(_))) = answer
            && let Ok(Some(filters)) = self.reader.read_again(&self.filters, true)
        {
            self.filters = filters;
            answer = ask(&self.filters);
        }
        match answer {
            Ok((counts, why)) => {
                self.accounted.insert(key, (counts, why.clone()));
                why
            }
            Err(why) => Some(why),
        }
    }

    /// Reads what is on devices.
    fn read_traffic(&mut self, devices: &[u32]) {
        let disciplines = self.links.disciplines();
        for index in devices {
            let found = match &disciplines {
                Ok(all) => {
                    let kinds: Vec<String> = all
                        .iter()
                        .filter(|of| of.device == *index)
                        .map(|of| of.kind.clone())
                        .collect();
                    self.obstacle_on(*index, &kinds)
                }
                Err(error) => Some(format!("its queueing disciplines cannot be read: {error}")),
            };
            self.traffic.insert(*index, found);
        }
    }

    /// What on a device would stop or delay segments, or is not known.
    fn obstacle_on(&mut self, index: u32, disciplines: &[String]) -> Option<String> {
        let link = self
            .devices
            .iter()
            .find(|link| link.device.index == index)?;
        let name = link.device.name.clone();
        if DECIDING.contains(&link.kind.as_str()) {
            return Some(format!(
                "device {name} is of the kind {}, which has filters of its own",
                link.kind
            ));
        }
        if link.has_xdp {
            return Some(format!("an XDP program is attached to {name}"));
        }
        let shaper = disciplines
            .iter()
            .find(|kind| !HARMLESS.contains(&kind.as_str()));
        if let Some(kind) = shaper {
            return Some(format!(
                "the queueing discipline {kind} of {name} shapes or drops"
            ));
        }
        if disciplines
            .iter()
            .any(|kind| kind == "clsact" || kind == "ingress")
        {
            match self.links.filters(index) {
                Ok(filters) => {
                    if let Some(filter) = filters.first() {
                        return Some(format!("a tc filter ({}) is on {name}", filter.kind));
                    }
                }
                Err(error) => {
                    return Some(format!("the tc filters of {name} cannot be read: {error}"));
                }
            }
        }
        match program_on_device(index) {
            Ok(program) => program
                .map(|program| format!("the BPF program {program} is attached to {name} by tcx")),
            Err(errno) => Some(format!("the programs on {name} cannot be listed: {errno}")),
        }
    }
}

/// Devices that may be the one, or none if that is not known.
fn known(devices: &[Device]) -> Vec<Option<&Device>> {
    if devices.is_empty() {
        vec![None]
    } else {
        devices.iter().map(Some).collect()
    }
}

fn accepts(verdict: Verdict) -> Result<(), String> {
    match verdict {
        Verdict::Accepts => Ok(()),
        Verdict::Stops(reason) | Verdict::Unknown(reason) => Err(reason.to_string()),
    }
}
