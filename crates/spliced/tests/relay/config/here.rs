//! What `spliced check` says about this host.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;

use netlab::{Lab, Need, Process, Scratch, available};
use serde_json::Value;

use crate::doctor::{NOBODY, for_anybody};
use crate::relay::{BINARY, command, output};

const LISTENER: &str = "[[listener]]\nname = \"web\"\naddress = \"127.0.0.1:80\"\n";
pub(super) const ROUTE: &str = "[[listener.route]]\nbackend = \"web\"\n";

/// What a check with `status` writes to stdout and stderr.
pub(super) fn said(command: &mut Command, status: i32) -> (String, String) {
    let output = output(command);
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert_eq!(output.status.code(), Some(status), "{stdout}{stderr}");
    (stdout, stderr)
}

/// What the check of `text` writes.
pub(super) fn checked(text: &str, status: i32) -> (String, String) {
    let scratch = Scratch::new("check").expect("a directory");
    let path = scratch.write("spliced.toml", text).expect("written");
    let path = path.to_str().expect("a path");
    said(&mut command(&["check", "--config", path]), status)
}

/// What the check of `text` in the namespace of a relay writes.
pub(super) fn checked_in(lab: &Lab, text: &str, status: i32) -> (String, String) {
    let scratch = Scratch::new("check").expect("a directory");
    let path = scratch.write("spliced.toml", text).expect("written");
    let mut command = lab.relay().command(BINARY);
    command.args(["check", "--config"]).arg(path);
    said(command.env_remove("SPLICED_LOG"), status)
}

pub(super) fn assert_in(text: &str, part: &str) {
    assert!(text.contains(part), "no {part:?} in {text}");
}

#[test]
fn each_engine_is_used_or_there_is_a_reason() {
    let backend = "[backend.web]\nservers = \"127.0.0.1:1\"\n";
    let auto = format!("{LISTENER}{ROUTE}{backend}");
    let (report, _) = checked(&auto, 0);
    for line in [
        "listener web on 127.0.0.1:80, engine auto: copy, pipe for bulk",
        "\n\nbackend web\n  127.0.0.1:1\n",
    ] {
        assert_in(&report, line);
    }
    let copy = format!("{LISTENER}engine = \"copy\"\n{ROUTE}{backend}");
    let (report, _) = checked(&copy, 0);
    assert_in(&report, "engine copy: copy\n");
}

#[test]
fn servers_without_new_clients_are_named_and_a_backend_of_none_but_those_is_warned_of() {
    let backend = |servers: &str| {
        checked(
            &format!("{LISTENER}{ROUTE}[backend.web]\nservers = [{servers}]\n"),
            0,
        )
    };
    let (plain, disabled) = (
        "\"127.0.0.3:1\"",
        "{ address = \"127.0.0.3:2\", disabled = true }",
    );
    let without =
        "{ address = \"127.0.0.3:3\", weight = 0 }, { address = \"unix:/run/x\", weight = 0 }";
    let both = "{ address = \"127.0.0.3:4\", weight = 0, disabled = true }";
    let backup = "{ address = \"127.0.0.3:5\", backup = true }";
    for (servers, line) in [
        (plain.to_owned(), "backend web\n"),
        (
            format!("{plain}, {disabled}, {without}"),
            "backend web: 4 servers, 1 disabled (127.0.0.3:2), 2 with weight 0 (127.0.0.3:3, unix:/run/x)\n",
        ),
        (
            format!("{both}, {disabled}, {backup}"),
            "backend web: 3 servers, 2 disabled (127.0.0.3:4, 127.0.0.3:2)\n",
        ),
    ] {
        let (report, warnings) = backend(&servers);
        assert_in(&report, line);
        assert!(!warnings.contains("takes clients"), "{warnings}");
    }
    let (report, warnings) = backend(&format!("{both}, {without}"));
    assert_in(
        &report,
        "backend web: 3 servers, 1 disabled (127.0.0.3:4), 2 with weight 0 (",
    );
    assert_in(
        &warnings,
        "warning: backend \"web\" has no server that takes clients: each is disabled or has weight 0; enable one, or",
    );
    let many =
        (10..22).map(|port| format!("{{ address = \"127.0.0.3:{port}\", disabled = true }}"));
    let (report, _) = backend(&format!("{plain}, {}", many.collect::<Vec<_>>().join(", ")));
    assert_in(
        &report,
        "backend web: 13 servers, 12 disabled (127.0.0.3:10, ",
    );
    assert_in(&report, "127.0.0.3:19 and 2 more)\n");
}

