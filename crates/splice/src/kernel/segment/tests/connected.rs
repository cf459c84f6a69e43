//! A client, a server, and the relay between them, before and after their pair is joined.

use std::net::ToSocketAddrs;

use super::frame::take_frames;
use super::*;
use crate::kernel::segment::sockets::{address_pair, tuple_of};
use splice_bpf::types::{SegmentSocket, SegmentTuple};

/// Client, the relay's two ends, server.
pub(super) struct Connected {
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
    pub(super) a: Endpoint,
    pub(super) b: Endpoint,
}

impl Connected {
    pub(super) fn new(client: TcpStream, ends: [TcpStream; 2], server: TcpStream) -> Self {
        let [a, b] = ends.map(|end| Endpoint::new(end).expect("an endpoint"));
        Self {
            client,
            server,
            a,
            b,
        }
    }

    /// Over lo.
    pub(super) fn here(ip: &str) -> Self {
        let (front, front_address) = listen(ip);
        let (back, back_address) = listen(ip);
        let client = TcpStream::connect(front_address).expect("connect");
        let a = front.accept().expect("accept").0;
        let b = TcpStream::connect(back_address).expect("connect");
        let server = back.accept().expect("accept").0;
        Self::new(client, [a, b], server)
    }

    /// Over veths: client, relay and server in namespaces of their own.
    pub(super) fn across(lab: &Lab) -> Self {
        Self::announced(lab, |_, _| ())
    }

    pub(super) fn across_v6(lab: &Lab) -> Self {
        Self::by_ip(lab, [Lab::RELAY_V6, Lab::SERVER_V6], |_, _| ())
    }

    /// The relay's listener may first announce a segment size on the way to the server.
    pub(super) fn announced(lab: &Lab, announce: impl Fn(&TcpListener, SocketAddr) + Sync) -> Self {
        Self::by_ip(lab, [Lab::RELAY_V4, Lab::SERVER_V4], announce)
    }

    fn by_ip(
        lab: &Lab,
        ips: [impl Into<IpAddr>; 2],
        announce: impl Fn(&TcpListener, SocketAddr) + Sync,
    ) -> Self {
        let [relay_ip, server_ip] = ips.map(Into::into);
        let (front, front_address) = listen_in(lab.relay(), (relay_ip, 0));
        let (back, back_address) = listen_in(lab.server(), (server_ip, 0));
        lab.relay()
            .enter(|| announce(&front, back_address))
            .expect("entered");
        let client = connect_in(lab.client(), front_address);
        let a = front.accept().expect("accept").0;
        let b = connect_in(lab.relay(), back_address);
        let server = back.accept().expect("accept").0;
        Self::new(client, [a, b], server)
    }

    pub(super) fn join(self, splicer: &Splicer, options: &Options) -> Joined {
        let handle = splicer.join(self.a, self.b, options).expect("joined");
        (self.client, self.server, handle)
    }
}

/// Client, server, and what is between them.
pub(super) type Joined = (TcpStream, TcpStream, Handle);

pub(super) fn listen(address: impl ToSocketAddrs) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(address).expect("bind");
    let address = listener.local_addr().expect("address");
    (listener, address)
}

pub(super) fn listen_in(
    namespace: &Namespace,
    address: impl ToSocketAddrs + Send,
) -> (TcpListener, SocketAddr) {
    namespace.enter(|| listen(address)).expect("entered")
}

pub(super) fn connect_in(namespace: &Namespace, address: impl ToSocketAddrs + Send) -> TcpStream {
    let connected = namespace.enter(|| TcpStream::connect(address));
    connected.expect("entered").expect("connect")
}

/// Asks for the engine by name.
pub(super) fn by_name() -> Options {
    Options {
        engine: EngineChoice::Only(EngineName::Segment),
        ..Options::default()
    }
}

/// `auto` takes a pair once it has moved this many bytes.
pub(super) fn by_volume(bytes: u64) -> Options {
    Options {
        // Longer than any test.
        segment_after: Some(Duration::from_secs(3600)),
        promote_after_bytes: bytes,
        ..Options::default()
    }
}

/// The outcome of a pair that ends by both ends of stream.
pub(super) fn ended(handle: &Handle) -> Outcome {
    let outcome = handle.wait_timeout(PATIENCE);
    let outcome = outcome.unwrap_or_else(|| panic!("it does not end: {handle:?}"));
    assert_eq!(outcome.reason, Reason::EndOfStream, "{outcome:?}");
    outcome
}

/// Why a pair that asked for the engine by name was refused.
pub(super) fn why_refused(handle: &Handle) -> String {
    let outcome = handle.wait_timeout(PATIENCE);
    let outcome = outcome.unwrap_or_else(|| panic!("it does not end: {handle:?}"));
    assert_eq!(outcome.reason, Reason::Refused, "{outcome:?}");
    outcome.why_engine.into_owned()
}

/// A pair that asks for the engine by name stays with its sockets, for this reason.
pub(super) fn expect_kept(handle: &Handle, why: &str) {
    netlab::until("the reason is known", || handle.engine().1.contains(why));
    assert_ne!(handle.engine().0, EngineName::Segment, "{handle:?}");
}

pub(super) fn moved(outcome: &Outcome) -> [u64; 2] {
    [outcome.moved.a_to_b, outcome.moved.b_to_a]
}

/// With one loop.
pub(super) fn splicer_in(namespace: &Namespace) -> Splicer {
    let splicer = namespace.enter(|| Splicer::new(1).expect("a splicer"));
    splicer.expect("entered")
}

pub(super) fn datapath_in(lab: &Lab) -> Arc<Datapath> {
    let datapath = lab.relay().enter(Datapath::here).expect("entered");
    datapath.expect("a datapath")
}

/// A lab with a spliced pair. The program is attached, so it sees the next pairs from their handshakes on.
pub(super) fn spliced_lab() -> (Lab, Splicer, Joined) {
    let lab = Lab::new().expect("a lab");
    take_frames(&lab);
    let splicer = splicer_in(lab.relay());
    let pair = spliced_across(&lab, &splicer);
    (lab, splicer, pair)
}

/// A spliced pair that has passed one request and its response.
pub(super) fn spliced_across(lab: &Lab, splicer: &Splicer) -> Joined {
    spliced(lab, splicer, Connected::across(lab))
}

pub(super) fn spliced(lab: &Lab, splicer: &Splicer, connected: Connected) -> Joined {
    let (client, server, handle) = connected.join(splicer, &by_name());
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    }
    ping(&client, &server);
    // A refused pair has ended by then.
    netlab::until("the engine has the pair", || {
        assert!(handle.outcome().is_none(), "{handle:?}");
        handle.engine().0 == EngineName::Segment
    });
    wait_for_sleep(lab);
    (client, server, handle)
}

/// Waits until the relay's sockets send nothing more.
pub(super) fn wait_for_sleep(lab: &Lab) {
    let datapath = datapath_in(lab);
    netlab::until("the sockets are silent", || {
        datapath.awake().load(Relaxed) == 0
    });
}

pub(super) fn tuple(end: &Endpoint) -> SegmentTuple {
    let (local, peer) = address_pair(end).expect("connected");
    tuple_of(local, peer)
}

/// How the kernel knows the relay's ends.
pub(super) fn sockets_across(lab: &Lab, ends: [&Endpoint; 2]) -> [SegmentSocket; 2] {
    let (datapath, tuples) = (datapath_in(lab), ends.map(tuple));
    let found = lab.relay().enter(|| datapath.inspect(&tuples));
    found.expect("entered").expect("found").socket
}
