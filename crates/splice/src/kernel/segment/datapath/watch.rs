//! Watches whether what devices receive still reaches the program. Somebody may detach it, or attach a program before it that
//! keeps segments from it. A pair whose segments do not reach the program is not spliced, but one that is does not notice.

use std::sync::Arc;

use rustix::net::netdevice::index_to_name;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use splice_bpf::DeviceLink;

use super::Datapath;
use super::attachment::{Attached, Attachment};
use super::before::{Preceding, preceding};

impl Datapath {
    /// What a pair on a device has to know, before its first segment counts.
    pub(in super::super) fn attached(&self, device: u32) -> Option<Arc<Attached>> {
        let table = self.table();
        let attachment = table.devices.get(&device)?;
        Some(Arc::clone(&attachment.attached))
    }

    /// Looks whether what devices receive still reaches the program.
    pub(in super::super) fn look_at_attachments(&self) {
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
            } else if let Some(before) = preceding(device, &self.ingress, &links[0]) {
                self.look_before(device, before);
            }
        }
    }

    /// What precedes the program on a device now may not have been there when it saw the segments of pairs.
    fn look_before(&self, device: u32, now: Vec<Preceding>) {
        let is_new = |before: &[Preceding]| {
            let new = now.iter().filter(|one| !before.contains(one));
            new.cloned().collect::<Vec<_>>()
        };
        let new = match self.table().devices.get(&device) {
            Some(attachment) => is_new(&attachment.before),
            None => return,
        };
        let newcomer = new.iter().find_map(Preceding::words);
        let lost = {
            let mut table = self.table();
            let Some(attachment) = table.devices.get_mut(&device) else {
                return;
            };
            attachment.before = now;
            newcomer.map(|newcomer| {
                let again = Arc::new(Attached::again());
                (newcomer, std::mem::replace(&mut attachment.attached, again))
            })
        };
        if let Some((newcomer, lost)) = lost {
            let name = name_of(device).unwrap_or_else(|_| format!("device {device}"));
            self.lose(
                &lost,
                format!("{name} has {newcomer} before the relay's, which came later"),
            );
        }
    }

    /// The program was attached to a device, and is not any more.
    pub(super) fn tell_detached(&self, device: u32, lost: &Arc<Attached>) {
        match name_of(device) {
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
}

fn name_of(device: u32) -> rustix::io::Result<String> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    index_to_name(socket, device)
}
