//! What an operator is told of spliced connections that cannot go on as they are: the log, the access log, `spliced status`,
//! the sessions and the metrics.

use netlab::{Lab, Namespace, Need, available};
use serde_json::Value;

use super::hop::Hop;
use crate::metrics::reading::{Reading, wait_for};
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{BINARY, command, output};
use crate::server::Server;

/// A lab with a relay that has one spliced connection.
struct Spliced {
    lab: Lab,
    hop: Hop,
    server: Server,
    near: Peer,
    far: Peer,
}

impl Spliced {
    fn new() -> Self {
        Self::by("segment")
    }

    fn by(engine: &str) -> Self {
        let lab = Lab::new().expect("a lab");
        let server = Server::in_namespace(lab.server(), &format!("{}:0", Lab::SERVER_V4));
        let listen = format!("{}:0", Lab::RELAY_V4);
        let mut command = lab.relay().command(BINARY);
        command.args(["relay", &listen, &server.address, "--engine", engine]);
        let hop = Hop::spawn(&mut command);
        let near = lab.client().enter(|| Peer::connect(hop.address()));
        let (near, far) = (near.expect("entered"), server.accept());
        until("it is spliced", || {
            near.write_number(1);
            assert_eq!(far.read_number(), 1);
            hop.are_spliced(1)
        });
        near.write_number(2);
        assert_eq!(far.read_number(), 2);
        let spliced = Self {
            lab,
            hop,
            server,
            near,
            far,
        };
        wait_for(&spliced.socket());
        spliced
    }

    fn socket(&self) -> String {
        format!("/run/spliced/{}.sock", self.hop.relay.id())
    }