#[test]
fn sessions_routes_weights_and_checks_are_told() {
    let text = "[[listener]]\nname = \"dns\"\naddress = \"udp:127.0.0.1:5353\"\nidle_timeout = \"5s\"\n\
                replies = 1\nmax_sessions_per_client = 9\n\
                [[listener.route]]\nclient = [\"10.0.0.0/8\", \"::1\"]\nbackend = \"a\"\nfallback = \"b\"\n\
                [[listener.route]]\nbackend = \"b\"\n\
                [backend.a]\nservers = [\"udp:127.0.0.3:1\", { address = \"udp:127.0.0.3:2\", weight = 3 }]\n\
                health = { send = \"q\", expect = \"a\", every = \"7s\" }\n\
                [backend.b]\nservers = [\"udp:127.0.0.3:3\", { address = \"udp:127.0.0.3:4\", backup = true }]\n";
    let (report, _) = checked(text, 0);
    for part in [
        "listener dns on udp:127.0.0.1:5353, engine copy: copy datagram by datagram\n  \
         at most 16384 sessions, each until it is idle for 5s; one that has its answers (1 for each datagram of its client) ends soon; 9 of a client\n  \
         clients in 10.0.0.0/8, ::1 to backend a, or else b\n  \
         every client to backend b\n\n",
        "backend a\n  udp:127.0.0.3:1\n  udp:127.0.0.3:2; weight 3\n  \
         checked every 7s by send and expect; down after 3 that fail, up after 2 that pass\n",
        "backend b\n  udp:127.0.0.3:3\n  udp:127.0.0.3:4; backup\n  \
         not checked: a server that is silent counts as up\n",
    ] {
        assert_in(&report, part);
    }
}

#[test]
fn routes_of_streams_are_told() {
    let text = "[[listener]]\nname = \"web\"\naddress = \"127.0.0.1:80\"\nengine = \"copy\"\n\
                [[listener.route]]\nclient = [\"10.0.0.0/8\", \"::1\"]\nsni = [\"a.example\", \"*.b.example\"]\n\
                alpn = \"h2\"\nbackend = \"a\"\nfallback = \"b\"\n\
                [[listener.route]]\nlocal_port = 80\nhttp_method = [\"GET\", \"PUT\", \"HEAD\", \"POST\", \"TRACE\"]\nreset = true\n\
                [[listener.route]]\nsilent = true\nbackend = \"b\"\n\
                [[listener.route]]\nsocks = { allow = [\"public:*\", \"10.0.0.0/8:*\"] }\n\
                [[listener.route]]\nstarts_with = \"hex:1B 5B\"\nbackend = \"b\"\n\
                [[listener.route]]\nbackend = \"a\"\n\
                [backend.a]\nservers = \"127.0.0.3:1\"\n[backend.b]\nservers = \"127.0.0.3:2\"\n";
    let (report, _) = checked(text, 0);
    assert_in(
        &report,
        "listener web on 127.0.0.1:80, engine copy: copy\n  \
         clients in 10.0.0.0/8, ::1 with sni a.example, *.b.example and alpn h2 to backend a, or else b\n  \
         clients with local_port 80 and http_method GET, PUT, HEAD, 2 more: reset\n  \
         silent clients to backend b\n  \
         clients with protocol socks to what they ask for, within 2 rules\n  \
         clients with starts_with \\u{1b}[ to backend b\n  \
         every client to backend a\n\n",
    );
    let many = "[[listener.route]]\nsni = \"%.example\"\nbackend = \"web\"\n";
    let many: String = (0..22)
        .map(|number| many.replace('%', &format!("n{number}")))
        .collect();
    let backend = "[backend.web]\nservers = \"127.0.0.1:1\"\n";
    let (report, _) = checked(&format!("{LISTENER}{many}{backend}"), 0);
    assert_in(
        &report,
        "  clients with sni n19.example to backend web\n  2 routes more\n",
    );
}

