//! Servers and further relays on the same host.

use super::*;

/// A client elsewhere, and a server in the relay's own namespace on `ip`.
#[test]
fn a_server_on_this_host() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let mut random = Random(seed());
    for (front_ip, back_ip) in [
        (Lab::RELAY_V4.to_string(), "127.0.0.1".to_owned()),
        (Lab::RELAY_V4.to_string(), Lab::RELAY_FAR_V4.to_string()),
        (format!("[{}]", Lab::RELAY_V6), "[::1]".to_owned()),
    ] {
        let (front, front_address) = lab
            .relay()
            .enter(|| listen(&format!("{front_ip}:0")))
            .expect("entered");
        let (back, back_address) = lab
            .relay()
            .enter(|| listen(&format!("{back_ip}:0")))
            .expect("entered");
        for round in 0..rounds(4) {
            let client = lab.client().enter(|| TcpStream::connect(front_address));
            let client = client.expect("entered").expect("connect");
            let a = front.accept().expect("accept").0;
            let b = lab.relay().enter(|| {
                let domain = socket2::Domain::for_address(back_address);
                let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
                // What lo's MTU would allow does not fit the way to the client.
                let fits = crate::SegmentSize::taken_by_peer(&a).expect("TCP_INFO");
                fits.announce_on(&socket).expect("TCP_MAXSEG");
                socket.connect(&back_address.into())?;
                Ok::<_, std::io::Error>(TcpStream::from(socket))
            });
            let server = back.accept().expect("accept").0;
            let [a, b] = [a, b.expect("entered").expect("connect")]
                .map(|end| Endpoint::new(end).expect("an end"));
            let joined = Joined {
                client,
                server,
                a,
                b,
            };
            let bytes = 16 << 20;
            let place = random.next() % (bytes as u64 / 2);
            let (outcome, forwarded, pause) =
                both_ways(joined, &splicer, Some(place), bytes, random.next());
            eprintln!("{back_ip} {round}: {outcome:?}, forwarded {forwarded}, pause {pause:?}");
            assert_eq!(outcome.reason, Reason::EndOfStream);
            assert_eq!(
                outcome.engine,
                EngineName::Segment,
                "{}",
                outcome.why_engine
            );
            assert_eq!(
                [outcome.moved.a_to_b, outcome.moved.b_to_a],
                [bytes as u64; 2]
            );
        }
    }
}

/// The target of a relay is another relay on the same host.
#[test]
fn relays_in_a_row() {
    if !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("row").expect("a namespace");
    namespace
        .enter(|| {
            let splicer = Splicer::new(1).expect("a splicer");
            let mut random = Random(seed());
            let mut spliced = 0;
            for round in 0..rounds(6) {
                let listeners = [0, 1, 2].map(|_| listen("127.0.0.1:0"));
                let ends = listeners.map(|(listener, address)| {
                    let near = TcpStream::connect(address).expect("connect");
                    (near, listener.accept().expect("accept").0)
                });
                let [(client, a), (b, c), (d, server)] = ends;
                let bytes = 48 << 20;
                let mut join = |one: TcpStream, other: TcpStream| {
                    let [one, other] = [one, other].map(|end| Endpoint::new(end).expect("an end"));
                    let options = Options {
                        segment_after: Some(NOT_BY_TIME),
                        promote_after_bytes: random.next() % (bytes as u64 / 24),
                        ..Options::default()
                    };
                    splicer.join(one, other, &options).expect("joined")
                };
                prepare(&splicer);
                let handles = [join(a, b), join(c, d)];
                let pause = exchange(&client, &server, bytes, random.next());
                for handle in handles {
                    let outcome = handle
                        .wait_timeout(Duration::from_secs(5))
                        .expect("it ends");
                    eprintln!("{round}: {outcome:?}, pause {pause:?}");
                    assert_eq!(outcome.reason, Reason::EndOfStream);
                    // One that is quick may be over before the other has come far enough.
                    spliced += usize::from(outcome.engine == EngineName::Segment);
                    assert_eq!(
                        [outcome.moved.a_to_b, outcome.moved.b_to_a],
                        [bytes as u64; 2]
                    );
                }
            }
            assert!(spliced * 10 >= rounds(6) * 2 * 9, "{spliced} were spliced");
        })
        .expect("entered");
}
