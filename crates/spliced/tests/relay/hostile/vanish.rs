//! Ends that vanish: a spliced connection to them ends when one that is copied would end.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Namespace, Need, available};
use splice_bpf::types::segment_state;

use super::connection::{Connection, Side};
use super::hops::{Hops, ip};
use super::stage::Family;
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::Peer;
use crate::relay::BINARY;
use crate::segment::hop::Hop;
use crate::server::Server;

/// Of the relay's namespace: a peer is given up after seconds, not after minutes.
pub(super) const SETTINGS: [(&str, &str); 5] = [
    ("net.ipv4.tcp_retries2", "3"),
    ("net.ipv4.tcp_orphan_retries", "2"),
    ("net.ipv4.tcp_keepalive_time", "4"),
    ("net.ipv4.tcp_keepalive_intvl", "1"),
    ("net.ipv4.tcp_keepalive_probes", "3"),
];

/// So long a peer is waited for at least, by these settings: for an acknowledgement (1 + 2 + 4 + 8 times 0.2 s), and as
/// an orphan.
const WAITS_FOR_ACKNOWLEDGEMENT: Duration = Duration::from_millis(3000);
const WAITS_AS_ORPHAN: Duration = Duration::from_millis(1400);

/// By so much a spliced connection may last longer than one that is copied, beside a tenth.
const SLACK: Duration = Duration::from_secs(1);

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Longer than anything here may last.
const LONGEST: Duration = Duration::from_secs(40);

/// What a connection is doing when one of its ends vanishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing.
    Idle,
    /// The end that stays sends afterwards.
    Sends,
    /// The end that vanishes has ended its stream, and the other one sends afterwards.
    HalfClosedAndSends,
    /// The end that stays has ended its stream.
    HalfClosed,
    /// The end that stays ends its stream afterwards.
    Closes,
    /// The end that vanishes has ended its stream, and the other one does so afterwards.
    BothClose,
    /// The end that vanishes has no room left for what the other one sends.
    NoRoom,
    /// The end that stays has no room left for what the other one sends, from the start: the connection is still changing
    /// over. It sends afterwards.
    ChangingOver,
}

const STATES: [State; 8] = [
    State::Idle,
    State::Sends,
    State::HalfClosedAndSends,
    State::HalfClosed,
    State::Closes,
    State::BothClose,
    State::NoRoom,
    State::ChangingOver,
];

impl State {
    fn prepare(self, gone: &Peer, left: &Peer) {
        match self {
            Self::HalfClosedAndSends | Self::BothClose => {
                gone.end_stream();
                left.expect_end();
            }
            Self::HalfClosed => {
                left.end_stream();
                gone.expect_end();
            }
            Self::NoRoom => _ = fill(left, Payload::new(7)),
            Self::Idle | Self::Sends | Self::Closes | Self::ChangingOver => {}
        }
    }

    /// Has the end that vanishes say something if only keep-alive will notice that it is gone, which counts from there: a
    /// probe that was answered a moment ago would add seconds for the one connection and not for the other.
    fn hear(self, gone: &Peer, left: &Peer) {
        if matches!(self, Self::Idle | Self::HalfClosed) {
            gone.write_number(1);
            assert_eq!(left.read_number(), 1);
        }
    }

    /// How long it is waited for the peer at least, where a connection that is copied lasts for so long.
    fn lasts(self, copied: Duration) -> Duration {
        match self {
            Self::Sends
            | Self::HalfClosedAndSends
            | Self::Closes
            | Self::NoRoom
            | Self::ChangingOver => WAITS_FOR_ACKNOWLEDGEMENT,
            Self::BothClose => WAITS_AS_ORPHAN,
            // By keep-alive.
            Self::Idle | Self::HalfClosed => copied.saturating_sub(SLACK),
        }
    }

