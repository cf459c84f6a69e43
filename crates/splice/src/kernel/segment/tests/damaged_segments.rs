//! Segments that were damaged on their path. In OVERLAP the program removes a payload and keeps the acknowledgement. It
//! does so only where the checksum is right, and never makes a wrong one right.

use socket2::{Domain, Protocol, Socket, Type};

use super::forged_segments::forged;
use super::frame::{folded, pseudo, sum, take_frames, words};
use super::segment_size::lab_with_mtu;
use super::*;
use splice_bpf::clock::now_ns;
use splice_bpf::types::{segment_mark as mark, segment_state as state};

const PSH: u8 = 8;
const ACK: u8 = 16;

const TCP_HEADER_BYTES: usize = 20;
/// On the wire; `LARGE` has to fit, with the longest headers.
const FRAME_BYTES: u32 = 9100;
const LARGE: usize = 9000;
/// Odd and even lengths, and those around the 512 bytes that the program sums at a time.
const LENGTHS: [usize; 11] = [1, 2, 3, 511, 512, 513, 1023, 1448, 4095, 8999, LARGE];
/// A test run takes no more than a page.
const LARGEST_FED: usize = 1448;

const TIMESTAMP_KIND: u8 = 8;
const NO_OPTIONS: &[u8] = &[];
/// The timestamp option. With the second order the program takes its longer path.
const TIMESTAMP: &[u8] = &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
const TIMESTAMP_FIRST: &[u8] = &[8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 1];

/// The IP version.
type Connect = fn(&Lab) -> Connected;

/// Which copy loses its payload.
#[derive(Clone, Copy, Debug)]
enum Copied {
    /// The client's acknowledgements bypass the relay's socket; what it sends does not.
    ToServer,
    /// The other way round.
    ToSocket,
}

/// How the checksum of an arriving packet was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    /// Not at all (CHECKSUM_NONE).
    Unseen,
    /// The device has verified a right one (CHECKSUM_UNNECESSARY).
    Verified,
    /// The device has summed the whole packet (CHECKSUM_COMPLETE).
    SummedUp,
}

/// A pair that is held in OVERLAP, and the sockets that see what comes out.
struct Scene {
    lab: Lab,
    _splicer: Splicer,
    _handle: Handle,
    datapath: Arc<Datapath>,
    client: TcpStream,
    _server: TcpStream,
    copied: Copied,
    sender: Socket,
    receiver: Socket,
    /// Of the connection that the copy belongs to.
    receiver_ends: [SocketAddr; 2],
}

impl Scene {
    fn new(connect: Connect, copied: Copied, arrival: Arrival) -> Self {
        let lab = lab_with_mtu(FRAME_BYTES, FRAME_BYTES);
        take_frames(&lab);
        if arrival == Arrival::Verified {
            lab.enable_napi().expect("ethtool");
        }
        let splicer = splicer_in(lab.relay());
        let (client, server, handle) = spliced(&lab, &splicer, connect(&lab));
        let datapath = datapath_in(&lab);
        let client_ends = [client.local_addr(), client.peer_addr()].map(|end| end.expect("an end"));
        let server_ends = [server.peer_addr(), server.local_addr()].map(|end| end.expect("an end"));
        let (receiver_in, receiver_ends) = match copied {
            Copied::ToServer => (lab.server(), server_ends),
            Copied::ToSocket => (lab.relay(), client_ends),
        };
        let sender = lab.client().enter(|| raw(client_ends[0].ip()));
        let receiver = receiver_in.enter(|| raw(receiver_ends[1].ip()));
        let receiver = receiver.expect("entered");
        receiver.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let flow = datapath.flow(0);
        let by_socket = match copied {
            Copied::ToServer => 0,
            Copied::ToSocket => 1,
        };
        let taken_over = u64::from(mark::TAKEN_OVER) << u32::BITS;
        flow.side[by_socket]
            .high_seq_and_marks
            .fetch_and(!taken_over, Relaxed);
        flow.side[1 - by_socket].add_marks(mark::TAKEN_OVER);
        let deadline = now_ns() + 4 * PATIENCE.as_nanos() as u64;
        flow.deadline_ns.store(deadline, Relaxed);
        flow.state.store(state::OVERLAP, Relaxed);
        Self {
            sender: sender.expect("entered"),
            receiver,
            receiver_ends,
            datapath,
            client,
            _server: server,
            copied,
            _handle: handle,
            _splicer: splicer,
            lab,
        }
    }

    fn client_ends(&self) -> [SocketAddr; 2] {
        [self.client.local_addr(), self.client.peer_addr()].map(|end| end.expect("an end"))
    }

