//! The twins of the types that the BPF programs share with this process, as `make bpf` has found them in the BTF of
//! `bpf/types.bpf.c`. Do not edit: the headers in `bpf` define the types, and say what their fields mean.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::plain::Plain;

/// `struct inspection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Inspection {
    pub cookie: u64,
    pub found: u32,
    pub queued_skbs: u32,
    pub write_seq: u32,
    pub copied_seq: u32,
    pub rcv_nxt: u32,
    pub on_the_way_bytes: u32,
    pub send_limit_bytes: u32,
    pub state: u32,
}

const _: () = assert!(size_of::<Inspection>() == 40);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for Inspection {}

/// `struct segment_tuple`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentTuple {
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub source_port: [u8; 2],
    pub destination_port: [u8; 2],
}

const _: () = assert!(size_of::<SegmentTuple>() == 36);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentTuple {}

/// `struct segment_place`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentPlace {
    pub flow: u32,
    pub side: u32,
    pub device: u32,
    pub serial: u32,
}

const _: () = assert!(size_of::<SegmentPlace>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentPlace {}

/// `struct segment_socket`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentSocket {
    pub cookie: u64,
    pub flags: u32,
    pub state: u32,
    pub write_seq: u32,
    pub snd_una: u32,
    pub snd_nxt: u32,
    pub snd_wnd: u32,
    pub copied_seq: u32,
    pub rcv_nxt: u32,
    pub rcv_wup: u32,
    pub rcv_wnd: u32,
    pub clock: u32,
    pub announced_mss: u32,
    pub peer_mss: u32,
    pub path_mtu: u32,
    pub in_device: u32,
    pub out_device: u32,
    pub out_type: u32,
    pub largest_window: u32,
    pub received_bytes: u32,
    pub recent_bytes: u32,
    pub recent_timestamp: u32,
    pub peer_scale: u8,
    pub own_scale: u8,
    pub _reserved: u16,
}

const _: () = assert!(size_of::<SegmentSocket>() == 96);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSocket {}

/// `struct segment_seen`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentSeen {
    pub device: u32,
    pub seq: u32,
    pub ack: u32,
    pub mss: u16,
    pub hops: u16,
}

const _: () = assert!(size_of::<SegmentSeen>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSeen {}

/// `struct segment_inspection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentInspection {
    pub ethernet: [u8; 14],
    pub _reserved: [u8; 2],
    pub tuple: [SegmentTuple; 2],
    pub socket: [SegmentSocket; 2],
    pub seen: [SegmentSeen; 2],
    pub forgotten: u32,
    pub tracked: [u32; 2],
    pub _reserved2: u32,
}

const _: () = assert!(size_of::<SegmentInspection>() == 328);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentInspection {}

/// `struct segment_end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentEnd {
    pub address: [u8; 16],
    pub port: [u8; 2],
    pub _reserved: u16,
}

const _: () = assert!(size_of::<SegmentEnd>() == 20);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentEnd {}

/// `struct segment_listener`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentListener {
    pub origin: u32,
    pub _reserved: u32,
}

const _: () = assert!(size_of::<SegmentListener>() == 8);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentListener {}

/// `struct segment_route`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentRoute {
    pub server: [u8; 16],
    pub source: [u8; 16],
    pub port: [u8; 2],
    pub _reserved: u16,
}

const _: () = assert!(size_of::<SegmentRoute>() == 36);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentRoute {}

/// `struct segment_released`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentReleased {
    pub ethernet: [u8; 14],
    pub count: u16,
    pub flow: [u32; 32],
    pub serial: [u32; 32],
}

const _: () = assert!(size_of::<SegmentReleased>() == 272);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentReleased {}

/// `struct hooks_counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct HooksCounts {
    pub ethernet: [u8; 14],
    pub device_known: u8,
    pub answered: u8,
    pub device: u32,
    pub skip: u32,
    pub functions: u64,
    pub count: [u16; 12],
}

const _: () = assert!(size_of::<HooksCounts>() == 56);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksCounts {}

/// `struct hooks_entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct HooksEntry {
    pub function: [u8; 44],
    pub priority: i32,
    pub place: u8,
    pub kind: u8,
    pub _reserved: [u8; 2],
}

const _: () = assert!(size_of::<HooksEntry>() == 52);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksEntry {}

/// `struct hooks_list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct HooksList {
    pub counts: HooksCounts,
    pub entry: [HooksEntry; 64],
}

