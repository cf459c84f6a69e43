//! Pairs that go back to their sockets, since their segments come in a form that is not translated.

use super::frame::{Frame, in_frame, take_frames};
use super::ip_forms::{DESTINATION, HOP_BY_HOP, behind, first_fragment, with_options};
use super::*;
use netlab::{ControlGroup, present};
use rustix::net::sockopt;
use splice_base::repair;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;

use crate::Stream;

use splice_bpf::types::{
    SegmentFlow, SegmentSocket, SegmentTuple, segment_mark as mark, segment_state as state,
};

const DROP: i32 = 2;
const NEXT: i32 = -1;

const SYN: u8 = 2;
const RST: u8 = 4;
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
    fn flow_of(&self, joined: &Joined) -> Option<&SegmentFlow> {
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
    fn send_back(&self, joined: &Joined, side: usize, form: Form) {
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

/// Whatever the form, the version of IP and the side, both streams go on, and the counters are exact.
#[test]
fn a_pair_goes_back_and_goes_on() {
    if !available(Need::Root) {
        return;
    }
    const BYTES: usize = 1 << 20;
    let scene = Scene::new();
    for is_v4 in [true, false] {
        for form in Form::ALL {
            for side in 0..2 {
                let joined = scene.splice(is_v4);
                let (client, server, handle) = &joined;
                ping(client, server);
                scene.send_back(&joined, side, form);
                wait_for_return(&joined);
                let why = handle.engine().1.into_owned();
                let named = match form {
                    Form::Fragment => "come in fragments",
                    Form::Options | Form::MoreOptions => "have IP options",
                };
                let whose = Side::BOTH[side];
                // What was under way the sockets have moved.
                let (had, rest) = why.split_once(" bytes and ").expect("both parts");
                let bytes = had.strip_prefix("segment moved ");
                let bytes: u64 = bytes.and_then(|it| it.parse().ok()).expect("a count");
                let expected = format!("gave the pair back: {whose:?}'s segments {named}");
                assert!(bytes <= 20 && rest == expected, "{why}");
                assert_eq!(handle.counters().total(), 20);
                ping(server, client);
                exchange(client, server, BYTES, seed());
                let outcome = ended(handle);
                assert_eq!(moved(&outcome), [15 + BYTES as u64; 2]);
            }
        }
    }
    netlab::until("nothing is left of them", || scene.datapath.entries() == 0);
}

/// A stream that has ended stays ended, and the other one goes on to its end.
#[test]
fn a_half_closed_pair_goes_back() {
    if !available(Need::Root) {
        return;
    }
    const BYTES: usize = 1 << 20;
    let scene = Scene::new();
    for is_v4 in [true, false] {
        for (ended_side, from) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let joined = scene.splice(is_v4);
            let (client, server, handle) = &joined;
            let (first, second) = match ended_side {
                0 => (client, server),
                _ => (server, client),
            };
            first.shutdown(Shutdown::Write).expect("shutdown");
            assert_eq!({ second }.read(&mut [0; 8]).expect("the end"), 0);
            netlab::until("the end is acknowledged", || {
                let flow = scene.flow_of(&joined).expect("it is spliced");
                flow.side[ended_side].marks() & mark::FIN_ACKED != 0
            });
            scene.send_back(&joined, from, Form::Fragment);
            wait_for_return(&joined);
            let mut streams = [Stream::Open; 2];
            streams[ended_side] = Stream::Ended;
            assert_eq!(handle.observer().streams(), streams);
            one_way(second, first, BYTES, seed());
            assert_eq!(ended(handle).moved.total(), 10 + BYTES as u64);
        }
    }
    netlab::until("nothing is left of them", || scene.datapath.entries() == 0);
}

/// In full flow, at any moment: no byte is lost, and none comes twice.
#[test]
fn full_streams_go_back() {
    if !available(Need::Root) {
        return;
    }
    const BYTES: usize = 4 << 20;
    let scene = Scene::new();
    let mut random = Random::seeded(seed());
    for round in 0..rounds(20) {
        let joined = scene.splice(round % 2 == 0);
        let (client, server, handle) = &joined;
        let (side, form) = (round / 2 % 2, Form::ALL[round / 4 % 3]);
        let place = random.below(BYTES as u64);
        thread::scope(|scope| {
            let sent_back = scope.spawn(|| {
                netlab::until("it has got there", || handle.counters().total() >= place);
                let began = Instant::now();
                // What is on its way may leave the made-up one behind.
                while let Some(frame) = scene.next(&joined, side) {
                    assert!(began.elapsed() < PATIENCE, "it does not go back");
                    scene.feed(side, &form.of(&frame));
                }
            });
            // Whoever reads meanwhile never sees a byte twice, nor one fewer.
            scope.spawn(|| {
                let mut last = [0, 0];
                let began = Instant::now();
                while handle.outcome().is_none() && began.elapsed() < PATIENCE {
                    let counters = handle.counters();
                    let now = [counters.a_to_b, counters.b_to_a];
                    for side in 0..2 {
                        assert!(now[side] >= last[side], "{now:?} after {last:?}");
                        assert!(now[side] <= 5 + BYTES as u64, "{now:?}");
                    }
                    last = now;
                    thread::yield_now();
                }
            });
            exchange(client, server, BYTES, round as u64);
            sent_back.join().expect("no panic");
        });
        let outcome = ended(handle);
        assert_eq!(moved(&outcome), [5 + BYTES as u64; 2], "{round}");
    }
    netlab::until("nothing is left of them", || scene.datapath.entries() == 0);
}

/// Who does not know the place of both streams sends no pair back.
#[test]
fn forged_ones_change_nothing() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    for is_v4 in [true, false] {
        let joined = scene.splice(is_v4);
        for side in 0..2 {
            let right = scene.next(&joined, side).expect("it is spliced");
            let mut wrong = Vec::new();
            for beside in [1 << 20, 1 << 30, 1 << 31] {
                for (seq, ack) in [(beside, 0), (0, beside)] {
                    for sign in [1, u32::MAX] {
                        let mut frame = right.clone();
                        frame.seq = frame.seq.wrapping_add(sign.wrapping_mul(seq));
                        frame.ack = frame.ack.wrapping_add(sign.wrapping_mul(ack));
                        wrong.push(frame.clone());
                        if seq != 0 {
                            frame.flags = RST;
                            wrong.push(frame);
                        }
                    }
                }
            }
            for flags in [0, SYN, SYN | ACK, SYN | RST] {
                wrong.push(Frame {
                    flags,
                    ..right.clone()
                });
            }
            for frame in wrong {
                for form in Form::ALL {
                    assert_eq!(scene.feed(side, &form.of(&frame)), NEXT, "{frame:?}");
                }
            }
        }
        assert!(scene.flow_of(&joined).is_some(), "it is still spliced");
        ping(&joined.0, &joined.1);
    }
}

