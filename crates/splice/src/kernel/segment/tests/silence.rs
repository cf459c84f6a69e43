//! Peers that are silent: who is asked, and who is given up.

use super::frame::{Frame, take_frames};
use super::pair_ends::HalfPast;
use super::window_scale::{MIDDLE, TINY, connect_scaled};
use super::*;
use rustix::io::Errno;
use rustix::net::{connect_unspec, sockopt};
use splice_bpf::types::segment_state as state;

/// A second without a segment, and two probes a second apart.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Connections whose relay soon asks its peers.
fn with_keep_alive(lab: &Lab) -> Connected {
    let connected = Connected::across(lab);
    for end in [&connected.a, &connected.b] {
        let second = Duration::from_secs(1);
        sockopt::set_socket_keepalive(end, true).expect("SO_KEEPALIVE");
        sockopt::set_tcp_keepidle(end, second).expect("TCP_KEEPIDLE");
        sockopt::set_tcp_keepintvl(end, second).expect("TCP_KEEPINTVL");
        sockopt::set_tcp_keepcnt(end, 2).expect("TCP_KEEPCNT");
    }
    connected
}

/// For as long as nothing else could show that a peer is not given up.
fn let_pass(time: Duration) {
    let since = Instant::now();
    netlab::until("the time has passed", || since.elapsed() > time);
}

fn vanish(namespace: &Namespace) {
    let down = ["link", "set", Lab::TO_RELAY, "down"];
    let status = namespace.command("ip").args(down).status();
    assert!(status.expect("ip runs").success());
}

fn expect_given_up(handle: &Handle, side: Side) {
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    let errno = Errno::TIMEDOUT.raw_os_error();
    assert_eq!(outcome.reason, Reason::Failed { side, errno });
}

/// One stream has ended by the sockets, which are not established any more when they are put to sleep.
#[test]
fn sockets_of_an_ended_stream_ask_as_well() {
    const CLOSE_WAIT: u32 = 8;
    if !available(Need::Root) {
        return;
    }
    let mut pair = HalfPast::new(with_keep_alive, 7);
    pair.server.shutdown(Shutdown::Write).expect("shutdown");
    pair.until("its end has arrived", |socket| socket.state == CLOSE_WAIT);
    pair.halt.go_on();
    let mut rest = Vec::new();
    pair.client.read_to_end(&mut rest).expect("the rest");
    assert_eq!(rest.len(), 7);
    let datapath = datapath_in(&pair.lab);
    netlab::until("it is spliced", || {
        datapath.flow(1).state.load(Relaxed) == state::SPLICED
    });
    pair.until("the socket is as it was", |socket| {
        socket.state == CLOSE_WAIT
    });
    let_pass(KEEP_ALIVE * 3);
    pair.client.write_all(b"still here").expect("write");
    pair.server.read_exact(&mut [0; 10]).expect("read");
    vanish(pair.lab.server());
    expect_given_up(&pair.handle, Side::B);
}

/// A server is gone with bytes unacknowledged, whose client has vanished: its host answers the first question by a reset that
/// stands before them.
#[test]
fn a_peer_that_is_gone_says_so() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let net = lab.server();
    let (client, mut server, handle) = spliced(&lab, &splicer, with_keep_alive(&lab));
    wait_for_sleep(&lab);
    ping(&client, &server);
    vanish(lab.client());
    server.write_all(b"to nobody").expect("write");
    run(net, "nft", "add table inet t");
    let chain = "add chain inet t c { type filter hook output priority 0 ; policy drop ; }";
    run(net, "nft", chain);
    connect_unspec(&server).expect("reset");
    run(net, "nft", "delete table inet t");
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(Side::B), "{outcome:?}");
}

/// Each answer comes long before the look that finds it.
#[test]
fn a_peer_that_answers_the_only_question_stays() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let connected = with_keep_alive(&lab);
    for end in [&connected.a, &connected.b] {
        sockopt::set_tcp_keepcnt(end, 1).expect("TCP_KEEPCNT");
    }
    let (client, server, handle) = spliced(&lab, &splicer, connected);
    let_pass(KEEP_ALIVE * 3);
    ping(&client, &server);
    assert!(handle.outcome().is_none());
}

/// A client that has vanished with less room than can be announced to the server: the relay announces it in steps.
#[test]
fn a_window_of_less_than_a_step_is_closed() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let set = lab.relay().set_sysctl("net.ipv4.tcp_retries2", "3");
    set.expect("set");
    let pairs = [16_000, 20_001, 30_003].map(|room| {
        let (front, address) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
        let (back, far) = listen_in(lab.server(), (Lab::SERVER_V4, 0));
        let client = lab.client().enter(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.set_recv_buffer_size(room)?;
            socket.connect(&address.into())?;
            Ok::<_, std::io::Error>(TcpStream::from(socket))
        });
        let client = client.expect("entered").expect("connect");
        let a = front.accept().expect("accept").0;
        let b = connect_in(lab.relay(), far);
        let server = back.accept().expect("accept").0;
        spliced(&lab, &splicer, Connected::new(client, [a, b], server))
    });
    for (_, server, _) in &pairs {
        server.set_nonblocking(true).expect("set");
        let mut at_rest = Instant::now();
        while at_rest.elapsed() < Duration::from_secs(1) {
            if (&*server).write(&[0; 4096]).is_ok() {
                at_rest = Instant::now();
            }
        }
    }
    vanish(lab.client());
    for (_, _, handle) in &pairs {
        expect_given_up(handle, Side::A);
    }
}

