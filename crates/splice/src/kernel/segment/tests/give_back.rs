//! Pairs that go back to their sockets, since their segments come in a form that is not translated.

use super::frame::Frame;
use super::return_scene::{Form, Refusing, Scene, wait_for_return};
use super::*;
use rustix::net::sockopt;
use splice_base::repair;
use std::net::{TcpListener, TcpStream};

use crate::Stream;

use splice_bpf::types::segment_mark as mark;

const DROP: i32 = 2;
const NEXT: i32 = -1;

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

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

/// The relay's socket, which has got no acknowledgement of it, lags behind its peer.
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

/// The relay's socket lags behind its peer, which gets its acknowledgements all the same, though the socket gets no further.
#[test]
fn a_peer_that_is_ahead_learns_what_has_come() {
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
fn sockets_announce_no_more_than_before() {
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