/// What its receiver does not take but answers sends a pair back as well, and so does the fragment of a reset, whose
/// checksum nobody knows.
#[test]
fn a_pair_goes_back_for_what_is_answered() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    let reset = |frame: &mut Frame| frame.flags = RST;
    let keep_alive = |frame: &mut Frame| frame.seq = frame.seq.wrapping_sub(1);
    let known = |frame: &mut Frame| {
        frame.seq = frame.seq.wrapping_sub(4);
        frame.payload = vec![0; 4];
    };
    let changes: [fn(&mut Frame); 3] = [reset, keep_alive, known];
    for is_v4 in [true, false] {
        for form in Form::ALL {
            // A whole one ends the pair (`reset_while_held`).
            let answered = usize::from(!matches!(form, Form::Fragment));
            for change in &changes[answered..] {
                let joined = scene.splice(is_v4);
                let (client, server, _) = &joined;
                ping(client, server);
                let mut frame = scene.next(&joined, 0).expect("it is spliced");
                change(&mut frame);
                assert_eq!(scene.feed(0, &form.of(&frame)), DROP, "{frame:?}");
                wait_for_return(&joined);
                ping(server, client);
            }
        }
    }
}

/// Whoever resets the connection at that moment resets the other one.
#[test]
fn a_reset_meanwhile_is_passed_on() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    for side in 0..2 {
        let joined = scene.splice(true);
        scene.send_back(&joined, 1 - side, Form::Fragment);
        let (client, server, handle) = joined;
        let (first, mut second) = match side {
            0 => (client, server),
            _ => (server, client),
        };
        socket2::SockRef::from(&first)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
        drop(first);
        let error = second.read(&mut [0; 8]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
        assert_eq!(outcome.reason, Reason::Reset(Side::BOTH[side]));
    }
}

