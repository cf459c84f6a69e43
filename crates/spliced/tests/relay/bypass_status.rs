//! What `spliced bypass status` tells.

use std::fs;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use netlab::{ControlGroup, Lab, Need, available};
use serde_json::Value;

use crate::bypass::{Ends, Over, Place};
use crate::patience::until;

#[test]
fn rates_are_those_of_now() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&[]);
    let ends = place.connect();
    let connection = || -> Value { place.status()["connections"][0].clone() };
    let rates = || {
        let connection = connection();
        ["messages_per_second", "bytes_per_second"].map(|name| connection[name].as_f64())
    };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                ends.converse(20);
            }
        });
        until("it is redirected", || connection()["state"] == "redirected");
        // How high it is depends on the machine. That it is the rate of now shows below, when it is zero.
        until("there is a rate", || {
            rates().iter().all(|rate| *rate > Some(0.0))
        });
        drop(over);
    });
    until("it is quiet", || rates() == [Some(0.0); 2]);
    bypass.terminate();
}

/// A group with the name that systemd gives one of Docker's containers.
struct Container<'a> {
    path: std::path::PathBuf,
    _parent: &'a ControlGroup,
}

impl<'a> Container<'a> {
    fn new(parent: &'a ControlGroup, digits: &str) -> Self {
        let path = parent.path().join(format!("docker-{digits}.scope"));
        fs::create_dir(&path).expect("a control group");
        fs::write(path.join("cgroup.type"), "threaded").expect("threaded");
        Self {
            path,
            _parent: parent,
        }
    }

    /// Does `work` with a thread in it.
    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let done = scope.spawn(|| {
                let move_to = |group: &std::path::Path| {
                    let id = rustix::thread::gettid().as_raw_nonzero().to_string();
                    fs::write(group.join("cgroup.threads"), id).expect("entered");
                };
                move_to(&self.path);
                let done = work();
                let parent = self.path.ancestors().nth(2).expect("a parent");
                move_to(parent);
                done
            });
            done.join().expect("no panic")
        })
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn a_container_is_named_by_its_group() {
    let Some(place) = Place::new() else { return };
    let digits = "0123456789abcdef".repeat(4);
    let container = Container::new(&place.group, &digits);
    let mut bypass = place.start(&[]);
    let (client, server) = (place.lab.client(), place.lab.server());
    let listen = || TcpListener::bind((Lab::SERVER_V4, 0)).expect("a listener");
    let listener = place.group.enter(|| server.enter(listen).expect("entered"));
    let listener = listener.expect("entered");
    let to = listener.local_addr().expect("bound");
    let dial = || TcpStream::connect(to).expect("connected");
    let client = container.enter(|| client.enter(dial).expect("entered"));
    let (server, _) = listener.accept().expect("accepted");
    for end in [&client, &server] {
        end.set_nodelay(true).expect("set");
    }
    let ends = Ends { client, server };
    until("its containers are known", || {
        ends.converse(50);
        let status = place.status();
        let [client, server] =
            ["client", "server"].map(|role| status["connections"][0][role].clone());
        let scope = format!("/docker-{digits}.scope");
        client["container"] == digits[..12]
            && client["cgroup"]
                .as_str()
                .is_some_and(|path| path.ends_with(&scope))
            && server["container"] == Value::Null
    });
    bypass.terminate();
}

#[test]
fn the_filter_in_the_way_is_told_in_words() {
    let Some(place) = Place::new() else { return };
    if !available(Need::Nft) {
        return;
    }
    let mut nft = place.lab.relay().command("nft");
    let mut nft = nft
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft");
    let mut input = nft.stdin.take().expect("its input");
    input
        .write_all(
            b"table inet t {\nchain c {\ntype filter hook forward priority 0; policy accept;\n\
              ip daddr 198.18.2.2 quota over 1000 mbytes drop\n}\n}\n",
        )
        .expect("it reads");
    drop(input);
    assert!(nft.wait().expect("it ends").success());
    let mut bypass = place.start(&[]);
    let ends = place.connect();
    until("a filter is in the way", || {
        ends.converse(50);
        let status = place.status();
        let why = status["connections"][0]["why"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        why.contains("inet t c handle") && why.contains(place.lab.relay().name())
    });
    assert_eq!(place.status()["connections"][0]["state"], "tcp");
    bypass.terminate();
}