#[test]
fn what_keeps_connections_from_being_translated_from_the_syn_on_is_told() {
    if !available(Need::Bpf) {
        return;
    }
    for (listener, backend, why) in [
        (
            "",
            "",
            "from the SYN on, where routes and packet filters allow it",
        ),
        (
            "max_connections = 5\n",
            "",
            "not from the SYN on: its limits on connections",
        ),
        ("engine = \"copy\"\n", "", ""),
        (
            "",
            "health = { tcp = true }\n",
            "not from the SYN on: backend web has health checks",
        ),
        (
            "",
            "send_proxy = \"v2\"\n",
            "not from the SYN on: backend web gets a PROXY header",
        ),
    ] {
        let text = format!(
            "{LISTENER}from_syn = true\n{listener}{ROUTE}[backend.web]\nservers = \"127.0.0.1:1\"\n{backend}"
        );
        let (report, _) = checked(&text, 0);
        assert_in(&report, why);
        assert_eq!(
            report.contains("from the SYN on"),
            !why.is_empty(),
            "{report}"
        );
    }
}

#[test]
fn what_keeps_connections_from_segment_is_told() {
    if !available(Need::Bpf) {
        return;
    }
    for (listener, backend, why) in [
        (
            "rate = \"10MB\"\n",
            "",
            "not segment at all: the listener has a rate",
        ),
        (
            "",
            "mark = 7\n",
            "not segment to backend web: it has a mark",
        ),
        (
            "",
            "interface = \"lo\"\n",
            "not segment to backend web: it has an interface",
        ),
    ] {
        let text = format!(
            "{LISTENER}{listener}{ROUTE}[backend.web]\nservers = \"127.0.0.1:1\"\n{backend}"
        );
        let (report, _) = checked(&text, 0);
        assert_in(&report, "segment for connections that live for 50 ms");
        assert_in(&report, why);
    }
    let text =
        format!("{LISTENER}{ROUTE}[backend.web]\nservers = [\"[::1]:1\", \"unix:/run/x\"]\n");
    let (report, _) = checked(&text, 0);
    for why in [
        "not segment to backend web, server [::1]:1: clients come over IPv4 and the server is reached over IPv6",
        "not segment to backend web, server unix:/run/x: it is a UNIX socket",
    ] {
        assert_in(&report, why);
    }
    let text = format!("{ROUTE}[backend.web]\nservers = \"127.0.0.1:1\"\n");
    let (report, _) = checked(
        &format!("[[listener]]\naddress = \"unix:/run/x\"\n{text}"),
        0,
    );
    assert_in(
        &report,
        "not segment at all: clients come over a UNIX socket",
    );
}

