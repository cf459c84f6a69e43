//! Pairs that are not taken, and what is said then.

use super::*;
use crate::bpf_types::{SegmentInspection, segment_socket_flag as has};
use crate::engine::segment::eligibility::{Obstacle, examine};

/// Joins by name, where `set_up` has prepared the namespaces, and gives the outcome.
fn refused_across(set_up: impl Fn(&Lab)) -> Outcome {
    let lab = Lab::new().expect("a lab");
    set_up(&lab);
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
    let options = Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    let outcome = handle.wait_timeout(PATIENCE);
    drop((client, server));
    outcome.expect("it ends")
}

#[test]
fn a_translated_address_is_found_and_refused() {
    if !available(Need::Root) || netlab::program("nft").is_none() {
        return;
    }
    // The server sees another address of the relay's than the relay's own socket has.
    let outcome = refused_across(|lab| {
        run(lab.relay(), "ip", "addr add 198.18.2.77/32 dev lo");
        run(
            lab.server(),
            "ip",
            "route add 198.18.2.77/32 via 198.18.2.1",
        );
        run(lab.relay(), "nft", "add table ip t");
        run(
            lab.relay(),
            "nft",
            "add chain ip t post { type nat hook postrouting priority 100 ; }",
        );
        run(
            lab.relay(),
            "nft",
            "add rule ip t post ip daddr 198.18.2.2 snat to 198.18.2.77",
        );
    });
    assert_eq!(outcome.reason, Reason::Refused, "{outcome:?}");
    assert!(outcome.why_engine.contains("NAT"), "{}", outcome.why_engine);
}

#[test]
fn a_redirected_port_is_found_and_refused() {
    if !available(Need::Root) || netlab::program("nft").is_none() {
        return;
    }
    let lab = Lab::new().expect("a lab");
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
    run(lab.relay(), "nft", "add table ip t");
    run(
        lab.relay(),
        "nft",
        "add chain ip t pre { type nat hook prerouting priority -100 ; }",
    );
    let to = format!(
        "add rule ip t pre tcp dport 81 redirect to :{}",
        front_address.port()
    );
    run(lab.relay(), "nft", &to);
    let client = lab
        .client()
        .enter(|| TcpStream::connect((Lab::RELAY_V4, 81)))
        .expect("entered");
    let client = client.expect("connect");
    let a = front.accept().expect("accept").0;
    let b = lab
        .relay()
        .enter(|| TcpStream::connect(back_address))
        .expect("entered");
    let server = back.accept().expect("accept").0;
    let [a, b] = [a, b.expect("connect")].map(|end| Endpoint::new(end).expect("an end"));
    // Not by name: the pair goes on by another engine, and no byte is lost.
    let options = Options {
        promote_after_bytes: 1,
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    ping(&client, &server);
    let deadline = Instant::now() + Duration::from_secs(10);
    while !handle.engine().1.contains("NAT") && handle.engine().0 != EngineName::Sockmap {
        assert!(Instant::now() < deadline, "{:?}", handle.engine());
        ping(&client, &server);
    }
    assert_ne!(handle.engine().0, EngineName::Segment);
    ping(&client, &server);
}

/// Linux 6.18 knows accurate ECN and does not negotiate it yet (`net.ipv4.tcp_ecn` takes no 3), so
/// this is about what the kernel would tell.
#[test]
fn accurate_ecn_is_refused_in_words() {
    let mut found = SegmentInspection::default();
    for socket in &mut found.socket {
        socket.cookie = 7;
        socket.flags = has::FOUND | has::ECN;
        socket.out_type = 1;
        (socket.announced_mss, socket.peer_mss) = (1460, 1460);
        socket.path_mtu = 1520;
        socket.largest_window = 65_535;
    }
    assert_eq!(examine(&found, &[7, 7]), Ok(()));
    found.socket[1].flags |= has::COUNTS_ECN;
    let Err(Obstacle::Refused(why)) = examine(&found, &[7, 7]) else {
        panic!("it is taken");
    };
    assert!(
        why.starts_with("B ") && why.contains("accurate ECN"),
        "{why}"
    );
}
