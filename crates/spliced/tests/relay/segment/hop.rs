//! A running `spliced relay --engine segment` in a network namespace, and the proof that the kernel
//! did the work.

use std::fs::{self, Permissions};
use std::mem::offset_of;
use std::ops::RangeInclusive;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::thread;

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use netlab::{Namespace, Scratch};
use serde_json::Value;
use splice_bpf::types::{SegmentFlow, SegmentSide, segment_mark, segment_state};

use crate::log::Log;
use crate::patience::{until, until_found};
use crate::peer::{Peer, exchange};
use crate::relay::{BINARY, Relay};
use crate::server::Server;

/// The fraction of the payload that must be translated. The rest precedes the change-over.
const LEAST_TRANSLATED_IN_100: u64 = 99;

/// The states of a flow that has not ended. A flow begins with its state.
const ALIVE: RangeInclusive<u32> = segment_state::WATCH..=segment_state::SPLICED;
const _: () = assert!(offset_of!(SegmentFlow, state) == 0);

/// The table of flows.
const FLOWS: &str = "segment_flows";
/// What leads from segments to them.
const TUPLES: &str = "segment_tuples";
/// Its counters, by the reason.
const COUNTS: &str = "segment_counts";

/// The offsets of the translated bytes of both sides of a flow.
const PAYLOAD_BYTES_AT: [usize; 2] = {
    let first = offset_of!(SegmentFlow, payload_bytes);
    [first, first + size_of::<u64>()]
};

/// The offsets of the marks of both sides: the upper half of `high_seq_and_marks`.
const MARKS_AT: [usize; 2] = {
    let first = offset_of!(SegmentFlow, side) + offset_of!(SegmentSide, high_seq_and_marks);
    let upper = if cfg!(target_endian = "little") { 4 } else { 0 };
    [first + upper, first + upper + size_of::<SegmentSide>()]
};

pub(crate) struct Hop {
    pub(crate) relay: Relay,
    log: Log,
    _scratch: Scratch,
}

/// The traffic through a hop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passed {
    pub(crate) bytes: u64,
    /// The bytes that the BPF program has translated, retransmissions included.
    pub(crate) translated_bytes: u64,
}

impl Hop {
    pub(crate) fn in_namespace(namespace: &Namespace, listen: &str, target: &str) -> Self {
        let mut command = namespace.command(BINARY);
        command.args(["relay", listen, target, "--engine", "segment"]);
        Self::spawn(&mut command)
    }

    /// A hop that `command` starts.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let scratch = Scratch::new("hop").expect("a directory");
        let everybody = Permissions::from_mode(0o777);
        fs::set_permissions(scratch.path(), everybody).expect("its mode");
        let log = Log::below(&scratch);
        command
            .args(["--access-log", &log.path])
            .env_remove("SPLICED_LOG");
        Self {
            relay: Relay::spawn(command),
            log,
            _scratch: scratch,
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.relay.address
    }

    /// How many connections have ended.
    pub(crate) fn connections(&self) -> usize {
        self.entries().len()
    }

    /// The entries of its access log so far.
    pub(crate) fn entries(&self) -> Vec<Value> {
        self.log.entries()
    }

    /// Serves one connection to the target, which attaches the BPF program to lo.
    pub(crate) fn stand(&self, namespace: &Namespace, server: &Server) {
        let near = namespace.enter(|| Peer::connect(self.address()));
        let near = near.expect("entered");
        let far = server.accept();
        until("the pair is translated", || {
            near.write_number(0);
            assert_eq!(far.read_number(), 0);
            self.translated_bytes() > 0
        });
        exchange(&near, &far, 0, 1000, 1000);
        drop((near, far));
        self.passed(1);
    }

    /// Waits until `connections` have ended. Every one of them must have been translated.
    pub(crate) fn passed(&self, connections: usize) -> Passed {
        let entries = until_found("all connections are in the log", || {
            let entries = self.log.entries();
            (entries.len() >= connections).then_some(entries)
        });
        assert_eq!(entries.len(), connections, "{entries:#?}");
        for entry in &entries {
            let is_empty =
                entry["client_to_target_bytes"] == 0 && entry["target_to_client_bytes"] == 0;
            assert!(is_empty || entry["engine"] == "segment", "{entry}");
            assert_ne!(entry["outcome"], "refused", "{entry}");
        }
        let bytes = entries
            .iter()
            .flat_map(|entry| {
                ["client_to_target_bytes", "target_to_client_bytes"]
                    .map(|name| entry[name].as_u64())
            })
            .map(|bytes| bytes.expect("a count"))
            .sum();
        Passed {
            bytes,
            translated_bytes: self.translated_bytes(),
        }
    }

