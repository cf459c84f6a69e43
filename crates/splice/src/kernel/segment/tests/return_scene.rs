//! Pairs whose segments come in a form that is not translated, so that they go back to their sockets.

use super::frame::{Frame, in_frame, take_frames};
use super::ip_forms::{DESTINATION, HOP_BY_HOP, behind, first_fragment, with_options};
use super::*;
use netlab::{ControlGroup, present};
use std::os::fd::AsFd as _;

use splice_bpf::types::{SegmentFlow, SegmentSocket, SegmentTuple, segment_state as state};

const DROP: i32 = 2;
const ACK: u8 = 16;

/// Of a header without options.
const TCP_BYTES: usize = 20;

/// What the program does not translate.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Fragment,
    Options,
    /// In several headers of IPv6.
    MoreOptions,
}

impl Form {
    pub(super) const ALL: [Self; 3] = [Self::Fragment, Self::Options, Self::MoreOptions];

    /// The frame of a segment in this form.
    pub(super) fn of(self, frame: &Frame) -> Vec<u8> {
        // Of padding alone
        const OPTIONS: &[u8] = &[1, 4, 0, 0, 0, 0];
        let is_v4 = frame.from.is_ipv4();
        match self {
            Self::Fragment => {
                let mut frame = frame.clone();
                let length = (TCP_BYTES + frame.payload.len()).next_multiple_of(8);
                frame.payload.resize(length - TCP_BYTES, 0);
                in_frame(&frame, first_fragment)
            }
            Self::Options | Self::MoreOptions if is_v4 => {
                in_frame(frame, |packet| with_options(packet, &[1; 4]))
            }
            Self::Options => in_frame(frame, |packet| behind(packet, &[(DESTINATION, OPTIONS)])),
            Self::MoreOptions => {
                let headers = [(HOP_BY_HOP, OPTIONS), (DESTINATION, OPTIONS)];
                in_frame(frame, |packet| behind(packet, &headers))
            }
        }
    }
}

pub(super) struct Scene {
    pub(super) lab: Lab,
    pub(super) splicer: Splicer,
    pub(super) datapath: Arc<Datapath>,
    devices: Vec<u32>,
}

impl Scene {
    pub(super) fn new() -> Self {
        let lab = Lab::new().expect("a lab");
        take_frames(&lab);
        let splicer = splicer_in(lab.relay());
        Self {
            datapath: datapath_in(&lab),
            devices: devices(lab.relay()),
            lab,
            splicer,
        }
    }

    pub(super) fn connect(&self, is_v4: bool) -> Connected {
        match is_v4 {
            true => Connected::across(&self.lab),
            false => Connected::across_v6(&self.lab),
        }
    }

    pub(super) fn splice(&self, is_v4: bool) -> Joined {
        let joined = spliced(&self.lab, &self.splicer, self.connect(is_v4));
        netlab::until("it is spliced", || self.flow_of(&joined).is_some());
        joined
    }

    /// The flow of a pair, while it is spliced.
    pub(super) fn flow_of(&self, joined: &Joined) -> Option<&SegmentFlow> {
        let is_spliced = |flow: &&SegmentFlow| flow.state.load(Relaxed) == state::SPLICED;
        self.translated(joined).filter(is_spliced)
    }

    /// The flow of a pair, while its segments are translated, or those of one of its streams.
    pub(super) fn translated(&self, joined: &Joined) -> Option<&SegmentFlow> {
        let port = joined.0.local_addr().expect("an address").port();
        self.flows_to(port).find(|flow| {
            let state = flow.state.load(Relaxed);
            state == state::OVERLAP || state == state::SPLICED
        })
    }

    /// The flows of pairs whose client has, or had, this port.
    pub(super) fn flows_to(&self, port: u16) -> impl Iterator<Item = &SegmentFlow> {
        let flows = (0..).map(|slot| self.datapath.flow(slot)).take(64);
        flows.filter(move |flow| {
            let [.., ports] = flow.side[1].out.each_ref().map(|word| word.load(Relaxed));
            let [_, _, high, low] = ports.to_ne_bytes();
            u16::from_be_bytes([high, low]) == port
        })
    }

    /// What the kernel knows of the relay's sockets of a pair.
    pub(super) fn sockets(&self, tuples: &[SegmentTuple; 2]) -> [SegmentSocket; 2] {
        let found = self.lab.relay().enter(|| self.datapath.inspect(tuples));
        found.expect("entered").expect("found").socket
    }

    /// What `side`'s peer would send next, while its segments may be translated.
    pub(super) fn next(&self, joined: &Joined, side: usize) -> Option<Frame> {
        let stream = [&joined.0, &joined.1][side];
        // Once both streams are over, the peer has none.
        let ends = [stream.local_addr().ok()?, stream.peer_addr().ok()?];
        let near = &self.translated(joined)?.side[side];
        let numbers = [near.high_seq(), near.high_ack.load(Relaxed)];
        Some(Frame::new(ends, numbers, ACK))
    }

    /// Shows the program a frame from the side of `from`'s peer; its verdict.
    pub(super) fn feed(&self, from: usize, frame: &[u8]) -> i32 {
        let device = self.devices[from];
        let fed = self
            .lab
            .relay()
            .enter(|| self.datapath.feed_on(device, frame));
        fed.expect("entered").expect("run")
    }

    /// The same, and what the frame becomes.
    pub(super) fn feed_through(&self, from: usize, frame: &[u8]) -> (i32, Vec<u8>) {
        let (relay, device) = (self.lab.relay(), self.devices[from]);
        let fed = relay.enter(|| self.datapath.feed_through(device, frame));
        fed.expect("entered").expect("run")
    }

    /// Has a pair go back for what `side`'s peer seems to have sent.
    pub(super) fn send_back(&self, joined: &Joined, side: usize, form: Form) {
        let frame = form.of(&self.next(joined, side).expect("it is spliced"));
        assert_eq!(self.feed(side, &frame), DROP, "{form:?} of {side}");
    }
}

pub(super) fn wait_for_return((_, _, handle): &Joined) {
    netlab::until("user space has it", || {
        assert!(handle.outcome().is_none(), "{handle:?}");
        handle.engine().0 == EngineName::Copy
    });
}

/// A control group whose sockets cannot connect to a lab's server once the filter is attached.
pub(super) struct Refusing {
    group: ControlGroup,
    object: splice_bpf::Object,
}

impl Refusing {
    /// `None` where there are no control groups.
    pub(super) fn new() -> Option<Self> {
        let group = match ControlGroup::new("refusing") {
            Ok(group) => group,
            Err(error) => {
                present("cgroup", Some(format!("{error:#}")));
                return None;
            }
        };
        let object = load("cgroup_filter", splice_bpf::objects::CGROUP_FILTER, |_| {
            Ok(())
        });
        let object = object.expect("loaded");
        Some(Self { group, object })
    }

    pub(super) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.group.enter(work).expect("entered")
    }

    pub(super) fn begin(&self) -> splice_bpf::Link {
        let attached = self
            .object
            .attach_to_cgroup("refuse_connect", self.group.as_fd());
        attached.expect("attached")
    }
}