const _: () = assert!(size_of::<HooksList>() == 3384);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksList {}

/// `struct clock_reading`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct ClockReading {
    pub ethernet: [u8; 14],
    pub _reserved: [u8; 2],
    pub now_ns: u64,
}

const _: () = assert!(size_of::<ClockReading>() == 24);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for ClockReading {}

/// `struct admission`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Admission {
    pub source: u64,
    pub target: u64,
    pub slot: u32,
    pub is_received: u32,
    pub is_resumed: u32,
    pub _reserved: u32,
    pub stage: u32,
    pub error: u32,
}

const _: () = assert!(size_of::<Admission>() == 40);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for Admission {}

/// `struct bypass_key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BypassKey {
    pub client_isn: u32,
    pub server_isn: u32,
}

const _: () = assert!(size_of::<BypassKey>() == 8);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for BypassKey {}

/// `struct bypass_member`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BypassMember {
    pub key: BypassKey,
    pub role: u32,
    pub _reserved: u32,
}

const _: () = assert!(size_of::<BypassMember>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for BypassMember {}

/// `struct bypass_end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BypassEnd {
    pub socket: u64,
    pub cookie: u64,
    pub network: u64,
    pub group: u64,
    pub local: [u8; 16],
    pub remote: [u8; 16],
    pub local_port: u32,
    pub remote_port: u32,
    pub user: u32,
    pub process: u32,
    pub waiter: u32,
    pub sender: u32,
    pub received_bytes: u64,
    pub tcp_bytes: u64,
    pub reads: u64,
    pub reads_before: u64,
    pub copied_seq: u32,
    pub traits: u32,
    pub sends: u64,
    pub redirected_bytes: u64,
    pub redirected_messages: u64,
    pub passed_bytes: u64,
    pub passed_messages: u64,
    pub full_messages: u64,
    pub window_messages: u32,
    pub window_bytes: u32,
    pub burst_messages: u32,
    pub obstacle: u32,
    pub window_balance: u32,
    pub poor_windows: u32,
    pub fresh_tick: u64,
    pub poor_since_ns: u64,
    pub checked_process: u32,
    pub checked_splicers: u32,
}

const _: () = assert!(size_of::<BypassEnd>() == 224);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for BypassEnd {}

/// `struct bypass_pair`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BypassPair {
    pub ends: [BypassEnd; 2],
    pub present: u32,
    pub closed: u32,
    pub state: u32,
    pub conflict: u32,
    pub reason: u32,
    pub told: u32,
}

const _: () = assert!(size_of::<BypassPair>() == 472);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for BypassPair {}

/// `struct bypass_question`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BypassQuestion {
    pub key: BypassKey,
    pub role: u32,
    pub verb: u32,
    pub state: u32,
    pub reason: u32,
    pub answer: u32,
    pub error: u32,
    pub has_unread: u32,
    pub _reserved: u32,
}

const _: () = assert!(size_of::<BypassQuestion>() == 40);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for BypassQuestion {}

/// `struct trace_end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TraceEnd {
    pub address: [u8; 16],
    pub port: u16,
    pub any_address: u8,
    pub any_port: u8,
}

const _: () = assert!(size_of::<TraceEnd>() == 20);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for TraceEnd {}

/// `struct trace_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TraceFilter {
    pub ends: [TraceEnd; 2],
}

const _: () = assert!(size_of::<TraceFilter>() == 40);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for TraceFilter {}

/// `struct bypass_capture_setting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BypassCaptureSetting {
    pub filter: TraceFilter,
    pub snap_bytes: u32,
    pub with_passed: u32,
}

const _: () = assert!(size_of::<BypassCaptureSetting>() == 48);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for BypassCaptureSetting {}

/// `struct bypass_message`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BypassMessage {
    pub time_ns: u64,
    pub client: [u8; 16],
    pub server: [u8; 16],
    pub client_port: u32,
    pub server_port: u32,
    pub sender: u32,
    pub bytes: u32,
    pub captured: u32,
    pub sequence: u32,
    pub acknowledged: u32,
    pub is_redirected: u32,
}

const _: () = assert!(size_of::<BypassMessage>() == 72);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for BypassMessage {}

/// `struct caught_connection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CaughtConnection {
    pub cookie: u64,
    pub local: [u8; 16],
    pub remote: [u8; 16],
    pub local_port: u32,
    pub remote_port: u32,
    pub is_ipv6: u32,
    pub is_active: u32,
}

