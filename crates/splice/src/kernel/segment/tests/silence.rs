//! Peers that are silent: who is asked, and who is given up.

use super::frame::{Frame, take_frames};
use super::pair_ends::HalfPast;
use super::*;
use rustix::io::Errno;
use rustix::net::sockopt;
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

/// Forged ends, and segments beyond the end of a stream, which are lost behind the program: a pair ends once both of its
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
        eprintln!("{}", outcome.reason);
    }
}
