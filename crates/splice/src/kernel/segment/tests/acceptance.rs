//! What a segment may change: nothing, unless its receiver would take it.
//!
//! The receiver is asked: its socket's numbers decide what RFC 9293 (3.10.7.4), RFC 5961 and RFC 7323 have it do with
//! what the program makes of a segment.

use super::frame::{Checksum, Frame, take_frames};
use super::*;
use crate::kernel::segment::sockets::tuple_of;
use splice_base::socket_option;
use splice_bpf::types::{SegmentFlow, SegmentSocket, segment_mark as mark, segment_state as state};

const REDIRECT: i32 = 7;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Timestamps this much earlier are an old duplicate's (`TCP_PAWS_WINDOW` in `net/tcp.h`).
const PAWS_TICKS: i32 = 1;

/// How far the window of the relay's socket lags at most (`SEGMENT_WINDOW_LIMIT` in `bpf/segment/shared.h`).
const LEFT_BEHIND: u32 = 1 << 30;

/// After so many seconds any timestamp is taken (`TCP_PAWS_WRAP` in `net/tcp.h`).
const PAWS_SECONDS: u32 = 2147;

/// All that a flow knows of its peers.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known([[u64; 13]; 2], u32);

impl Known {
    fn of(flow: &SegmentFlow) -> Self {
        let side = |side: usize| {
            let side = &flow.side[side];
            [
                side.high_seq_and_marks.load(Relaxed),
                side.acked.load(Relaxed),
                side.timestamp_delta.load(Relaxed),
                side.high_ack.load(Relaxed).into(),
                side.edge.load(Relaxed).into(),
                side.announced_edge.load(Relaxed).into(),
                side.latest_timestamp.load(Relaxed).into(),
                side.recent_timestamp.load(Relaxed).into(),
                side.largest_window.load(Relaxed).into(),
                side.first_ack.load(Relaxed).into(),
                side.fin_end.load(Relaxed).into(),
                side.accepted_at.load(Relaxed).into(),
                side.waiting.load(Relaxed).into(),
            ]
        };
        Self([side(0), side(1)], flow.state.load(Relaxed))
    }

    fn restore(&self, flow: &SegmentFlow) {
        for (side, known) in flow.side.iter().zip(self.0) {
            let [word, acked, delta, rest @ ..] = known;
            side.high_seq_and_marks.store(word, Relaxed);
            side.acked.store(acked, Relaxed);
            side.timestamp_delta.store(delta, Relaxed);
            for (word, value) in [
                &side.high_ack,
                &side.edge,
                &side.announced_edge,
                &side.latest_timestamp,
                &side.recent_timestamp,
                &side.largest_window,
                &side.first_ack,
                &side.fin_end,
                &side.accepted_at,
                &side.waiting,
            ]
            .into_iter()
            .zip(rest)
            {
                word.store(value as u32, Relaxed);
            }
        }
        flow.state.store(self.1, Relaxed);
    }
}

/// What a receiver does with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It is discarded, answered or not.
    Discarded,
    /// What it carries and what it acknowledges count.
    Taken,
    /// It ends the connection.
    Ends,
}

/// Who is to receive segments.
#[derive(Debug)]
struct Receiver {
    socket: SegmentSocket,
    /// Of its stream, all of which is acknowledged.
    sent_bytes: u64,
}

/// The rules on the receiver's numbers, as `tcp_validate_incoming` and `tcp_ack` have them.
fn fate(segment: &Frame, receiver: &Receiver) -> Fate {
    let Receiver {
        socket: receiver,
        sent_bytes,
    } = receiver;
    let behind = |a: u32, b: u32| a.wrapping_sub(b).cast_signed() < 0;
    let ends = [FIN, SYN].map(|flag| u32::from(segment.flags & flag != 0));
    let end = segment
        .seq
        .wrapping_add(segment.payload.len() as u32 + ends[0] + ends[1]);
    let edge = receiver.rcv_wup.wrapping_add(receiver.rcv_wnd);
    // No sender on this host has left it to be computed.
    if segment.checksum != Checksum::Right {
        return Fate::Discarded;
    }
    if segment.flags & RST != 0 {
        return match segment.seq == receiver.rcv_nxt {
            true => Fate::Ends,
            false => Fate::Discarded,
        };
    }
    let is_stale = segment.timestamps.is_some_and(|[tsval, _]| {
        receiver.recent_timestamp.wrapping_sub(tsval).cast_signed() > PAWS_TICKS
    });
    // Before Linux 6.8 it may lie before the stream as well.
    let acknowledged = (*sent_bytes).min(receiver.largest_window.into());
    let oldest = receiver.snd_una.wrapping_sub(acknowledged as u32);
    let is_outside = behind(end, receiver.rcv_wup) || behind(edge, segment.seq);
    let is_untrue = behind(receiver.snd_nxt, segment.ack) || behind(segment.ack, oldest);
    match is_stale || is_outside || is_untrue || segment.flags & (SYN | ACK) != ACK {
        true => Fate::Discarded,
        false => Fate::Taken,
    }
}

