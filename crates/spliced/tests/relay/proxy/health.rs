//! Active checks against servers that answer, and servers that do not.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use netlab::{Process, Scratch};

use super::Proxy;
use super::routes::{Site, expect};
use crate::patience::until;
use crate::relay::output;
use crate::server::free_port;

fn checked(server: &str, health: &str, more: &str) -> Proxy {
    checked_every("50ms", server, health, more)
}

fn checked_every(every: &str, server: &str, health: &str, more: &str) -> Proxy {
    Proxy::run(&configuration(every, server, health, more))
}

fn configuration(every: &str, server: &str, health: &str, more: &str) -> String {
    format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [\"{server}\"]\n{more}\n\
         health = {{ {health}, every = \"{every}\", rise = 1, fall = 1 }}\n"
    )
}

fn is_up(proxy: &Proxy) -> bool {
    proxy.of("backends", "b")["servers"][0]["usable"] == true
}

/// Waits until it is up, after it was down: a server starts as one that is up.
fn comes_up(proxy: &Proxy) {
    proxy.relay.wait_logged("is up again");
    until("it is up", || is_up(proxy));
}

/// Answers every request with `answer` from now on, and counts them.
fn serve(site: Site, answer: &'static str) -> Arc<AtomicUsize> {
    let asked = Arc::new(AtomicUsize::new(0));
    let count_of = Arc::clone(&asked);
    thread::spawn(move || {
        loop {
            let mut client = site.accept();
            let mut request = [0; 1024];
            let count = client.read(&mut request).unwrap_or(0);
            let text = String::from_utf8_lossy(&request[..count]).into_owned();
            let is_right = text.contains("GET /ready HTTP/1.1\r\nHost: example.org\r\n");
            let answer = if is_right {
                answer
            } else {
                "HTTP/1.1 400 \r\n\r\n"
            };
            let _ = client.write_all(answer.as_bytes());
            count_of.fetch_add(1, Ordering::Relaxed);
        }
    });
    asked
}

#[test]
fn an_http_check_asks_for_the_status() {
    const CHECK: &str = "http = \"/ready\", host = \"example.org\"";
    for (answer, check, why) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            CHECK.to_owned(),
            None,
        ),
        ("HTTP/1.0 301 Moved\r\n\r\n", CHECK.to_owned(), None),
        (
            "HTTP/1.1 404 Not Found\r\n\r\n",
            CHECK.to_owned(),
            Some("HTTP status 404"),
        ),
        (
            "HTTP/1.1 404 Not Found\r\n\r\n",
            format!("{CHECK}, status = 404"),
            None,
        ),
        (
            "HTTP/1.1 200 OK\r\n\r\n",
            format!("{CHECK}, status = 204"),
            Some("HTTP status 200"),
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            CHECK.to_owned(),
            None,
        ),
        (
            "HTTP/1.1 2000 OK\r\n\r\n",
            CHECK.to_owned(),
            Some("does not answer in HTTP/1"),
        ),
        (
            "SSH-2.0-x\r\n",
            CHECK.to_owned(),
            Some("does not answer in HTTP/1"),
        ),
    ] {
        let site = Site::new();
        let address = site.address();
        let asked = serve(site, answer);
        // A check that is late would tell another reason.
        let every = if why.is_some() { "20s" } else { "500ms" };
        let proxy = checked_every(every, &address, &check, "");
        match why {
            Some(why) => {
                proxy.relay.wait_logged(why);
                until("it is down", || !is_up(&proxy));
            }
            None => {
                // A check begins when the one before has been judged.
                until("two checks are judged", || {
                    asked.load(Ordering::Relaxed) > 2
                });
                // On a busy machine an answer may come too late for a check, but not for every one.
                until("it is up", || is_up(&proxy));
                assert_eq!(
                    proxy.relay.lines_logged("HTTP status"),
                    0,
                    "{answer} {check}"
                );
            }
        }
    }
}