#[test]
fn packet_filters_that_keep_connections_from_segment_are_told() {
    if ![Need::Netns, Need::Bpf, Need::Nft]
        .into_iter()
        .all(available)
    {
        return;
    }
    let lab = Lab::new().expect("namespaces");
    let rules = "table ip t { chain c { type filter hook output priority 0; tcp dport 7 drop; }; }";
    let loaded = lab.relay().command("nft").arg(rules).status();
    assert!(loaded.expect("nft").success());
    let server = Lab::SERVER_V4;
    // Of clients of other hosts, so that only the filters are in the way.
    let remote = LISTENER.replace("127.0.0.1", "0.0.0.0");
    let text = |listener| {
        format!(
            "{remote}{listener}{ROUTE}[backend.web]\nservers = [\"{server}:7\", \"{server}:8\"]\n"
        )
    };
    let (report, _) = checked_in(&lab, &text(""), 0);
    assert_in(
        &report,
        &format!(
            "not segment to backend web, server {server}:7: the packet filters would stop the segments"
        ),
    );
    assert!(!report.contains(&format!("server {server}:8")), "{report}");
    let (report, _) = checked_in(&lab, &text("bypass_firewall = true\n"), 0);
    assert!(!report.contains("not segment"), "{report}");
}

#[test]
fn an_engine_that_is_asked_for_and_cannot_be_used_is_an_obstacle() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("check").expect("a directory");
    let spliced = for_anybody(&scratch);
    let text = format!(
        "{LISTENER}engine = \"segment\"\n{ROUTE}[backend.web]\nservers = \"127.0.0.1:1\"\n"
    );
    let path = scratch.write("spliced.toml", &text).expect("written");
    let readable = Process::command("chmod").arg("644").arg(&path).status();
    assert!(readable.expect("chmod").success());
    let mut check = Process::command("setpriv");
    check
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"])
        .arg(spliced)
        .args(["check", "--config"])
        .arg(&path)
        .env_remove("SPLICED_LOG");
    let (report, said) = said(&mut check, 2);
    assert_in(&report, "engine segment: it cannot be used\n");
    assert_in(&said, ": listener \"web\": engine segment cannot be used");
    assert_in(&said, "has 1 obstacle on this host");
}

/// The commonest case: a proxy beside its service.
#[test]
fn clients_of_other_hosts_and_a_server_of_this_one_are_not_spliced_by_auto() {
    if !available(Need::Bpf) {
        return;
    }
    let text = |address: &str, engine: &str| {
        format!(
            "[[listener]]\naddress = \"{address}\"\nengine = \"{engine}\"\n{ROUTE}[backend.web]\n\
             servers = [\"127.0.0.1:1\", \"192.0.2.1:1\"]\n"
        )
    };
    let of_server = "not segment to backend web, server 127.0.0.1:1: clients of other hosts have segments of other sizes \
                     than a server on this one; engine = \"segment\" announces sizes that fit\n";
    let of_clients = "not segment to backend web, server 192.0.2.1:1: clients of this host have segments of other sizes \
                      than a server on another one; engine = \"segment\" announces sizes that fit\n";
    for (address, engine, told) in [
        ("0.0.0.0:80", "auto", Some(of_server)),
        ("127.0.0.1:80", "auto", Some(of_clients)),
        ("0.0.0.0:80", "segment", None),
        ("127.0.0.1:80", "segment", None),
        (":80", "auto", Some(of_server)),
    ] {
        let (report, _) = checked(&text(address, engine), 0);
        for why in [of_server, of_clients] {
            assert_eq!(report.contains(why), told == Some(why), "{report}");
        }
        let of_others =
            "not segment for clients over IPv6 to backend web: no server is reached over IPv6\n";
        assert_eq!(report.contains(of_others), address == ":80", "{report}");
    }
    // Whoever connects to no address comes to this host.
    let (report, _) = checked(
        &text("0.0.0.0:80", "auto").replace("127.0.0.1:1", "0.0.0.0:1"),
        0,
    );
    assert_in(&report, "server 0.0.0.0:1: clients of other hosts");
}

