//! Pairs that go back to their sockets while these still hold bytes.

use std::io::ErrorKind;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::return_scene::{Form, Refusing, Scene, wait_for_return};
use super::*;
use splice_bpf::types::{
    SegmentFlow, SegmentSocket, SegmentTuple, segment_mark as mark, segment_state as state,
};

/// `TCP_CLOSE_WAIT`.
const CLOSE_WAIT: u32 = 8;

/// Of send buffers that hold little, and of receive buffers that hold much, in bytes.
const LITTLE: usize = 16 << 10;
const MUCH: usize = 4 << 20;

/// How much fits into no buffer, and how much into one that holds much, in bytes.
const TOO_MUCH: usize = 4 << 20;
const ENOUGH: usize = 3 << 19;

fn made(bytes: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::seeded(seed);
    let words = (0..bytes.div_ceil(8)).flat_map(|_| random.next().to_ne_bytes());
    words.take(bytes).collect()
}

fn send(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("write");
    stream.shutdown(Shutdown::Write).expect("shutdown");
}

/// Reads to the end of the stream, and compares; the first bytes slowly.
fn receive(mut stream: &TcpStream, expected: &[u8], slowly: usize) {
    const STEP: usize = 4 << 10;
    let mut received = Vec::with_capacity(expected.len());
    let mut buffer = [0; STEP];
    while received.len() < slowly {
        let count = stream.read(&mut buffer).expect("read");
        received.extend_from_slice(&buffer[..count]);
        if count == 0 {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    stream.read_to_end(&mut received).expect("read");
    assert_eq!(received.len(), expected.len());
    assert!(received == expected, "other bytes");
}

/// One stream is taken over, and `by_sockets`' stream is not.
fn has_one_taken_over(flow: &SegmentFlow, by_sockets: usize) -> bool {
    let is_taken_over = |side: usize| flow.side[side].marks() & mark::TAKEN_OVER != 0;
    flow.state.load(Relaxed) == state::OVERLAP
        && is_taken_over(1 - by_sockets)
        && !is_taken_over(by_sockets)
}

/// Writes zeroes until the socket takes no more; returns how many.
fn fill(end: impl AsFd) -> usize {
    let mut filled = 0;
    loop {
        match rustix::net::send(end.as_fd(), &[0; 1 << 10], SendFlags::DONTWAIT) {
            Ok(count) => filled += count,
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                return filled;
            }
        }
    }
}

/// The socket has received so many bytes that were not read.
fn holds(socket: &SegmentSocket, bytes: usize) -> bool {
    socket.rcv_nxt.wrapping_sub(socket.copied_seq) as usize >= bytes
}

/// Tells where a pair stands if the test fails: its streams may stand still for what happened long before.
struct Telltale<'a> {
    scene: &'a Scene,
    handle: &'a Handle,
    tuples: [SegmentTuple; 2],
    client_port: u16,
}

impl Drop for Telltale<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        eprintln!("{:?}", self.handle);
        for flow in self.scene.flows_to(self.client_port) {
            eprintln!("{flow:#?}");
        }
        eprintln!("{:#?}", self.scene.sockets(&self.tuples));
        let lab = &self.scene.lab;
        for namespace in [lab.client(), lab.relay(), lab.server()] {
            for (program, arguments) in [("ss", "-tmione"), ("nstat", "-as")] {
                if let Ok(shown) = namespace.command(program).arg(arguments).output() {
                    let text = String::from_utf8_lossy(&shown.stdout);
                    eprintln!("{}: {text}", namespace.name());
                }
            }
        }
    }
}

/// Which streams have come to their ends before a pair goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Neither,
    /// The relay has acknowledged the end of the one that nobody reads.
    Unread,
    /// The other one as well, which is taken over: who sends what is not read is gone.
    Both,
}