const _: () = assert!(size_of::<CaughtConnection>() == 56);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for CaughtConnection {}

/// `struct catcher_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CatcherFilter {
    pub local: [u32; 4],
    pub remote: [u32; 4],
    pub local_port: u32,
    pub remote_port: u32,
    pub has_local: u32,
    pub has_remote: u32,
}

const _: () = assert!(size_of::<CatcherFilter>() == 48);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for CatcherFilter {}

/// `struct redirection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Redirection {
    pub slot: u32,
    pub most_bytes: u32,
    pub is_tcp: u32,
    pub is_stream: u32,
    pub target: u64,
    pub gate: u64,
    pub messages: u64,
    pub bytes: u64,
    pub passed: [u64; 5],
    pub passed_bytes: u64,
    pub empty: u64,
}

const _: () = assert!(size_of::<Redirection>() == 104);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for Redirection {}

/// `struct redirections_setting`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RedirectionsSetting {
    pub is_hash: u32,
    pub to_local: u32,
    pub only: u32,
    pub is_sent: u32,
    pub raw: u32,
}

const _: () = assert!(size_of::<RedirectionsSetting>() == 20);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for RedirectionsSetting {}

/// `struct redirections_look`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RedirectionsLook {
    pub key: u64,
    pub slot: u32,
    pub found: u32,
    pub backlog: u32,
    pub unread: u32,
    pub bound: u64,
    pub outstanding: u64,
    pub seen: u64,
    pub verb: u32,
    pub resumed: u32,
}

const _: () = assert!(size_of::<RedirectionsLook>() == 56);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for RedirectionsLook {}

/// `struct redirections_unknown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RedirectionsUnknown {
    pub passed: u64,
}

const _: () = assert!(size_of::<RedirectionsUnknown>() == 8);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for RedirectionsUnknown {}

/// `struct redirection_bound`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RedirectionBound {
    pub socket: u64,
    pub most_bytes: u64,
    pub redirected: u64,
    pub gone: u64,
    pub base: u32,
    pub is_tcp: u32,
}

const _: () = assert!(size_of::<RedirectionBound>() == 40);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for RedirectionBound {}

/// `struct mesh_field`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct MeshField {
    pub offset: u32,
    pub bytes: u32,
    pub little_endian: u32,
    pub _reserved: u32,
}

const _: () = assert!(size_of::<MeshField>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for MeshField {}

/// `struct mesh_framing`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct MeshFraming {
    pub length: MeshField,
    pub destination: MeshField,
    pub added_bytes: u32,
    pub header_bytes: u32,
    pub most_bytes: u32,
    pub member_bytes: u32,
    pub is_delimited: u32,
    pub delimiter: u32,
    pub passed_from: u64,
    pub passes: u32,
    pub member_parts: u32,
}

const _: () = assert!(size_of::<MeshFraming>() == 72);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for MeshFraming {}

/// `struct mesh_record`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct MeshRecord {
    pub source: u32,
    pub reason: u32,
    pub destination: u64,
}

const _: () = assert!(size_of::<MeshRecord>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for MeshRecord {}

/// `struct mesh_part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct MeshPart {
    pub source: u32,
    pub frame_bytes: u32,
    pub offset: u32,
    pub _reserved: u32,
    pub content: [u8; 1000],
}

const _: () = assert!(size_of::<MeshPart>() == 1016);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for MeshPart {}

/// `struct mesh_inspection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct MeshInspection {
    pub id: u64,
    pub found: u32,
    pub write_seq: u32,
    pub copied_seq: u32,
    pub rcv_nxt: u32,
    pub wmem_queued: u32,
    pub queued_skbs: u32,
}

const _: () = assert!(size_of::<MeshInspection>() == 32);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for MeshInspection {}

/// `struct trace_settings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TraceSettings {
    pub filters: [TraceFilter; 8],
    pub count: u32,
    pub process: u32,
}

const _: () = assert!(size_of::<TraceSettings>() == 328);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for TraceSettings {}

/// `struct trace_event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TraceEvent {
    pub time_ns: u64,
    pub result: u64,
    pub local: [u8; 16],
    pub remote: [u8; 16],
    pub local_port: u16,
    pub remote_port: u16,
    pub function: u16,
    pub kind: u8,
    pub known: u8,
    pub cpu: u32,
    pub thread: u32,
    pub process: u32,
    pub call: u32,
    pub name: [u8; 16],
}

