//! Spliced pairs: silence, ends, what is left behind.

use super::*;

use std::os::fd::AsFd;

use crate::bpf_types::segment_state as state;
use crate::socket_option;

#[test]
fn idle_pairs_are_reset_at_both_ends() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (mut client, mut server, handle) = spliced_across(&lab, &splicer);
    drop(handle);
    for stream in [&mut client, &mut server] {
        let error = stream.read(&mut [0; 1]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_sleeping_pair_is_silent_and_lives_on() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let sent = || {
        let counters = counters_in(lab.relay());
        counters
            .iter()
            .filter(|(name, _)| name == "OutSegs")
            .map(|(_, value)| value)
            .sum::<u64>()
    };
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
    let outcome = handle
        .wait_timeout(Duration::from_secs(5))
        .expect("it ends");
    assert_eq!(outcome.reason, Reason::EndOfStream);
    assert_eq!(
        [outcome.moved.a_to_b, outcome.moved.b_to_a],
        [5 * 102, 5 * 102 + 4]
    );
}

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
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (front, front_address) = lab
        .relay()
        .enter(|| listen(&format!("{}:0", Lab::RELAY_V4)))
        .expect("entered");
    let (back, back_address) = lab
        .server()
        .enter(|| listen(&format!("{}:0", Lab::SERVER_V4)))
        .expect("entered");
    let options = Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    // The first pair makes the program stand where the others are seen from the start.
    let _first = spliced_across(&lab, &splicer);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..connections {
                let (mut stream, _) = back.accept().expect("accept");
                let mut buffer = [0; 8];
                stream.read_exact(&mut buffer).expect("read");
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
        let mut handles = Vec::new();
        for _ in 0..connections {
            let a = front.accept().expect("accept").0;
            let b = lab
                .relay()
                .enter(|| TcpStream::connect(back_address))
                .expect("entered");
            let [a, b] = [a, b.expect("connect")].map(|end| Endpoint::new(end).expect("an end"));
            handles.push(splicer.join(a, b, &options).expect("joined"));
        }
        client.join().expect("client").expect("entered");
        for (number, handle) in handles.into_iter().enumerate() {
            let outcome = handle.wait_timeout(Duration::from_secs(5));
            let outcome = outcome.unwrap_or_else(|| panic!("connection {number} did not end"));
            assert_eq!(outcome.reason, Reason::EndOfStream, "{number}: {outcome:?}");
            assert_eq!(outcome.engine, EngineName::Segment);
            assert_eq!(
                [outcome.moved.a_to_b, outcome.moved.b_to_a],
                [8, 8],
                "{number}"
            );
        }
    });
}

/// A segment that the program had let pass reaches its socket when that sleeps already.
#[test]
fn what_reaches_a_sleeping_socket_is_delivered() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let Joined {
        client,
        server,
        a,
        b,
    } = connect_across(&lab, false);
    let near = a.as_fd().try_clone_to_owned().expect("a second descriptor");
    let options = Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    for stream in [&client, &server] {
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a timeout");
    }
    // An answer would be acknowledged with what follows, and the socket has not sent it.
    (&client).write_all(b"hello").expect("write");
    let mut hello = [0; 5];
    (&server).read_exact(&mut hello).expect("read");
    let ground = lab.relay().enter(Ground::here).expect("entered");
    let ground = ground.expect("a ground");
    let state = &ground.flow(0).state;
    netlab::until("the pair is spliced", || {
        state.load(Relaxed) == state::SPLICED
    });
    state.store(state::WATCH, Relaxed);
    socket_option::detach_filter(&near).expect("no filter");
    (&client).write_all(b"late!").expect("write");
    netlab::until("the socket has what is late", || {
        rustix::io::ioctl_fionread(&near).expect("FIONREAD") == 5
    });
    socket_option::attach_filter(&near, ground.asleep()).expect("a filter");
    state.store(state::SPLICED, Relaxed);
    drop(near);
    let mut late = [0; 5];
    (&server).read_exact(&mut late).expect("read");
    assert_eq!(&late, b"late!");
    for _ in 0..100 {
        ping(&client, &server);
    }
    drop((client, server));
    let outcome = handle
        .wait_timeout(Duration::from_secs(5))
        .expect("it ends");
    assert_eq!(outcome.reason, Reason::EndOfStream);
    assert_eq!(
        [outcome.moved.a_to_b, outcome.moved.b_to_a],
        [5 * 102, 5 * 100]
    );
}