    /// As [`passed`](Self::passed); the BPF program must have translated nearly all payload.
    pub(crate) fn expect_translated(&self, connections: usize) -> Passed {
        let passed = self.passed(connections);
        assert!(
            passed.translated_bytes * 100 >= passed.bytes * LEAST_TRANSLATED_IN_100,
            "{passed:?}"
        );
        passed
    }

    /// Whether it has this number of connections, and all are spliced.
    pub(crate) fn are_spliced(&self, connections: usize) -> bool {
        self.states() == vec![segment_state::SPLICED; connections]
    }

    /// The states of its connections that have one (`splice_bpf::types::segment_state`).
    pub(crate) fn states(&self) -> Vec<u32> {
        let flows = flows(&self.relay);
        let states = flows.iter().filter_map(|flow| flow.first_chunk());
        let states = states.map(|state| u32::from_ne_bytes(*state));
        states.filter(|state| ALIVE.contains(state)).collect()
    }

    /// Whether all slots of its table are free, and no segment would find one.
    pub(crate) fn has_no_flow(&self) -> bool {
        let is_free = |flow: &Vec<u8>| flow.starts_with(&segment_state::FREE.to_ne_bytes());
        let tuples = map_named(&self.relay, TUPLES).expect("the program is loaded");
        flows(&self.relay).iter().all(is_free) && tuples.keys().next().is_none()
    }

    /// How many of its connections lose segments, since there is no way for them.
    pub(crate) fn closed(&self) -> usize {
        let has_mark = |flow: &Vec<u8>, at: usize| {
            let marks = flow[at..at + 4].try_into().expect("four bytes");
            u32::from_ne_bytes(marks) & segment_mark::CLOSED != 0
        };
        let flows = flows(&self.relay).into_iter();
        let closed = flows.filter(|flow| MARKS_AT.into_iter().any(|at| has_mark(flow, at)));
        closed.count()
    }

    /// The counters of its BPF program.
    pub(crate) fn translated_bytes(&self) -> u64 {
        translated_bytes(&self.relay)
    }

    /// How often its program has counted a reason (`splice_bpf::types::segment_reason`).
    pub(crate) fn counted(&self, reason: u32) -> u64 {
        let counts = map_named(&self.relay, COUNTS).expect("the program is loaded");
        let of_cpus = counts.lookup_percpu(&reason.to_ne_bytes(), MapFlags::ANY);
        let of_cpus = of_cpus.expect("an array").expect("a reason");
        let count =
            |bytes: &Vec<u8>| u64::from_ne_bytes(bytes.as_slice().try_into().expect("eight bytes"));
        of_cpus.iter().map(count).sum()
    }
}

/// The counters of the BPF program of a relay. A slot keeps them until it is reused, which happens after all
/// other slots.
pub(crate) fn translated_bytes(relay: &Relay) -> u64 {
    flows(relay)
        .into_iter()
        .flat_map(|flow| {
            PAYLOAD_BYTES_AT.map(|at| {
                let bytes = flow[at..at + 8].try_into().expect("eight bytes");
                u64::from_ne_bytes(bytes)
            })
        })
        .sum()
}

/// Reads all slots with one system call. Slot by slot it takes so long on a busy machine that the connections
/// may have ended meanwhile.
fn flows(relay: &Relay) -> Vec<Vec<u8>> {
    let Some(map) = map_named(relay, FLOWS) else {
        return Vec::new();
    };
    let all = map.max_entries();
    let slots = map.lookup_batch(all, MapFlags::ANY, MapFlags::ANY);
    let flows: Vec<_> = slots.expect("an array").map(|(_, flow)| flow).collect();
    assert_eq!(flows.len(), all as usize, "the table was not read");
    flows
}

/// The map of that name among those of the programs that the process has descriptors of. With `auto` there is none
/// until a pair has asked for the engine.
fn map_named(relay: &Relay, name: &str) -> Option<MapHandle> {
    let infos = relay.descriptor_infos();
    let ids: Vec<u32> = infos
        .iter()
        .filter_map(|info| info.lines().find_map(|line| line.strip_prefix("prog_id:")))
        .filter_map(|id| id.trim().parse().ok())
        .collect();
    let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
    ProgInfoIter::with_query_opts(with_maps)
        .filter(|program| ids.contains(&program.id))
        .flat_map(|program| program.map_ids)
        .filter_map(|id| MapHandle::from_map_id(id).ok())
        .find(|map| map.name() == name)
}

impl Drop for Hop {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("its log: {:#?}", self.log.entries());
        }
    }
}
