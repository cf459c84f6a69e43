//! Segments that nobody sent.

use std::os::fd::AsFd as _;

use super::frame::Frame;
use super::*;
use crate::kernel::segment::eligibility::announced_edge;
use splice_bpf::types::{segment_mark as mark, segment_state as state};

/// Packets of every kind: the program neither fails nor touches what is not its own.
#[test]
fn the_parser_survives_anything() {
    if !available(Need::Root) {
        return;
    }
    let (lab, _splicer, (client, server, _handle)) = spliced_lab();
    let datapath = datapath_in(&lab);
    let tuple = datapath.tuples().first().copied().expect("a tuple");
    let mut random = Random::seeded(seed());
    lab.relay()
        .enter(|| {
            for _ in 0..rounds(1) * 20_000 {
                let mut packet = Packet([0; 128]);
                let bytes = &mut packet.0;
                for chunk in bytes.chunks_exact_mut(8) {
                    chunk.copy_from_slice(&random.next().to_ne_bytes());
                }
                let mut length = 34 + (random.below(94)) as usize;
                if random.below(8) != 0 {
                    // Ethernet and IPv4, mostly right.
                    bytes[12..14].copy_from_slice(&[8, 0]);
                    bytes[14] = if random.below(16) == 0 {
                        bytes[14]
                    } else {
                        0x45
                    };
                    bytes[20..22].copy_from_slice(&[0, 0]);
                    bytes[23] = 6;
                    let total = (length - 14) as u16;
                    if random.below(8) != 0 {
                        bytes[16..18].copy_from_slice(&total.to_be_bytes());
                    }
                    if random.below(4) != 0 {
                        bytes[26..30].copy_from_slice(&tuple.source[12..]);
                        bytes[30..34].copy_from_slice(&tuple.destination[12..]);
                        bytes[34..36].copy_from_slice(&tuple.source_port);
                        bytes[36..38].copy_from_slice(&tuple.destination_port);
                    }
                    // Chance does not make a SYN, FIN or RST at the right place.
                }
                if random.below(4) == 0 {
                    length = 14 + (random.below(60)) as usize;
                }
                // The kernel may refuse to run so short a packet, which is as good.
                let _ = datapath.feed(&packet.0[..length]);
            }
        })
        .expect("entered");
    for _ in 0..100 {
        ping(&client, &server);
    }
}

struct Packet([u8; 128]);

/// An Ethernet frame with a segment that has only a TCP header.
pub(super) fn forged(from: SocketAddr, to: SocketAddr, seq: u32, flags: u8) -> Vec<u8> {
    Frame {
        window: 0,
        ..Frame::new([from, to], [seq, 0], flags)
    }
    .bytes()
}

const NEXT: i32 = -1;
const DROP: i32 = 2;
const REDIRECT: i32 = 7;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// A forged segment without payload.
fn claim(from: SocketAddr, to: SocketAddr, numbers: [u32; 2], flags: u8) -> Vec<u8> {
    Frame::new([from, to], numbers, flags).bytes()
}

/// The next byte that the other peer expects from side `from` of the only pair, in that side's sequence
/// space.
fn expected(datapath: &Datapath, from: usize) -> u32 {
    let other = &datapath.flow(0).side[1 - from];
    let ack_delta = other.ack_delta.load(Relaxed);
    other.high_ack.load(Relaxed).wrapping_add(ack_delta)
}

/// Whether the receiver would accept a reset from side `from` with this sequence number, or might.
fn hits(datapath: &Datapath, from: usize, seq: u32) -> bool {
    seq == datapath.flow(0).side[from].high_seq() || seq == expected(datapath, from)
}

/// A wrong sequence number: any, or one in the last step of the window (`tcp_acceptable_seq`).
fn miss(datapath: &Datapath, from: usize, random: &mut Random) -> u32 {
    const LARGEST_STEP: u64 = 1 << 14;
    let flow = datapath.flow(0);
    let edge = flow.side[1 - from].edge.load(Relaxed);
    let edge = edge.wrapping_sub(flow.side[from].seq_delta.load(Relaxed));
    loop {
        let seq = match random.below(2) {
            0 => random.next() as u32,
            _ => edge.wrapping_sub(random.below(LARGEST_STEP) as u32),
        };
        if !hits(datapath, from, seq) {
            return seq;
        }
    }
}