const _: () = assert!(size_of::<TraceEvent>() == 88);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for TraceEvent {}

/// `struct trace_stack`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct TraceStack {
    pub event: TraceEvent,
    pub other: [u8; 16],
    pub frames: [u64; 64],
}

const _: () = assert!(size_of::<TraceStack>() == 616);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for TraceStack {}

/// `struct direction_entry`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DirectionEntry {
    pub redirected: AtomicU64,
    pub last_ns: AtomicU64,
    pub first_ns: AtomicU64,
    pub credit: AtomicI64,
    pub full: AtomicU32,
    pub over: AtomicU32,
    pub missed: AtomicU32,
    pub _reserved: [AtomicU32; 5],
    pub limit: AtomicU64,
    pub base_seq: AtomicU32,
    pub target_seq: AtomicU32,
    pub opened: AtomicU32,
    pub closed: AtomicU32,
    pub refused: AtomicU32,
    pub beyond: AtomicU32,
    pub let_in: AtomicU64,
    pub asked: AtomicU32,
    pub error: AtomicU32,
    pub _reserved_line: [AtomicU64; 2],
}

const _: () = assert!(size_of::<DirectionEntry>() == 128);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for DirectionEntry {}

/// `struct segment_side`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentSide {
    pub out: [AtomicU32; 9],
    pub out_device: AtomicU32,
    pub seq_delta: AtomicU32,
    pub ack_delta: AtomicU32,
    pub window_left: AtomicU8,
    pub window_right: AtomicU8,
    pub flags: AtomicU8,
    pub own_scale: AtomicU8,
    pub timestamp_floor: AtomicU32,
    pub high_seq_and_marks: AtomicU64,
    pub timestamp_delta: AtomicU64,
    pub acked: AtomicU64,
    pub accepted_at: AtomicU32,
    pub waiting: AtomicU32,
    pub edge: AtomicU32,
    pub high_ack: AtomicU32,
    pub announced_edge: AtomicU32,
    pub latest_timestamp: AtomicU32,
    pub recent_timestamp: AtomicU32,
    pub largest_window: AtomicU32,
    pub recent_seconds: AtomicU32,
    pub doubted_seq: AtomicU32,
    pub first_ack: AtomicU32,
    pub fin_end: AtomicU32,
}

const _: () = assert!(size_of::<SegmentSide>() == 128);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSide {}

/// `struct segment_flow`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentFlow {
    pub state: AtomicU32,
    pub serial: AtomicU32,
    pub deadline_ns: AtomicU64,
    pub moved_ns: AtomicU64,
    pub last_ns: AtomicU64,
    pub opened_ns: AtomicU64,
    pub first: [AtomicU32; 2],
    pub payload_bytes: [AtomicU64; 2],
    pub side: [SegmentSide; 2],
}

const _: () = assert!(size_of::<SegmentFlow>() == 320);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentFlow {}

/// `struct segment_change_over_side`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentChangeOverSide {
    pub clock: AtomicU32,
    pub acknowledged_by_socket: AtomicU32,
    pub takeover_seq: AtomicU32,
    pub sent: AtomicU32,
    pub current_edge: AtomicU32,
    pub seen_device: AtomicU32,
    pub seen_hops: AtomicU32,
    pub held_end: AtomicU32,
}

const _: () = assert!(size_of::<SegmentChangeOverSide>() == 32);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentChangeOverSide {}

/// `struct segment_change_over`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentChangeOver {
    pub side: [SegmentChangeOverSide; 2],
}

const _: () = assert!(size_of::<SegmentChangeOver>() == 64);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentChangeOver {}

/// `struct segment_cold`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentCold {
    pub until: [AtomicU32; 2],
    pub answered_ns: AtomicU64,
    pub first_ns: AtomicU64,
}

const _: () = assert!(size_of::<SegmentCold>() == 24);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentCold {}

/// `struct segment_gate`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentGate {
    pub awake: AtomicU32,
    pub is_preceded: AtomicU32,
    pub forwards: AtomicU32,
    pub _reserved: AtomicU32,
}

