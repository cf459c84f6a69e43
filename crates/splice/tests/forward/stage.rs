//! A client, a server, and a relay between them that forwards.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use netlab::{Lab, Namespace, PATIENCE};
use splice::{Forward, ForwardEvent, ForwardOptions, Forwarded};

use crate::hops::Hops;

pub(crate) struct Stage {
    pub(crate) forward: Forward,
    pub(crate) ended: Receiver<Forwarded>,
    /// The relay's, for whom is not forwarded.
    pub(crate) socket: TcpListener,
    pub(crate) server: TcpListener,
    pub(crate) listens_at: SocketAddr,
    pub(crate) lab: Lab,
    /// Hosts beyond the client and the server, which are routers then.
    pub(crate) hops: Option<Hops>,
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(adjust: impl FnOnce(&mut ForwardOptions) + Send) -> Self {
        Self::between(
            Lab::new().expect("a lab"),
            None,
            [Lab::RELAY_V4.into(), Lab::SERVER_V4.into()],
            adjust,
        )
    }

    pub(crate) fn v6() -> Self {
        let ips = [Lab::RELAY_V6.into(), Lab::SERVER_V6.into()];
        Self::between(Lab::new().expect("a lab"), None, ips, |_| {})
    }

    /// With a router on each side. The relay leaves it to them to say that the server is silent.
    pub(crate) fn routed(is_v6: bool) -> Self {
        let lab = Lab::new().expect("a lab");
        let hops = Hops::behind(&lab);
        let ips = if is_v6 {
            [Lab::RELAY_V6.into(), Hops::FAR_V6.into()]
        } else {
            [Lab::RELAY_V4.into(), Hops::FAR_V4.into()]
        };
        Self::between(lab, Some(hops), ips, |options| {
            options.connect_timeout = 2 * PATIENCE;
        })
    }

    pub(crate) fn between(
        lab: Lab,
        hops: Option<Hops>,
        [relay, server]: [IpAddr; 2],
        adjust: impl FnOnce(&mut ForwardOptions) + Send,
    ) -> Self {
        let listen = |address: IpAddr| TcpListener::bind((address, 0)).expect("bound");
        let socket = lab.relay().enter(|| listen(relay)).expect("entered");
        let at = hops.as_ref().map_or_else(|| lab.server(), |hops| &hops.far);
        let server = at.enter(|| listen(server)).expect("entered");
        socket.set_nonblocking(true).expect("set");
        let listens_at = socket.local_addr().expect("an address");
        let mut options =
            ForwardOptions::new(vec![listens_at], server.local_addr().expect("an address"));
        adjust(&mut options);
        let (sender, ended) = channel();
        let tell = move |event| {
            if let ForwardEvent::Ended(one) = event {
                let _ = sender.send(one);
            }
        };
        let start = || Forward::start(options, tell);
        let forward = lab.relay().enter(start).expect("entered").expect("started");
        assert_eq!(forward.obstacle(), None);
        Self {
            forward,
            ended,
            socket,
            server,
            listens_at,
            lab,
            hops,
        }
    }

    /// A client, and the server's end.
    pub(crate) fn connect(&self) -> (TcpStream, TcpStream) {
        let client = self.client();
        let (server, _) = self.server.accept().expect("accepted");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
        }
        (client, server)
    }

    pub(crate) fn client(&self) -> TcpStream {
        self.try_client().expect("connected")
    }

    pub(crate) fn try_client(&self) -> io::Result<TcpStream> {
        let to = self.listens_at;
        let connect = move || TcpStream::connect_timeout(&to, PATIENCE);
        self.client_side().enter(connect).expect("entered")
    }

    /// Where clients are.
    pub(crate) fn client_side(&self) -> &Namespace {
        let hops = self.hops.as_ref();
        hops.map_or_else(|| self.lab.client(), |hops| &hops.near)
    }

    /// Where the server is.
    pub(crate) fn server_side(&self) -> &Namespace {
        let hops = self.hops.as_ref();
        hops.map_or_else(|| self.lab.server(), |hops| &hops.far)
    }

    pub(crate) fn next_ended(&self) -> Forwarded {
        self.ended.recv_timeout(PATIENCE).expect("it has ended")
    }

    /// Whether no client has got to the relay's socket.
    pub(crate) fn is_unknown_to_the_socket(&self) -> bool {
        matches!(self.socket.accept(), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

/// A few bytes each way.
pub(crate) fn ping(mut client: &TcpStream, mut server: &TcpStream) {
    let mut bytes = [0; 5];
    client.write_all(b"hello").expect("sent");
    server.read_exact(&mut bytes).expect("received");
    server.write_all(b"world").expect("sent");
    client.read_exact(&mut bytes).expect("received");
    assert_eq!(&bytes, b"world");
}

/// Sends bytes one way, and the end of the stream behind them.
pub(crate) fn pour(from: TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    pour_around(from, to, bytes, || {});
}

/// The same. In the middle of it `act` is called.
pub(crate) fn pour_around(
    mut from: TcpStream,
    to: &mut TcpStream,
    bytes: &[u8],
    act: impl FnOnce() + Send,
) {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    thread::scope(|scope| {
        scope.spawn(|| {
            from.write_all(first).expect("sent");
            act();
            from.write_all(second).expect("sent");
            from.shutdown(Shutdown::Write).expect("shut down");
        });
        let mut got = Vec::new();
        to.read_to_end(&mut got).expect("received");
        assert!(got == bytes, "{} of {} bytes", got.len(), bytes.len());
    });
}

pub(crate) fn payload(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}
