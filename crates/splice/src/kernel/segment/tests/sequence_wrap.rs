//! Sequence numbers that pass 2^32.

use super::*;
use splice_bpf::types::SegmentSocket;

/// Bytes each way; the chosen sequence number wraps on the way.
const BYTES: u32 = 48 << 20;

/// A connection over lo whose sequence number, which `of` reads at the relay's end, wraps within `BYTES`. The
/// kernel chooses it at random, so about one in ninety will do.
fn wrapping(datapath: &Datapath, of: impl Fn(&SegmentSocket) -> u32) -> (TcpStream, Endpoint) {
    let (listener, address) = listen("127.0.0.1:0");
    loop {
        let near = TcpStream::connect(address).expect("connect");
        let far = Endpoint::new(listener.accept().expect("accept").0).expect("an end");
        let tuple = tuple(&far);
        let found = datapath.inspect(&[tuple, tuple]).expect("found");
        let left = 0u32.wrapping_sub(of(&found.socket[0]));
        if (BYTES / 8..BYTES * 7 / 8).contains(&left) {
            return (near, far);
        }
        // Otherwise thousands would stay in TIME_WAIT.
        socket2::SockRef::from(&near)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
    }
}

fn received(socket: &SegmentSocket) -> u32 {
    socket.rcv_nxt
}

fn sent(socket: &SegmentSocket) -> u32 {
    socket.write_seq
}

/// The number of either what a peer sends or what is sent to it wraps. The relay changes over before, after
/// and at the wrap.
#[test]
fn sequence_numbers_wrap_while_a_pair_is_translated() {
    if !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("wrap").expect("a namespace");
    namespace
        .enter(|| {
            let splicer = Splicer::new(1).expect("a splicer");
            let datapath = Datapath::here().expect("a datapath");
            let mut random = Random::seeded(seed());
            for a_of in [received, sent] {
                for b_of in [received, sent] {
                    let (client, a) = wrapping(&datapath, a_of);
                    let (server, b) = wrapping(&datapath, b_of);
                    let connected = Connected {
                        client,
                        server,
                        a,
                        b,
                    };
                    let place = random.below(u64::from(BYTES / 8));
                    let bytes = BYTES as usize;
                    let (outcome, translated, _) =
                        both_ways(connected, &splicer, Some(place), bytes, random.next());
                    assert_eq!(outcome.engine, EngineName::Segment, "{outcome:?}");
                    assert!(translated > u64::from(BYTES), "{translated}");
                }
            }
        })
        .expect("entered");
}