const _: () = assert!(size_of::<SegmentGate>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentGate {}

/// `struct segment_origin`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentOrigin {
    pub server: [AtomicU32; 4],
    pub source: [AtomicU32; 4],
    pub port: AtomicU16,
    pub first_port: AtomicU16,
    pub ports: AtomicU32,
    pub base: AtomicU32,
    pub device: AtomicU32,
    pub half_open_most: AtomicU32,
    pub open_within_ms: AtomicU32,
    pub alive_until_ns: AtomicU64,
    pub tail: AtomicU64,
    pub head: AtomicU64,
    pub opened: AtomicU64,
    pub half_open: AtomicU32,
    pub serials: AtomicU32,
    pub next_hop: [AtomicU32; 4],
    pub _reserved: [AtomicU32; 4],
}

const _: () = assert!(size_of::<SegmentOrigin>() == 128);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentOrigin {}

/// `struct mesh_member`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct MeshMember {
    pub taken_bytes: AtomicU64,
    pub sent_frames: AtomicU64,
    pub unknown_frames: AtomicU64,
    pub full_frames: AtomicU64,
    pub unreported: AtomicU64,
    pub fault: AtomicU32,
    pub searched: AtomicU32,
    pub passed_frames: AtomicU64,
    pub passed_parts: AtomicU64,
    pub redirected: AtomicU64,
    pub received_frames: AtomicU64,
    pub notices: AtomicU64,
    pub role: AtomicU32,
    pub write_base: AtomicU32,
    pub read_base: AtomicU32,
    pub _reserved_word: AtomicU32,
    pub heard_parts: AtomicU64,
    pub _reserved_line: [AtomicU32; 4],
}

const _: () = assert!(size_of::<MeshMember>() == 128);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for MeshMember {}

/// `struct lease`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Lease {
    pub heartbeat_ns: AtomicU64,
    pub stale_ns: AtomicU64,
    pub layout: AtomicU64,
    pub lapsed: AtomicU64,
}

const _: () = assert!(size_of::<Lease>() == 32);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for Lease {}

/// `struct bypass_settings`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct BypassSettings {
    pub lease: Lease,
    pub unread_bytes: AtomicU64,
    pub missed: AtomicU64,
    pub conflicts: AtomicU64,
    pub ended_sends: AtomicU64,
    pub ended_redirected_messages: AtomicU64,
    pub ended_redirected_bytes: AtomicU64,
    pub capture_until_ns: AtomicU64,
    pub capture_missed: AtomicU64,
    pub capture_taken: AtomicU64,
    pub capture_lost: AtomicU64,
    pub capture_torn: AtomicU64,
    pub bulk_bytes: AtomicU32,
    pub least_reads: AtomicU32,
    pub stopping: AtomicU32,
    pub owner: AtomicU32,
    pub splicers: AtomicU32,
    pub _reserved: AtomicU32,
}

const _: () = assert!(size_of::<BypassSettings>() == 144);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for BypassSettings {}

/// `struct trace_state`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TraceState {
    pub on: AtomicU32,
    pub lost: AtomicU32,
    pub marked: AtomicU32,
    pub _reserved: AtomicU32,
}

const _: () = assert!(size_of::<TraceState>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for TraceState {}

/// `struct trace_symbol`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TraceSymbol {
    pub address: AtomicU64,
    pub name: [AtomicU64; 7],
}

const _: () = assert!(size_of::<TraceSymbol>() == 64);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for TraceSymbol {}

/// `enum segment_state`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_state {
    pub const FREE: u32 = 0;
    pub const WATCH: u32 = 1;
    pub const OVERLAP: u32 = 2;
    pub const SPLICED: u32 = 3;
    pub const TIME_WAIT: u32 = 4;
    pub const CLAIMED: u32 = 5;
    pub const OPENING: u32 = 6;
    pub const HELD: u32 = 7;
    pub const RETURNED: u32 = 8;
}

/// `enum segment_mark`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_mark {
    pub const NOTED: u32 = 1;
    pub const FIN: u32 = 2;
    pub const FIN_ACKED: u32 = 4;
    pub const RST: u32 = 8;
    pub const TAKEN_OVER: u32 = 16;
    pub const CONGESTED: u32 = 32;
    pub const ASKED: u32 = 64;
    pub const DOUBTED: u32 = 128;
    pub const GAP: u32 = 256;
    pub const FRAGMENTED: u32 = 512;
    pub const OPTIONED: u32 = 1024;
    pub const NARROW: u32 = 2048;
    pub const STRAYED: u32 = 4096;
    pub const CLOSED: u32 = 8192;
    pub const PROBES: u32 = 16384;
    pub const DISTANT: u32 = 32768;
    pub const TIMED: u32 = 65536;
}

