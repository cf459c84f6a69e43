//! Segments that nobody sent.

use super::*;

/// Packets of every kind, through the program: it neither fails nor touches what is not its own.
#[test]
fn the_parser_survives_anything() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, _handle) = spliced_across(&lab, &splicer);
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    let tuple = ground.tuples().first().copied().expect("a tuple");
    let mut random = Random(seed());
    lab.relay()
        .enter(|| {
            for _ in 0..rounds(1) * 20_000 {
                let mut packet = Packet([0; 128]);
                let bytes = &mut packet.0;
                for chunk in bytes.chunks_exact_mut(8) {
                    chunk.copy_from_slice(&random.next().to_ne_bytes());
                }
                let mut length = 34 + (random.next() % 94) as usize;
                if !random.one_in(8) {
                    // Ethernet and IPv4, mostly right.
                    bytes[12..14].copy_from_slice(&[8, 0]);
                    bytes[14] = if random.one_in(16) { bytes[14] } else { 0x45 };
                    bytes[20..22].copy_from_slice(&[0, 0]);
                    bytes[23] = 6;
                    let total = (length - 14) as u16;
                    if !random.one_in(8) {
                        bytes[16..18].copy_from_slice(&total.to_be_bytes());
                    }
                    if !random.one_in(4) {
                        bytes[26..30].copy_from_slice(&tuple.source[12..]);
                        bytes[30..34].copy_from_slice(&tuple.destination[12..]);
                        bytes[34..36].copy_from_slice(&tuple.source_port);
                        bytes[36..38].copy_from_slice(&tuple.destination_port);
                    }
                    // Neither SYN, FIN nor RST at the right place can be made by chance.
                }
                if random.one_in(4) {
                    length = 14 + (random.next() % 60) as usize;
                }
                // A refusal of the kernel to run so short a packet is as good.
                let _ = ground.feed(&packet.0[..length]);
            }
        })
        .expect("entered");
    for _ in 0..100 {
        ping(&client, &server);
    }
}

struct Packet([u8; 128]);

/// A segment with only a TCP header, as bytes on the wire of Ethernet.
fn forged(from: SocketAddr, to: SocketAddr, seq: u32, flags: u8) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else {
        panic!("IPv4 only");
    };
    let mut packet = vec![0u8; 54];
    packet[12..14].copy_from_slice(&[8, 0]);
    packet[14] = 0x45;
    packet[16..18].copy_from_slice(&40u16.to_be_bytes());
    packet[22..24].copy_from_slice(&[64, 6]);
    packet[26..30].copy_from_slice(&from.ip().octets());
    packet[30..34].copy_from_slice(&to.ip().octets());
    packet[34..36].copy_from_slice(&from.port().to_be_bytes());
    packet[36..38].copy_from_slice(&to.port().to_be_bytes());
    packet[38..42].copy_from_slice(&seq.to_be_bytes());
    packet[46] = 5 << 4;
    packet[47] = flags;
    packet
}

#[test]
fn forged_resets_and_handshakes_end_nothing() {
    const NEXT: i32 = -1;
    const REDIRECT: i32 = 7;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = lab
        .relay()
        .enter(|| Splicer::new(1).expect("a splicer"))
        .expect("entered");
    let (client, server, handle) = spliced_across(&lab, &splicer);
    let ground = lab
        .relay()
        .enter(Ground::here)
        .expect("entered")
        .expect("a ground");
    let mut random = Random(seed());
    let ends = [
        (
            client.local_addr(),
            client.peer_addr(),
            devices(lab.relay())[0],
        ),
        (
            server.local_addr(),
            server.peer_addr(),
            devices(lab.relay())[1],
        ),
    ];
    lab.relay()
        .enter(|| {
            for round in 0..rounds(1) * 5000 {
                for (from, to, device) in &ends {
                    let (from, to) = (*from.as_ref().expect("a"), *to.as_ref().expect("b"));
                    let flags = [RST, RST | ACK, SYN, SYN | ACK][round % 4];
                    let packet = forged(from, to, random.next() as u32, flags);
                    // On the device that it would come in on, and on another one.
                    assert_eq!(ground.feed_on(*device, &packet), Ok(REDIRECT));
                    assert_eq!(ground.feed_on(1, &packet), Ok(NEXT));
                }
            }
        })
        .expect("entered");
    for _ in 0..100 {
        ping(&client, &server);
    }
    assert!(handle.outcome().is_none());
    // A real one does end it.
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("SO_LINGER");
    drop(client);
    let error = (&server).read(&mut [0; 1]).expect_err("a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let outcome = handle
        .wait_timeout(Duration::from_secs(5))
        .expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(Side::A));
}