/// A spliced pair in which all is acknowledged.
struct Scene {
    lab: Lab,
    splicer: Splicer,
    joined: Joined,
    datapath: Arc<Datapath>,
}

impl Scene {
    fn new(connect: fn(&Lab) -> Connected) -> Self {
        let lab = Lab::new().expect("a lab");
        take_frames(&lab);
        let splicer = splicer_in(lab.relay());
        let joined = spliced(&lab, &splicer, connect(&lab));
        let datapath = datapath_in(&lab);
        Self {
            lab,
            splicer,
            joined,
            datapath,
        }
    }

    fn flow(&self) -> &SegmentFlow {
        self.datapath.flow(0)
    }

    /// The addresses of a segment from `side`'s peer.
    fn ends(&self, side: usize) -> [SocketAddr; 2] {
        let stream = [&self.joined.0, &self.joined.1][side];
        [stream.local_addr(), stream.peer_addr()].map(|end| end.expect("an end"))
    }

    /// The socket of `side`'s peer.
    fn peer(&self, side: usize) -> SegmentSocket {
        let [local, remote] = self.ends(side);
        let namespace = [self.lab.client(), self.lab.server()][side];
        let tuple = tuple_of(local, remote);
        let found = namespace.enter(|| self.datapath.inspect(&[tuple, tuple]));
        found.expect("entered").expect("run").socket[0]
    }

    fn receiver(&self, side: usize) -> Receiver {
        let stream = [&self.joined.0, &self.joined.1][side];
        Receiver {
            socket: self.peer(side),
            sent_bytes: socket_option::progress(stream)
                .expect("TCP_INFO")
                .written_bytes,
        }
    }

    /// Waits for the last acknowledgements, which may be delayed.
    fn rest(&self) {
        netlab::until("all is acknowledged", || {
            (0..2).all(|side| {
                let (near, far) = (&self.flow().side[side], &self.flow().side[1 - side]);
                let acked = far.high_ack.load(Relaxed);
                near.high_seq().wrapping_add(near.seq_delta.load(Relaxed)) == acked
                    && self.peer(1 - side).rcv_wup == acked
            })
        });
    }

    /// Shows the program a segment from `side`'s peer: what it becomes.
    fn feed(&self, side: usize, frame: &Frame) -> Frame {
        let device = devices(self.lab.relay())[side];
        self.feed_on(device, frame)
    }

    fn feed_on(&self, device: u32, frame: &Frame) -> Frame {
        let fed = self
            .lab
            .relay()
            .enter(|| self.datapath.feed_through(device, &frame.bytes()));
        let (verdict, became) = fed.expect("entered").expect("run");
        assert_eq!(verdict, REDIRECT, "{frame:?}");
        frame.read(&became)
    }
}

/// Whether a program can know that a checksum is still to be computed: since Linux 6.4.
fn tells_unfinished() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    let mut numbers = release.split('.').map(|number| number.parse::<u32>());
    let [major, minor] = [0; 2].map(|_| numbers.next().expect("two numbers").expect("a number"));
    (major, minor) >= (6, 4)
}

