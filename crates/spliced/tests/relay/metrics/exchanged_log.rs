//! An access log that a reload exchanges: what it loses is counted in the series that it had.

use std::fs;
use std::thread;

use netlab::Scratch;
use rustix::process::Signal;

use super::reading::Reading;
use super::wait_for;
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{Relay, command};
use crate::server::Server;

/// A file that nothing can be written to.
const FULL: &str = "/dev/full";
/// Clients between two looks: 16384 lines may wait (`LogQueue::CAPACITY_LINES`), beside those that the writer has in hand.
const CLIENTS: usize = 2000;
const THREADS: usize = 4;

#[test]
fn what_a_log_loses_is_counted_across_reloads() {
    let scratch = Scratch::new("exchanged").expect("a directory");
    let path = |name| {
        let path = scratch.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    };
    let [configuration, socket, good] = ["proxy.toml", "sock", "good.log"].map(path);
    let server = Server::new();
    let write = |log: &str| {
        let listener = |name: &str, server: &str| {
            format!(
                "[[listener]]\nname = \"{name}\"\naddress = \"127.0.0.1:0\"\naccess_log = \"{log}\"\n\
                 [[listener.route]]\nbackend = \"{name}\"\n[backend.{name}]\nservers = [\"{server}\"]\n"
            )
        };
        // Without a server each client is cheap, and has its line.
        let text = listener("resets", "127.0.0.1:1") + &listener("serves", &server.address);
        fs::write(&configuration, text).expect("written");
    };
    write(FULL);
    let run = ["run", "--config", &configuration, "--control", &socket];
    let relay = Relay::spawn_silent(&mut command(&run));
    let listens = |name: &str| {
        let line = relay.wait_logged(&format!("{name}: listening on "));
        let (_, after) = line.split_once("listening on ").expect("found above");
        after
            .split_once(", ")
            .expect("where it listens")
            .0
            .to_owned()
    };
    let [resets, serves] = ["resets", "serves"].map(listens);
    wait_for(&socket);
    let lost = || Reading::at(&socket).sum("spliced_log_lines_dropped_total", &[("log", FULL)]);
    let reload = |log: &str, times| {
        write(log);
        relay.signal(Signal::HUP);
        until("it is reloaded", || {
            relay.lines_logged("the configuration was reloaded") == times
        });
    };
    assert_eq!(lost(), 0);
    let [early, late] = [0, 1].map(|_| (Peer::connect(&serves), server.accept()));
    while lost() == 0 {
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..CLIENTS / THREADS).for_each(|_| Peer::is_reset_by(&resets)));
            }
        });
    }
    let sessions = || Reading::at(&socket).sum("spliced_listener_open_connections", &[]);
    until("only these two are left", || sessions() == 2);
    let before = lost();

    let end = |(client, far): (Peer, Peer)| {
        client.end_stream();
        far.expect_end();
        far.end_stream();
        client.expect_end();
    };
    reload(&good, 1);
    assert_eq!(lost(), before);
    // They were accepted for the former log, and nobody has forgotten its line.
    end(early);
    until("the former log loses one more", || lost() == before + 1);
    reload(FULL, 2);
    end(late);
    until("the series goes on", || lost() == before + 2);
}