#[test]
fn a_reload_changes_the_interval_at_once() {
    let site = Site::new();
    let address = site.address();
    let proxy = checked_every("1h", &address, "tcp = true", "");
    drop(site.accept());
    let reloaded = proxy.reload(&configuration("50ms", &address, "tcp = true", ""));
    assert!(reloaded.status.success());
    drop(site.accept());
    drop(site.accept());
    // The same for checks that come back.
    let without = configuration("1h", &address, "tcp = true", "").replace("health", "# health");
    assert!(proxy.reload(&without).status.success());
    let again = configuration("50ms", &address, "tcp = true", "");
    assert!(proxy.reload(&again).status.success());
    drop(site.accept());
    drop(site.accept());
}

#[test]
fn a_tls_check_wants_a_hello() {
    let directory = Scratch::new("tls").expect("a directory");
    let [key, certificate] = ["key.pem", "certificate.pem"].map(|name| {
        let path = directory.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    });
    let made = output(
        Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ])
            .args([
                "-nodes",
                "-subj",
                "/CN=example.org",
                "-keyout",
                &key,
                "-out",
                &certificate,
            ]),
    );
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let port = free_port();
    let proxy = checked(&format!("127.0.0.1:{port}"), "tls = \"example.org\"", "");
    proxy.relay.wait_logged("is down: connection refused");
    let mut command = Process::command("openssl");
    command
        .args([
            "s_server",
            "-quiet",
            "-accept",
            &format!("127.0.0.1:{port}"),
        ])
        .args(["-key", &key, "-cert", &certificate])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let server = Process::spawn(&mut command).expect("openssl");
    comes_up(&proxy);
    drop(server);

    let plain = Site::new();
    let address = plain.address();
    serve(plain, "");
    let proxy = checked_every("20s", &address, "tls = true", "");
    proxy
        .relay
        .wait_logged("does not answer a TLS hello with a hello");
}

