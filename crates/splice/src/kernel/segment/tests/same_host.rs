//! Servers and further relays on the same host.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::*;

/// A client elsewhere, and a server in the relay's own namespace on `ip`.
#[test]
fn a_server_on_this_host() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let mut random = Random::seeded(seed());
    for [front_ip, back_ip] in [
        [Lab::RELAY_V4, Ipv4Addr::LOCALHOST].map(IpAddr::from),
        [Lab::RELAY_V4, Lab::RELAY_FAR_V4].map(IpAddr::from),
        [Lab::RELAY_V6, Ipv6Addr::LOCALHOST].map(IpAddr::from),
    ] {
        let (front, front_address) = listen_in(lab.relay(), (front_ip, 0));
        let (back, back_address) = listen_in(lab.relay(), (back_ip, 0));
        for round in 0..rounds(4) {
            let client = connect_in(lab.client(), front_address);
            let a = front.accept().expect("accept").0;
            let b = lab.relay().enter(|| {
                let domain = socket2::Domain::for_address(back_address);
                let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
                // Segments of lo's MTU do not fit on the path to the client.
                let fits = crate::SegmentSize::taken_by_peer(&a).expect("TCP_INFO");
                fits.announce_on(&socket).expect("TCP_MAXSEG");
                socket.connect(&back_address.into())?;
                Ok::<_, std::io::Error>(TcpStream::from(socket))
            });
            let server = back.accept().expect("accept").0;
            let ends = [a, b.expect("entered").expect("connect")];
            let connected = Connected::new(client, ends, server);
            let bytes = 16 << 20;
            let place = random.below(bytes as u64 / 4);
            let (outcome, forwarded, pause) =
                both_ways(connected, &splicer, Some(place), bytes, random.next());
            eprintln!("{back_ip} {round}: {outcome:?}, forwarded {forwarded}, pause {pause:?}");
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
            let mut random = Random::seeded(seed());
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
                    let place = 1 + random.below(bytes as u64 / 24);
                    let options = by_volume(place);
                    splicer.join(one, other, &options).expect("joined")
                };
                prepare(&splicer);
                let handles = [join(a, b), join(c, d)];
                let witness = Witness::of(&splicer, &handles.each_ref());
                let pause = exchange(&client, &server, bytes, random.next());
                let outcomes = handles.each_ref().map(|handle| {
                    let outcome = ended(handle);
                    eprintln!("{round}: {outcome:?}, pause {pause:?}");
                    assert_eq!(moved(&outcome), [bytes as u64; 2]);
                    outcome
                });
                // A fast pair may be over before the other has moved enough.
                let are_spliced = outcomes
                    .iter()
                    .all(|outcome| outcome.engine == EngineName::Segment);
                spliced += usize::from(are_spliced);
                if are_spliced {
                    let forwarded = handles.each_ref().map(Handle::forwarded_bytes);
                    witness.end(&[(&outcomes[0], forwarded[0]), (&outcomes[1], forwarded[1])]);
                }
            }
            assert!(spliced * 10 >= rounds(6) * 8, "{spliced} were spliced");
        })
        .expect("entered");
}

/// More relays than the program follows at once (`MAX_HOPS`).
#[test]
fn many_relays_in_a_row() {
    const RELAYS: usize = 9;
    if !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("many").expect("a namespace");
    namespace
        .enter(|| {
            let splicer = Splicer::new(1).expect("a splicer");
            prepare(&splicer);
            let mut connections = (0..=RELAYS).map(|_| {
                let (listener, address) = listen("127.0.0.1:0");
                let near = TcpStream::connect(address).expect("connect");
                (near, listener.accept().expect("accept").0)
            });
            let (client, mut far) = connections.next().expect("the first");
            let mut handles = Vec::new();
            for (near, next) in connections {
                let ends = [far, near].map(|end| Endpoint::new(end).expect("an end"));
                let [one, other] = ends;
                handles.push(splicer.join(one, other, &by_name()).expect("joined"));
                far = next;
            }
            let bytes = 4 << 20;
            exchange(&client, &far, bytes, seed());
            for handle in &handles {
                let outcome = ended(handle);
                assert_eq!(moved(&outcome), [bytes as u64; 2], "{outcome:?}");
                assert_eq!(outcome.engine, EngineName::Segment, "{outcome:?}");
            }
        })
        .expect("entered");
}