    fn asked(&self, arguments: &[&str]) -> String {
        let output = output(command(arguments).args(["--control", &self.socket()]));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn counted(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        Reading::at(&self.socket()).sum(name, labels)
    }

    fn promotions(&self, result: &str) -> u64 {
        self.counted("spliced_promotions_total", &[("result", result)])
    }
}

fn run(namespace: &Namespace, program: &str, arguments: &str) {
    let done = namespace
        .command(program)
        .args(arguments.split(' '))
        .status();
    assert!(done.expect(program).success(), "{program} {arguments}");
}

#[test]
fn connections_that_lose_segments_are_told_from_the_beginning_to_the_end() {
    if !available(Need::Root) {
        return;
    }
    let spliced = Spliced::new();
    let text = spliced.asked(&["status"]);
    assert!(text.contains("\nsessions by engine: segment 1\n"), "{text}");
    assert!(!text.contains("lose segments"), "{text}");
    const LOSING: &str = "spliced_sessions_losing_segments";
    assert_eq!(spliced.counted(LOSING, &[]), 0);
    let change = |how: &str| {
        let rule = format!("rule {how} to {} pref 5 blackhole", Lab::SERVER_V4);
        run(spliced.lab.relay(), "ip", &rule);
    };
    for times in 1..=2 {
        change("add");
        until("it is counted", || spliced.counted(LOSING, &[]) == 1);
        let begins = "WARN 1 spliced connection loses segments until there is a way for it again: \
                      the connection with the server has no route";
        until("it is logged", || {
            spliced.hop.relay.lines_logged(begins) == times
        });
        let text = spliced.asked(&["status"]);
        let line =
            "\nsessions that lose segments: 1: the connection with the server has no route\n";
        assert!(text.contains(line), "{text}");
        let sessions: Value =
            serde_json::from_str(&spliced.asked(&["sessions", "--json"])).expect("JSON");
        let why = sessions["sessions"][0]["why_engine"]
            .as_str()
            .expect("text");
        let lost = "; its segments get lost: the connection with the server has no route";
        assert!(why.ends_with(lost), "{why}");
        change("del");
        let ends = "INFO 1 spliced connection no longer loses segments: it has a way again";
        until("its end is logged", || {
            spliced.hop.relay.lines_logged(ends) == times
        });
        assert_eq!(spliced.counted(LOSING, &[]), 0);
    }
    spliced.near.write_number(3);
    assert_eq!(spliced.far.read_number(), 3);
    // One that ends meanwhile loses none any more.
    change("add");
    until("it loses some again", || spliced.counted(LOSING, &[]) == 1);
    until("that is logged", || {
        let begins = "1 spliced connection loses segments";
        spliced.hop.relay.lines_logged(begins) == 3
    });
    spliced.asked(&["kill", "1"]);
    until("that is over as well", || {
        let ends = "1 spliced connection no longer loses segments";
        spliced.hop.relay.lines_logged(ends) == 3
    });
}

struct Case {
    program: &'static str,
    arguments: &'static str,
    why: &'static str,
    result: &'static str,
}

const CASES: [Case; 2] = [
    Case {
        program: "nft",
        arguments: "add table ip t; add chain ip t in { type filter hook input priority 0; }; add rule ip t in log",
        why: "packet filters: ip t in handle 2 logs;",
        result: "given_back_filters",
    },
    Case {
        program: "ip",
        arguments: "route replace 198.18.2.2 dev TO_SERVER mtu 1400",
        why: "the connection with the server is reached by a route whose MTU is smaller",
        result: "given_back_network",
    },
];

#[test]
fn a_connection_that_went_back_tells_that_it_was_spliced() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    for case in CASES {
        let spliced = Spliced::new();
        assert_eq!(spliced.promotions("taken"), 1);
        let arguments = case.arguments.replace("TO_SERVER", Lab::TO_SERVER);
        run(spliced.lab.relay(), case.program, &arguments);
        until("it has gone back", || {
            spliced.near.write_number(3);
            assert_eq!(spliced.far.read_number(), 3);
            spliced.promotions(case.result) == 1
        });
        let all: u64 = ["network", "filters", "other"]
            .map(|cause| spliced.promotions(&format!("given_back_{cause}")))
            .iter()
            .sum();
        assert_eq!(all, 1);
        spliced.near.end_stream();
        spliced.far.expect_end();
        spliced.far.end_stream();
        spliced.near.expect_end();
        until("it has ended", || spliced.hop.connections() == 1);
        let entry = &spliced.hop.entries()[0];
        assert_eq!(entry["engine"], "copy", "{entry}");
        let why = entry["why_engine"].as_str().expect("a reason");
        let (before, after) = why
            .split_once(" bytes and gave the pair back: ")
            .expect(why);
        let moved: u64 = before
            .strip_prefix("segment moved ")
            .and_then(|bytes| bytes.parse().ok())
            .expect(why);
        assert!(moved > 0 && after.starts_with(case.why), "{why}");
    }
}

/// A rule that comes after the start keeps new connections from being spliced, and is told where an operator looks first.
#[test]
fn status_says_why_new_connections_are_copied() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    let spliced = Spliced::by("auto");
    let words = "\nsessions that are not spliced: ";
    assert!(!spliced.asked(&["status"]).contains(words));
    run(spliced.lab.relay(), CASES[0].program, CASES[0].arguments);
    until("it has gone back", || {
        spliced.near.write_number(3);
        assert_eq!(spliced.far.read_number(), 3);
        spliced.promotions("given_back_filters") == 1
    });
    let connected = spliced.lab.client();
    let near = connected.enter(|| Peer::connect(spliced.hop.address()));
    let (near, far) = (near.expect("entered"), spliced.server.accept());
    until("both are told, with the rule", || {
        near.write_number(4);
        assert_eq!(far.read_number(), 4);
        let text = spliced.asked(&["status"]);
        let line = text.lines().find(|line| line.starts_with(words.trim()));
        line.is_some_and(|line| {
            line.starts_with("sessions that are not spliced: 2: ")
                && line.contains("packet filters: ip t in handle 2 logs")
        })
    });
}
