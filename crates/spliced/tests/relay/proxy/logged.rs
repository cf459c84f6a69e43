//! What the access log says about each way in which a connection ends.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use netlab::Scratch;
use serde_json::{Map, Value, json};
use socket2::SockRef;

use super::Proxy;
use super::routes::{Site, connect, expect, expect_reset, tls_hello};
use crate::log::Log;
use crate::patience::{until, until_found};
use crate::server::free_port;

/// The configuration, of which each test uses a part. Every session is copied, so that its engine is known.
fn configuration(log: &Log, good: &str, gone: &str) -> String {
    format!(
        r#"
[defaults]
engine = "copy"
access_log = "{log}"
decide_within = "10m"

[[listener]]
name = "by-name"
address = "127.0.0.1:0"
  [[listener.route]]
  sni = "good.test"
  backend = "good"
  [[listener.route]]
  sni = "gone.test"
  backend = "gone"
  [[listener.route]]
  sni = "reset.test"
  reset = true
  [[listener.route]]
  sni = "fallback.test"
  backend = "gone"
  fallback = "good"
  [[listener.route]]
  socks = {{ allow = ["127.0.0.1:*"] }}

[[listener]]
name = "hasty"
address = "127.0.0.1:0"
decide_within = "200ms"
idle_timeout = "200ms"
half_close_timeout = "100ms"
  [[listener.route]]
  sni = "good.test"
  backend = "good"

[[listener]]
name = "behind-a-proxy"
address = "127.0.0.1:0"
proxy_protocol = "require"
trusted = ["127.0.0.0/8"]
  [[listener.route]]
  backend = "good"

[[listener]]
name = "limited"
address = "127.0.0.1:0"
max_connections_per_client = 1
  [[listener.route]]
  backend = "good"

[[listener]]
name = "busy"
address = "127.0.0.1:0"
  [[listener.route]]
  backend = "busy"

[[listener]]
name = "queued"
address = "127.0.0.1:0"
  [[listener.route]]
  backend = "queued"

[backend.good]
servers = "{good}"
[backend.gone]
servers = "{gone}"
[backend.busy]
servers = "{good}"
max_connections_per_server = 1
queue = 0
[backend.queued]
servers = "{good}"
max_connections_per_server = 1
queue_timeout = "100ms"
"#,
        log = log.path
    )
}

struct Stage {
    proxy: Proxy,
    log: Log,
    good: Site,
    gone: String,
    _scratch: Scratch,
}

impl Stage {
    fn new() -> Self {
        let scratch = Scratch::new("logged").expect("a directory");
        let log = Log::below(&scratch);
        let good = Site::new();
        let gone = format!("127.0.0.1:{}", free_port());
        let proxy = Proxy::run(&configuration(&log, &good.address(), &gone));
        Self {
            proxy,
            log,
            good,
            gone,
            _scratch: scratch,
        }
    }

    /// A client that asks for `name`, and the connection of its server.
    fn joined(&self, client: &mut TcpStream, name: &str) -> TcpStream {
        let hello = tls_hello(name, &[]);
        client.write_all(&hello).expect("sent");
        let mut server = self.good.accept();
        expect(&mut server, &hello);
        server
    }

    /// The id of the only session of `listener`.
    fn session(&self, listener: &str) -> String {
        until_found("the session is there", || {
            let sessions = self.proxy.sessions();
            let mut found = sessions.iter().filter(|one| one["listener"] == listener);
            found.next().map(|session| session["id"].to_string())
        })
    }

    fn kill(&self, listener: &str) {
        let output = self.proxy.ask_with(&["kill", &self.session(listener)]);
        assert!(output.status.success(), "{output:?}");
    }
}

/// `known` and what a line says of a client that reached no target.
fn alone(why: &str, known: Value) -> Value {
    let rest = json!({
        "engine": null,
        "why_engine": format!("no pair: {why}"),
        "client_to_target_bytes": 0,
        "target_to_client_bytes": 0,
        "outcome": why,
    });
    merged(known, rest)
}

