//! A flow that is spliced: what it needs, and what not.

use super::*;

#[test]
fn what_a_change_over_knew_is_not_needed_any_more() {
    const NONSENSE: u32 = 0x5a5a_5a5a;
    const MESSAGES: u32 = 100;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let (mut client, mut server, _handle) = spliced_across(&lab, &splicer);
    wait_for_sleep(&lab);
    let datapath = datapath_in(&lab);
    for side in &datapath.change_over(0).side {
        for word in [
            &side.clock,
            &side.acknowledged_by_socket,
            &side.takeover_seq,
            &side.sent,
            &side.current_edge,
            &side.seen_device,
            &side.seen_hops,
            &side.held_end,
        ] {
            word.store(NONSENSE, Relaxed);
        }
    }
    for number in 0..MESSAGES {
        let message = number.to_le_bytes();
        let mut came = [0; 4];
        client.write_all(&message).expect("write");
        server.read_exact(&mut came).expect("read");
        assert_eq!(came, message);
        server.write_all(&message).expect("write");
        client.read_exact(&mut came).expect("read");
        assert_eq!(came, message);
    }
}