/// The relay's socket, which has heard no acknowledgement of it, is behind its peer.
#[test]
fn a_reset_reaches_a_peer_that_is_ahead() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    let scene = Scene::new();
    let net = scene.lab.client();
    run(net, "nft", "add table inet t");
    let chain = "add chain inet t c { type filter hook output priority 0 ; }";
    run(net, "nft", chain);
    for is_v4 in [true, false] {
        let (mut client, mut server, handle) = scene.splice(is_v4);
        ping(&client, &server);
        run(
            net,
            "nft",
            "add rule inet t c tcp flags & (rst | ack) == ack drop",
        );
        server.write_all(b"ahead").expect("write");
        client.read_exact(&mut [0; 5]).expect("read");
        let joined = (client, server, handle);
        scene.send_back(&joined, 1, Form::Fragment);
        wait_for_return(&joined);
        (client, server, _) = joined;
        run(net, "nft", "flush chain inet t c");
        socket2::SockRef::from(&server)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
        drop(server);
        let error = client.read(&mut [0; 8]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

/// The relay's socket is behind its peer, which hears of its own stream all the same, though the socket gets no further.
#[test]
fn a_peer_that_is_ahead_hears_what_has_come() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    const BYTES: usize = 1 << 20;
    let scene = Scene::new();
    let nets = [scene.lab.client(), scene.lab.server()];
    for net in nets {
        run(net, "nft", "add table inet t");
        let chain = "add chain inet t c { type filter hook output priority 0 ; }";
        run(net, "nft", chain);
    }
    let drop = |net, flags| {
        let rule = format!("add rule inet t c tcp flags & {flags} drop");
        run(net, "nft", &rule);
    };
    for is_v4 in [true, false] {
        let (mut client, mut server, handle) = scene.splice(is_v4);
        ping(&client, &server);
        drop(nets[1], "(rst | ack) == ack");
        client.write_all(b"ahead").expect("write");
        server.read_exact(&mut [0; 5]).expect("read");
        // What the client sends again.
        drop(nets[0], "psh == psh");
        let joined = (client, server, handle);
        scene.send_back(&joined, 0, Form::Fragment);
        wait_for_return(&joined);
        (client, server, _) = joined;
        run(nets[1], "nft", "flush chain inet t c");
        let longer = Some(2 * PATIENCE);
        server.set_write_timeout(longer).expect("a timeout");
        thread::scope(|scope| {
            let sent = scope.spawn(|| write_some(&server, BYTES, seed()));
            assert_eq!(read_some(&client, BYTES), sent.join().expect("sent"));
        });
        run(nets[0], "nft", "flush chain inet t c");
        ping(&client, &server);
    }
}

/// What the peers may send does not follow from how large the buffers have become.
#[test]
fn sockets_promise_no_more_than_before() {
    if !available(Need::Root) {
        return;
    }
    const LARGE: usize = 4 << 20;
    const MOST: u32 = 128 << 10;
    let scene = Scene::new();
    for is_v4 in [true, false] {
        let connected = scene.connect(is_v4);
        let ends = [&connected.a, &connected.b];
        for end in ends {
            sockopt::set_socket_recv_buffer_size_force(end, LARGE).expect("set");
        }
        let tuples = ends.map(tuple);
        let joined = spliced(&scene.lab, &scene.splicer, connected);
        scene.send_back(&joined, 0, Form::Fragment);
        wait_for_return(&joined);
        ping(&joined.0, &joined.1);
        for socket in scene.sockets(&tuples) {
            assert!((1..MOST).contains(&socket.rcv_wnd), "{socket:?}");
        }
    }
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

/// With IPv6, bind(2) takes no address of a range that is routed to the host.
#[test]
fn an_address_of_a_range_can_be_taken_up() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    run(lab.relay(), "ip", "link set lo up");
    for (version, range, address) in [
        ("-4", "203.0.113.0/24", "203.0.113.9:7"),
        ("-6", "2001:db8:9::/64", "[2001:db8:9::9]:7"),
    ] {
        run(
            lab.relay(),
            "ip",
            &format!("{version} route add local {range} dev lo"),
        );
        let tried = lab.relay().enter(|| {
            let address = address.parse().expect("an address");
            let any = match version {
                "-4" => "0.0.0.0:7",
                _ => "[::]:7",
            };
            let listener = TcpListener::bind(any).expect("bound");
            let client = TcpStream::connect(address).expect("connected");
            let (_accepted, peer) = listener.accept().expect("accepted");
            let socket = repair::stream_socket(&address).expect("a socket");
            let tried = repair::may_take_up(socket, &address, &peer, false);
            drop(client);
            tried
        });
        assert_eq!(tried.expect("entered"), Ok(()), "{address}");
    }
}

/// The process may not connect for a while: the pair waits, and its sockets keep their connections. After the time that a
/// socket would bear silence it ends.
#[test]
fn what_cannot_be_taken_up_yet_waits() {
    if !available(Need::Root) {
        return;
    }
    let Some(refusing) = Refusing::new() else {
        return;
    };
    // A socket that the loop makes is in the group as well.
    refusing.enter(|| {
        let scene = Scene::new();
        let [goes_on, ends] = [(); 2].map(|()| scene.splice(true));
        let refused = refusing.begin();
        scene.send_back(&goes_on, 0, Form::Fragment);
        let (_client, _server, handle) = &goes_on;
        assert!(handle.wait_timeout(Duration::from_secs(1)).is_none());
        drop(refused);
        wait_for_return(&goes_on);
        ping(&goes_on.0, &goes_on.1);
        ping(&goes_on.1, &goes_on.0);

        let relay = scene.lab.relay();
        relay.set_sysctl("net.ipv4.tcp_retries2", "1").expect("set");
        let _refused = refusing.begin();
        scene.send_back(&ends, 0, Form::Fragment);
        let (_client, _server, handle) = &ends;
        let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
        let errno = rustix::io::Errno::PERM.raw_os_error();
        let side = Side::B;
        assert_eq!(outcome.reason, Reason::Failed { side, errno });
    });
}

/// The second socket cannot take its connection up: the first one's peer hears of it.
#[test]
fn what_cannot_be_taken_up_is_reset() {
    if !available(Need::Root) {
        return;
    }
    let Some(refusing) = Refusing::new() else {
        return;
    };
    let scene = Scene::new();
    let joined = refusing.enter(|| scene.splice(true));
    let _refused = refusing.begin();
    scene.send_back(&joined, 0, Form::Fragment);
    let (mut client, _server, handle) = joined;
    let error = client.read(&mut [0; 8]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    let errno = rustix::io::Errno::PERM.raw_os_error();
    let side = Side::B;
    assert_eq!(outcome.reason, Reason::Failed { side, errno });
    netlab::until("nothing is left of it", || scene.datapath.entries() == 0);
}

/// All at once, and none is left behind.
#[test]
fn many_pairs_go_back() {
    if !available(Need::Root) {
        return;
    }
    const PAIRS: usize = 40;
    let scene = Scene::new();
    let pairs: Vec<_> = (0..PAIRS).map(|_| scene.splice(true)).collect();
    for joined in &pairs {
        scene.send_back(joined, 0, Form::Fragment);
    }
    for joined in &pairs {
        wait_for_return(joined);
        ping(&joined.0, &joined.1);
    }
    netlab::until("the program has nothing left of them", || {
        scene.datapath.entries() == 0
    });
    for joined in &pairs {
        ping(&joined.1, &joined.0);
    }
}
