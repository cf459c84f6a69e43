//! A pair that `segment` declines is then tried with `sockmap`.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use netlab::{Lab, Need, available, until};
use splice::{EngineChoice, EngineName, Options, Splicer};

use crate::stage::{connected, join_ends, missing, options};

/// Makes the server send the relay nothing, or everything again.
fn set_mute(lab: &Lab, mute: bool) {
    let mut command = lab.server().command("ip");
    command.args(["route", if mute { "add" } else { "del" }, "blackhole"]);
    let done = command.arg(Lab::RELAY_FAR_V4.to_string()).status();
    assert!(done.unwrap().success(), "ip route");
}

#[test]
fn what_segment_declines_is_tried_with_sockmap() {
    if missing() || !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().unwrap();
    let splicer = lab.relay().enter(|| Splicer::new(1).unwrap()).unwrap();
    let [mut a, near] = connected(lab.client(), lab.relay(), Lab::RELAY_V4);
    let [far, mut b] = connected(lab.relay(), lab.server(), Lab::SERVER_V4);
    // The handshakes came before the program was attached, and no other segment passes.
    set_mute(&lab, true);
    let options = Options {
        segment_after: Some(Duration::from_millis(1)),
        promote_after: Some(Duration::from_millis(1)),
        ..options(EngineChoice::Auto)
    };
    let start = Instant::now();
    let handle = join_ends(&splicer, [near, far], &options);
    until("sockmap has the pair", || {
        handle.engine().0 == EngineName::Sockmap
    });
    // It has probed the server three times by then.
    assert!(start.elapsed() > Duration::from_secs(2));
    set_mute(&lab, false);
    let mut word = [0; 5];
    a.write_all(b"hello").unwrap();
    b.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"hello");
}