/// A segment from `side`'s peer somewhere around what its receiver expects.
fn around(scene: &Scene, side: usize, random: &mut Random) -> Frame {
    let sender = scene.peer(side);
    let near = &scene.flow().side[side];
    let edge = scene.flow().side[1 - side].edge.load(Relaxed);
    let edge = edge.wrapping_sub(near.seq_delta.load(Relaxed));
    let little = random.below(3) as u32;
    let far = random.below(100_000) as u32;
    let seq = match random.below(8) {
        0 => random.next() as u32,
        1 => sender.snd_nxt.wrapping_add(far),
        2 => sender.snd_nxt.wrapping_sub(far),
        3 => edge.wrapping_sub(little),
        4 => edge.wrapping_add(little),
        5 => sender.snd_nxt.wrapping_sub(little),
        _ => sender.snd_nxt.wrapping_add(little),
    };
    let acknowledged = near.high_ack.load(Relaxed);
    let oldest = match random.below(2) {
        0 => acknowledged.wrapping_sub(near.largest_window.load(Relaxed)),
        _ => near.first_ack.load(Relaxed),
    };
    let ack = match random.below(8) {
        0 => random.next() as u32,
        1 => sender.rcv_nxt.wrapping_add(1 + far),
        2 => sender.rcv_nxt.wrapping_sub(far),
        3 => oldest.wrapping_sub(little),
        4 => oldest.wrapping_add(little),
        _ => sender.rcv_nxt,
    };
    let flags = match random.below(8) {
        0 => RST,
        1 => RST | ACK,
        2 => FIN | ACK,
        3 => SYN | ACK,
        4 => 0,
        _ => ACK,
    };
    let recent = near.recent_timestamp.load(Relaxed);
    let tsval = match random.below(8) {
        0 => random.next() as u32,
        1 => recent.wrapping_sub(1_000_000),
        2 => recent.wrapping_sub(random.below(5) as u32),
        3 => recent.wrapping_add(40_000_000),
        4 => recent.wrapping_sub(1 << 30),
        _ => recent.wrapping_add(random.below(1000) as u32),
    };
    let echo = match random.below(2) {
        0 => random.next() as u32,
        _ => sender.recent_timestamp,
    };
    let mut frame = Frame::new(scene.ends(side), [seq, ack], flags);
    frame.timestamps = (random.below(8) != 0).then_some([tsval, echo]);
    frame.window = random.next() as u16;
    if flags & (RST | SYN) == 0 {
        frame.payload = vec![0x5a; [0, 0, 1, 100][random.below(4) as usize]];
    }
    frame.checksum = match random.below(4) {
        0 => Checksum::Wrong,
        1 if tells_unfinished() => Checksum::Unfinished,
        _ => Checksum::Right,
    };
    if frame.checksum == Checksum::Unfinished && frame.sums_up() {
        frame.window ^= 1;
    }
    frame
}

/// Many segments around the window, from both sides: none that fails the receiver's test changes what the flow knows,
/// none that it takes is passed over, and a reset ends the flow where it ends the receiver. Such a reset reaches the
/// relay's socket as well, so `with_ends` is for the last time.
fn segments_change_what_their_receiver_lets_them(
    scene: &Scene,
    random: &mut Random,
    with_ends: bool,
) {
    let flow = scene.flow();
    // Otherwise the loop might see an end that is taken back.
    let (_goes_on, waits) = mpsc::channel::<()>();
    let wait = move |_: &mut EventLoop| _ = waits.recv();
    scene.splicer.remote().run(wait).expect("a loop");
    let before = Known::of(flow);
    let receivers = [1, 0].map(|side| scene.receiver(side));
    let mut fates = [0; 3];
    let devices = devices(scene.lab.relay());
    for round in 0..rounds(1) * 6000 {
        let side = round % 2;
        let frame = around(scene, side, random);
        let next = receivers[1 - side].socket.snd_nxt;
        if frame.flags & RST != 0 && frame.seq == next && !with_ends {
            continue;
        }
        let device = devices[side];
        let became = scene.feed_on(device, &frame);
        let after = Known::of(flow);
        let fate = fate(&became, &receivers[side]);
        fates[fate as usize] += 1;
        let told = || format!("{frame:?} as {became:?} of {:?}", receivers[side]);
        match fate {
            Fate::Discarded => assert_eq!(after, before, "{}", told()),
            Fate::Taken => {
                let near = &flow.side[side];
                let end = frame.seq.wrapping_add(frame.payload.len() as u32);
                let is_pure_ack = frame.payload.is_empty();
                let reached = near.high_seq().wrapping_sub(end).cast_signed() >= 0;
                assert!(reached || is_pure_ack, "{}", told());
                assert_eq!(after.1, state::SPLICED, "{}", told());
            }
            Fate::Ends => {
                assert_eq!(after.1, state::TIME_WAIT, "{}", told());
                assert_ne!(flow.side[side].marks() & mark::RST, 0, "{}", told());
            }
        }
        before.restore(flow);
    }
    let clocks = flow
        .side
        .each_ref()
        .map(|side| side.timestamp_delta.load(Relaxed) != 0);
    eprintln!("discarded, taken, ends: {fates:?}; clocks that go on: {clocks:?}");
    let expected = if with_ends { 3 } else { 2 };
    assert!(
        fates[..expected].iter().all(|count| *count > 50),
        "{fates:?}"
    );
}