    /// A retransmission by the client. A damaged one acknowledges one byte less. `number` identifies it.
    fn segment(&self, number: u16, options: &[u8], length: usize, damaged: bool) -> Vec<u8> {
        let [from, to] = self.client_ends();
        let side = &self.datapath.flow(0).side[0];
        let seq = side.high_seq().wrapping_sub(length as u32);
        let packet = forged(from, to, seq, ACK | PSH);
        let mut segment = packet[packet.len() - TCP_HEADER_BYTES..].to_vec();
        // If everything were acknowledged, the other stream would bypass its socket from here on.
        let ack = side.high_ack.load(Relaxed).wrapping_sub(1);
        segment[8..12].copy_from_slice(&ack.to_be_bytes());
        segment[12] = ((TCP_HEADER_BYTES + options.len()) as u8 / 4) << 4;
        segment[14..16].copy_from_slice(&[0xff; 2]);
        // The urgent pointer, which means nothing without its flag, and which nobody changes.
        segment[18..20].copy_from_slice(&number.to_be_bytes());
        segment.extend(options);
        // Not one of an old duplicate.
        if let Some(kind) = options.iter().position(|byte| *byte == TIMESTAMP_KIND) {
            let recent = side.recent_timestamp.load(Relaxed);
            let at = TCP_HEADER_BYTES + kind + 2;
            segment[at..at + 4].copy_from_slice(&recent.to_be_bytes());
        }
        segment.extend((0..length).map(|place| (place * 7 + usize::from(number)) as u8 | 1));
        segment[16..18].fill(0);
        let checksum = !sum(from.ip(), to.ip(), &segment);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        if damaged {
            segment[8..12].copy_from_slice(&ack.wrapping_sub(1).to_be_bytes());
        }
        segment
    }

    /// Delivers it as if from the client.
    fn send(&self, segment: &[u8], arrival: Arrival) {
        if arrival == Arrival::SummedUp {
            self.feed_summed_up(segment);
            return;
        }
        let [_, to] = self.client_ends();
        let target = SocketAddr::new(to.ip(), 0);
        let sent = self.sender.send_to(segment, &target.into());
        assert_eq!(sent.expect("send"), segment.len());
    }

    /// Runs the program on it as if the device had summed it; returns the result.
    fn feed_summed_up(&self, segment: &[u8]) -> (i32, Vec<u8>) {
        let [from, to] = self.client_ends();
        let mut packet = forged(from, to, 0, 0);
        packet.truncate(packet.len() - TCP_HEADER_BYTES);
        let length = if from.is_ipv4() { 16..18 } else { 18..20 };
        let counted = segment.len() + if from.is_ipv4() { 20 } else { 0 };
        packet[length].copy_from_slice(&(counted as u16).to_be_bytes());
        if from.is_ipv4() {
            packet[24..26].fill(0);
            let checksum = !folded(words(&packet[14..]));
            packet[24..26].copy_from_slice(&checksum.to_be_bytes());
        }
        let header = packet.len();
        packet.extend(segment);
        let device = devices(self.lab.relay())[0];
        let fed = self
            .lab
            .relay()
            .enter(|| self.datapath.feed_summed_up(device, &packet))
            .expect("entered");
        let (verdict, became) = fed.unwrap_or_else(|errno| panic!("{errno}: {segment:?}"));
        (verdict, became[header..].to_vec())
    }

    /// The next pure ACK that the copy's receiver sees.
    fn pure_ack(&self) -> Vec<u8> {
        let mut buffer = vec![0; 1 << 17];
        loop {
            let length = netlab::uninterrupted(|| (&self.receiver).read(&mut buffer));
            let length =
                length.unwrap_or_else(|error| panic!("no copy {:?}: {error}", self.copied));
            let mut packet = &buffer[..length];
            if self.receiver_ends[0].is_ipv4() {
                packet = &packet[usize::from(packet[0] & 15) * 4..];
            }
            let header = usize::from(packet[12] >> 4) * 4;
            if packet[0..2] == self.receiver_ends[0].port().to_be_bytes()
                && packet[2..4] == self.receiver_ends[1].port().to_be_bytes()
                && packet.len() == header
            {
                return packet.to_vec();
            }
        }
    }

    fn is_right(&self, segment: &[u8]) -> bool {
        let [from, to] = self.receiver_ends;
        sum(from.ip(), to.ip(), segment) == 0xffff
    }
}

fn raw(ip: IpAddr) -> Socket {
    let domain = Domain::for_address(SocketAddr::new(ip, 0));
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::TCP)).expect("a socket");
    socket.bind(&SocketAddr::new(ip, 0).into()).expect("bind");
    socket
}