/// A process that is being started has a duplicate of every descriptor until its exec.
#[test]
fn a_duplicate_does_not_hold_a_reset_back() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let Joined {
        client,
        server,
        a,
        b,
    } = connect_across(&lab, false);
    let near = a.as_fd().try_clone_to_owned().expect("a second descriptor");
    let options = Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    ping(&client, &server);
    let ground = lab.relay().enter(Ground::here).expect("entered");
    let ground = ground.expect("a ground");
    while ground.flow(0).state.load(Relaxed) != state::SPLICED {
        thread::sleep(Duration::from_micros(100));
    }
    drop(handle);
    for mut stream in [&client, &server] {
        let patience = Some(Duration::from_secs(20));
        stream.set_read_timeout(patience).expect("a timeout");
        let error = stream.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    drop(near);
}

/// The program is gone for a while: the flow stalls, and goes on when it is back.
#[test]
fn a_flow_outlives_a_detached_program() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    let proof = Proof::begin(&lab, &splicer, &handle);
    let bytes = 32 << 20;
    let seed = seed();
    thread::scope(|scope| {
        let up = scope.spawn(|| write_all(&client, bytes, seed));
        let down = scope.spawn(|| write_all(&server, bytes, seed ^ 1));
        let at_server = scope.spawn(|| read_all(&server));
        let at_client = scope.spawn(|| read_all(&client));
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20));
            lab.relay()
                .enter(|| {
                    let devices = ground.step_off();
                    thread::sleep(Duration::from_millis(50));
                    for device in devices {
                        ground.stand_on(device).expect("attached again");
                    }
                })
                .expect("entered");
        }
        assert_eq!(
            at_server.join().expect("joined").1,
            up.join().expect("joined")
        );
        assert_eq!(
            at_client.join().expect("joined").1,
            down.join().expect("joined")
        );
    });
    let outcome = handle
        .wait_timeout(Duration::from_secs(5))
        .expect("it ends");
    assert_eq!(outcome.reason, Reason::EndOfStream);
    let moved = bytes as u64 + 5;
    assert_eq!([outcome.moved.a_to_b, outcome.moved.b_to_a], [moved; 2]);
    proof.end(2 * bytes as u64);
}

/// Nothing stays: neither entries nor the program.
#[test]
fn what_lingers_goes() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    assert_eq!(ground.entries(), 2);
    drop((client, server));
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
    let deadline = Instant::now() + Duration::from_secs(10);
    while ground.entries() > 0 {
        assert!(Instant::now() < deadline, "{ground:?}");
        thread::sleep(Duration::from_millis(50));
    }
    drop(ground);
    drop(splicer);
    let attached = lab.relay().command("bpftool").args(["net"]).output();
    if let Ok(attached) = attached {
        let text = String::from_utf8_lossy(&attached.stdout).into_owned();
        assert!(!text.contains("segment"), "{text}");
    }
}

#[test]
fn connection_tracking_forgets_spliced_connections() {
    if !available(Need::Root) || netlab::program("nft").is_none() {
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
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let tuples = ground.tuples();
    let tracked = || {
        let tuples = [tuples[0], tuples[1]];
        lab.relay()
            .enter(|| ground.forget(&tuples))
            .expect("entered")
            .expect("run")
    };
    assert_eq!(tracked(), 2);
    // A look makes it forget; the next segment of a connection whose sockets are awake would bring
    // it back, and these sleep.
    ping(&client, &server);
    assert_eq!(tracked(), 0);
    drop((client, server));
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
    assert_eq!(tracked(), 0);
}
