//! nginx: files, and HTTP keep-alive.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use netlab::{Process, Scratch};
use rustix::process::Signal;

use super::{ENGINES, Host, installed};
use crate::patience::PATIENCE;
use crate::payload::Payload;
use crate::peer::{End, Peer};
use crate::relay::Relay;
use crate::server::free_port;

const FILE_BYTES: u64 = 64 << 20;
const SMALL_BYTES: u64 = 1234;

/// A running nginx that serves the files `large` and `small` on a port and on a UNIX socket.
pub(super) struct Nginx {
    pub(super) tcp: String,
    unix: String,
    // In this order: the process ends before its directory is removed.
    _process: Process,
    _scratch: Scratch,
}

impl Nginx {
    pub(super) fn start(host: &Host<'_>) -> Option<Self> {
        let nginx = installed("nginx", "nginx-light")?;
        let scratch = Scratch::new("nginx").expect("a directory");
        let root = scratch.path().display().to_string();
        let whole = Payload::new(50).bytes(FILE_BYTES as usize);
        fs::write(scratch.path().join("large"), &whole).expect("a file");
        fs::write(scratch.path().join("small"), &whole[..SMALL_BYTES as usize]).expect("a file");
        let tcp = format!("{}:{}", host.ip, free_port());
        let configuration = format!(
            "daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;
             events {{ worker_connections 512; }}
             http {{
                 access_log off; keepalive_requests 1000000;
                 client_body_temp_path {root}/body; proxy_temp_path {root}/proxy;
                 fastcgi_temp_path {root}/fastcgi; uwsgi_temp_path {root}/uwsgi;
                 scgi_temp_path {root}/scgi;
                 server {{ listen {tcp}; listen unix:{root}/socket; root {root}; }}
             }}"
        );
        let path = scratch.write("nginx.conf", &configuration).expect("a file");
        let log = scratch.path().join("error.log");
        let mut command = host.command(nginx);
        command.arg("-e").arg(log).arg("-c").arg(path);
        let process = Process::spawn(&mut command).expect("nginx");
        host.wait_listening(&tcp);
        Some(Self {
            tcp,
            unix: format!("unix:{root}/socket"),
            _process: process,
            _scratch: scratch,
        })
    }
}

/// Fetches a file and compares it with its source.
fn fetch(address: &str, name: &str, bytes: u64) {
    let client = Peer::connect(address);
    client.write_text(&format!("GET /{name} HTTP/1.0\r\n\r\n"));
    let status = client.read_line();
    assert!(status.ends_with(" 200 OK\r\n"), "{status}");
    while client.read_line() != "\r\n" {}
    let came = client.read_to_end(Payload::new(50), 0);
    assert_eq!(came, (bytes, End::OfStream));
}

#[test]
fn nginx_serves_a_large_file_through_the_relay() {
    let Some(nginx) = Nginx::start(&Host::HERE) else {
        return;
    };
    for engine in ENGINES {
        for target in [&nginx.tcp, &nginx.unix] {
            let relay = Relay::to(target, &["--engine", engine]);
            fetch(&relay.address, "large", FILE_BYTES);
            fetch(&relay.address, "small", SMALL_BYTES);
        }
    }
}

/// Runs wrk on the small file with keep-alive until `work` is done. No response may be wrong.
pub(super) fn load_during(
    wrk: &Path,
    host: &Host<'_>,
    address: &str,
    connections: usize,
    work: impl FnOnce(),
) {
    let mut load = host.command(wrk);
    load.args(["--connections", &connections.to_string()])
        .args(["--threads", "2", "--timeout", "20s", "--duration", "1h"])
        .arg(format!("http://{address}/small"));
    let mut load = Process::spawn(load.stdin(Stdio::null()).stdout(Stdio::piped())).expect("wrk");
    work();
    load.signal(Signal::INT).expect("it runs");
    let status = load.wait_at_most(PATIENCE).expect("waited");
    assert!(status.expect("it ends").success());
    let mut report = String::new();
    let report_of = load.child_mut().stdout.as_mut().expect("its stdout");
    report_of.read_to_string(&mut report).expect("text");
    // wrk prints errors only if there are any.
    for error in ["Socket errors", "Non-2xx"] {
        assert!(!report.contains(error), "{report}");
    }
    let requests = report.lines().find_map(|line| {
        line.trim()
            .split_once(" requests in ")?
            .0
            .parse::<usize>()
            .ok()
    });
    assert!(
        requests.is_some_and(|count| count > connections),
        "{report}"
    );
}

#[test]
fn wrk_sees_no_error_through_the_relay() {
    const FETCHES: usize = 200;
    let Some(wrk) = installed("wrk", "wrk") else {
        return;
    };
    let Some(nginx) = Nginx::start(&Host::HERE) else {
        return;
    };
    for engine in ENGINES {
        let relay = Relay::to(&nginx.tcp, &["--engine", engine]);
        let before = relay.descriptors();
        load_during(&wrk, &Host::HERE, &relay.address, 32, || {
            (0..FETCHES).for_each(|_| fetch(&relay.address, "small", SMALL_BYTES));
        });
        relay.wait_descriptors(before);
    }
}
