//! The TCP address for metrics, and whoever comes there.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::reading::{Reading, ask_by_tcp, get};
use super::relay_to;
use crate::patience::{PATIENCE, until};
use crate::relay::{Relay, command};
use crate::usage::failure;

/// Where `relay` answers.
pub(super) fn address(relay: &Relay) -> String {
    let line = relay.wait_logged("metrics are at http://");
    let (_, address) = line.split_once("http://").expect("found above");
    address.strip_suffix("/metrics").expect("the path").into()
}

/// The first line of the answer, and its whole head.
fn asked(address: &str, request: &str) -> (String, String) {
    let (head, _) = ask_by_tcp(address, request);
    let status = head.split(' ').nth(1).expect("a status");
    (status.into(), head.clone())
}

#[test]
fn it_answers_get_metrics_and_nothing_else() {
    let (_scratch, relay, socket) = relay_to("127.0.0.1:9", &["--metrics", "127.0.0.1:0"]);
    let address = address(&relay);
    let reading = Reading::by_tcp(&address);
    assert_eq!(
        reading.samples(),
        Reading::at(&socket).samples(),
        "both tell the same"
    );
    let (_, index) = get(&socket, "/v1");
    let index: serde_json::Value = serde_json::from_str(&index).expect("JSON");
    let paths = index["paths"].as_array().expect("a list");
    let paths = paths.iter().filter_map(|path| path["path"].as_str());
    let known: Vec<_> = paths.filter(|path| *path != "/metrics").collect();
    assert!(known.len() > 10, "{known:?}");
    let others = [
        "/",
        "",
        "/metrics/",
        "//metrics",
        "/Metrics",
        "/v1/sessions/1",
    ];
    for path in known.iter().chain(&others).filter(|path| !path.is_empty()) {
        for method in ["GET", "POST", "PUT", "DELETE", "HEAD"] {
            let (status, _) = asked(&address, &format!("{method} {path} HTTP/1.0\r\n\r\n"));
            assert_eq!(status, "404", "{method} {path}");
        }
    }
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
        let (status, head) = asked(&address, &format!("{method} /metrics HTTP/1.0\r\n\r\n"));
        assert_eq!(status, "405", "{method}");
        assert!(head.contains("allow: GET, HEAD"), "{head}");
    }
    let (head, body) = ask_by_tcp(&address, "HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.0 200 ") && body.is_empty(),
        "{head}"
    );
    assert_eq!(relay.lines_logged("was asked for by"), 0);
}

#[test]
fn a_header_without_bounds_is_refused_and_one_without_end_is_not_waited_for() {
    let (_scratch, relay, _) = relay_to("127.0.0.1:9", &["--metrics", "127.0.0.1:0"]);
    let address = address(&relay);
    let long = format!(
        "GET /metrics HTTP/1.0\r\nx: {}\r\n\r\n",
        "x".repeat(20 << 10)
    );
    let mut client = TcpStream::connect(&address).expect("connected");
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    // It may be disconnected before it has sent all of it.
    let _ = client.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer);
    assert!(
        answer.is_empty()
            || answer.starts_with(b"HTTP/1.1 431 ")
            || answer.starts_with(b"HTTP/1.0 431 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let fields: String = (0..100).map(|number| format!("x{number}: y\r\n")).collect();
    let (status, _) = asked(&address, &format!("GET /metrics HTTP/1.0\r\n{fields}\r\n"));
    assert_eq!(status, "431");
    let mut slow = TcpStream::connect(&address).expect("connected");
    slow.set_read_timeout(Some(PATIENCE)).expect("set");
    slow.write_all(b"GET /metrics HTTP/1.1\r\nhost:")
        .expect("sent");
    let mut answer = String::new();
    slow.read_to_string(&mut answer)
        .expect("it is disconnected");
    assert!(!answer.contains("200 OK"), "{answer}");
}

/// Clients who stay keep neither other readers out, nor anybody at the control socket.
#[test]
fn crowds_make_room_for_others() {
    let (_scratch, relay, socket) = relay_to("127.0.0.1:9", &["--metrics", "127.0.0.1:0"]);
    let address = address(&relay);
    let before = relay.descriptors();
    let crowd: Vec<_> = (0..300)
        .map(|_| {
            let mut client = TcpStream::connect(&address).expect("connected");
            let _ = client.write_all(b"GET /metrics HTTP/1.1\r\n");
            client
        })
        .collect();
    drop(Reading::by_tcp(&address));
    drop(Reading::at(&socket));
    // 32 stay, and one may be on its way.
    until("the others have left", || {
        relay.descriptors() <= before + 33
    });
    drop(crowd);
}

#[test]
fn an_address_in_use_is_taken_once_it_is_free() {
    let (_first_scratch, mut first, _) = relay_to("127.0.0.1:9", &["--metrics", "127.0.0.1:0"]);
    let address = address(&first);
    let (_scratch, second, _) = relay_to("127.0.0.1:9", &["--metrics", &address]);
    second.wait_logged("it is tried again every second");
    first.terminate();
    assert_eq!(self::address(&second), address);
    drop(Reading::by_tcp(&address));
}

#[test]
fn a_socket_of_another_kind_is_refused() {
    let relay = ["relay", "127.0.0.1:0", "127.0.0.1:9", "--metrics"];
    let told = failure(&mut command(&[&relay[..], &["unix:/tmp/x"]].concat()), 2);
    let part = "an address of TCP is needed here; write HOST:PORT or :PORT; the control socket has the metrics, too";
    assert!(told.contains(part), "{told}");
    let told = failure(&mut command(&[&relay[..], &["9500"]].concat()), 2);
    let part = "the port is missing; write HOST:PORT or :PORT; see";
    assert!(told.contains(part), "{told}");
}