/// A proxy that programs of its own host use, as examples/forward-proxy.toml is.
#[test]
fn clients_of_this_host_that_ask_for_destinations_are_not_spliced_by_auto() {
    if !available(Need::Bpf) {
        return;
    }
    let why = "not segment to destinations that clients ask for: clients of this host have segments of other sizes than a \
               server on another one; engine = \"segment\" announces";
    for (address, engine, is_told) in [
        ("127.0.0.1:1080", "auto", true),
        ("localhost:1080", "auto", true),
        ("127.0.0.1:1080", "segment", false),
        ("0.0.0.0:1080", "auto", false),
    ] {
        let text = format!(
            "[[listener]]\naddress = \"{address}\"\nengine = \"{engine}\"\n[[listener.route]]\n\
             socks = {{ allow = [\"public:443\"] }}\n"
        );
        let (report, _) = checked(&text, 0);
        assert_eq!(report.contains(why), is_told, "{report}");
    }
}

#[test]
fn names_of_files_and_sockets_are_shown_without_what_a_terminal_acts_on() {
    let scratch = Scratch::new("check").expect("a directory");
    let text = format!(
        "[[listener]]\naddress = \"unix:/run/a\\nb\\u202e\"\n{ROUTE}[backend.web]\nservers = \"127.0.0.1:1\"\n"
    );
    let written = scratch.write("c.toml", &text).expect("written");
    let path = scratch.path().join(OsStr::from_bytes(b"c\xff\n.toml"));
    fs::rename(written, &path).expect("renamed");
    let mut check = command(&["check", "--config"]);
    let (report, _) = said(check.arg(&path), 0);
    assert_in(&report, "listener unix:/run/a\\nb\\u{202e} on unix:");
    assert_in(&report, "\\n.toml can be used\n");
    let mut check = command(&["check", "--json", "--config"]);
    let (told, _) = said(check.arg(&path), 0);
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(
        told["found"]["listeners"][0]["name"],
        "unix:/run/a\nb\u{202e}"
    );
}

#[test]
fn a_program_gets_everything_as_json() {
    let scratch = Scratch::new("check").expect("a directory");
    let check = |text: &str, status: i32| {
        let path = scratch.write("c.toml", text).expect("written");
        let path = path.to_str().expect("a path").to_owned();
        let (told, _) = said(
            &mut command(&["check", "--json", "--config", &path]),
            status,
        );
        let told: Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(told["configuration"], path);
        told
    };
    let backend = "[backend.web]\nservers = [{ address = \"127.0.0.3:1\", disabled = true }]\n";
    let told = check(&format!("{LISTENER}{ROUTE}{backend}"), 0);
    let found = &told["found"];
    assert_eq!(found["listeners"][0]["name"], "web");
    assert_eq!(found["listeners"][0]["uses"][0]["engine"], "copy");
    assert_eq!(
        found["backends"][0]["servers"][0]["addresses"][0],
        "127.0.0.3:1"
    );
    let warning = told["warnings"][0]["sentence"]
        .as_str()
        .expect("a sentence");
    assert_in(warning, "has no server that takes clients");
    let told = check(&format!("{LISTENER}colour = 1\n{ROUTE}{backend}"), 2);
    assert_eq!(told["found"], Value::Null);
    let mistake = &told["mistakes"][0];
    assert_eq!(
        (&mistake["line"], &mistake["column"]),
        (&4.into(), &1.into())
    );
    assert_in(mistake["sentence"].as_str().expect("a sentence"), "colour");
}

#[test]
fn a_thousand_listeners_take_a_line_each() {
    let listeners = (0..1000).map(|number| {
        format!(
            "[[listener]]\nname = \"l{number}\"\naddress = \"127.0.0.1:{}\"\n[[listener.route]]\nbackend = \"b{}\"\n",
            20_000 + number,
            number % 100
        )
    });
    let backends =
        (0..100).map(|number| format!("[backend.b{number}]\nservers = \"127.0.0.1:1\"\n"));
    let text: String = listeners.chain(backends).collect();
    let (report, _) = checked(&text, 0);
    let lines = report.lines().filter(|line| line.starts_with("listener l"));
    assert_eq!(lines.count(), 1000);
    // Nothing else of a listener.
    let until_backends = report.lines().take_while(|line| !line.is_empty());
    assert!(until_backends.count() <= 1001, "{report}");
}

