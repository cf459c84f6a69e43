//! The life of spliced pairs: idle, ended, and what they leave behind.

use super::*;

use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard};

use super::bypass::{calls_of, expect_translated};
use splice_base::repair::{self, Repair};
use splice_base::socket_option;
use splice_bpf::clock::{self, now_ns};
use splice_bpf::types::segment_state as state;

/// Longer than the lead of the timestamp clock (`LEAD_NS` in bpf/segment/timestamp.h).
pub(super) const LONG_OVERLAP: Duration = Duration::from_millis(400);

#[test]
fn idle_pairs_are_reset_at_both_ends() {
    if !available(Need::Root) {
        return;
    }
    let (_lab, _splicer, (mut client, mut server, handle)) = spliced_lab();
    drop(handle);
    for stream in [&mut client, &mut server] {
        let error = stream.read(&mut [0; 1]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

/// The program reads the machine's clock; this process may be in another time namespace.
#[test]
fn a_process_with_a_clock_of_its_own_knows_when_a_pair_moved() {
    if !available(Need::Root) {
        return;
    }
    clock::a_day_ahead("kernel::segment::tests::lifetime::moved_just_now");
}

#[test]
#[ignore = "a process that another test starts"]
fn moved_just_now() {
    let (lab, _splicer, _pair) = spliced_lab();
    let moved_ns = datapath_in(&lab).flow(0).moved_ns.load(Relaxed);
    let since = Duration::from_nanos(now_ns().abs_diff(moved_ns));
    assert!(since < PATIENCE, "{since:?}");
}

#[test]
fn a_sleeping_pair_is_silent_and_lives_on() {
    if !available(Need::Root) {
        return;
    }
    let (lab, _splicer, (client, server, handle)) = spliced_lab();
    let sent = || count(lab.relay(), &["OutSegs"]);
    ping(&client, &server);
    let before = sent();
    for _ in 0..100 {
        ping(&client, &server);
    }
    assert_eq!(sent(), before, "the relay's own sockets sent segments");
    // Half-close, then the rest of the other direction.
    client.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!((&server).read(&mut [0; 8]).expect("the end"), 0);
    (&server).write_all(b"late").expect("write");
    drop(server);
    let mut rest = Vec::new();
    (&client).read_to_end(&mut rest).expect("the rest");
    assert_eq!(rest, b"late");
    assert_eq!(moved(&ended(&handle)), [5 * 102, 5 * 102 + 4]);
}

/// How often the engine asks for the routes of a pair: as the socket would, and as the program does.
const ROUTES_ASKED_FOR: u64 = 4;

#[test]
fn many_short_connections_over_few_ports() {
    if !available(Need::Root) {
        return;
    }
    let connections = rounds(1) * 1000;
    let lab = Lab::new().expect("a lab");
    lab.client()
        .set_sysctl("net.ipv4.ip_local_port_range", "20000 20199")
        .expect("sysctl");
    let splicer = splicer_in(lab.relay());
    let (front, front_address) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
    let (back, back_address) = listen_in(lab.server(), (Lab::SERVER_V4, 0));
    // The first pair attaches the program, so it sees the others from their handshakes on.
    let _first = spliced_across(&lab, &splicer);
    let mut calls = calls_of(&splicer);
    let handles = Mutex::new(Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..connections {
                let (mut stream, _) = back.accept().expect("accept");
                let mut buffer = [0; 8];
                stream.read_exact(&mut buffer).expect("read");
                // Every other answer is sent only after the change-over has begun. From then on an empty
                // stream bypasses the sockets.
                netlab::until("the pair changes over", || {
                    let handles: MutexGuard<'_, Vec<Handle>> = handles.lock().expect("whole");
                    number % 2 == 1 || handles.get(number).is_some_and(Handle::is_taken)
                });
                stream.write_all(&buffer).expect("write");
                // It closes first.
            }
        });
        let client = scope.spawn(|| {
            lab.client().enter(|| {
                for number in 0..connections as u64 {
                    let mut stream = TcpStream::connect(front_address).expect("connect");
                    stream.write_all(&number.to_le_bytes()).expect("write");
                    let mut answer = Vec::new();
                    stream.read_to_end(&mut answer).expect("read");
                    assert_eq!(answer, number.to_le_bytes());
                }
            })
        });
        for _ in 0..connections {
            let a = front.accept().expect("accept").0;
            let b = connect_in(lab.relay(), back_address);
            let [a, b] = [a, b].map(|end| Endpoint::new(end).expect("an end"));
            let handle = splicer.join(a, b, &by_name()).expect("joined");
            handles.lock().expect("whole").push(handle);
        }
        client.join().expect("client").expect("entered");
        let mut translated = 0;
        let handles = handles.lock().expect("whole");
        for (number, handle) in handles.iter().enumerate() {
            let outcome = handle.wait_timeout(PATIENCE);
            let outcome = outcome.unwrap_or_else(|| panic!("connection {number} did not end"));
            assert_eq!(outcome.reason, Reason::EndOfStream, "{number}: {outcome:?}");
            assert_eq!(moved(&outcome), [8, 8], "{number}");
            let forwarded = handle.forwarded_bytes();
            if number % 2 == 0 {
                assert_eq!(outcome.engine, EngineName::Segment);
                assert!(forwarded >= 8, "{number}: {forwarded}");
            } else if outcome.engine != EngineName::Segment {
                // Its answer does not wait, so the pair may end before it begins to change over.
                assert_eq!(forwarded, 0, "{number}: {outcome:?}");
            }
            translated += forwarded;
        }
        // User space moves what comes before its pair begins to change over.
        let [reads, writes] = ["recvfrom", "sendto"].map(|name| calls.begun(name));
        // As netlink takes questions about routes.
        let writes = writes.saturating_sub(ROUTES_ASKED_FOR * connections as u64);
        let most = connections as u64 * 3 / 2;
        assert!(writes <= most, "{writes} writes, {reads} reads");
        expect_translated(translated, connections as u64 * 16 - writes * 8);
    });
}

