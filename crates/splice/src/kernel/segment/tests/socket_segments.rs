//! Segments that the relay's own sockets still send, on their way out.

use super::forged_segments::forged;
use super::lifetime::LONG_OVERLAP;
use super::*;
use splice_bpf::clock::now_ns;
use splice_bpf::types::{segment_mark as mark, segment_state as state};

const RST: u8 = 4;
const ACK: u8 = 16;
/// Where a TCP header has its sequence number, in a packet of Ethernet and IPv4.
const SEQ: std::ops::Range<usize> = 38..42;

/// A pair whose streams both bypass the sockets, as if these had woken up. `test` gets a function that sends
/// from the socket to the server, by sequence number and flags, and the number that the server expects.
fn in_overlap(test: impl Fn(&Datapath, &dyn Fn(u32, u8) -> Vec<u8>, u32)) {
    let (lab, _splicer, (_client, server, _handle)) = spliced_lab();
    let datapath = datapath_in(&lab);
    let [relay, server] = [server.peer_addr(), server.local_addr()].map(|end| end.expect("an end"));
    let flow = datapath.flow(0);
    let rcv_nxt = flow.side[0].high_seq();
    let rcv_nxt = rcv_nxt.wrapping_add(flow.side[0].seq_delta.load(Relaxed));
    for side in &flow.side {
        side.add_marks(mark::TAKEN_OVER);
    }
    flow.deadline_ns
        .store(now_ns() + PATIENCE.as_nanos() as u64, Relaxed);
    flow.state.store(state::OVERLAP, Relaxed);
    datapath.awake().fetch_add(1, Relaxed);
    let say = |seq: u32, flags: u8| {
        let said = forged(relay, server, seq, flags);
        datapath.feed_out(&said).expect("it leaves")
    };
    test(&datapath, &say, rcv_nxt);
    datapath.awake().fetch_sub(1, Relaxed);
    flow.state.store(state::SPLICED, Relaxed);
}

/// The socket of a process that dies has the sequence number of the moment when its stream began to bypass
/// it.
#[test]
fn a_reset_stands_at_rcv_nxt_though_the_stream_was_taken_over() {
    if !available(Need::Root) {
        return;
    }
    in_overlap(|_, say, rcv_nxt| {
        let left = say(rcv_nxt.wrapping_sub(10_000), RST | ACK);
        assert_eq!(left[SEQ], rcv_nxt.to_be_bytes());
    });
}

/// The flow's owner is gone, and its socket is treated as any other.
#[test]
fn segments_that_a_socket_sends_after_the_deadline_pass_unchanged() {
    if !available(Need::Root) {
        return;
    }
    in_overlap(|datapath, say, rcv_nxt| {
        let seq = rcv_nxt.wrapping_sub(10_000);
        let before = say(seq, RST | ACK);
        assert_ne!(before[SEQ], seq.to_be_bytes());
        datapath.flow(0).deadline_ns.store(1, Relaxed);
        let after = say(seq, RST | ACK);
        assert_eq!(after[SEQ], seq.to_be_bytes());
    });
}

/// A relay that was stopped past its deadline, in the middle of a change-over, goes on. Meanwhile its sockets
/// sent segments with timestamps later than the stopped clock's. If that clock did not advance, the peers
/// would drop everything that the sockets still have to send.
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
    let datapath = datapath_in(&lab);
    let flow = datapath.flow(0);
    let tuples: [_; 2] = datapath.tuples().try_into().expect("two connections");
    let received = || {
        let found = lab.relay().enter(|| datapath.inspect(&tuples));
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