/// A server that wants a PROXY header gets one from a check, too.
#[test]
fn a_check_sends_the_header_that_connections_have() {
    for (version, header) in [
        ("v1", &b"PROXY UNKNOWN\r\n"[..]),
        ("v2", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"),
    ] {
        let site = Site::new();
        let _proxy = checked(
            &site.address(),
            "tcp = true",
            &format!("send_proxy = \"{version}\""),
        );
        let mut check = site.accept();
        let mut bytes = vec![0; header.len()];
        check.read_exact(&mut bytes).expect("a header");
        assert_eq!(bytes, header);
    }
}

#[test]
fn a_unix_server_is_checked() {
    let directory = Scratch::new("unix").expect("a directory");
    let path = directory.path().join("server.sock");
    let proxy = checked(&format!("unix:{}", path.display()), "tcp = true", "");
    proxy
        .relay
        .wait_logged("is down: no such file or directory");
    let _server = std::os::unix::net::UnixListener::bind(&path).expect("it listens");
    comes_up(&proxy);
}

/// How the connection of a check has ended: all has been read, and an end of stream has come.
fn ends_in_order(check: &mut TcpStream) -> bool {
    // Done already, or the connection is gone, and then the read says how.
    let _ = check.shutdown(Shutdown::Write);
    check.read_to_end(&mut Vec::new()).is_ok()
}

#[test]
fn a_check_reads_to_the_end_and_closes_in_order() {
    const LONG_BYTES: usize = 100_000;
    for (health, said) in [
        (
            "http = \"/\"",
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
        ),
        (
            "http = \"/\"",
            "HTTP/1.1 503 Sick\r\nConnection: close\r\n\r\n",
        ),
        ("tcp = true", "220 mail.example.org\r\n"),
        ("tls = true", "\x16\x03\x03\x02\x01\x02"),
    ] {
        let site = Site::new();
        let _proxy = checked_every("20s", &site.address(), health, "");
        let mut check = site.accept();
        let mut request = [0; 2048];
        if health != "tcp = true" {
            assert!(check.read(&mut request).expect("a request") > 0);
        }
        check.write_all(said.as_bytes()).expect("sent");
        // What follows comes after the check is decided.
        for _ in 0..LONG_BYTES / 1000 {
            check.write_all(&[b'x'; 1000]).expect("sent");
        }
        assert!(ends_in_order(&mut check), "{health}");
    }
}

#[test]
fn an_endless_answer_is_read_for_a_while_only() {
    let site = Site::new();
    let proxy = checked_every("20s", &site.address(), "http = \"/\"", "");
    let mut check = site.accept();
    assert!(check.read(&mut [0; 2048]).expect("a request") > 0);
    check
        .write_all(b"HTTP/1.1 200 OK\r\n\r\n")
        .expect("the head");
    until("it is read no more", || {
        check.write_all(&[0; 4096]).is_err()
    });
    assert_eq!(proxy.relay.lines_logged("HTTP"), 0);
}

#[test]
fn a_check_sends_and_expects() {
    for (said, health, why) in [
        ("220 mail.example.org\r\n", "expect = \"220 \"", None),
        (
            "-LOADING\r\n+PONG\r\n",
            "tcp = true, send = \"PING\\r\\n\", expect = \"hex:2B 50 4F 4E 47\"",
            None,
        ),
        (
            "-ERR\r\n",
            "tcp = true, send = \"PING\\r\\n\", expect = \"+PONG\"",
            Some("is down: it ends the connection before it says what is expected"),
        ),
        (
            LONG,
            "tcp = true, send = \"PING\\r\\n\", expect = \"+PONG\"",
            Some("is down: it does not say what is expected"),
        ),
    ] {
        let site = Site::new();
        let proxy = checked_every("20s", &site.address(), health, "");
        let mut check = site.accept();
        if health.contains("send") {
            expect(&mut check, b"PING\r\n");
        }
        check.write_all(said.as_bytes()).expect("sent");
        if let Some(why) = why {
            check.shutdown(Shutdown::Write).expect("ended");
            proxy.relay.wait_logged(why);
        }
        assert!(ends_in_order(&mut check), "{health}");
        assert_eq!(is_up(&proxy), why.is_none());
    }
}

/// What is expected, behind more than a check searches.
static LONG: &str = {
    const BYTES: [u8; 8193 + 4] = {
        let mut bytes = [b'x'; 8193 + 4];
        let (_, end) = bytes.split_at_mut(8193 - 1);
        end.copy_from_slice(b"+PONG");
        bytes
    };
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => panic!(),
    }
};

#[test]
fn a_status_says_why_and_since_when_and_does_not_call_up_what_is_not_checked() {
    let site = Site::new();
    let closed = format!("127.0.0.1:{}", free_port());
    let proxy = checked(&closed, "tcp = true", "");
    proxy.relay.wait_logged("is down");
    let mut server = proxy.of("backends", "b")["servers"][0].take();
    assert_eq!(server["state"], "down");
    assert_eq!(server["usable"], false);
    assert_eq!(server["addresses"], serde_json::json!([closed]));
    let why = server["why"].as_str().expect("a reason");
    assert!(why.to_lowercase().contains("refused"), "{why}");
    assert_eq!(server["last_error"]["error"], why);
    let time = |value: &serde_json::Value| {
        let text = value.as_str().expect("a time");
        humantime::parse_rfc3339(text).expect("a time")
    };
    let asked_again = || proxy.of("backends", "b")["servers"][0].take();
    until("it is checked again", || {
        server = asked_again();
        server["failed_checks"].as_u64() > Some(3)
    });
    // Further checks do not change the state.
    let last_check = time(&server["last_error"]["time"]);
    let down = last_check.duration_since(time(&server["since"]));
    assert!(down.expect("before it") > std::time::Duration::from_millis(100));
    let output = proxy.reload(&format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = [\"{}\"]\n",
        site.address()
    ));
    assert!(output.status.success());
    let server = asked_again();
    assert_eq!(server["state"], "not checked");
    assert_eq!(
        (&server["usable"], &server["why"]),
        (&true.into(), &serde_json::Value::Null)
    );
    assert_eq!(server["last_error"], serde_json::Value::Null);
}