#[test]
fn forged_resets_and_handshakes_end_nothing() {
    if !available(Need::Root) {
        return;
    }
    let (lab, _splicer, (client, server, handle)) = spliced_lab();
    let datapath = datapath_in(&lab);
    let mut random = Random::seeded(seed());
    let devices = devices(lab.relay());
    let ends = [(&client, devices[0]), (&server, devices[1])].map(|(stream, device)| {
        let [from, to] = [stream.local_addr(), stream.peer_addr()].map(|end| end.expect("an end"));
        (from, to, device)
    });
    lab.relay()
        .enter(|| {
            for round in 0..rounds(1) * 5000 {
                for (from, to, device) in ends {
                    let flags = [RST, RST | ACK, SYN, SYN | ACK][round % 4];
                    let seq = miss(&datapath, usize::from(from != ends[0].0), &mut random);
                    let packet = forged(from, to, seq, flags);
                    // On the device on which it would come in, and on another one. No sender of SYNs is answered
                    // often.
                    let verdict = datapath.feed_on(device, &packet).expect("run");
                    assert!(
                        verdict == REDIRECT || (flags == SYN && verdict == DROP),
                        "{verdict}"
                    );
                    assert_eq!(datapath.feed_on(1, &packet), Ok(NEXT));
                }
            }
        })
        .expect("entered");
    for _ in 0..100 {
        ping(&client, &server);
    }
    assert!(handle.outcome().is_none());
    // A real one does end it.
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("SO_LINGER");
    drop(client);
    let error = (&server).read(&mut [0; 1]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(Side::A));
}

/// A sender beyond the end of its window, which has shrunk, sends its reset at that end
/// (`tcp_acceptable_seq`). Its receiver may have more, and then asks back.
#[test]
fn a_reset_at_the_end_of_a_window_is_doubtful_where_its_sender_has_passed_it() {
    if !available(Need::Root) {
        return;
    }
    let (lab, _splicer, (client, _server, _handle)) = spliced_lab();
    let datapath = datapath_in(&lab);
    let flow = datapath.flow(0);
    let [from_client, from_server] = &flow.side;
    let senders_scale = from_client.window_left.load(Relaxed);
    let announced_scale = from_client.own_scale.load(Relaxed);
    let [least, step] = [senders_scale, announced_scale].map(|scale| 1u32 << scale);
    let [from, to] = [client.local_addr(), client.peer_addr()].map(|end| end.expect("an end"));
    let device = devices(lab.relay())[0];
    // Two steps of the window's scale, and a little.
    let room = 2 * step + step / 2;
    let edge = from_server.high_ack.load(Relaxed).wrapping_add(room);
    from_server.edge.store(edge, Relaxed);
    let rounded_edge = expected(&datapath, 0).wrapping_add(2 * step);
    let has_sent = |beyond: u32| {
        let end = u64::from(rounded_edge.wrapping_add(beyond));
        from_client.high_seq_and_marks.store(end, Relaxed);
    };
    let is_doubted = |seq: u32| {
        let packet = forged(from, to, seq, RST);
        let fed = lab.relay().enter(|| datapath.feed_on(device, &packet));
        assert_eq!(fed.expect("entered"), Ok(REDIRECT));
        assert_eq!(from_client.marks() & mark::RST, 0);
        from_client.marks() & mark::DOUBTED != 0
    };
    // Otherwise its reset is at the next byte that it sends.
    has_sent(least - 1);
    assert!(!is_doubted(rounded_edge));
    has_sent(least);
    for beside in [1, step / 2, u32::MAX] {
        assert!(!is_doubted(rounded_edge.wrapping_add(beside)), "{beside}");
    }
    assert!(is_doubted(rounded_edge));
    assert_eq!(flow.state.load(Relaxed), state::SPLICED);
}

/// What a forged segment lies about.
#[derive(Clone, Copy, Debug)]
enum Lie {
    Sent,
    Acknowledged,
}