/// `enum segment_flag`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_flag {
    pub const LOCAL: u8 = 1;
    pub const CLEAR_ECN: u8 = 2;
    pub const STRIP_SACK: u8 = 4;
    pub const MICROSECONDS: u8 = 8;
    pub const ECHO_ECN: u8 = 16;
    pub const FORWARDED: u8 = 32;
    pub const SCALES: u8 = 64;
    pub const COUNTED: u8 = 128;
}

/// `enum segment_socket_flag`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_socket_flag {
    pub const FOUND: u32 = 1;
    pub const TIMESTAMPS: u32 = 2;
    pub const SACK: u32 = 4;
    pub const ECN: u32 = 8;
    pub const MICROSECONDS: u32 = 16;
    pub const SIGNED: u32 = 32;
    pub const LAYERED: u32 = 64;
    pub const MARKED: u32 = 128;
    pub const BOUND: u32 = 256;
    pub const COUNTS_ECN: u32 = 512;
    pub const WRAPPED: u32 = 1024;
    pub const RULED: u32 = 2048;
    pub const FILTERED: u32 = 4096;
    pub const POLICED: u32 = 8192;
    pub const CLASSED: u32 = 16384;
    pub const EXTENDED: u32 = 32768;
}

/// `enum segment_tracked`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_tracked {
    pub const TRACKED: u32 = 1;
    pub const TRACKED_OPENED_HERE: u32 = 2;
}

/// `enum admission_stage`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod admission_stage {
    pub const NO_TARGET: u32 = 0;
    pub const NO_SOURCE: u32 = 1;
    pub const NOT_ACCEPTED: u32 = 2;
    pub const BYTES_WAIT: u32 = 3;
    pub const UNREAD: u32 = 4;
    pub const TARGET_REFUSED: u32 = 5;
    pub const SOURCE_REFUSED: u32 = 6;
    pub const WITHDRAWN: u32 = 7;
    pub const DONE: u32 = 8;
}

/// `enum redirections_version`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod redirections_version {
    pub const LAYOUT: u32 = 1;
}

/// `enum redirection_pass`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod redirection_pass {
    pub const TOO_LONG: u32 = 0;
    pub const NO_MEMORY: u32 = 1;
    pub const LAPSED: u32 = 2;
    pub const FULL: u32 = 3;
    pub const REFUSED: u32 = 4;
    pub const PASSES: u32 = 5;
}

/// `enum redirections_verb`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod redirections_verb {
    pub const LOOK: u32 = 0;
    pub const AIM: u32 = 1;
    pub const RESUME: u32 = 2;
}

/// `enum bound_cost`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bound_cost {
    pub const SKB_COST: u32 = 1536;
    pub const MESSAGE_COST: u32 = 1024;
}

/// `enum bypass_version`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_version {
    pub const LAYOUT: u32 = 6;
}

/// `enum bypass_role`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_role {
    pub const CLIENT: u32 = 0;
    pub const SERVER: u32 = 1;
    pub const LEFT_ALONE: u32 = 2;
}

/// `enum bypass_state`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_state {
    pub const WATCHED: u32 = 0;
    pub const ACTIVE: u32 = 1;
    pub const UNFIT: u32 = 2;
    pub const LEAVING: u32 = 3;
    pub const LEFT: u32 = 4;
    pub const STUCK: u32 = 5;
}

/// `enum bypass_trait`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_trait {
    pub const WAITALL: u32 = 1;
    pub const SPLICES: u32 = 2;
    pub const URGENT: u32 = 4;
    pub const THREADS: u32 = 8;
    pub const MIXES: u32 = 16;
    pub const WOKEN: u32 = 32;
    pub const WAITERS: u32 = 56;
}

/// `enum bypass_patience`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_patience {
    pub const OVER: u32 = 1073741824;
}

/// `enum bypass_obstacle`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_obstacle {
    pub const NOTHING: u32 = 0;
    pub const STALE: u32 = 1;
    pub const LARGE: u32 = 2;
    pub const READER: u32 = 3;
    pub const UNSEEN: u32 = 4;
    pub const FULL: u32 = 5;
    pub const BEHIND: u32 = 6;
    pub const LOW_MARK: u32 = 7;
    pub const UPPER: u32 = 8;
    pub const HELPER: u32 = 9;
}

/// `enum bypass_verb`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_verb {
    pub const FIND: u32 = 0;
    pub const ADMIT: u32 = 1;
    pub const INSPECT: u32 = 2;
    pub const TURN: u32 = 3;
}

