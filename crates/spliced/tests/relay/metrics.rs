//! What a process counts, as Prometheus reads it.

mod exchanged_log;
mod first_byte;
mod monitoring;
mod moved;
mod outcomes;
pub(crate) mod reading;
mod tcp;
mod waiting_log;

use netlab::Scratch;

use self::reading::{Reading, get, wait_for};
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::Relay;
use crate::server::Server;

/// A relay to `target` with a control socket in a directory of its own.
fn relay_to(target: &str, options: &[&str]) -> (Scratch, Relay, String) {
    let scratch = Scratch::new("metrics").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8").to_owned();
    let relay = Relay::to(target, &[options, &["--control", &socket]].concat());
    wait_for(&socket);
    (scratch, relay, socket)
}

const DOCUMENTATION: &str = include_str!("../../../../docs/metrics.md");

fn kind_of(sample: &str) -> &'static str {
    match sample {
        _ if sample.ends_with("_total") => "counter",
        _ if sample.ends_with("_info") => "info",
        _ if sample.contains("_duration_") => "histogram",
        _ => "gauge",
    }
}

#[test]
fn every_metric_has_a_type_and_says_what_it_is() {
    let server = Server::new();
    let (_scratch, relay, socket) = relay_to(&server.address, &["--max-connections", "50"]);
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    let (head, text) = get(&socket, "/metrics");
    assert!(
        head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"),
        "{head}"
    );
    let reading = Reading::of(&text);
    let samples = reading.samples();
    assert!(samples.len() > 20, "{samples:?}");
    for name in samples {
        let family = ["_total", "_info", "_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| name.strip_suffix(suffix));
        let family = family.unwrap_or(name);
        assert!(reading.about(family).ends_with('.'), "{family}");
        let documented = match kind_of(name) {
            "histogram" => family,
            _ => name,
        };
        let row = format!("\n| `{documented}` | {} |", kind_of(name));
        assert!(DOCUMENTATION.contains(&row), "docs/metrics.md lacks {row}");
        let line = format!("# TYPE {family} {}\n", kind_of(name));
        assert_eq!(text.matches(&line).count(), 1, "{line}");
        assert!(
            name.starts_with("spliced_") || name.starts_with("process_"),
            "{name}"
        );
        let unit = ["bytes", "seconds"]
            .iter()
            .find(|unit| family.ends_with(*unit));
        if let Some(unit) = unit {
            assert!(
                text.contains(&format!("# UNIT {family} {unit}\n")),
                "{name}"
            );
        }
    }
    assert!(text.ends_with("\n# EOF\n"), "{text}");
    let of = |name, labels: &[(&str, &str)]| reading.sum(name, labels);
    let listener = ("listener", "127.0.0.1:0");
    assert_eq!(of("spliced_listener_max_connections", &[listener]), 50);
    assert_eq!(of("spliced_listener_open_connections", &[listener]), 1);
    assert_eq!(of("spliced_sessions_opened_total", &[listener]), 1);
    // The scrape's own connection is among them. That of the test before may be, for a moment.
    let counted = |text: &str| Reading::of(text).sum("process_open_fds", &[]);
    until("its descriptors are counted", || {
        let before = relay.all_descriptors() as u64;
        counted(&get(&socket, "/metrics").1) == before + 1
            && relay.all_descriptors() as u64 == before
    });
    assert!(of("process_max_fds", &[]) > of("process_open_fds", &[]));
    assert_eq!(of("spliced_build_info", &[("command", "relay")]), 1);
    drop((client, far));
}

/// The name of a listener or server is an address, in which a path may have almost anything.
#[test]
fn a_hostile_name_is_escaped() {
    let scratch = Scratch::new("metrics").expect("a directory");
    let hostile = scratch.path().join("a\"b\\c\nd} 1 # EOF");
    let listen = format!("unix:{}", hostile.display());
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let options = ["relay", &listen, "127.0.0.1:9", "--control", socket];
    let relay = Relay::spawn_silent(&mut crate::relay::command(&options));
    relay.wait_logged("listening on ");
    wait_for(socket);
    let (_, text) = get(socket, "/metrics");
    let escaped = listen
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    let line = format!("\nspliced_sessions_opened_total{{listener=\"{escaped}\"}} 0\n");
    assert!(text.contains(&line), "{line}{text}");
    assert_eq!(text.lines().filter(|line| *line == "# EOF").count(), 1);
}

#[test]
fn datagrams_have_metrics_too() {
    let target = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
    let to = format!("udp:{}", target.local_addr().expect("an address"));
    let scratch = Scratch::new("metrics").expect("a directory");
    let socket = scratch.path().join("sock");
    let socket = socket.to_str().expect("UTF-8");
    let relay = Relay::between("udp:127.0.0.1:0", &to, &["--control", socket]);
    wait_for(socket);
    let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
    let address = relay.address.trim_start_matches("udp:");
    until("a session is counted", || {
        client.send_to(b"x", address).expect("sent");
        let reading = Reading::at(socket);
        reading.sum("spliced_sessions_opened_total", &[]) == 1
            && reading.sum("spliced_listener_open_connections", &[]) == 1
    });
}

#[test]
fn a_thousand_readings_leave_nothing() {
    let server = Server::new();
    let (_scratch, relay, socket) = relay_to(&server.address, &["--metrics", "127.0.0.1:0"]);
    let address = tcp::address(&relay);
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    let read = || {
        drop(Reading::at(&socket));
        drop(Reading::by_tcp(&address));
    };
    // Whatever is kept for the next one is there by then.
    (0..50).for_each(|_| read());
    let before = (relay.descriptors(), relay.resident_bytes());
    (0..1000).for_each(|_| read());
    until("all have gone", || relay.descriptors() <= before.0);
    let grown = relay.resident_bytes().saturating_sub(before.1);
    assert!(grown < 2 << 20, "{grown} bytes");
    drop((client, far));
}
