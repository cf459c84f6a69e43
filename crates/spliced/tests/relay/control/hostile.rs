//! Clients of the control socket that mean no good, and those that they delay by nothing.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::servers::{Stage, join};
use super::{curl, relay_to_nobody};
use crate::metrics::reading::get;
use crate::peer::{Over, Peer};
use crate::server::Server;

/// How many there are of each kind.
const EACH: usize = 20;

/// As long as a silent client has for a header: whoever waited for one would wait at least as long.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Most of what a process has read of `client` it has to keep, so that bounds show in what it takes.
fn flood(mut client: &UnixStream, head: &str) -> u64 {
    let zeros = vec![0; 1 << 16];
    let mut sent = 0;
    if client.write_all(head.as_bytes()).is_ok() {
        while sent < 1 << 30 && client.write_all(&zeros).is_ok() {
            sent += zeros.len() as u64;
        }
    }
    sent
}

/// A listener, a server and a session for each honest client.
fn configuration(server: &Server) -> String {
    let mut text = format!(
        "[process]\ncontrol = \"control\"\n\
         [[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n\
         [[listener.route]]\nbackend = \"live\"\n[backend.live]\nservers = \"{}\"\n",
        server.address
    );
    for number in 0..EACH {
        // No other test takes ports of these addresses.
        text += &format!(
            "[[listener]]\nname = \"l{number}\"\naddress = \"127.0.90.{}:0\"\nengine = \"copy\"\n\
             [[listener.route]]\nbackend = \"b\"\n",
            number + 1
        );
    }
    let servers = (1..=EACH).map(|number| format!("\"127.0.0.1:{number}\""));
    let servers: Vec<_> = servers.collect();
    text + &format!("[backend.b]\nservers = [{}]\n", servers.join(", "))
}

/// Asks for one thing after the other, as curl does.
struct Honest<'a> {
    socket: &'a Path,
    number: usize,
    /// A session of its own.
    near: &'a Peer,
}

impl Honest<'_> {
    fn asks(&self, method: &str, path: &str) -> Value {
        let begin = Instant::now();
        let url = format!("http://x{path}");
        let (status, answer) = curl(self.socket, &["-X", method, &url]);
        let took = begin.elapsed();
        assert_eq!(status, "200", "{method} {path}: {answer}");
        assert!(took < ANSWER_WITHIN, "{method} {path}: {took:?}");
        answer
    }

    /// They are no JSON.
    fn reads_metrics(&self) {
        let begin = Instant::now();
        let (_, text) = get(self.socket.to_str().expect("UTF-8"), "/metrics");
        let took = begin.elapsed();
        assert!(text.ends_with("# EOF\n"), "{text}");
        assert!(took < ANSWER_WITHIN, "metrics: {took:?}");
    }

    /// Asks for everything that there is. A reload would remove a server that is being added.
    fn asks_for_all(&self, adds: &RwLock<()>) {
        let number = self.number;
        let listener = format!("l{number}");
        let client = self.near.local_address();
        let told = self.asks("GET", &format!("/v1/sessions?client={client}"));
        let id = told["sessions"][0]["id"].as_u64().expect("its session");
        let mut adding = None;
        let told = self.asks("GET", "/v1");
        for entry in told["paths"].as_array().expect("a list") {
            let [method, path] = ["method", "path"].map(|key| entry[key].as_str().expect("text"));
            if path == "/metrics" {
                self.reads_metrics();
                continue;
            }
            let mut server = format!("127.0.0.1:{}", number + 1);
            let what = path.rsplit('/').next().expect("a last part");
            let query = match (method, what) {
                ("PUT", "weight") => "?weight=7",
                ("PUT", "log") => "?level=info",
                // Nobody has such a session.
                ("DELETE", "sessions") => "?client=192.0.2.1",
                ("PUT" | "DELETE", "SERVER") => {
                    server = format!("127.0.0.2:{}", number + 1);
                    adding.get_or_insert_with(|| adds.read().expect("no panic"));
                    ""
                }
                _ => "",
            };
            let parts = path.split('/').map(|part| match part {
                "LISTENER" => &listener,
                "BACKEND" => "b",
                "SERVER" => &server,
                "ID" => "",
                part => part,
            });
            let mut path = parts.collect::<Vec<_>>().join("/");
            if what == "ID" {
                path += &id.to_string();
            }
            let _no_server_is_added = (what == "reload").then(|| adds.write().expect("no panic"));
            let answer = self.asks(method, &format!("{path}{query}"));
            match (method, what) {
                ("POST", "drain") if path.contains("/listeners/") => {
                    assert_eq!(answer["state"], "drained", "{path}");
                }
                ("POST", "undrain") if path.contains("/listeners/") => {
                    assert_eq!(answer["state"], "listening", "{path}");
                }
                ("POST", "drain") => assert_eq!(answer["drained"], true, "{path}"),
                ("POST", "undrain") => assert_eq!(answer["drained"], false, "{path}"),
                ("PUT", "weight") => assert_eq!(answer["weight"], 7, "{path}"),
                ("PUT", "SERVER") => assert_eq!(answer["added"], true, "{path}"),
                ("DELETE", "SERVER") => {
                    assert_eq!(answer["removed"], true, "{path}");
                    adding = None;
                }
                ("GET", "ID") => assert_eq!(answer["client"], client, "{path}"),
                ("DELETE", "ID") => {
                    assert_eq!(answer, json!({ "ending": true }), "{path}");
                    self.near.expect_reset();
                }
                ("DELETE", "sessions") => assert_eq!(answer, json!({ "ending": 0 })),
                ("POST", "reload") => assert_eq!(answer, json!({ "reloaded": true })),
                ("GET" | "PUT", "log") => assert_eq!(answer, json!({ "level": "info" })),
                ("GET", _) => assert!(answer.is_object(), "{path}"),
                _ => panic!("{method} {path} changes something that is not looked at here"),
            }
        }
    }
}

