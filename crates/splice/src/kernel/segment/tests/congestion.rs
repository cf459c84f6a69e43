//! Congestion that the network signals by marks instead of losses (ECN).

use super::*;
use splice_bpf::types::{segment_mark as mark, segment_socket_flag as has};

/// The client uses ECN with the relay, and the relay does not with the server. That is the case with every
/// client that asks for it, since Linux accepts ECN and does not request it (`net.ipv4.tcp_ecn` is 2).
fn marks_are_echoed_to_a_sender(ip: &str, connect: fn(&Lab) -> Connected) {
    const BYTES: usize = 1 << 20;
    if !available(Need::Root) || !available(Need::Nft) || !available(Need::Ss) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let client_net = lab.client();
    for (name, value) in [("ecn", "1"), ("congestion_control", "reno")] {
        let set = client_net.set_sysctl(&format!("net.ipv4.tcp_{name}"), value);
        set.expect("a sysctl");
    }
    let splicer = splicer_in(lab.relay());
    let connected = connect(&lab);
    let sockets = sockets_across(&lab, [&connected.a, &connected.b]);
    assert_eq!(sockets.map(|socket| socket.flags & has::ECN), [has::ECN, 0]);
    let (client, server, handle) = spliced(&lab, &splicer, connected);
    let slowed_down = || {
        let listed = client_net
            .command("ss")
            .args(["-tinH"])
            .output()
            .expect("ss");
        let text = String::from_utf8(listed.stdout).expect("text");
        // Not its flags as a receiver.
        text.contains(" ssthresh:")
    };
    assert!(!slowed_down());
    for rule in [
        "add table {} t",
        "add chain {} t c { type filter hook postrouting priority 0 ; }",
        "add rule {} t c {} ecn ect0 {} ecn set ce",
    ] {
        run(client_net, "nft", &rule.replace("{}", ip));
    }
    thread::scope(|scope| {
        let sent = scope.spawn(|| write_some(&client, BYTES, 7));
        let received = read_some(&server, BYTES);
        assert_eq!(received, sent.join().expect("sent"));
    });
    assert!(slowed_down());
    // The sender confirms (CWR), and gets no more echoes once nothing is marked.
    run(client_net, "nft", &format!("flush table {ip} t"));
    let datapath = datapath_in(&lab);
    netlab::until("nothing is echoed to it any more", || {
        ping(&client, &server);
        datapath.flow(0).side[0].marks() & mark::CONGESTED == 0
    });
    drop((client, server));
    ended(&handle);
}

#[test]
fn marks_are_echoed_to_a_sender_that_the_receiver_cannot_tell_of() {
    marks_are_echoed_to_a_sender("ip", Connected::across);
}

#[test]
fn a_sender_over_ipv6_hears_of_them() {
    marks_are_echoed_to_a_sender("ip6", Connected::across_v6);
}
