//! SYNs on the addresses and ports of pairs that live: their sender gets a challenge ACK, and nobody else hears
//! of them.

use splice_base::repair::{Repair, repair};

use super::frame::{Frame, in_frame};
use super::ip_forms::with_tcp_options;
use super::return_scene::Scene;
use super::*;

const DROP: i32 = 2;
const REDIRECT: i32 = 7;

const SYN: u8 = 2;
const ACK: u8 = 16;

const ETHERNET_BYTES: usize = 14;

/// Of a SYN, with a timestamp in another place than those of other segments have it.
const OPTIONS: &[u8] = &[
    2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7,
];

/// As often as a socket would, whatever the SYN has.
#[test]
fn the_sender_gets_a_challenge_ack() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    let mut random = Random::seeded(seed());
    for is_v4 in [true, false] {
        for (options, payload) in [(&[][..], 0), (OPTIONS, 0), (OPTIONS, 501)] {
            let joined = scene.splice(is_v4);
            ping(&joined.0, &joined.1);
            for side in 0..2 {
                let flow = scene.translated(&joined).expect("it is spliced");
                let (near, far) = (&flow.side[side], &flow.side[1 - side]);
                let delta = far.ack_delta.load(Relaxed);
                let next = scene.next(&joined, side).expect("it is spliced");
                let room = far
                    .edge
                    .load(Relaxed)
                    .wrapping_sub(far.high_ack.load(Relaxed));
                // All is acknowledged.
                assert_eq!(next.seq, far.high_ack.load(Relaxed).wrapping_add(delta));
                let expected = Frame {
                    from: next.to,
                    to: next.from,
                    seq: next.ack,
                    ack: next.seq,
                    window: (room >> near.own_scale.load(Relaxed)) as u16,
                    ..Frame::new([next.to, next.from], [0; 2], ACK)
                };
                let syn = Frame {
                    seq: random.next() as u32,
                    ack: 0,
                    flags: SYN,
                    payload: vec![3; payload],
                    ..next
                };
                let syn = in_frame(&syn, |packet| with_tcp_options(packet, options));
                let before = [
                    near.high_seq_and_marks.load(Relaxed),
                    far.high_seq_and_marks.load(Relaxed),
                ];
                let (verdict, became) = scene.feed_through(side, &syn);
                assert_eq!(verdict, REDIRECT);
                assert_eq!(became[ETHERNET_BYTES..], expected.bytes()[ETHERNET_BYTES..]);
                assert_eq!(scene.feed(side, &syn), DROP, "so soon");
                assert_eq!(
                    [
                        near.high_seq_and_marks.load(Relaxed),
                        far.high_seq_and_marks.load(Relaxed)
                    ],
                    before
                );
            }
            ping(&joined.0, &joined.1);
        }
    }
}

/// Client, relay and server are on this host.
#[test]
fn a_client_on_this_host_begins_anew() {
    if !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("anew").expect("a namespace");
    let repeated = || namespace.tcp_counter("TCPSynRetrans").expect("counted");
    for ip in ["127.0.0.1:0", "[::1]:0"] {
        let before = repeated();
        namespace
            .enter(|| {
                let splicer = Splicer::new(1).expect("a splicer");
                let (front, front_address) = listen(ip);
                let (back, back_address) = listen(ip);
                let client = TcpStream::connect(front_address).expect("connect");
                let a = front.accept().expect("accept").0;
                let b = TcpStream::connect(back_address).expect("connect");
                let server = back.accept().expect("accept").0;
                let from = client.local_addr().expect("an address");
                let connected = Connected::new(client, [a, b], server);
                let (client, mut server, handle) = connected.join(&splicer, &by_name());
                ping(&client, &server);
                netlab::until("it is spliced", || handle.engine().0 == EngineName::Segment);
                let datapath = Datapath::here().expect("a datapath");
                netlab::until("it sleeps", || datapath.awake().load(Relaxed) == 0);
                ping(&client, &server);
                repair(&client, Repair::On).expect("TCP_REPAIR");
                drop(client);
                let domain = socket2::Domain::for_address(from);
                let again = socket2::Socket::new(domain, socket2::Type::STREAM, None);
                let again = again.expect("a socket");
                again.set_reuse_address(true).expect("SO_REUSEADDR");
                again.bind(&from.into()).expect("its port is free");
                again.connect(&front_address.into()).expect("connect");
                front.accept().expect("accept");
                server.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                let error = server.read(&mut [0; 8]).expect_err("a reset");
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
                assert_eq!(outcome.reason, Reason::Reset(Side::A));
            })
            .expect("entered");
        // After its reset, at once. The next one would come a second after the first.
        assert_eq!(repeated() - before, 1);
    }
}