/// `enum bypass_answer`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_answer {
    pub const NO_PAIR: u32 = 0;
    pub const NO_SOCKET: u32 = 1;
    pub const NOT_OPEN: u32 = 2;
    pub const HAS_UPPER: u32 = 3;
    pub const ZEROCOPY: u32 = 4;
    pub const LOW_WATER: u32 = 5;
    pub const REFUSED: u32 = 6;
    pub const DONE: u32 = 7;
}

/// `enum bypass_capture_limit`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod bypass_capture_limit {
    pub const MOST: u32 = 65536;
}

/// `enum hooks_place`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod hooks_place {
    pub const IPV4: u32 = 0;
    pub const IPV6: u32 = 5;
    pub const INGRESS: u32 = 10;
    pub const EGRESS: u32 = 11;
    pub const PLACES: u32 = 12;
}

/// `enum hooks_limit`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod hooks_limit {
    pub const LISTED: u32 = 64;
    pub const NAME_BYTES: u32 = 44;
    pub const KIND_UNTOLD: u32 = 255;
}

/// `enum mesh_role`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod mesh_role {
    pub const NOBODY: u32 = 0;
    pub const NEWCOMER: u32 = 1;
    pub const MEMBER: u32 = 2;
    pub const LEAVING: u32 = 3;
    pub const NOTICES: u32 = 4;
}

/// `enum mesh_size`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod mesh_size {
    pub const PART: u32 = 1000;
    pub const PARTS: u32 = 66;
    pub const HEARD: u32 = 1048576;
}

/// `enum mesh_reason`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod mesh_reason {
    pub const NONE: u32 = 0;
    pub const UNKNOWN: u32 = 1;
    pub const FULL: u32 = 2;
    pub const TOO_LONG: u32 = 3;
    pub const TOO_SHORT: u32 = 4;
}

/// `enum trace_limit`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod trace_limit {
    pub const FILTERS: u32 = 8;
    pub const FRAMES: u32 = 64;
    pub const NAMES: u32 = 1024;
    pub const SYMBOL_WORDS: u32 = 7;
    pub const NAME_BYTES: u32 = 16;
}

/// `enum trace_handle`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod trace_handle {
    pub const NOTHING: u32 = 0;
    pub const SOCK: u32 = 1;
    pub const PSOCK: u32 = 2;
    pub const SOCKET: u32 = 3;
    pub const SKB: u32 = 4;
    pub const FILE: u32 = 5;
    pub const KIOCB: u32 = 6;
    pub const IO_KIOCB: u32 = 7;
    pub const WORK: u32 = 8;
    pub const FD: u32 = 9;
}

/// `enum trace_cookie`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod trace_cookie {
    pub const FUNCTION: u32 = 65535;
    pub const HANDLE_SHIFT: u32 = 16;
    pub const ARGUMENT_SHIFT: u32 = 24;
    pub const BYTE: u32 = 255;
    pub const INNER: u32 = 1073741824;
}

/// `enum trace_kind`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod trace_kind {
    pub const ENTERED: u32 = 0;
    pub const LEFT: u32 = 1;
}

/// `enum segment_reason`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_reason {
    pub const TRANSLATED: u32 = 0;
    pub const OWN_COPIES: u32 = 1;
    pub const BY_SOCKET: u32 = 2;
    pub const OTHER_DEVICE: u32 = 3;
    pub const EXPIRED: u32 = 4;
    pub const REUSED: u32 = 5;
    pub const HOPS_EXCEEDED: u32 = 6;
    pub const MALFORMED: u32 = 7;
    pub const UNWRITABLE: u32 = 8;
    pub const RST_REFUSED: u32 = 9;
    pub const SILENCED: u32 = 10;
    pub const GONE: u32 = 11;
    pub const NO_ROOM: u32 = 12;
    pub const FORWARD_OPENED: u32 = 13;
    pub const FORWARD_REOPENED: u32 = 14;
    pub const FORWARD_UNKNOWN: u32 = 15;
    pub const FORWARD_CROWDED: u32 = 16;
    pub const FORWARD_NO_PORT: u32 = 17;
    pub const FORWARD_TAKEN: u32 = 18;
    pub const FORWARD_LATE: u32 = 19;
    pub const FORWARD_LOST: u32 = 20;
    pub const ICMP_PASSED: u32 = 21;
    pub const ICMP_REFUSED: u32 = 22;
    pub const TOO_BIG: u32 = 23;
    pub const DAMAGED: u32 = 24;
    pub const UNACCEPTABLE: u32 = 25;
    pub const HELD_BACK: u32 = 26;
    pub const CHALLENGED: u32 = 27;
    pub const NO_WAY: u32 = 28;
    pub const REASONS: u32 = 29;
    pub const NAMES: [&str; 29] = [
        "translated",
        "own_copies",
        "by_socket",
        "other_device",
        "expired",
        "reused",
        "hops_exceeded",
        "malformed",
        "unwritable",
        "rst_refused",
        "silenced",
        "gone",
        "no_room",
        "forward_opened",
        "forward_reopened",
        "forward_unknown",
        "forward_crowded",
        "forward_no_port",
        "forward_taken",
        "forward_late",
        "forward_lost",
        "icmp_passed",
        "icmp_refused",
        "too_big",
        "damaged",
        "unacceptable",
        "held_back",
        "challenged",
        "no_way",
    ];
}