fn wrong_checksums_stay_wrong(connect: Connect, arrival: Arrival) {
    if !available(Need::Root) {
        return;
    }
    for copied in [Copied::ToServer, Copied::ToSocket] {
        let scene = Scene::new(connect, copied, arrival);
        let mut number = 0;
        for options in [NO_OPTIONS, TIMESTAMP, TIMESTAMP_FIRST] {
            for length in LENGTHS {
                if arrival == Arrival::SummedUp && length > LARGEST_FED {
                    continue;
                }
                let mut send = |damaged: bool| {
                    number += 1;
                    let segment = scene.segment(number, options, length, damaged);
                    scene.send(&segment, arrival);
                    number
                };
                let asked = format!("{length} bytes behind {options:?}, {:?}", scene.copied);
                eprintln!("{asked}");
                let damaged = send(true);
                let right = send(false);
                let mut left = scene.pure_ack();
                // The connection's own segments have no number: an acknowledgement comes late.
                while left[18..20] != right.to_be_bytes() {
                    // What is damaged goes as a whole, or is left wrong.
                    let is_damaged = left[18..20] == damaged.to_be_bytes();
                    assert!(!is_damaged || !scene.is_right(&left), "{asked}: {left:?}");
                    left = scene.pure_ack();
                }
                assert_eq!(left[13], ACK, "{asked}");
                assert!(scene.is_right(&left), "{asked}: {left:?}");
            }
        }
    }
}

#[test]
fn over_ipv4() {
    wrong_checksums_stay_wrong(Connected::across, Arrival::Unseen);
}

#[test]
fn over_ipv6() {
    wrong_checksums_stay_wrong(Connected::across_v6, Arrival::Unseen);
}

fn has_ethtool() -> bool {
    let missing = netlab::program("ethtool").is_none();
    netlab::present(
        "ethtool",
        missing.then(|| "no ethtool (apt install ethtool)".into()),
    )
}

/// GRO verifies what it might merge.
#[test]
fn checksum_unnecessary_over_ipv4() {
    if has_ethtool() {
        wrong_checksums_stay_wrong(Connected::across, Arrival::Verified);
    }
}

#[test]
fn checksum_unnecessary_over_ipv6() {
    if has_ethtool() {
        wrong_checksums_stay_wrong(Connected::across_v6, Arrival::Verified);
    }
}

#[test]
fn checksum_complete_over_ipv4() {
    wrong_checksums_stay_wrong(Connected::across, Arrival::SummedUp);
}

#[test]
fn checksum_complete_over_ipv6() {
    wrong_checksums_stay_wrong(Connected::across_v6, Arrival::SummedUp);
}

/// A pure ACK that goes to the socket with changed sequence numbers: the sum changes with them.
fn checksum_complete_on_pure_acks(connect: Connect) {
    const NEXT: i32 = -1;
    const REDIRECT: i32 = 7;
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new(connect, Copied::ToSocket, Arrival::SummedUp);
    for number in 0..64 {
        for damaged in [false, true] {
            let segment = scene.segment(number, TIMESTAMP, 0, damaged);
            let (verdict, became) = scene.feed_summed_up(&segment);
            // What is damaged is not made one that the socket takes.
            assert_eq!(verdict, if damaged { REDIRECT } else { NEXT });
            assert_ne!(became, segment, "it was not for the socket");
            assert_eq!(scene.is_right(&became), !damaged, "{became:?}");
        }
    }
}

#[test]
fn checksum_complete_on_pure_acks_over_ipv4() {
    checksum_complete_on_pure_acks(Connected::across);
}

#[test]
fn checksum_complete_on_pure_acks_over_ipv6() {
    checksum_complete_on_pure_acks(Connected::across_v6);
}

/// A checksum that a sender on this host has left to the device (CHECKSUM_PARTIAL) is the sum of the
/// pseudo-header alone.
fn what_is_to_be_computed_stays_so(connect: Connect) {
    if !available(Need::Root) {
        return;
    }
    // Two frames and more are one super-packet here.
    const LENGTHS: [usize; 5] = [1, 512, 1023, LARGE, 3 * LARGE];
    let is_computed = |length: usize, copied| {
        let scene = Scene::new(connect, copied, Arrival::Unseen);
        let sent = (&scene.client).write(&vec![1; length]).expect("write");
        assert_eq!(sent, length);
        let left = scene.pure_ack();
        let [from, to] = scene.receiver_ends.map(|end| end.ip());
        let carried = u16::from_be_bytes([left[16], left[17]]);
        let expected = folded(pseudo(from, to, left.len()));
        assert_eq!(carried, expected, "{length} bytes, {copied:?}");
    };
    // Each waits for TCP's timers, and has a lab to itself.
    thread::scope(|scope| {
        for copied in [Copied::ToServer, Copied::ToSocket] {
            for length in LENGTHS {
                scope.spawn(move || is_computed(length, copied));
            }
        }
    });
}

#[test]
fn checksum_partial_over_ipv4() {
    what_is_to_be_computed_stays_so(Connected::across);
}

#[test]
fn checksum_partial_over_ipv6() {
    what_is_to_be_computed_stays_so(Connected::across_v6);
}
