//! Watches whether what devices receive still reaches the program. Somebody may detach it, or attach a program before it that
//! keeps segments from it. A pair whose segments do not reach the program is not spliced, but one that is does not notice.

use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use splice_bpf::{Beside, DeviceLink, programs_beside};

use super::Datapath;
use super::attachment::{Attached, Attachment};
use super::preceding::{Preceding, preceding};

impl Datapath {
    /// What a pair on a device has to know, before its first segment counts.
    pub(in super::super) fn attached(&self, device: u32) -> Option<Arc<Attached>> {
        let table = self.table();
        let attachment = table.devices.get(&device)?;
        Some(Arc::clone(&attachment.attached))
    }

    /// Looks whether what devices receive still reaches the program.
    pub(in super::super) fn look_at_attachments(&self) {
        self.reserve.fill();
        self.replace_displaced();
        let devices: Vec<_> = {
            let table = self.table();
            let links = |(device, attachment): (&u32, &Attachment)| {
                (*device, Arc::clone(&attachment.links))
            };
            table.devices.iter().map(links).collect()
        };
        for (device, links) in devices {
            if !links.iter().all(DeviceLink::is_attached) {
                drop(links);
                // Should it fail, the next pair attaches the program, or hears why it cannot.
                let _ = self.reattach(device);
            } else if let Some(before) = preceding(device, &self.ingress, &links[0], &self.links) {
                // Nobody else keeps it attached.
                drop(links);
                self.look_before(device, before);
                self.look_after(device);
            }
        }
    }

    /// What precedes the program on a device now may not have been there when it saw the segments of pairs.
    fn look_before(&self, device: u32, now: Vec<Preceding>) {
        let new: Vec<_> = match self.table().devices.get(&device) {
            Some(Attachment { before, .. }) => {
                let new = now.iter().filter(|one| !before.contains(one));
                new.cloned().collect()
            }
            None => return,
        };
        let newcomer = match self.first_foreign(&new) {
            Ok(newcomer) => newcomer,
            Err(_) if self.bears_shortage(device) => return,
            Err(_) => new.first().map(Preceding::words_unasked),
        };
        if let Some(attachment) = self.table().devices.get_mut(&device) {
            attachment.shortage.end();
        }
        let Some(newcomer) = newcomer else {
            if let Some(attachment) = self.table().devices.get_mut(&device) {
                attachment.before = now;
            }
            return;
        };
        let name = self
            .name_of(device)
            .unwrap_or_else(|_| format!("device {device}"));
        let why = format!("{name} has {newcomer} before the relay's, which came later");
        // A socket that takes its connection up gets nothing that it does not expect, unless the program changes that.
        // So the program has to see what they receive.
        let _one = self.attaching();
        let mut table = self.table();
        let Some(attachment) = table.devices.get_mut(&device) else {
            return;
        };
        let is_held = Arc::strong_count(&attachment.attached) > 1;
        if is_held && matches!(attachment.links[0], DeviceLink::Tcx(_)) {
            let gone = table.devices.remove(&device);
            drop(table);
            self.move_to(device, gone, why, new);
        } else {
            attachment.before = now;
            let again = Arc::new(Attached::again());
            let lost = std::mem::replace(&mut attachment.attached, again);
            drop(table);
            self.lose(&lost, why);
        }
    }

    /// The first of them that is none of another relay, in words.
    ///
    /// # Errors
    /// If something is short.
    fn first_foreign(&self, all: &[Preceding]) -> Result<Option<String>, Errno> {
        for one in all {
            let foreign = one.words(&self.foreign)?;
            if foreign.is_some() {
                return Ok(foreign);
            }
        }
        Ok(None)
    }

    /// Whether pairs on a device go on as they are, while a shortage keeps the program before ours from being asked for.
    fn bears_shortage(&self, device: u32) -> bool {
        let mut table = self.table();
        let attachment = table.devices.get_mut(&device);
        attachment.is_some_and(|attachment| attachment.shortage.bears(Instant::now()))
    }

    /// Those that the program has overtaken on a device may be gone: then it takes its place after the others again.
    fn look_after(&self, device: u32) {
        let overtaken = match self.table().devices.get(&device) {
            Some(Attachment { overtaken, .. }) if !overtaken.is_empty() => overtaken.clone(),
            _ => return,
        };
        let Ok(own) = self.ingress.id() else {
            return;
        };
        let Ok(Beside::Programs { after, .. }) = programs_beside(device, own) else {
            return;
        };
        let after: Vec<_> = after.into_iter().map(Preceding::Program).collect();
        if after.iter().any(|one| overtaken.contains(one)) {
            return;
        }
        let Ok(other) = self.first_foreign(&after) else {
            // The next look asks again.
            return;
        };
        let are_others = other.is_some();
        let _one = self.attaching();
        let mut table = self.table();
        if are_others {
            let gone = table.devices.remove(&device);
            drop(table);
            let why = "the relay's program goes back behind other tc programs";
            self.move_to(device, gone, why.into(), Vec::new());
        } else if let Some(attachment) = table.devices.get_mut(&device) {
            attachment.overtaken.clear();
        }
    }

    /// Attaches the program to another place of its device, while nobody else attaches anything.
    fn move_to(
        &self,
        device: u32,
        gone: Option<Attachment>,
        why: String,
        overtaken: Vec<Preceding>,
    ) {
        let Some(Attachment {
            links, attached, ..
        }) = gone
        else {
            return;
        };
        // Before the program sees segments again, which would count for these pairs.
        self.lose(&attached, why);
        // The kernel refuses a program that is there already, and somebody may look at the descriptors.
        for link in links.iter() {
            let _ = link.detach();
        }
        drop(links);
        if self.attach(device, overtaken.clone()).is_err() {
            // The sockets of these pairs need the program: the next look tries again.
            self.table().displaced.insert(device, overtaken);
        }
    }

    /// Attaches the program where that has failed.
    fn replace_displaced(&self) {
        let displaced = std::mem::take(&mut self.table().displaced);
        for (device, overtaken) in displaced {
            let _one = self.attaching();
            if self.attach(device, overtaken.clone()).is_err() && self.name_of(device).is_ok() {
                self.table().displaced.insert(device, overtaken);
            }
        }
    }

    /// The program was attached to a device, and is not any more.
    pub(super) fn tell_detached(&self, device: u32, lost: &Arc<Attached>) {
        match self.name_of(device) {
            Ok(name) => {
                let why = format!("the relay's program was detached from {name}");
                self.lose(lost, why);
            }
            // Who watches filters and routes tells of it.
            Err(_) => {
                lost.lose(format!("device {device} is gone"));
                self.calls.wake_all();
            }
        }
    }

    fn lose(&self, lost: &Arc<Attached>, why: String) {
        if Arc::strong_count(lost) == 1 {
            // No pair holds it.
            return;
        }
        tracing::warn!("spliced connections go back to the network stack: {why}");
        lost.lose(why);
        self.calls.wake_all();
    }

    fn name_of(&self, device: u32) -> rustix::io::Result<String> {
        index_to_name(&self.socket, device)
    }
}
