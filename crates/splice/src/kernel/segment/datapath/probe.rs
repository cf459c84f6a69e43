//! A datapath as tests look into it, and feed it packets.

use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use splice_bpf::AttachMode;
use splice_bpf::types::SegmentTuple;

use super::{Datapath, LOOPBACK};

impl Datapath {
    /// Attaches from now on as on a kernel without tcx.
    pub(crate) fn attach_by_clsact(&self) {
        *self.mode.lock().expect("whole") = AttachMode::Clsact;
    }

    /// Detaches from all devices; returns which.
    pub(crate) fn detach_all(&self) -> Vec<u32> {
        self.table()
            .devices
            .drain()
            .map(|(device, _)| device)
            .collect()
    }

    /// From now on has room for so many more flows only.
    pub(crate) fn keep_slots(&self, count: usize) {
        self.table().slots.keep_free(count);
    }

    pub(crate) fn entries(&self) -> usize {
        let table = self.table();
        assert_eq!(table.owners.len(), self.tuples.count());
        table.owners.len()
    }

    /// How many bytes of payload were translated, retransmissions included. A slot keeps its counts until
    /// it is used again, which is after all others.
    pub(crate) fn translated_bytes(&self) -> u64 {
        let flows = (0..self.flows.len()).map(|slot| self.flows.at(slot));
        let both = flows.flat_map(|flow| &flow.payload_bytes);
        both.map(|bytes| bytes.load(Relaxed)).sum()
    }

    /// What it has counted.
    pub(crate) fn own_counts(&self) -> Vec<u64> {
        self.counts.counters().expect("counters")
    }

    pub(crate) fn tuples(&self) -> Vec<SegmentTuple> {
        self.table().owners.keys().copied().collect()
    }

    /// Runs the program on a packet that never was on a wire.
    pub(crate) fn feed(&self, packet: &[u8]) -> Result<i32, Errno> {
        self.feed_on(1, packet)
    }

    /// The same, as if it came in on a device.
    pub(crate) fn feed_on(&self, device: u32, packet: &[u8]) -> Result<i32, Errno> {
        let (verdict, _) = self.ingress.run_on(packet, device, false)?;
        Ok(verdict)
    }

    /// The same, and what the packet becomes.
    pub(crate) fn feed_through(&self, device: u32, packet: &[u8]) -> Result<(i32, Vec<u8>), Errno> {
        self.ingress.run_on(packet, device, false)
    }

    /// As if that device had computed its checksum (CHECKSUM_COMPLETE); see `run_on`.
    pub(crate) fn feed_summed_up(
        &self,
        device: u32,
        packet: &[u8],
    ) -> Result<(i32, Vec<u8>), Errno> {
        self.ingress.run_on(packet, device, true)
    }

    /// As if a socket of this host had sent it; what leaves then.
    pub(crate) fn feed_out(&self, packet: &[u8]) -> Result<Vec<u8>, Errno> {
        let (_, left) = self.egress.run_on(packet, LOOPBACK, false)?;
        Ok(left)
    }
}
