//! Window scales, of which each end of each connection announces its own.

use socket2::{Domain, Socket, Type};

use super::*;

/// What makes a host announce a scale (`tcp_select_initial_window`): the largest buffer that tuning may
/// reach, or one that is set before the connection is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scale {
    scale: u8,
    largest_buffer_bytes: u32,
    buffer_bytes: Option<usize>,
}

pub(super) const NONE: Scale = Scale {
    scale: 0,
    largest_buffer_bytes: 4 << 20,
    // The kernel doubles it, and half of that becomes the window.
    buffer_bytes: Some(60_000),
};
/// Less than a step of the largest scale.
pub(super) const TINY: Scale = Scale {
    buffer_bytes: Some(12_000),
    ..NONE
};
pub(super) const MIDDLE: Scale = Scale {
    scale: 7,
    largest_buffer_bytes: 4 << 20,
    buffer_bytes: None,
};
const LARGEST: Scale = Scale {
    scale: 14,
    largest_buffer_bytes: 1 << 29,
    buffer_bytes: None,
};

impl Scale {
    fn announced_in(self, namespace: &Namespace) {
        let sizes = format!("4096 131072 {}", self.largest_buffer_bytes);
        namespace
            .set_sysctl("net.ipv4.tcp_rmem", &sizes)
            .expect("sysctl");
    }

    fn socket(self) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        if let Some(bytes) = self.buffer_bytes {
            socket.set_recv_buffer_size(bytes).expect("SO_RCVBUF");
        }
        socket
    }

    fn listen(self, namespace: &Namespace, ip: impl Into<IpAddr> + Send) -> TcpListener {
        let listening = namespace.enter(|| {
            let socket = self.socket();
            socket
                .bind(&SocketAddr::new(ip.into(), 0).into())
                .expect("bind");
            socket.listen(8).expect("listen");
            socket.into()
        });
        listening.expect("entered")
    }

    fn connect(self, namespace: &Namespace, to: &TcpListener) -> TcpStream {
        let address = to.local_addr().expect("an address");
        let connected = namespace.enter(|| {
            let socket = self.socket();
            socket.connect(&address.into()).expect("connect");
            socket.into()
        });
        connected.expect("entered")
    }
}

/// Both peers announce one scale, both of the relay's sockets the other.
pub(super) fn connect_scaled(lab: &Lab, peers: Scale, relay: Scale) -> Connected {
    for (namespace, scale) in [
        (lab.client(), peers),
        (lab.relay(), relay),
        (lab.server(), peers),
    ] {
        scale.announced_in(namespace);
    }
    let front = relay.listen(lab.relay(), Lab::RELAY_V4);
    let back = peers.listen(lab.server(), Lab::SERVER_V4);
    let client = peers.connect(lab.client(), &front);
    let a = front.accept().expect("accept").0;
    let b = relay.connect(lab.relay(), &back);
    let server = back.accept().expect("accept").0;
    let connected = Connected::new(client, [a, b], server);
    for socket in sockets_across(lab, [&connected.a, &connected.b]) {
        assert_eq!(
            (socket.peer_scale, socket.own_scale),
            (peers.scale, relay.scale)
        );
    }
    connected
}

/// Scales that differ are translated; where that would leave no window, the pair is refused.
#[test]
fn scales_differ_between_peers_and_relay() {
    const BYTES: usize = 4 << 20;
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    for peers in [NONE, MIDDLE, LARGEST] {
        for relay in [NONE, MIDDLE, LARGEST] {
            let connected = connect_scaled(&lab, peers, relay);
            let (client, server, handle) = connected.join(&splicer, &by_name());
            ping(&client, &server);
            let proof = Proof::begin(&lab, &splicer, &handle);
            let mut bytes = 2 * BYTES;
            if peers == NONE {
                // While the reader pauses, only one window of bytes is under way.
                read_with_pauses(&client, &server);
                bytes += PIECES * PIECE;
            }
            exchange(&client, &server, BYTES, seed());
            let outcome = ended(&handle);
            assert_eq!(
                outcome.engine,
                EngineName::Segment,
                "{peers:?} by {relay:?}"
            );
            proof.end(bytes as u64);
        }
    }
    for (relay, spliced) in [(MIDDLE, true), (LARGEST, false)] {
        let connected = connect_scaled(&lab, TINY, relay);
        let (client, server, handle) = connected.join(&splicer, &by_name());
        ping(&client, &server);
        if spliced {
            read_with_pauses(&client, &server);
            assert_eq!(handle.engine().0, EngineName::Segment, "{handle:?}");
            continue;
        }
        expect_kept(&handle, "in steps of 16384");
    }
}

const PIECE: usize = 64 << 10;
const PIECES: usize = 4;

/// The window closes again and again.
fn read_with_pauses(mut reader: &TcpStream, mut writer: &TcpStream) {
    thread::scope(|scope| {
        scope.spawn(move || {
            let piece = vec![7; PIECE];
            (0..PIECES).for_each(|_| writer.write_all(&piece).expect("write"));
        });
        for _ in 0..PIECES {
            thread::sleep(Duration::from_millis(50));
            let mut piece = vec![0; PIECE];
            reader.read_exact(&mut piece).expect("read");
            assert!(piece.iter().all(|byte| *byte == 7));
        }
    });
}
