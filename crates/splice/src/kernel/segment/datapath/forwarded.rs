//! What a datapath keeps of connections that are forwarded: their listeners, origins, routes, devices and slots.

use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use splice_bpf::types::{
    SegmentEnd, SegmentListener, SegmentOrigin, SegmentReleased, SegmentRoute,
};

use super::{Datapath, PAIRS};

impl Datapath {
    /// The slots that are not of pairs.
    pub(crate) fn forward_slots(&self) -> Range<u32> {
        PAIRS..self.flows.len() as u32
    }

    pub(crate) fn most_origins(&self) -> usize {
        self.origins.len()
    }

    pub(crate) fn origin(&self, index: u32) -> &SegmentOrigin {
        self.origins.at(index as usize)
    }

    /// Lets connections that are forwarded come in on a device.
    pub(crate) fn admit_device(&self, device: u32) -> Result<(), Errno> {
        self.devices.update(&device, &device)
    }

    pub(crate) fn dismiss_device(&self, device: u32) {
        self.devices.remove(&device);
    }

    /// One of the places where slots of free ports stand.
    pub(crate) fn free_slot(&self, at: u32) -> &AtomicU64 {
        self.free.at(at as usize)
    }

    /// Lets segments of a server find its origin.
    pub(crate) fn lead(&self, origin: u32, route: &SegmentRoute) -> Result<(), Errno> {
        self.routes.update(route, &origin)
    }

    pub(crate) fn unlead(&self, route: &SegmentRoute) {
        self.routes.remove(route);
    }

    /// Forwards what connects to an address from now on.
    pub(crate) fn listen(&self, end: &SegmentEnd, listener: &SegmentListener) -> Result<(), Errno> {
        self.listeners.update(end, listener)?;
        // What is left of connections outlives their listener.
        self.gate.at(0).forwards.store(1, Relaxed);
        Ok(())
    }

    /// Notes an address of this host.
    pub(crate) fn know(&self, end: &SegmentEnd, listener: &SegmentListener) -> Result<(), Errno> {
        self.listeners.update(end, listener)
    }

    pub(crate) fn unlisten(&self, end: &SegmentEnd) {
        self.listeners.remove(end);
    }

    /// Takes forwarded connections that are over out of the table.
    pub(crate) fn release(&self, released: &SegmentReleased) -> Result<(), Errno> {
        self.release.run(released).map(drop)
    }
}