/// `enum trace_point`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod trace_point {
    pub const SYS_ENTER: u32 = 0;
    pub const SYS_EXIT: u32 = 1;
    pub const SOFTIRQ_ENTRY: u32 = 2;
    pub const SOFTIRQ_EXIT: u32 = 3;
    pub const WORKQUEUE_EXECUTE_START: u32 = 4;
    pub const WORKQUEUE_EXECUTE_END: u32 = 5;
    pub const WORKQUEUE_QUEUE_WORK: u32 = 6;
    pub const SOCK_SEND_LENGTH: u32 = 7;
    pub const SOCK_RECV_LENGTH: u32 = 8;
    pub const SK_DATA_READY: u32 = 9;
    pub const INET_SOCK_SET_STATE: u32 = 10;
    pub const TCP_PROBE: u32 = 11;
    pub const TCP_RCV_SPACE_ADJUST: u32 = 12;
    pub const TCP_SENDMSG_LOCKED: u32 = 13;
    pub const NET_DEV_QUEUE: u32 = 14;
    pub const NET_DEV_START_XMIT: u32 = 15;
    pub const NET_DEV_XMIT: u32 = 16;
    pub const NETIF_RX: u32 = 17;
    pub const NETIF_RECEIVE_SKB: u32 = 18;
    pub const NAPI_POLL: u32 = 19;
    pub const CONSUME_SKB: u32 = 20;
    pub const KFREE_SKB: u32 = 21;
    pub const SKB_COPY_DATAGRAM_IOVEC: u32 = 22;
    pub const SCHED_WAKING: u32 = 23;
    pub const KMEM_CACHE_ALLOC: u32 = 24;
    pub const KMEM_CACHE_FREE: u32 = 25;
    pub const KMALLOC: u32 = 26;
    pub const KFREE: u32 = 27;
    pub const MM_PAGE_ALLOC: u32 = 28;
    pub const IO_URING_SUBMIT_REQ: u32 = 29;
    pub const IO_URING_COMPLETE: u32 = 30;
    pub const IO_URING_POLL_ARM: u32 = 31;
    pub const IO_URING_TASK_ADD: u32 = 32;
    pub const FIB_TABLE_LOOKUP: u32 = 33;
    pub const TIMER_START: u32 = 34;
    pub const POINTS: u32 = 35;
    pub const NAMES: [&str; 35] = [
        "sys_enter",
        "sys_exit",
        "softirq_entry",
        "softirq_exit",
        "workqueue_execute_start",
        "workqueue_execute_end",
        "workqueue_queue_work",
        "sock_send_length",
        "sock_recv_length",
        "sk_data_ready",
        "inet_sock_set_state",
        "tcp_probe",
        "tcp_rcv_space_adjust",
        "tcp_sendmsg_locked",
        "net_dev_queue",
        "net_dev_start_xmit",
        "net_dev_xmit",
        "netif_rx",
        "netif_receive_skb",
        "napi_poll",
        "consume_skb",
        "kfree_skb",
        "skb_copy_datagram_iovec",
        "sched_waking",
        "kmem_cache_alloc",
        "kmem_cache_free",
        "kmalloc",
        "kfree",
        "mm_page_alloc",
        "io_uring_submit_req",
        "io_uring_complete",
        "io_uring_poll_arm",
        "io_uring_task_add",
        "fib_table_lookup",
        "timer_start",
    ];
}
