//! What the relay's own sockets still say, on its way out.

use super::forgery::forged;
use super::life::LONG_OVERLAP;
use super::*;
use crate::bpf_clock::now_ns;
use crate::bpf_types::{segment_mark as mark, segment_state as state};

const RST: u8 = 4;
const ACK: u8 = 16;
/// Where a TCP header has its sequence number, in a packet of Ethernet and IPv4.
const SEQ: std::ops::Range<usize> = 38..42;

/// A pair of which both streams have gone past the sockets, as if these had woken up; `test` gets what
/// the one to the server says, by its place and its flags, and where that would be heard.
fn in_overlap(test: impl Fn(&Ground, &dyn Fn(u32, u8) -> Vec<u8>, u32)) {
    let (lab, _splicer, (_client, server, _handle)) = spliced_lab();
    let ground = ground_in(&lab);
    let [relay, server] = [server.peer_addr(), server.local_addr()].map(|end| end.expect("an end"));
    let flow = ground.flow(0);
    let heard = flow.side[0].high_seq();
    let heard = heard.wrapping_add(flow.side[0].seq_delta.load(Relaxed));
    for side in &flow.side {
        side.add_marks(mark::PAST);
    }
    flow.deadline_ns
        .store(now_ns() + PATIENCE.as_nanos() as u64, Relaxed);
    flow.state.store(state::OVERLAP, Relaxed);
    ground.awake().fetch_add(1, Relaxed);
    let say = |seq: u32, flags: u8| {
        let said = forged(relay, server, seq, flags);
        ground.feed_out(&said).expect("it leaves")
    };
    test(&ground, &say, heard);
    ground.awake().fetch_sub(1, Relaxed);
    flow.state.store(state::SPLICED, Relaxed);
}

/// The socket of a process that dies stands where it was when its stream went past it.
#[test]
fn a_reset_is_heard_though_the_stream_went_past_the_socket() {
    if !available(Need::Root) {
        return;
    }
    in_overlap(|_, say, heard| {
        let left = say(heard.wrapping_sub(10_000), RST | ACK);
        assert_eq!(left[SEQ], heard.to_be_bytes());
    });
}

/// The flow's owner is gone, and its socket is a socket like any other.
#[test]
fn what_a_socket_says_after_the_deadline_is_let_be() {
    if !available(Need::Root) {
        return;
    }
    in_overlap(|ground, say, heard| {
        let seq = heard.wrapping_sub(10_000);
        let before = say(seq, RST | ACK);
        assert_ne!(before[SEQ], seq.to_be_bytes());
        ground.flow(0).deadline_ns.store(1, Relaxed);
        let after = say(seq, RST | ACK);
        assert_eq!(after[SEQ], seq.to_be_bytes());
    });
}

/// A relay that was stopped for so long in the middle of a change-over goes on. What its sockets said by
/// themselves meanwhile has stamps beyond that at which the clock stood, and what they have to say still
/// would be dropped for as long as it stands, which is until they have said it.
#[test]
fn a_change_over_goes_on_after_the_deadline() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let halt = Halt::at(&splicer, ["overlap"]);
    let connected = Connected::across(&lab);
    let (client, server, handle) = connected.join(&splicer, &by_name());
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    halt.wait();
    let ground = ground_in(&lab);
    let flow = ground.flow(0);
    let tuples: [_; 2] = ground.tuples().try_into().expect("two connections");
    let received = || {
        let found = lab.relay().enter(|| ground.inspect(&tuples));
        let found = found.expect("entered").expect("run");
        found.socket.map(|socket| (socket.rcv_nxt, socket.rcv_wup))
    };
    let say = |what: &[u8]| {
        let before = received();
        (&client).write_all(what).expect("write");
        netlab::until("the socket has acknowledged it", || {
            let now = received();
            now != before && now.iter().all(|(next, told)| next == told)
        });
    };
    say(b"he");
    assert_ne!(flow.side[1].timestamp_floor.load(Relaxed), 0);
    flow.deadline_ns.store(1, Relaxed);
    thread::sleep(LONG_OVERLAP);
    say(b"llo");
    (&server).write_all(b"world").expect("write");
    halt.go_on();
    let mut hello = [0; 5];
    (&server).read_exact(&mut hello).expect("read");
    assert_eq!(&hello, b"hello");
    (&client).read_exact(&mut hello).expect("read");
    assert_eq!(&hello, b"world");
    netlab::until("the pair is spliced", || {
        flow.state.load(Relaxed) == state::SPLICED
    });
    assert_eq!(count(lab.client(), &["PAWSEstab"]), 0);
    drop((client, server));
    ended(&handle);
}
