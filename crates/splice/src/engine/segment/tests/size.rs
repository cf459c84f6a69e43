//! Segments that are larger than what the other side takes.

use super::*;
use crate::SegmentSize;

/// Frames of these sizes between client and relay, and between relay and server.
fn lab_with_mtu(near: u32, far: u32) -> Lab {
    let lab = Lab::new().expect("a lab");
    for (namespace, device, mtu) in [
        (lab.client(), Lab::TO_RELAY, near),
        (lab.relay(), Lab::TO_CLIENT, near),
        (lab.relay(), Lab::TO_SERVER, far),
        (lab.server(), Lab::TO_RELAY, far),
    ] {
        run(namespace, "ip", &format!("link set {device} mtu {mtu}"));
    }
    lab
}

/// Joins by name a client with a server elsewhere; `prepare` gets the listener and where the server
/// is.
fn join_across(
    lab: &Lab,
    splicer: &Splicer,
    prepare: impl Fn(&TcpListener, SocketAddr) + Sync,
) -> (TcpStream, TcpStream, Handle) {
    let here = |namespace: &Namespace, ip| {
        let listening = namespace.enter(|| listen(&format!("{ip}:0")));
        listening.expect("entered")
    };
    let (back, back_address) = here(lab.server(), Lab::SERVER_V4);
    let (front, front_address) = here(lab.relay(), Lab::RELAY_V4);
    let connect = |namespace: &Namespace, address| {
        let connected = namespace.enter(|| TcpStream::connect(address));
        connected.expect("entered").expect("connect")
    };
    lab.relay()
        .enter(|| prepare(&front, back_address))
        .expect("entered");
    let client = connect(lab.client(), front_address);
    let a = front.accept().expect("accept").0;
    let b = connect(lab.relay(), back_address);
    let server = back.accept().expect("accept").0;
    let [a, b] = [a, b].map(|end| Endpoint::new(end).expect("an end"));
    let options = Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    };
    let handle = splicer.join(a, b, &options).expect("joined");
    (client, server, handle)
}

#[test]
fn larger_frames_are_refused_in_words() {
    if !available(Need::Root) {
        return;
    }
    // The second differs by less than timestamps take.
    for (near, far) in [(9000, 1500), (1500, 1490)] {
        let lab = lab_with_mtu(near, far);
        let splicer = lab
            .relay()
            .enter(|| Splicer::new(1).expect("a splicer"))
            .expect("entered");
        let (_client, _server, handle) = join_across(&lab, &splicer, |_, _| {});
        let outcome = handle.wait_timeout(PATIENCE);
        let outcome = outcome.expect("it ends");
        assert_eq!(outcome.reason, Reason::Refused, "{outcome:?}");
        let why = outcome.why_engine;
        let sent = format!("{} bytes", near - 40);
        let taken = format!("takes {}", far - 40);
        for words in [&sent, &taken, "TCP_MAXSEG"] {
            assert!(why.contains(words), "{why}");
        }
    }
}

#[test]
fn a_listener_that_announces_what_fits_gets_its_pairs_spliced() {
    const BYTES: usize = 16 << 20;
    if !available(Need::Root) {
        return;
    }
    let lab = lab_with_mtu(9000, 1500);
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = join_across(&lab, &splicer, |listener, target| {
        let fits = SegmentSize::on_the_way_to(target).expect("a route");
        fits.announce_on(listener).expect("TCP_MAXSEG");
    });
    let proof = Proof::begin(&lab, &splicer, &handle);
    exchange(&client, &server, BYTES, seed());
    let outcome = handle.wait_timeout(PATIENCE);
    let outcome = outcome.expect("it ends");
    assert_eq!(outcome.reason, Reason::EndOfStream, "{outcome:?}");
    assert_eq!(outcome.engine, EngineName::Segment);
    assert_eq!(
        [outcome.moved.a_to_b, outcome.moved.b_to_a],
        [BYTES as u64; 2]
    );
    proof.end(2 * BYTES as u64);
}