    fn go_on(self, left: &Peer) {
        match self {
            Self::Sends | Self::HalfClosedAndSends | Self::ChangingOver => left.write_number(1),
            Self::Closes | Self::BothClose => left.end_stream(),
            Self::Idle | Self::HalfClosed | Self::NoRoom => {}
        }
    }
}

/// Sends until nobody on the way takes any more. Returns the number of bytes.
pub(super) fn fill(end: &Peer, payload: Payload) -> u64 {
    let mut position = 0;
    let mut at_rest = 0;
    while at_rest < 10 {
        let sent = end.send_what_fits(payload, position);
        position += sent;
        at_rest = if sent == 0 { at_rest + 1 } else { 0 };
        thread::sleep(LOOK_EVERY);
    }
    position
}

/// How an end vanishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The relay's neighbour is gone.
    Neighbour,
    /// Its router says that it cannot be reached.
    Unreachable,
    /// Its router says nothing.
    Swallowed,
}

/// A relay with a connection in each state.
struct Crowd {
    hop: Hop,
    /// How many descriptors the relay has without them.
    descriptors: usize,
    connections: Vec<(State, Connection)>,
}

impl Crowd {
    fn on(lab: &Lab, hops: &Hops, engine: &str, server: &Server, listen: &str, gone: Side) -> Self {
        let mut command = lab.relay().command(BINARY);
        command.args(["relay", listen, &server.address, "--engine", engine]);
        let hop = Hop::spawn(&mut command);
        let descriptors = hop.relay.descriptors();
        let connect = |state| {
            let client = hops.near.enter(|| Peer::connect(hop.address()));
            let client = client.expect("entered");
            let server = server.accept();
            let connection = Connection { client, server };
            if state == State::ChangingOver {
                fill(connection.end(gone), Payload::new(7));
            }
            (state, connection)
        };
        let connections: Vec<_> = STATES.into_iter().map(connect).collect();
        if engine == "copy" {
            for (state, connection) in &connections {
                if *state != State::ChangingOver {
                    connection.moves_a_byte(Side::Client);
                }
            }
        } else {
            // An engine that was asked for by name takes even that one before it has moved a byte.
            until("all connections but one are spliced", || {
                let states = hop.states();
                let spliced = |state: &&u32| **state == segment_state::SPLICED;
                states.len() == STATES.len()
                    && states.iter().filter(spliced).count() >= STATES.len() - 1
            });
        }
        Self {
            hop,
            descriptors,
            connections,
        }
    }

    /// The ends of the relay's sockets of each connection, as ss(8) shows them.
    fn peers(&self) -> Vec<[String; 2]> {
        let connections = self.connections.iter();
        connections
            .map(|(_, connection)| {
                let server = &connection.server;
                [connection.client.local_address(), server.peer_address()]
            })
            .collect()
    }
}

/// All addresses of sockets in a namespace.
fn addresses_in(namespace: &Namespace) -> HashSet<String> {
    let listed = namespace
        .command("ss")
        .args(["-Htan", "exclude", "time-wait"])
        .output();
    let listed = listed.expect("ss runs");
    assert!(listed.status.success(), "{listed:?}");
    let text = String::from_utf8(listed.stdout).expect("text");
    text.split_ascii_whitespace().map(str::to_owned).collect()
}

