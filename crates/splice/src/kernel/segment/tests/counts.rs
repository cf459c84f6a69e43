//! What the program counts, as the doctor shows it.

use super::*;
use splice_bpf::types::segment_reason as reason;

use crate::doctor::segment_counts;

/// What the doctor adds up over all relays of this machine.
fn translated_everywhere() -> u64 {
    let counts = segment_counts().expect("root may read them");
    let name = reason::NAMES[reason::TRANSLATED as usize];
    let found = counts.into_iter().find(|(found, _)| *found == name);
    found.expect("a program is loaded").1
}

#[test]
fn what_is_translated_is_counted() {
    const MESSAGES: u64 = 100;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let (mut client, mut server, _handle) = spliced_across(&lab, &splicer);
    let datapath = datapath_in(&lab);
    let translated = || datapath.own_counts()[reason::TRANSLATED as usize];
    let before = translated();
    for _ in 0..MESSAGES {
        client.write_all(b"x").expect("write");
        server.read_exact(&mut [0]).expect("read");
    }
    let after = translated();
    assert!(after >= before + MESSAGES, "{before} became {after}");
    // The others of the sum change, and fall when a relay ends. This datapath's part of it stays.
    assert!(translated_everywhere() >= after);
}
