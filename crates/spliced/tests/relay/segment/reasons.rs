//! Why `auto` leaves a pair to its sockets, in words about the client, the server and their connections.

use netlab::{Lab, Need, available};

use super::hop::Hop;
use crate::metrics::reading::Reading;
use crate::patience::until_found;
use crate::payload::Payload;
use crate::peer::Peer;
use crate::server::Server;

/// Enough for `auto` to try a pair with `segment` at once.
const BYTES: u64 = 128 << 10;
/// They last until it is.
const ROUNDS: u64 = 500;

const ELSEWHERE: &str = "elsewhere";
const BESIDE_THE_RELAY: &str = "beside the relay";

struct Case {
    client: &'static str,
    server: &'static str,
    /// What is set in the namespace of the relay.
    setting: Option<&'static [&'static str]>,
    why: &'static str,
    /// How it is counted.
    result: &'static str,
}

const CASES: [Case; 6] = [
    Case {
        client: ELSEWHERE,
        server: BESIDE_THE_RELAY,
        setting: None,
        why: "segment: the server may send segments of 65495 bytes, but the client takes 1460; \
              --engine segment (SegmentSize) announces what fits",
        result: "network",
    },
    Case {
        client: BESIDE_THE_RELAY,
        server: ELSEWHERE,
        setting: None,
        why: "segment: the client may send segments of 65495 bytes, but the server takes 1460; \
              --engine segment (SegmentSize) announces what fits",
        result: "network",
    },
    Case {
        client: ELSEWHERE,
        server: ELSEWHERE,
        setting: Some(&[
            "ip", "rule", "add", "pref", "7", "dport", "9", "lookup", "main",
        ]),
        why: "segment: connections of this host may be routed by port or protocol, which translated segments are not \
              (ip rule 7: from all dport 9 lookup main)",
        result: "network",
    },
    Case {
        client: ELSEWHERE,
        server: ELSEWHERE,
        setting: Some(&[
            "ip",
            "rule",
            "add",
            "pref",
            "7",
            "to",
            "198.18.2.0/24",
            "ipproto",
            "6",
            "lookup",
            "main",
        ]),
        why: "segment: the connection with the server may be routed by port or protocol, which translated segments are \
              not (ip rule 7: from all to 198.18.2.0/24 ipproto tcp lookup main)",
        result: "network",
    },
    Case {
        client: ELSEWHERE,
        server: ELSEWHERE,
        setting: Some(&[
            "ip",
            "xfrm",
            "policy",
            "add",
            "dst",
            "198.18.0.0/15",
            "dir",
            "out",
            "tmpl",
            "proto",
            "esp",
            "mode",
            "transport",
            "level",
            "use",
        ]),
        why: "segment: the connection with the client is protected by a policy of IPsec (ip xfrm policy)",
        result: "network",
    },
    Case {
        client: ELSEWHERE,
        server: ELSEWHERE,
        setting: Some(&[
            "nft",
            "add table ip t; add chain ip t in { type filter hook input priority 0; }; add rule ip t in log",
        ]),
        why: "segment: packet filters: ip t in handle 2 logs; change that, or bypass them knowingly",
        result: "filters",
    },
];

#[test]
fn the_reasons_name_the_client_and_the_server() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    for case in CASES {
        let lab = Lab::new().expect("a lab");
        if let Some([program, arguments @ ..]) = case.setting {
            let done = lab.relay().command(program).args(arguments).status();
            assert!(done.expect(program).success(), "{arguments:?}");
        }
        let place = |place, there| match place {
            BESIDE_THE_RELAY => lab.relay(),
            _ => there,
        };
        let at = match case.server {
            BESIDE_THE_RELAY => "127.0.0.1:0".to_owned(),
            _ => format!("{}:0", Lab::SERVER_V4),
        };
        let server = Server::in_namespace(place(case.server, lab.server()), &at);
        let listen = match case.client {
            BESIDE_THE_RELAY => "127.0.0.1:0".to_owned(),
            _ => format!("{}:0", Lab::RELAY_V4),
        };
        let mut command = lab.relay().command(crate::relay::BINARY);
        command.args(["relay", &listen, &server.address]);
        let hop = Hop::spawn(&mut command);
        // The first pairs may end while the program is being loaded.
        let why = until_found("a pair is tried", || {
            let near = place(case.client, lab.client()).enter(|| Peer::connect(hop.address()));
            let (near, far) = (near.expect("entered"), server.accept());
            near.send(Payload::new(1), 0, BYTES);
            far.expect(Payload::new(1), 0, BYTES);
            for number in 0..ROUNDS {
                near.write_number(number);
                assert_eq!(far.read_number(), number);
            }
            drop((near, far));
            let entry = hop.entries().pop()?;
            let why = entry["why_engine"].as_str().expect("a reason");
            let is_tried = why.contains("segment: ") && !why.contains("had ended");
            is_tried.then(|| why.to_owned())
        });
        assert!(why.contains(case.why), "{why}");
        let reading = Reading::at(&format!("/run/spliced/{}.sock", hop.relay.id()));
        for result in ["network", "sockets", "filters"] {
            let count = reading.sum("spliced_promotions_total", &[("result", result)]);
            assert_eq!(count > 0, result == case.result, "{count} {result}: {why}");
        }
    }
}