fn idle_and_in_use(connect: fn(&Lab) -> Connected) {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new(connect);
    let mut random = Random::seeded(seed());
    scene.rest();
    // Nothing has come since the change-over.
    segments_change_what_their_receiver_lets_them(&scene, &mut random, false);
    let (client, server, handle) = &scene.joined;
    for _ in 0..10 {
        ping(client, server);
    }
    scene.rest();
    segments_change_what_their_receiver_lets_them(&scene, &mut random, false);
    // The relay's own window lags.
    for side in &scene.flow().side {
        let announced_edge = side.announced_edge.load(Relaxed);
        side.announced_edge
            .store(announced_edge.wrapping_sub(LEFT_BEHIND), Relaxed);
    }
    segments_change_what_their_receiver_lets_them(&scene, &mut random, false);
    for _ in 0..100 {
        ping(client, server);
    }
    assert!(handle.outcome().is_none());
    scene.rest();
    segments_change_what_their_receiver_lets_them(&scene, &mut random, true);
}

#[test]
fn over_ipv4() {
    idle_and_in_use(Connected::across);
}

#[test]
fn over_ipv6() {
    idle_and_in_use(Connected::across_v6);
}

/// A clock that has gone half way round during a long silence is followed from there on.
#[test]
fn any_timestamp_is_taken_after_a_long_silence() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new(Connected::across);
    let (client, server, _handle) = &scene.joined;
    ping(client, server);
    scene.rest();
    let side = &scene.flow().side[0];
    let recent = side.recent_timestamp.load(Relaxed);
    let earlier = recent.wrapping_sub(1 << 30);
    let says = |tsval: u32| {
        let frame = Frame {
            timestamps: Some([tsval, 0]),
            payload: vec![1],
            ..Frame::new(
                scene.ends(0),
                [side.high_seq(), side.high_ack.load(Relaxed)],
                ACK,
            )
        };
        let before = side.high_seq();
        scene.feed(0, &frame);
        side.high_seq() != before
    };
    assert!(!says(earlier));
    let since = side.recent_seconds.load(Relaxed);
    side.recent_seconds
        .store(since.wrapping_sub(PAWS_SECONDS), Relaxed);
    assert!(says(earlier));
    assert_eq!(side.recent_timestamp.load(Relaxed), earlier);
    // The silence is over.
    assert!(!says(earlier.wrapping_sub(PAWS_TICKS as u32 + 1)));
}

/// A receiver whose last acknowledgement is still due expects more than what it has acknowledged. Whether a reset at that
/// place ends it nobody tells.
#[test]
fn a_doubtful_reset_ends_a_pair_only_if_both_ends_stay_silent() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new(Connected::across);
    let (client, server, handle) = &scene.joined;
    ping(client, server);
    scene.rest();
    let [from_client, from_server] = &scene.flow().side;
    let expected = from_client.high_seq();
    let doubt = || {
        // As if the client had sent more, which is not acknowledged.
        from_client.raise_high_seq(expected.wrapping_add(10));
        let reset = Frame::new(scene.ends(0), [expected, 0], RST);
        scene.feed(0, &reset);
        assert_ne!(from_client.marks() & mark::DOUBTED, 0);
        assert_eq!(from_client.marks() & mark::RST, 0);
        assert_eq!(scene.flow().state.load(Relaxed), state::SPLICED);
    };
    doubt();
    // Its sender goes on.
    (&*client).write_all(b"more than ten bytes").expect("write");
    (&*server).read_exact(&mut [0; 19]).expect("read");
    netlab::until("it counts as alive", || {
        from_client.marks() & mark::DOUBTED == 0
    });
    ping(client, server);
    scene.rest();
    let expected = from_client.high_seq();
    from_client.raise_high_seq(expected.wrapping_add(10));
    let reset = Frame::new(scene.ends(0), [expected, 0], RST);
    scene.feed(0, &reset);
    assert_ne!(from_client.marks() & mark::DOUBTED, 0);
    // Its receiver acknowledges more, which it would not after a reset.
    let [seq, ack] = [from_server.high_seq(), from_server.high_ack.load(Relaxed)];
    let answer = Frame::new(scene.ends(1), [seq, ack.wrapping_add(5)], ACK);
    scene.feed(1, &answer);
    assert_eq!(from_client.marks() & mark::DOUBTED, 0);
    // Nobody says any more.
    let reset = Frame::new(scene.ends(0), [expected.wrapping_add(5), 0], RST);
    scene.feed(0, &reset);
    assert_ne!(from_client.marks() & mark::DOUBTED, 0);
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(Side::A));
}