/// Nobody acknowledges bytes that nobody has sent. A stream that waited for that would go through the sockets for
/// ever, and these announce no more room.
fn change_over_in_spite_of(lie: Lie, step: &'static str) {
    const BYTES: usize = 4 << 20;
    const FAR: u32 = 1 << 28;
    let (lab, splicer, _first) = spliced_lab();
    let datapath = datapath_in(&lab);
    let connected = Connected::across(&lab);
    let tuples = [&connected.a, &connected.b].map(tuple);
    let near = connected.a.as_fd().try_clone_to_owned();
    let near = near.expect("a second descriptor");
    let (client, server, handle) = connected.join(&splicer, &by_volume(10));
    let halt = match step {
        "emptying" => Halt::at(&splicer, ["overlap", step]),
        _ => Halt::at(&splicer, [step]),
    };
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    }
    ping(&client, &server);
    halt.wait();
    let mut sent = 5;
    let in_overlap = step == "emptying";
    if in_overlap {
        (&client).write_all(b"to be emptied").expect("write");
        netlab::until("it is at the relay", || {
            rustix::io::ioctl_fionread(&near).expect("FIONREAD") == 13
        });
        sent += 13;
        halt.go_on();
        halt.wait();
    }
    drop(near);
    let flow = datapath.flow(1);
    let begun = flow.state.load(Relaxed);
    assert_eq!(begun == state::OVERLAP, in_overlap);
    lab.relay()
        .enter(|| {
            let sockets = datapath.inspect(&tuples).expect("run").socket;
            let peers = [&client, &server].into_iter().zip(devices(lab.relay()));
            let tell = |peer: usize, seq: u32, ack: u32| {
                let (stream, device) = peers.clone().nth(peer).expect("one of two");
                let [from, to] =
                    [stream.local_addr(), stream.peer_addr()].map(|end| end.expect("an end"));
                let packet = claim(from, to, [seq, ack], ACK);
                for device in [1, device] {
                    datapath.feed_on(device, &packet).expect("run");
                }
            };
            for (peer, socket) in sockets.iter().enumerate() {
                // With this the other one has room for what was not announced.
                tell(peer, socket.rcv_nxt, socket.snd_una);
            }
            for (peer, socket) in sockets.iter().enumerate() {
                let (seq, ack) = (socket.rcv_nxt, socket.snd_una);
                let beyond = if in_overlap {
                    announced_edge(socket).wrapping_sub(seq) + 1000
                } else {
                    FAR
                };
                match lie {
                    Lie::Sent => tell(peer, seq.wrapping_add(beyond), ack),
                    Lie::Acknowledged => tell(peer, seq, ack.wrapping_add(beyond)),
                }
            }
        })
        .expect("entered");
    halt.go_on();
    (&server).read_exact(&mut vec![0; sent - 5]).expect("read");
    netlab::until("the pair is spliced", || {
        ping(&client, &server);
        sent += 5;
        flow.state.load(Relaxed) == state::SPLICED
    });
    exchange(&client, &server, BYTES, seed());
    let outcome = ended(&handle);
    assert_eq!(outcome.engine, EngineName::Segment);
    assert_eq!(outcome.moved.a_to_b, (sent + BYTES) as u64);
}

#[test]
fn a_forged_sequence_number_stops_no_change_over() {
    if !available(Need::Root) {
        return;
    }
    for (lie, step) in [
        (Lie::Sent, "watching"),
        (Lie::Sent, "translatable"),
        (Lie::Sent, "emptying"),
        (Lie::Acknowledged, "watching"),
        (Lie::Acknowledged, "translatable"),
    ] {
        eprintln!("{lie:?} at {step}");
        change_over_in_spite_of(lie, step);
    }
}

/// One stream has ended. Ends of the other one are forged while it goes on.
#[test]
fn a_forged_end_ends_nothing() {
    const REST_BYTES: usize = 32 << 10;
    if !available(Need::Root) {
        return;
    }
    let (lab, _splicer, (client, server, handle)) = spliced_lab();
    let datapath = datapath_in(&lab);
    let flow = datapath.flow(0);
    let [from_client, from_server] = &flow.side;
    client.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!((&server).read(&mut [0; 8]).expect("the end"), 0);
    netlab::until("its end is acknowledged", || {
        from_client.marks() & mark::FIN_ACKED != 0
    });
    let [from, to] = [server.local_addr(), server.peer_addr()].map(|end| end.expect("an end"));
    let device = devices(lab.relay())[1];
    let place = from_server.high_seq();
    let acknowledged = from_server.high_ack.load(Relaxed);
    let scale = from_server.window_left.load(Relaxed);
    let largest_window = u32::from(u16::MAX) << scale;
    let end_at = |ahead: u32, ack: u32| {
        let packet = claim(from, to, [place.wrapping_add(ahead), ack], FIN | ACK);
        let fed = lab.relay().enter(|| datapath.feed_on(device, &packet));
        assert_eq!(fed.expect("entered"), Ok(REDIRECT));
    };
    // The endpoint would discard these for their acknowledgement (`tcp_ack`).
    let mut random = Random::seeded(seed());
    for _ in 0..1000 {
        let ack = match random.below(4) {
            0 => acknowledged.wrapping_add(1),
            1 => acknowledged.wrapping_sub(largest_window + 1),
            _ => acknowledged.wrapping_add(1 + random.below(1 << 31) as u32),
        };
        end_at(random.below(1000) as u32, ack);
        assert_eq!(from_server.high_seq(), place, "{ack}");
        assert_eq!(from_server.marks() & mark::FIN, 0, "{ack}");
    }
    // This one might be genuine, until more is acknowledged.
    end_at(99, acknowledged);
    assert_ne!(from_server.marks() & mark::FIN, 0);
    let rest = write_some(&server, REST_BYTES, seed());
    assert_eq!(read_some(&client, REST_BYTES), rest);
    netlab::until("all is acknowledged", || {
        from_server.acked.load(Relaxed) as u32 == place.wrapping_add(REST_BYTES as u32)
    });
    assert_eq!(from_server.marks() & mark::FIN_ACKED, 0);
    assert_eq!(flow.state.load(Relaxed), state::SPLICED);
    assert!(handle.outcome().is_none());
    drop(server);
    assert_eq!((&client).read(&mut [0; 8]).expect("the end"), 0);
    assert_eq!(moved(&ended(&handle)), [5, 5 + REST_BYTES as u64]);
}