/// A segment that the program had let pass reaches its socket when that already sleeps. The change-over has
/// taken long before, so the timestamps of translated segments are behind the sockets' by as much. The test
/// itself lets the segment pass, and halts the loop meanwhile: what a pair does in a flow state that user
/// space has not set proves nothing.
#[test]
fn what_reaches_a_sleeping_socket_is_delivered() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let connected = Connected::across(&lab);
    let near = connected.a.as_fd().try_clone_to_owned();
    let near = near.expect("a second descriptor");
    // One halt for each of the two sockets.
    let halt = Halt::at(&splicer, ["settled", "asleep", "asleep"]);
    let (client, server, handle) = connected.join(&splicer, &by_name());
    for stream in [&client, &server] {
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a timeout");
    }
    // An answer would be acknowledged together with what follows, and the socket has not sent it.
    (&client).write_all(b"hello").expect("write");
    halt.wait();
    let mut hello = [0; 5];
    (&server).read_exact(&mut hello).expect("read");
    let datapath = datapath_in(&lab);
    let from_client = &datapath.flow(0).side[0];
    let probe_of = |stream: &TcpStream| {
        let repair = |state| repair::repair(stream, state).expect("TCP_REPAIR");
        repair(Repair::On);
        repair(Repair::OffWithProbe);
    };
    probe_of(&client);
    netlab::until("the timestamp clock is stopped", || {
        from_client.timestamp_floor.load(Relaxed) != 0
    });
    thread::sleep(LONG_OVERLAP);
    for _socket in Side::BOTH {
        halt.go_on();
        halt.wait();
    }
    let state = &datapath.flow(0).state;
    assert_eq!(state.load(Relaxed), state::SPLICED);
    // A probe is not acceptable, so the clock goes on with the client's answer: a pure ACK. A peer answers only now and
    // then (`net.ipv4.tcp_invalid_ratelimit`, 500 ms).
    netlab::until("the timestamp clock advances", || {
        probe_of(&server);
        from_client.timestamp_delta.load(Relaxed) != 0
    });
    let stood = from_client.timestamp_floor.load(Relaxed);
    state.store(state::WATCH, Relaxed);
    socket_option::detach_filter(&near).expect("it sleeps");
    (&client).write_all(b"late!").expect("write");
    netlab::until("the socket has what is late", || {
        rustix::io::ioctl_fionread(&near).expect("FIONREAD") == 5
    });
    socket_option::attach_filter(&near, datapath.asleep()).expect("a filter");
    state.store(state::SPLICED, Relaxed);
    drop(near);
    halt.go_on();
    let mut late = [0; 5];
    (&server).read_exact(&mut late).expect("read");
    assert_eq!(&late, b"late!");
    // The pure ACK, like a retransmission, had a timestamp of the advancing clock, which is not noted.
    let stands = from_client.timestamp_floor.load(Relaxed);
    assert!(
        stands.wrapping_sub(stood).cast_signed() > 0,
        "{stood} {stands}"
    );
    for _ in 0..100 {
        ping(&client, &server);
    }
    // The client may get the answer to the late segment, which was sent here while the flow was watched.
    assert_eq!(count(lab.server(), &["PAWSEstab"]), 0);
    drop((client, server));
    assert_eq!(moved(&ended(&handle)), [5 * 102, 5 * 100]);
}

