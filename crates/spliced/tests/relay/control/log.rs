//! The log level, changed while the process runs.

use netlab::Scratch;
use serde_json::json;

use super::servers::{Stage, join, of, quoted};
use super::{answers, curl};
use crate::relay::{Relay, command};
use crate::server::Server;

const LOG: &str = "http://x/v1/log";

/// What is logged of each connection, and at this level only.
const DEBUG: &str = "DEBUG connection ";

#[test]
fn the_log_level_changes_until_it_is_changed_again() {
    let server = Server::new();
    let configuration =
        of(&[quoted(&server)], "").replace("[process]", "[process]\ncontrol_read = \"read\"");
    let stage = Stage::run(&configuration);
    let read = stage.proxy.beside("read");
    let level = || curl(&read, &[LOG]);
    let is = |level: &str| ("200".to_owned(), json!({ "level": level }));
    let set = |wanted: &str| {
        let answer = curl(
            &stage.socket,
            &["-X", "PUT", &format!("{LOG}?level={wanted}")],
        );
        assert_eq!(answer, is(wanted));
        assert_eq!(level(), is(wanted));
    };
    let user = format!("set by user {} (process ", rustix::process::geteuid());
    let line = |at: &str, now: &str, before: &str| {
        format!("{at} the log level is {now} from now on, and was {before}: {user}")
    };
    // Each has ended, and what is logged of that, before the next one begins.
    let connect = || {
        let (near, far) = join(&stage.address, &server);
        near.reset();
        far.expect_reset();
    };
    assert_eq!(level(), is("info"));
    connect();
    set("debug");
    stage.wait_logged(&line("INFO", "debug", "info"));
    assert_eq!(stage.lines_logged(DEBUG), 0);
    stage.reloads(&configuration);
    assert_eq!(level(), is("debug"));
    connect();
    stage.wait_logged(DEBUG);
    set("off");
    stage.wait_logged(&line("INFO", "off", "debug"));
    let (lines, reloads) = (stage.lines_logged(DEBUG), stage.lines_logged("reloaded"));
    connect();
    stage.reloads(&configuration);
    set("error");
    stage.wait_logged(&line("ERROR", "error", "off"));
    set("warn");
    stage.wait_logged(&line("WARN", "warn", "error"));
    set("trace");
    stage.wait_logged(&line("INFO", "trace", "warn"));
    assert_eq!(stage.lines_logged(DEBUG), lines);
    assert_eq!(stage.lines_logged("reloaded"), reloads);
    for (socket, query, status, why) in [
        (&read, "?level=info", "403", "for reading only"),
        (
            &stage.socket,
            "?level=loud",
            "400",
            "the query is not ?level=LEVEL with one of off, error, warn, info, debug, trace",
        ),
        (&stage.socket, "?level=INFO", "400", "one of off, error"),
        (&stage.socket, "?level=info&x=y", "400", "one of off, error"),
        (&stage.socket, "", "400", "one of off, error"),
    ] {
        let (found, answer) = curl(socket, &["-X", "PUT", &format!("{LOG}{query}")]);
        assert_eq!(found, status, "{query}");
        let sentence = answer["error"].as_str().expect("a sentence");
        assert!(sentence.contains(why), "{sentence}");
        assert_eq!(level(), is("trace"));
    }
}

#[test]
fn a_relay_of_datagrams_changes_its_log_level_too() {
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let path = socket.to_str().expect("UTF-8");
    let arguments = ["relay", "udp:127.0.0.1:0", "udp:127.0.0.1:9"];
    let relay = Relay::spawn(command(&arguments).args(["--control", path]));
    answers(&socket);
    let (status, answer) = curl(&socket, &["-X", "PUT", &format!("{LOG}?level=debug")]);
    assert_eq!((&*status, answer), ("200", json!({ "level": "debug" })));
    relay.wait_logged("the log level is debug from now on");
}