fn vanishes(gone: Side, way: Way, engine: &str, family: Family) {
    if !available(Need::Root) || !available(Need::Ss) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let hops = Hops::behind(&lab);
    for (name, value) in SETTINGS {
        lab.relay().set_sysctl(name, value).expect("set");
    }
    let [listen, target] = match family {
        Family::V4 => [IpAddr::from(Lab::RELAY_V4), Hops::FAR_V4.into()],
        Family::V6 => [Lab::RELAY_V6.into(), Hops::FAR_V6.into()],
    }
    .map(|ip| SocketAddr::new(ip, 0).to_string());
    let server = Server::in_namespace(&hops.far, &target);
    let crowds =
        ["copy", engine].map(|engine| Crowd::on(&lab, &hops, engine, &server, &listen, gone));
    let peers = crowds.each_ref().map(Crowd::peers);
    for (state, connection) in crowds.iter().flat_map(|crowd| &crowd.connections) {
        state.prepare(connection.end(gone), connection.end(gone.other()));
    }
    for (state, connection) in crowds.iter().flat_map(|crowd| &crowd.connections) {
        state.hear(connection.end(gone), connection.end(gone.other()));
    }
    let (router, network) = match gone {
        Side::Client => (lab.client(), 4),
        Side::Server => (lab.server(), 5),
    };
    match way {
        Way::Neighbour => drop(ip(router, &format!("link set {} down", Lab::TO_RELAY))),
        Way::Unreachable => drop(ip(router, &format!("link set {} down", Hops::OUTWARD))),
        Way::Swallowed => {
            ip(router, &format!("route add blackhole 198.18.{network}.2"));
            ip(
                router,
                &format!("-6 route add blackhole 2001:2:0:{network}::2"),
            );
        }
    }
    let since = Instant::now();
    for (state, connection) in crowds.iter().flat_map(|crowd| &crowd.connections) {
        state.go_on(connection.end(gone.other()));
    }
    let mut lasted = [[None; STATES.len()]; 2];
    while lasted.as_flattened().contains(&None) && since.elapsed() < LONGEST {
        let there = addresses_in(lab.relay());
        for (lasted, peers) in lasted.iter_mut().zip(&peers) {
            for (lasted, peers) in lasted.iter_mut().zip(peers) {
                if !peers.iter().any(|peer| there.contains(peer)) {
                    lasted.get_or_insert(since.elapsed());
                }
            }
        }
        thread::sleep(LOOK_EVERY);
    }
    for (at, state) in STATES.into_iter().enumerate() {
        let [copied, spliced] = lasted.map(|of| of[at]);
        eprintln!("{state:?}: {copied:?} copied, {spliced:?} spliced");
    }
    for (at, state) in STATES.into_iter().enumerate() {
        let [copied, spliced] = lasted.map(|of| of[at].unwrap_or(LONGEST));
        assert!(copied < LONGEST, "{state:?} by copy");
        let most = match (state, way) {
            // Without a carrier the device takes no window probe, and the next one comes sooner
            // (TCP_RESOURCE_PROBE_INTERVAL in net/tcp.h): a connection that is copied does not live through a short
            // loss of the carrier, a spliced one does.
            (State::NoRoom, Way::Neighbour) => copied.max(WAITS_FOR_ACKNOWLEDGEMENT),
            _ => copied,
        };
        assert!(spliced <= most + most / 10 + SLACK, "{state:?}");
        assert!(
            spliced >= state.lasts(copied),
            "{state:?} is given up early"
        );
    }
    for crowd in &crowds {
        crowd.hop.relay.wait_descriptors(crowd.descriptors);
    }
    until("no flow is left", || crowds[1].hop.has_no_flow());
}

/// A test for each engine and IP version.
macro_rules! each {
    ($name:ident, $gone:expr, $way:expr) => {
        mod $name {
            use super::{Family, Side, Way, vanishes};

            #[test]
            fn auto_v4() {
                vanishes($gone, $way, "auto", Family::V4);
            }

            #[test]
            fn auto_v6() {
                vanishes($gone, $way, "auto", Family::V6);
            }

            #[test]
            fn segment_v4() {
                vanishes($gone, $way, "segment", Family::V4);
            }

            #[test]
            fn segment_v6() {
                vanishes($gone, $way, "segment", Family::V6);
            }
        }
    };
}

each!(a_neighbour, Side::Client, Way::Neighbour);
each!(an_unreachable_server, Side::Server, Way::Unreachable);
each!(a_silent_client, Side::Client, Way::Swallowed);
each!(a_silent_server, Side::Server, Way::Swallowed);