#[test]
fn silent_broken_and_endless_clients_delay_nobody() {
    let server = Server::new();
    let stage = Stage::run(&configuration(&server));
    let socket = &*stage.socket;
    let connect = || UnixStream::connect(socket).expect("connected");
    let live: Vec<_> = (0..EACH).map(|_| join(&stage.address, &server)).collect();
    // They ask and read nothing.
    let deaf: Vec<_> = (0..EACH).map(|_| connect()).collect();
    for mut client in &deaf {
        let request = "GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1000);
        client.set_nonblocking(true).expect("set");
        let _ = client.write(request.as_bytes());
    }
    let heads = [
        "",
        "\r\n\r\nGET\0 / HTTP/9.9\r\n\r\n",
        "GET /v1/status HTTP/1.1\r\nx: ",
        "POST /v1/status HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n",
        "POST /v1/reload HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n40000000\r\n",
    ];
    let is_over = AtomicBool::new(false);
    let until_over = |act: &dyn Fn()| {
        while !is_over.load(Ordering::Acquire) {
            act();
        }
    };
    let adds = RwLock::new(());
    thread::scope(|scope| {
        let over = Over(&is_over);
        for number in 0..EACH {
            // Each is told to go once its time is over.
            scope.spawn(|| until_over(&|| drop(connect().read_to_end(&mut Vec::new()))));
            let head = heads[number % heads.len()];
            scope.spawn(move || {
                until_over(&|| {
                    let sent = flood(&connect(), head);
                    assert!(sent < 8 << 20, "{head:?}: it took {sent} bytes");
                });
            });
        }
        let honest = live.iter().enumerate().map(|(number, (near, _))| {
            let honest = Honest {
                socket,
                number,
                near,
            };
            let adds = &adds;
            scope.spawn(move || honest.asks_for_all(adds))
        });
        for honest in honest.collect::<Vec<_>>() {
            honest.join().expect("answered");
        }
        drop(over);
    });
    drop(deaf);
    let (status, answer) = curl(socket, &["http://x/v1/process"]);
    assert_eq!((&*status, &answer["reloads"]), ("200", &json!(EACH)));
    assert_eq!(answer["last_reload"]["error"], Value::Null);
}

/// Whoever is too much takes the place of one that has asked for nothing.
#[test]
fn more_silent_clients_than_there_is_room_for_keep_nobody_out() {
    let (_scratch, socket, _relay) = relay_to_nobody();
    let silent: Vec<_> = (0..600)
        .map(|_| UnixStream::connect(&socket).expect("connected"))
        .collect();
    let (status, _) = curl(&socket, &["http://x/v1/status"]);
    assert_eq!(status, "200");
    drop(silent);
}