/// Such a listener would call itself without end.
#[test]
fn a_server_that_is_the_listener_itself_is_an_obstacle() {
    let text =
        format!("{LISTENER}{ROUTE}[backend.web]\nservers = [\"localhost:80\", \"127.0.0.1:81\"]\n");
    let (_, said) = checked(&text, 2);
    assert_in(
        &said,
        "listener \"web\": server 127.0.0.1:80 of backend \"web\" is the listener itself; choose",
    );
    assert_in(&said, "has 1 obstacle on this host");
}

#[test]
fn names_that_do_not_resolve_are_told() {
    // The resolver rejects a label of more than 63 bytes without asking a server.
    let name = format!("{}:80", "x".repeat(64));
    let text = format!(
        "{LISTENER}{ROUTE}[backend.web]\nservers = [\"{name}\", \"localhost:1\", \"127.0.0.1:1\"]\n"
    );
    let (report, said) = checked(&text, 0);
    assert_in(
        &said,
        &format!(
            "warning: server {name} of backend \"web\": the name in {name} cannot be resolved"
        ),
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_in(
        &report,
        "\n  localhost:1 is 127.0.0.1:1, [::1]:1\n  127.0.0.1:1\n",
    );
    let text = format!(
        "[[listener]]\naddress = \"{name}\"\n{ROUTE}[backend.web]\nservers = \"127.0.0.1:1\"\n"
    );
    // As the name of a listener the address would be too long.
    let text = text.replace("[[listener]]\n", "[[listener]]\nname = \"a\"\n");
    let (_, said) = checked(&text, 2);
    assert_in(
        &said,
        &format!("listener \"a\": the name in {name} cannot be resolved"),
    );
}

#[test]
fn a_source_that_this_host_does_not_have_is_told() {
    // From a block for documentation (RFC 5737).
    let text = format!(
        "{LISTENER}{ROUTE}[backend.web]\nservers = \"127.0.0.1:1\"\nsource = [\"127.0.0.1\", \"192.0.2.1\"]\n\
         interface = \"none-such\"\n"
    );
    let (_, said) = checked(&text, 0);
    assert_in(
        &said,
        "warning: backend \"web\": source 192.0.2.1 cannot be used",
    );
    assert_in(
        &said,
        "warning: backend \"web\": there is no interface none-such",
    );
    assert_eq!(said.lines().count(), 2, "{said}");
}

/// The commands that the check asks for are those that it needs.
#[test]
fn the_rules_that_the_clients_address_needs_are_told() {
    if !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().expect("namespaces");
    let mut servers = vec![format!("{}:1", Lab::SERVER_V4)];
    if lab.has_ipv6() {
        servers.push(format!("[{}]:1", Lab::SERVER_V6));
    }
    let text = format!(
        "[[listener]]\nname = \"web\"\naddress = \":80\"\n{ROUTE}[backend.web]\nservers = {servers:?}\n\
         source = \"client\"\n"
    );
    let (report, said) = checked_in(&lab, &text, 0);
    assert!(!report.contains("stay here"), "{report}");
    assert_eq!(said.lines().count(), servers.len(), "{said}");
    for (server, line) in servers.iter().zip(said.lines()) {
        let (address, _) = server.rsplit_once(':').expect("a port");
        let address = address.trim_matches(['[', ']']);
        assert_in(
            line,
            &format!("answers of {address} to clients would not stay on this host; run '"),
        );
        // What stands in quotes.
        for command in line.split('\'').skip(1).step_by(2) {
            let words: Vec<_> = command.split(' ').collect();
            let done = lab.relay().command(words[0]).args(&words[1..]).status();
            assert!(done.expect("ip").success(), "{command}");
        }
    }
    let (report, said) = checked_in(&lab, &text, 0);
    assert_eq!(said, "");
    assert_eq!(
        report.matches("and stay here\n").count(),
        servers.len(),
        "{report}"
    );
}