/// A receiver does not read, and the pair goes back for what its own segments are like.
fn goes_back(scene: &Scene, is_v4: bool, from: usize, streams: Ended, form: Form) {
    let has_ended = streams != Ended::Neither;
    let connected = scene.connect(is_v4);
    let relays = [&connected.a, &connected.b];
    let mut filled = 0;
    if has_ended {
        sockopt::set_socket_recv_buffer_size_force(relays[from], MUCH).expect("set");
        sockopt::set_socket_send_buffer_size(relays[1 - from], LITTLE).expect("set");
        filled = fill(relays[1 - from].as_fd());
    }
    let tuples = relays.map(tuple);
    let sockets = || scene.sockets(&tuples);
    let has_come = |bytes: usize| holds(&sockets()[from], bytes);
    for stream in [&connected.client, &connected.server] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let longer = Some(2 * PATIENCE);
        stream.set_write_timeout(longer).expect("a timeout");
    }
    let ends = [&connected.client, &connected.server].map(|end| end.try_clone().expect("another"));
    let [sender, receiver] = match (from, &ends) {
        (0, [client, server]) => [client, server],
        (_, [client, server]) => [server, client],
    };
    let bytes = if has_ended { ENOUGH } else { TOO_MUCH };
    let client_port = connected.client.local_addr().expect("an address").port();
    let [there, back] = [made(bytes, seed()), made(bytes / 4, seed() ^ 1)];
    thread::scope(|scope| {
        let sent = scope.spawn(|| {
            let mut sender = sender;
            let (first, second) = there.split_at(there.len() / 2);
            sender.write_all(first).expect("write");
            // Reads stop before it.
            let urgent = rustix::net::send(sender, &second[..1], SendFlags::OOB);
            assert_eq!(urgent, Ok(1));
            sender.write_all(&second[1..]).expect("write");
        });
        let waiting = if has_ended { bytes } else { LITTLE };
        netlab::until("the relay has got some", || has_come(waiting));
        let joined = connected.join(&scene.splicer, &by_name());
        let handle = &joined.2;
        // Before the pair goes with its handle.
        let _telltale = Telltale {
            scene,
            handle,
            tuples,
            client_port,
        };
        let has_one_taken_over = || {
            assert!(handle.outcome().is_none(), "{handle:?}");
            let flow = scene.translated(&joined);
            flow.is_some_and(|flow| has_one_taken_over(flow, from))
        };
        netlab::until("one stream is taken over", has_one_taken_over);
        if streams == Ended::Both {
            let answered = scope.spawn(|| send(receiver, &back));
            receive(sender, &back, 0);
            answered.join().expect("sent");
        }
        if has_ended {
            sender.shutdown(Shutdown::Write).expect("shutdown");
            netlab::until("it has come", || sockets()[from].state == CLOSE_WAIT);
            assert!(has_one_taken_over() && has_come(2), "{:?}", sockets());
        }
        if streams == Ended::Both {
            netlab::until("its sender is gone", || sender.peer_addr().is_err());
        }
        let frame = scene.next(&joined, 1 - from).expect("translated");
        scene.feed(1 - from, &form.of(&frame));
        wait_for_return(&joined);
        if streams != Ended::Both {
            let answered = scope.spawn(|| send(receiver, &back));
            receive(sender, &back, 0);
            answered.join().expect("sent");
        }
        let mut fill = vec![1; filled];
        { receiver }.read_exact(&mut fill).expect("read");
        assert!(fill.iter().all(|byte| *byte == 0));
        let received = scope.spawn(|| receive(receiver, &there, 0));
        sent.join().expect("sent");
        if !has_ended {
            sender.shutdown(Shutdown::Write).expect("shutdown");
        }
        received.join().expect("received");
        let mut expected = [there.len() as u64, back.len() as u64];
        if from == 1 {
            expected.reverse();
        }
        assert_eq!(moved(&ended(handle)), expected);
    });
}

#[test]
fn a_pair_goes_back_while_its_sockets_hold_bytes() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    // Has the program loaded and attached, so that it sees the next ones from their handshakes on.
    let _first = spliced(&scene.lab, &scene.splicer, scene.connect(true));
    let entries = scene.datapath.entries();
    for is_v4 in [true, false] {
        for form in Form::ALL {
            for from in 0..2 {
                for streams in [Ended::Neither, Ended::Unread, Ended::Both] {
                    eprintln!("IPv4: {is_v4}, {form:?}, from {from}, ended: {streams:?}");
                    goes_back(&scene, is_v4, from, streams, form);
                }
            }
        }
    }
    netlab::until("nothing is left of them", || {
        scene.datapath.entries() == entries
    });
}