/// Both streams have ended, one of them by the sockets, and its receiver takes its time. Nobody waits for the peer that is
/// gone.
#[test]
fn a_slow_reader_gets_the_rest_from_a_peer_that_is_gone() {
    const BYTES: usize = 30_000;
    const CLOSE_WAIT: u32 = 8;
    if !available(Need::Root) {
        return;
    }
    // An orphan is given up after less than two seconds.
    let connect = |lab: &Lab| {
        let set = lab.relay().set_sysctl("net.ipv4.tcp_orphan_retries", "2");
        set.expect("set");
        connect_scaled(lab, TINY, MIDDLE)
    };
    let pair = HalfPast::new(connect, BYTES);
    pair.client.shutdown(Shutdown::Write).expect("shutdown");
    let end = (&pair.server).read(&mut [0; 8]);
    assert_eq!(end.expect("the end"), 0);
    pair.server.shutdown(Shutdown::Write).expect("shutdown");
    pair.until("the server's socket is gone", |socket| {
        socket.state == CLOSE_WAIT && socket.rcv_wup == socket.rcv_nxt
    });
    pair.halt.go_on();
    let_pass(Duration::from_secs(6));
    let (length, hash, _) = read_all(&pair.client);
    assert_eq!((length, hash), (BYTES, pair.in_user_space));
    assert_eq!(moved(&ended(&pair.handle)), [0, BYTES as u64]);
}

/// Forged ends, and segments beyond the end of a stream, which are lost after the program: a pair ends once both of its
/// peers have.
#[test]
fn forged_ends_keep_no_pair() {
    const FIN: u8 = 1;
    const PSH: u8 = 8;
    const ACK: u8 = 16;
    const MOST_AHEAD: usize = 4000;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    // A pair whose end is in doubt is looked at every second.
    for name in ["net.ipv4.tcp_retries2", "net.ipv4.tcp_orphan_retries"] {
        lab.relay().set_sysctl(name, "3").expect("set");
    }
    take_frames(&lab);
    let splicer = splicer_in(lab.relay());
    let mut random = Random::seeded(seed());
    let devices = devices(lab.relay());
    for round in 0..rounds(1) * 30 {
        let (client, server, handle) = spliced_across(&lab, &splicer);
        let datapath = datapath_in(&lab);
        let flow = |slot| datapath.flow(slot);
        let ours = |slot: &u32| {
            let flow = flow(*slot);
            let port = client
                .local_addr()
                .expect("an address")
                .port()
                .to_be_bytes();
            let [.., last] = flow.side[1].out.each_ref().map(|word| word.load(Relaxed));
            flow.state.load(Relaxed) == state::SPLICED && last.to_ne_bytes()[2..] == port
        };
        let slot = (0..100).find(ours).expect("its flow");
        let forge = |side: usize, ahead: u32, flags: u8, bytes: usize| {
            let [near, far] = [&client, &server]
                .map(|end| [end.local_addr(), end.peer_addr()].map(|end| end.expect("an end")));
            let flow = &flow(slot).side[side];
            let numbers = [
                flow.high_seq().wrapping_add(ahead),
                flow.high_ack.load(Relaxed),
            ];
            let mut frame = Frame::new([near, far][side], numbers, flags);
            frame.timestamps = Some([flow.recent_timestamp.load(Relaxed), 0]);
            frame.payload = vec![0; bytes];
            let fed = lab
                .relay()
                .enter(|| datapath.feed_on(devices[side], &frame.bytes()));
            fed.expect("entered").expect("run");
        };
        for _ in 0..random.below(6) {
            let kind = [FIN | ACK, PSH | ACK][random.below(2) as usize];
            let bytes = [0, 1, 100][random.below(3) as usize];
            let ahead = random.below(MOST_AHEAD as u64) as u32;
            forge(random.below(2) as usize, ahead, kind, bytes);
            if random.below(2) == 0 {
                let bytes = 1 + random.below(MOST_AHEAD as u64) as usize;
                let sent = write_some(&client, bytes, round as u64);
                assert_eq!(read_some(&server, bytes), sent);
                let sent = write_some(&server, bytes, round as u64);
                assert_eq!(read_some(&client, bytes), sent);
            }
        }
        let (first, second) = match random.below(2) {
            0 => (&client, &server),
            _ => (&server, &client),
        };
        first.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!({ second }.read(&mut [0; 8]).expect("the end"), 0);
        second.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!({ first }.read(&mut [0; 8]).expect("the end"), 0);
        drop((client, server));
        let outcome = handle.wait_timeout(PATIENCE);
        let outcome = outcome.unwrap_or_else(|| panic!("it stays: {round}"));
        // The peers of a pair whose end was not seen are asked. Both may be gone, or one answers with a reset, which is
        // at the right place only if nothing was forged after the end.
        let timed_out = Errno::TIMEDOUT.raw_os_error();
        let is_over = match outcome.reason {
            Reason::EndOfStream | Reason::Reset(_) => true,
            Reason::Failed { errno, .. } => errno == timed_out,
            _ => false,
        };
        assert!(is_over, "{round}: {outcome:?}");
    }
}