/// A process that is being started holds duplicates of all descriptors until its exec.
#[test]
fn a_duplicated_descriptor_does_not_delay_a_reset() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let connected = Connected::across(&lab);
    let near = connected.a.as_fd().try_clone_to_owned();
    let near = near.expect("a second descriptor");
    let (client, server, handle) = connected.join(&splicer, &by_name());
    ping(&client, &server);
    let datapath = datapath_in(&lab);
    netlab::until("the pair is spliced", || {
        datapath.flow(0).state.load(Relaxed) == state::SPLICED
    });
    drop(handle);
    for mut stream in [&client, &server] {
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("a timeout");
        let error = stream.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    drop(near);
}

/// The flow stalls while the program is detached, and goes on when it is back.
#[test]
fn a_flow_outlives_a_detached_program() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, (client, server, handle)) = spliced_lab();
    let datapath = datapath_in(&lab);
    let proof = Proof::begin(&lab, &splicer, &handle);
    let bytes = 32 << 20;
    thread::scope(|scope| {
        scope.spawn(|| exchange(&client, &server, bytes, seed()));
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20));
            lab.relay()
                .enter(|| {
                    let devices = datapath.detach_all();
                    thread::sleep(Duration::from_millis(50));
                    // A process that is being started holds duplicates of the links until its exec.
                    for device in devices {
                        netlab::until("it is attached again", || {
                            datapath.ensure_attached(device).is_ok()
                        });
                    }
                })
                .expect("entered");
        }
    });
    assert_eq!(moved(&ended(&handle)), [bytes as u64 + 5; 2]);
    proof.end(2 * bytes as u64);
}

/// Neither entries nor the program stay.
#[test]
fn a_flow_in_time_wait_is_freed() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, (client, server, handle)) = spliced_lab();
    let datapath = datapath_in(&lab);
    assert_eq!(datapath.entries(), 2);
    drop((client, server));
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
    netlab::until("no entry is left", || datapath.entries() == 0);
    drop(datapath);
    drop(splicer);
    // A process that is being started holds duplicates of the links until its exec.
    netlab::until("the program has left", || {
        let attached = lab.relay().command("bpftool").args(["net"]).output();
        !attached
            .is_ok_and(|attached| String::from_utf8_lossy(&attached.stdout).contains("segment"))
    });
}

#[test]
fn connection_tracking_forgets_spliced_connections() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    run(lab.relay(), "nft", "add table ip t");
    run(
        lab.relay(),
        "nft",
        "add chain ip t in { type filter hook input priority 0 ; }",
    );
    run(
        lab.relay(),
        "nft",
        "add rule ip t in ct state established accept",
    );
    let splicer = splicer_in(lab.relay());
    let datapath = datapath_in(&lab);
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let tuples = datapath.tuples();
    let tracked = || {
        let tuples = [tuples[0], tuples[1]];
        lab.relay()
            .enter(|| datapath.forget(&tuples))
            .expect("entered")
            .expect("run")
    };
    assert_eq!(tracked(), 2);
    // A look removes the entry. The next segment of a connection whose sockets are awake would bring it back,
    // but these sleep.
    ping(&client, &server);
    assert_eq!(tracked(), 0);
    drop((client, server));
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
    assert_eq!(tracked(), 0);
}

/// Who ends its stream last gets no acknowledgement of that for seconds, and repeats it: in the end it is answered, and not reset.
#[test]
fn a_last_end_of_stream_is_answered_for_long() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    /// After the fourth the next one comes 3.2 s later.
    const REPEATED: u64 = 4;
    let (lab, splicer, _first) = spliced_lab();
    let net = lab.client();
    let timeouts = || net.tcp_counter("TCPTimeouts").expect("counted");
    for is_v4 in [true, false] {
        let connected = match is_v4 {
            true => Connected::across(&lab),
            false => Connected::across_v6(&lab),
        };
        let (mut client, mut server, handle) = spliced(&lab, &splicer, connected);
        wait_for_sleep(&lab);
        ping(&client, &server);
        server.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(client.read(&mut [0; 8]).expect("the end"), 0);
        run(net, "nft", "add table inet t");
        let chain = "add chain inet t c { type filter hook input priority 0 ; }";
        run(net, "nft", chain);
        run(net, "nft", "add rule inet t c meta l4proto tcp drop");
        let before = timeouts();
        client.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!(server.read(&mut [0; 8]).expect("the end"), 0);
        assert_eq!(ended(&handle).reason, Reason::EndOfStream);
        netlab::until("it has been repeated", || timeouts() - before >= REPEATED);
        run(net, "nft", "delete table inet t");
        netlab::until("its socket is done", || client.peer_addr().is_err());
        assert_eq!(
            client
                .take_error()
                .expect("asked")
                .map(|error| error.kind()),
            None
        );
    }
}