/// A pair that is kept in Overlap: its server reads nothing, and its client's stream fills every buffer on the way.
fn join_unread(scene: &Scene, is_v4: bool) -> Joined {
    const LONG: Duration = Duration::from_millis(300);
    let connected = scene.connect(is_v4);
    sockopt::set_socket_recv_buffer_size(&connected.server, LITTLE).expect("set");
    let tuples = [&connected.a, &connected.b].map(tuple);
    netlab::until("the relay has got some", || {
        fill(&connected.client);
        holds(&scene.sockets(&tuples)[0], LITTLE)
    });
    let joined = connected.join(&scene.splicer, &by_name());
    let mut is_full_since = Instant::now();
    netlab::until("one stream is taken over, and the other is stuck", || {
        if fill(&joined.0) > 0 {
            is_full_since = Instant::now();
        }
        let flow = scene.translated(&joined);
        is_full_since.elapsed() > LONG && flow.is_some_and(|flow| has_one_taken_over(flow, 0))
    });
    joined
}

/// The client resets the connection, while the server reads nothing and the relay holds more than it has sent there.
#[test]
fn a_reset_reaches_a_peer_that_reads_nothing() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    let _first = spliced(&scene.lab, &scene.splicer, scene.connect(true));
    for is_v4 in [true, false] {
        let joined = join_unread(&scene, is_v4);
        let frame = scene.next(&joined, 1).expect("translated");
        scene.feed(1, &Form::Fragment.of(&frame));
        wait_for_return(&joined);
        let (client, server, handle) = joined;
        socket2::SockRef::from(&client)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
        drop(client);
        let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
        assert_eq!(outcome.reason, Reason::Reset(Side::A));
        let error = netlab::until_found("a reset", || server.take_error().expect("asked"));
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}

/// The second socket cannot take its connection up: the first one's peer hears of it, though it has bytes on their way.
#[test]
fn what_cannot_be_taken_up_in_overlap_is_reset() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    let _first = spliced(&scene.lab, &scene.splicer, scene.connect(true));
    let Some(refusing) = Refusing::new() else {
        return;
    };
    let entries = scene.datapath.entries();
    let joined = refusing.enter(|| join_unread(&scene, true));
    let _refused = refusing.begin();
    let frame = scene.next(&joined, 0).expect("translated");
    scene.feed(0, &Form::Fragment.of(&frame));
    let (mut client, _server, handle) = joined;
    client.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let error = client.read(&mut [0; 8]).expect_err("a reset");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    let errno = Errno::PERM.raw_os_error();
    let side = Side::B;
    assert_eq!(outcome.reason, Reason::Failed { side, errno });
    netlab::until("nothing is left of it", || {
        scene.datapath.entries() == entries
    });
}

/// The process may not bind a socket to the ports: each socket resets its connection, though its peer says nothing.
#[test]
fn what_may_not_be_taken_up_is_reset() {
    if !available(Need::Root) {
        return;
    }
    let mut scene = Scene::new();
    let relay = scene.lab.relay();
    let unprivileged = relay.enter(|| {
        let mut sets = capabilities(None).expect("the capabilities");
        sets.effective.remove(CapabilitySet::NET_BIND_SERVICE);
        sets.permitted.remove(CapabilitySet::NET_BIND_SERVICE);
        set_capabilities(None, sets).expect("they are set");
        Splicer::new(1).expect("a splicer")
    });
    scene.splicer = unprivileged.expect("entered");
    let set = |name: &str, value: &str| {
        let sysctl = format!("net.ipv4.ip_{name}");
        scene.lab.relay().set_sysctl(&sysctl, value).expect("set");
    };
    for (is_v4, in_overlap) in [(true, false), (true, true), (false, false), (false, true)] {
        set("unprivileged_port_start", "1024");
        set("local_port_range", "32768 59999");
        let joined = if in_overlap {
            join_unread(&scene, is_v4)
        } else {
            scene.splice(is_v4)
        };
        // The first one has to lie within the second.
        set("local_port_range", "60000 65535");
        set("unprivileged_port_start", "60000");
        let frame = scene.next(&joined, 0).expect("translated");
        scene.feed(0, &Form::Fragment.of(&frame));
        let (client, server, handle) = joined;
        let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
        let (side, errno) = (Side::A, Errno::ACCESS.raw_os_error());
        assert_eq!(outcome.reason, Reason::Failed { side, errno });
        for mut stream in [client, server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let error = stream.read_to_end(&mut Vec::new()).expect_err("a reset");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{in_overlap}");
        }
        netlab::until("nothing is left of it", || scene.datapath.entries() == 0);
    }
}

