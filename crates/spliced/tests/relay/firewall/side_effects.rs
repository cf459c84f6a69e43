//! Rules with side effects that exist when a client connects.

use netlab::Lab;

use super::host::{CLIENT_PORT, Host, Pair, can_filter};
use crate::patience::until;
use crate::peer::exchange;

/// A rule for each client and how the relay describes it. No rule stops a segment.
const EFFECTS: [(&str, &str, &str); 8] = [
    ("filter", "log", "logs"),
    (
        "filter",
        "limit rate 1000000/second accept",
        "limits a rate",
    ),
    ("filter", "counter name everybody", "a named object"),
    ("filter", "meta mark set 1", "sets a mark"),
    ("filter", "ip dscp set cs1", "changes the packet"),
    ("filter", "quota over 1000 mbytes drop", "quota"),
    ("filter", "ct count over 1000 drop", "number of connections"),
    ("raw", "notrack", "keeps connection tracking out"),
];

const CLIENTS: std::ops::Range<u16> = CLIENT_PORT..CLIENT_PORT + EFFECTS.len() as u16;

/// Far more bytes than `auto` needs to choose a pipe.
const BULK_BYTES: u64 = 8 << 20;

/// A client without a rule.
const OTHER: u16 = CLIENTS.end;

fn rules() -> String {
    let of_chain = |wanted| -> String {
        CLIENTS
            .zip(EFFECTS)
            .filter(|(_, (chain, ..))| *chain == wanted)
            .map(|(port, (_, does, _))| format!("tcp sport {port} {does}\n"))
            .collect()
    };
    format!(
        "table ip t {{
            counter everybody {{ }}
            chain raw {{
                type filter hook prerouting priority -300; policy accept;
                {}
            }}
            chain filter {{
                type filter hook input priority 0; policy accept;
                {}
            }}
        }}",
        of_chain("raw"),
        of_chain("filter"),
    )
}

/// The rule of the client at this port, and the description of its effect.
fn told(host: &Host, port: u16) -> [String; 2] {
    let (chain, _, does) = EFFECTS[usize::from(port - CLIENT_PORT)];
    let handle = host.handle(&format!("sport {port} "));
    [format!("ip t {chain} handle {handle} "), does.into()]
}

fn expect_all(text: &str, parts: &[String]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}

#[test]
fn auto_leaves_pairs_with_filter_side_effects_to_the_stack() {
    if !can_filter() {
        return;
    }
    let host = Host::under(&rules(), &["--engine", "auto"]);
    let pairs: Vec<_> = CLIENTS.map(|port| host.connect(port)).collect();
    let other = host.connect(OTHER);
    // It is the last pair to be promoted.
    until("the other is spliced", || {
        pairs.iter().chain([&other]).for_each(Pair::round);
        host.hop.are_spliced(1)
    });
    // The log names the engine that moved the last bytes.
    other.round();
    // One pair has bulk, which uses a pipe.
    let bulk = &pairs[0];
    exchange(&bulk.near, &bulk.far, 0, BULK_BYTES, BULK_BYTES);
    pairs.into_iter().skip(1).chain([other]).for_each(Pair::end);
    for port in CLIENTS {
        let entry = host.entry(port);
        let engine = if port == CLIENT_PORT { "pipe" } else { "copy" };
        assert_eq!(entry["engine"], engine, "{entry}");
        assert_eq!(entry["outcome"], "end of stream", "{entry}");
        let why = entry["why_engine"].as_str().expect("a reason");
        expect_all(why, &told(&host, port));
    }
    assert_eq!(host.logged(OTHER, "engine"), "segment");
}

#[test]
fn segment_refuses_pairs_with_filter_side_effects() {
    if !can_filter() {
        return;
    }
    let host = Host::under(&rules(), &["--engine", "segment"]);
    for port in CLIENTS {
        host.is_reset(port);
        let entry = host.entry(port);
        assert_eq!(entry["outcome"], "refused by the engine", "{entry}");
        let why = entry["why_engine"].as_str().expect("a reason");
        expect_all(why, &told(&host, port));
        assert!(why.contains("bypass"), "{why}");
    }
    // The other warnings are suppressed by the rate limit.
    let said = host.hop.relay.wait_logged("engine segment refused it");
    let client = format!("from {}:{CLIENT_PORT} to", Lab::CLIENT_V4);
    expect_all(&said, &[" WARN ".into(), client, "was reset".into()]);
    expect_all(&said, &told(&host, CLIENT_PORT));
}

#[test]
fn bypass_firewall_splices_pairs_with_filter_side_effects() {
    if !can_filter() {
        return;
    }
    for engine in ["auto", "segment"] {
        let host = Host::under(&rules(), &["--engine", engine, "--bypass-firewall"]);
        let pairs: Vec<_> = CLIENTS.map(|port| host.connect(port)).collect();
        host.splice(&pairs.iter().collect::<Vec<_>>());
        pairs.into_iter().for_each(Pair::end);
        for port in CLIENTS {
            assert_eq!(host.logged(port, "engine"), "segment");
        }
    }
}