/// `known` and what a line says of a pair.
fn paired(outcome: &str, [there, back]: [usize; 2], known: Value) -> Value {
    let rest = json!({
        "engine": "copy",
        "why_engine": "asked for by name",
        "client_to_target_bytes": there,
        "target_to_client_bytes": back,
        "outcome": outcome,
    });
    merged(known, rest)
}

fn merged(one: Value, other: Value) -> Value {
    let fields = |value: Value| match value {
        Value::Object(fields) => fields,
        other => panic!("no object: {other}"),
    };
    let all: Map<_, _> = fields(one).into_iter().chain(fields(other)).collect();
    all.into()
}

/// Has the client reset its connection.
fn reset(client: TcpStream) {
    let abort = SockRef::from(&client).set_linger(Some(Duration::ZERO));
    abort.expect("SO_LINGER");
}

/// Reads until the end or a reset.
fn drain(mut stream: TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

/// A client of a listener, what it does until its session is over, and its line.
struct Row<'a> {
    listener: &'a str,
    act: &'a dyn Fn(TcpStream),
    line: Value,
}

#[test]
fn each_outcome_has_its_fields() {
    let stage = Stage::new();
    let (good, gone) = (stage.good.address(), stage.gone.clone());
    let hello = tls_hello("good.test", &[]).len();
    let fallback = tls_hello("fallback.test", &[]).len();
    let ask = |mut client: TcpStream, name: &str| {
        client.write_all(&tls_hello(name, &[])).expect("sent");
        expect_reset(&mut client);
    };
    let socks = |mut client: TcpStream, [a, b, c, d]: [u8; 4]| {
        let address: std::net::SocketAddr = good.parse().expect("an address");
        let [high, low] = address.port().to_be_bytes();
        client
            .write_all(&[4, 1, high, low, a, b, c, d, 0])
            .expect("sent");
        client
    };
    let denied = format!("192.0.2.1:{}", good.rsplit_once(':').expect("a port").1);
    let of_good = json!({"route": 1, "server_name": "good.test", "backend": "good", "server": good, "target": good});
    let by_route = json!({"route": 1, "backend": "good", "server": good, "target": good});
    // Whoever is there already.
    let occupants: Vec<_> = ["limited", "busy", "queued"]
        .into_iter()
        .map(|listener| (connect(&stage.proxy.address(listener)), stage.good.accept()))
        .collect();
    let refused = "no target: connection refused";
    let rows = [
        Row {
            listener: "by-name",
            act: &|mut client| {
                let mut server = stage.joined(&mut client, "good.test");
                server.write_all(b"answer").expect("sent");
                expect(&mut client, b"answer");
                client.shutdown(Shutdown::Write).expect("ended");
                assert_eq!(server.read(&mut [0]).expect("the end"), 0);
                drop(server);
                drain(client);
            },
            line: paired("end of stream", [hello, 6], of_good.clone()),
        },
        Row {
            listener: "by-name",
            act: &|mut client| {
                let server = stage.joined(&mut client, "good.test");
                reset(client);
                drain(server);
            },
            line: paired("reset by client", [hello, 0], of_good.clone()),
        },
        Row {
            listener: "by-name",
            act: &|mut client| {
                reset(stage.joined(&mut client, "good.test"));
                expect_reset(&mut client);
            },
            line: paired("reset by target", [hello, 0], of_good.clone()),
        },
        Row {
            listener: "by-name",
            act: &|mut client| {
                let _server = stage.joined(&mut client, "good.test");
                stage.kill("by-name");
                expect_reset(&mut client);
            },
            line: paired("ended by an operator", [hello, 0], of_good.clone()),
        },
        Row {
            listener: "by-name",
            act: &|client| ask(client, "gone.test"),
            line: alone(
                refused,
                json!({"route": 2, "server_name": "gone.test", "backend": "gone", "server": gone, "target": "gone"}),
            ),
        },
        Row {
            listener: "by-name",
            act: &|client| ask(client, "reset.test"),
            line: alone(
                "its route resets it",
                json!({"route": 3, "server_name": "reset.test", "target": ""}),
            ),
        },
        Row {
            listener: "by-name",
            act: &|mut client| {
                drop(stage.joined(&mut client, "fallback.test"));
                drain(client);
            },
            line: paired(
                "end of stream",
                [fallback, 0],
                json!({"route": 4, "server_name": "fallback.test", "backend": "good", "server": good, "target": good}),
            ),
        },
        Row {
            listener: "by-name",
            act: &|client| {
                let client = socks(client, [127, 0, 0, 1]);
                drop(stage.good.accept());
                drain(client);
            },
            line: paired("end of stream", [0, 0], json!({"route": 5, "target": good})),
        },
        Row {
            listener: "by-name",
            act: &|client| drain(socks(client, [192, 0, 2, 1])),
            line: alone(
                "not allowed: 192.0.2.1 is an address for documentation, and no rule allows 192.0.2.0/24 or a part of it",
                json!({"route": 5, "target": denied}),
            ),
        },
        Row {
            listener: "by-name",
            act: &|client| ask(client, "nobody.test"),
            line: alone(
                "no route takes it",
                json!({"server_name": "nobody.test", "target": ""}),
            ),
        },
        Row {
            listener: "by-name",
            act: &|client| {
                stage.session("by-name");
                reset(client);
            },
            line: alone(
                "reset by client before the target was reached",
                json!({"target": ""}),
            ),
        },
        Row {
            listener: "by-name",
            act: &|mut client| {
                stage.kill("by-name");
                expect_reset(&mut client);
            },
            line: alone("ended by an operator", json!({"target": ""})),
        },
        Row {
            listener: "hasty",
            act: &|mut client| {
                client.write_all(&[22]).expect("sent");
                expect_reset(&mut client);
            },
            line: alone(
                "the client's first message was not complete in time",
                json!({"target": ""}),
            ),
        },
        Row {
            listener: "hasty",
            act: &|mut client| {
                let _server = stage.joined(&mut client, "good.test");
                expect_reset(&mut client);
            },
            line: paired("idle", [hello, 0], of_good.clone()),
        },
        Row {
            listener: "hasty",
            act: &|mut client| {
                let mut server = stage.joined(&mut client, "good.test");
                client.shutdown(Shutdown::Write).expect("ended");
                assert_eq!(server.read(&mut [0]).expect("the end"), 0);
                expect_reset(&mut client);
            },
            line: paired("half-closed for too long", [hello, 0], of_good.clone()),
        },
        Row {
            listener: "behind-a-proxy",
            act: &|mut client| {
                client
                    .write_all(b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n")
                    .expect("sent");
                drop(stage.good.accept());
                drain(client);
            },
            line: paired(
                "end of stream",
                [0, 0],
                merged(by_route.clone(), json!({"client": "192.0.2.7:4000"})),
            ),
        },
        Row {
            listener: "behind-a-proxy",
            act: &|mut client| {
                client.write_all(b"PROXY UNKNOWN\r\n").expect("sent");
                drop(stage.good.accept());
                drain(client);
            },
            line: paired("end of stream", [0, 0], by_route.clone()),
        },
        Row {
            listener: "behind-a-proxy",
            act: &|mut client| {
                client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
                expect_reset(&mut client);
            },
            line: alone(
                "the connection does not start with a PROXY header",
                json!({"target": ""}),
            ),
        },
        Row {
            listener: "limited",
            act: &|mut client| expect_reset(&mut client),
            line: alone(
                "its client has 1 connection, the limit (max_connections_per_client)",
                json!({"target": ""}),
            ),
        },
        Row {
            listener: "busy",
            act: &|mut client| expect_reset(&mut client),
            line: alone(
                "its servers are busy and their queue is full",
                json!({"route": 1, "backend": "busy", "target": "busy"}),
            ),
        },
        Row {
            listener: "queued",
            act: &|mut client| expect_reset(&mut client),
            line: alone(
                "no server was free within the time in the queue",
                json!({"route": 1, "backend": "queued", "target": "queued"}),
            ),
        },
    ];
    for (count, row) in (1..).zip(rows) {
        let client = connect(&stage.proxy.address(row.listener));
        let address = client.local_addr().expect("its address").to_string();
        (row.act)(client);
        let mut lines = Vec::new();
        until("it is logged", || {
            lines = stage.log.entries();
            lines.len() == count
        });
        let mut line = lines.pop().expect("found above");
        let fields = line.as_object_mut().expect("an object");
        fields.retain(|name, _| !["time", "id", "duration_ms"].contains(&name.as_str()));
        let mut expected = merged(json!({"listener": row.listener}), row.line);
        let whose = match expected["client"].is_string() {
            // A PROXY header names another one.
            true => "peer",
            false => "client",
        };
        expected[whose] = address.into();
        assert_eq!(line, expected, "row {count}");
    }
    drop(occupants);
}

/// Listeners share a log, and each has its own fields. A reload changes them.
#[test]
fn each_listener_writes_the_fields_that_it_is_to_write_in_their_order() {
    let scratch = Scratch::new("chosen").expect("a directory");
    let log = Log::below(&scratch);
    let good = Site::new();
    let text = |fields: &str| {
        format!(
            r#"
[defaults]
access_log = "{}"
engine = "copy"
[[listener]]
name = "few"
address = "127.0.0.1:0"
access_log_fields = {fields}
  [[listener.route]]
  backend = "good"
[[listener]]
name = "both"
address = "127.0.0.1:0"
access_log_start = true
  [[listener.route]]
  backend = "good"
[backend.good]
servers = "{}"
"#,
            log.path,
            good.address()
        )
    };
    let proxy = Proxy::run(&text(
        "[\"outcome\", \"server_name\", \"listener\", \"event\"]",
    ));
    let lines = |count: usize| {
        let text = until_found("it is logged", || {
            let text = std::fs::read_to_string(&log.path).ok()?;
            (text.ends_with('\n') && text.lines().count() == count).then_some(text)
        });
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let visit = |listener: &str| {
        let client = connect(&proxy.address(listener));
        drop(good.accept());
        drain(client);
    };
    visit("few");
    // What has no value is left out.
    let few = r#"{"outcome":"end of stream","listener":"few","event":"end"}"#;
    assert_eq!(lines(1), [few]);
    let output = proxy.reload(&text("\"id\""));
    assert!(output.status.success(), "{output:?}");
    visit("few");
    assert_eq!(lines(2), [few, r#"{"id":2}"#]);
    let client = connect(&proxy.address("both"));
    let server = good.accept();
    // It is there before the end.
    let start = lines(3).pop().expect("a line");
    drop(server);
    let address = client.local_addr().expect("its address").to_string();
    drain(client);
    let end = lines(4).pop().expect("a line");
    let [start, end] = [start, end].map(|line| serde_json::from_str::<Value>(&line).expect("JSON"));
    let known = json!({
        "id": 3,
        "listener": "both",
        "route": 1,
        "client": address,
        "target": good.address(),
        "backend": "good",
        "server": good.address(),
        "engine": "copy",
        "why_engine": "asked for by name",
    });
    let without = |mut line: Value, names: &[&str]| {
        for name in names {
            let fields = line.as_object_mut().expect("an object");
            assert!(fields.remove(*name).is_some(), "no {name}");
        }
        line
    };
    assert_eq!(
        without(start, &["time"]),
        merged(known.clone(), json!({"event": "start"}))
    );
    assert_eq!(
        without(end, &["time", "duration_ms"]),
        merged(
            paired("end of stream", [0, 0], known),
            json!({"event": "end"})
        )
    );
}