fn is_to_go_back_from_overlap(flow: &SegmentFlow) -> bool {
    const UNTRANSLATABLE: u32 = mark::FRAGMENTED | mark::OPTIONED;
    let mut sides = flow.side.iter();
    flow.state.load(Relaxed) == state::OVERLAP
        && sides.any(|side| side.marks() & UNTRANSLATABLE != 0)
}

fn has_returned(handle: &Handle) -> bool {
    handle.engine().1.contains("'s segments ")
}

/// At any moment of the change-over, with readers that are slow: no byte is lost, and none comes twice.
#[test]
fn streams_go_back_at_any_moment() {
    if !available(Need::Root) {
        return;
    }
    const BYTES: usize = 2 << 20;
    let scene = Scene::new();
    let _first = spliced(&scene.lab, &scene.splicer, scene.connect(true));
    let entries = scene.datapath.entries();
    let mut random = Random::seeded(seed());
    let (all, mut from_overlap) = (rounds(20), 0);
    for round in 0..all {
        let connected = scene.connect(round % 2 == 0);
        let ends = [&connected.client, &connected.server];
        let ends = ends.map(|end| end.try_clone().expect("another"));
        for stream in &ends {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let longer = Some(2 * PATIENCE);
            stream.set_write_timeout(longer).expect("a timeout");
            sockopt::set_socket_recv_buffer_size(stream, LITTLE).expect("set");
        }
        let tuples = [&connected.a, &connected.b].map(tuple);
        let [client, server] = &ends;
        let (from, form) = (round / 2 % 2, Form::ALL[round / 4 % 3]);
        let mut slowly = [0, 1].map(|_| random.below(2) as usize * BYTES / 4);
        slowly[round % 2] = BYTES / 4;
        let pause = Duration::from_micros(random.below(40_000));
        let [up, down] = [0, 1].map(|salt| made(BYTES, seed() ^ salt ^ (round as u64) << 8));
        let joined = thread::scope(|scope| {
            scope.spawn(|| send(client, &up));
            scope.spawn(|| send(server, &down));
            scope.spawn(|| receive(server, &up, slowly[0]));
            scope.spawn(|| receive(client, &down, slowly[1]));
            netlab::until("the relay has got some of both", || {
                let sockets = scene.sockets(&tuples);
                sockets.iter().all(|socket| holds(socket, LITTLE))
            });
            let joined = connected.join(&scene.splicer, &by_name());
            let handle = &joined.2;
            netlab::until("it changes over", || scene.translated(&joined).is_some());
            thread::sleep(pause);
            let began = Instant::now();
            let mut was_in_overlap = false;
            while !has_returned(handle) && handle.outcome().is_none() {
                assert!(began.elapsed() < PATIENCE, "it does not go back");
                // What is on its way may leave the made-up one behind.
                if let Some(frame) = scene.next(&joined, from) {
                    scene.feed(from, &form.of(&frame));
                    let flow = scene.translated(&joined);
                    was_in_overlap |= flow.is_some_and(is_to_go_back_from_overlap);
                }
            }
            from_overlap += usize::from(was_in_overlap && has_returned(handle));
            joined
        });
        let outcome = ended(&joined.2);
        assert_eq!(moved(&outcome), [BYTES as u64; 2], "{round}");
    }
    // The others came to the end of the change-over before.
    assert_ne!(from_overlap, 0, "of {all}");
    netlab::until("nothing is left of them", || {
        scene.datapath.entries() == entries
    });
}
