//! Which process an order goes to, and which ones do not count.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;

use netlab::{Need, Scratch, available};
use rustix::process::Signal;
use serde_json::Value;

use super::deployments::{image, in_image, make_run_directory};
use super::sessions::{as_user, join};
use super::{CONFIGURATION, answers};
use crate::doctor::for_anybody;
use crate::patience::until;
use crate::relay::{Relay, command, output};
use crate::server::Server;
use crate::usage::failure;

/// A directory of a user who may ask no other processes than those of one test.
struct Home {
    user: u32,
    scratch: Scratch,
}

impl Home {
    fn new(user: u32) -> Self {
        let scratch = Scratch::new("control").expect("a directory");
        for_anybody(&scratch);
        let run = scratch.path().join("run");
        fs::create_dir(&run).expect("made");
        chown(&run, Some(user), Some(user)).expect("given away");
        Self { user, scratch }
    }

    fn run(&self, name: &str) -> PathBuf {
        self.scratch.path().join("run").join(name)
    }

    /// A process that runs `text`, the file `name`.
    fn start(&self, name: &str, text: &str) -> (Relay, String) {
        let file = self.scratch.write(name, text).expect("written");
        let file = file.to_str().expect("UTF-8").to_owned();
        let arguments = ["run", "--config", &file];
        let relay = Relay::spawn(&mut as_user(self.user, &self.scratch, &arguments));
        (relay, file)
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        output(&mut as_user(self.user, &self.scratch, arguments))
    }
}

/// A configuration of one listener, by copying.
pub(super) fn to(server: &Server) -> String {
    format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n[[listener.route]]\nbackend = \"b\"\n\
         [backend.b]\nservers = \"{}\"\n",
        server.address
    )
}

fn expect_done(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

#[test]
fn a_process_with_a_socket_for_reading_is_one_process() {
    if !available(Need::Root) {
        return;
    }
    let home = Home::new(65529);
    let server = Server::new();
    let [control, read] = ["x", "a"].map(|name| home.run(name));
    let process = format!(
        "[process]\ncontrol = \"{}\"\ncontrol_read = \"{}\"\n",
        control.display(),
        read.display()
    );
    let (relay, file) = home.start("c.toml", &format!("{process}{}", to(&server)));
    answers(&control);
    answers(&read);
    let (near, far) = join(&relay, &server);
    let socket = control.to_str().expect("UTF-8");
    for which in [&[][..], &["--config", &file]] {
        let ask = |verb: &[&str]| expect_done(&home.ask(&[verb, which].concat()));
        let told = ask(&["status", "--json"]);
        let sockets: Vec<_> = told.as_array().expect("a list").iter().collect();
        assert_eq!(sockets.len(), 1, "{told}");
        assert_eq!(told[0]["socket"], socket);
        assert_eq!(told[0]["process"]["reads_only"], false);
        let told = ask(&["sessions", "--json"]);
        assert_eq!(told["sessions"].as_array().map(Vec::len), Some(1), "{told}");
        assert_eq!(told["sessions"][0]["socket"], socket);
        ask(&["reload"]);
    }
    assert_eq!(relay.lines_logged("the configuration was reloaded"), 2);
    // Who asks for another file is told of this one.
    let told = home.ask(&["status", "--config", "/nonexistent"]);
    let told = String::from_utf8_lossy(&told.stderr);
    let why = format!("runs /nonexistent; the only running configuration is {file}\n");
    assert!(told.ends_with(&why), "{told}");
    // Who is alone on the socket for reading is told so.
    let read = read.to_str().expect("UTF-8");
    let told = expect_done(&home.ask(&["status", "--json", "--control", read]));
    assert_eq!(told[0]["process"]["reads_only"], true);
    expect_done(&home.ask(&["kill", "1"]));
    near.expect_reset();
    far.expect_reset();
}

/// A socket of `user` at `path` that the kernel lists as a control socket, and behind which is no such thing.
fn false_socket(user: u32, home: &Home, path: &Path, arguments: &[&str]) -> Relay {
    let bound = format!("{}.spliced-0123abcd", path.display());
    let listen = format!("unix:{bound}");
    let (verb, rest) = arguments.split_first().expect("a command");
    let control = format!("{bound}.control");
    let options = ["--mode", "666", "--control", &control];
    let arguments = [&[*verb, &listen][..], rest, &options].concat();
    let relay = Relay::spawn(&mut as_user(user, &home.scratch, &arguments));
    fs::hard_link(bound, path).expect("linked");
    relay
}

/// They would have refused, since one of these may have the session, and waited for it.
#[test]
fn false_sockets_of_other_users_are_left_out_of_orders() {
    if !available(Need::Root) {
        return;
    }
    const OTHER: u32 = 65527;
    let home = Home::new(65528);
    let server = Server::new();
    let process = format!("[process]\ncontrol = \"{}\"\n", home.run("x").display());
    let (relay, _) = home.start("c.toml", &format!("{process}{}", to(&server)));
    answers(&home.run("x"));
    let (near, far) = join(&relay, &server);
    let theirs = home.scratch.path().join("theirs");
    fs::create_dir(&theirs).expect("made");
    // Users of other tests are not to find what is in it.
    chown(&theirs, Some(OTHER), Some(home.user)).expect("given away");
    fs::set_permissions(&theirs, Permissions::from_mode(0o710)).expect("set");
    let [silent, nonsense, foreign] = ["silent", "nonsense", "foreign"].map(|it| theirs.join(it));
    let deaf = Server::new();
    let _false = [
        false_socket(OTHER, &home, &silent, &["relay", &deaf.address]),
        false_socket(OTHER, &home, &nonsense, &["echo"]),
        false_socket(OTHER, &home, &foreign, &["echo"]),
    ];
    chown(&foreign, Some(65526), None).expect("given away");
    // It looks as one of this user's own, but leads to another user's.
    symlink(&nonsense, home.run("1.sock")).expect("linked");
    for order in [&["kill", "1"][..], &["reload"]] {
        let output = home.ask(order);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{order:?}: {told}");
        for part in [
            format!(
                "the process of {} has not answered within 1 s",
                silent.display()
            ),
            format!(
                "the process of {} has ended before it answered",
                nonsense.display()
            ),
            format!(
                "{} belongs to user 65526, and a process of user {OTHER} answers there",
                foreign.display()
            ),
        ] {
            assert!(told.contains(&part), "no {part:?} in {told:?}");
        }
        assert!(!told.contains("1.sock"), "{told}");
    }
    near.expect_reset();
    far.expect_reset();
}

/// Each takes descriptors of the command.
#[test]
fn no_more_sockets_of_another_user_are_asked_than_a_command_can_hold() {
    if !available(Need::Root) {
        return;
    }
    const OTHER: u32 = 65523;
    let home = Home::new(65524);
    let theirs = home.scratch.path().join("theirs");
    fs::create_dir(&theirs).expect("made");
    chown(&theirs, Some(OTHER), Some(home.user)).expect("given away");
    fs::set_permissions(&theirs, Permissions::from_mode(0o710)).expect("set");
    let sockets = (0..300).map(|number| {
        let path = theirs.join(number.to_string());
        let bound = format!("{}.spliced-0123abcd", path.display());
        let socket = UnixListener::bind(&bound).expect("bound");
        fs::set_permissions(&bound, Permissions::from_mode(0o666)).expect("set");
        chown(&bound, Some(OTHER), None).expect("given away");
        fs::hard_link(bound, path).expect("linked");
        socket
    });
    let sockets: Vec<_> = sockets.collect();
    let asked = home.ask(&["status"]);
    let told = String::from_utf8_lossy(&asked.stderr);
    let of_other = format!("belongs to user {OTHER}, and a process of user 0 answers there");
    assert_eq!(told.matches(&of_other).count(), 256, "{told}");
    drop(sockets);
}

#[test]
fn a_configuration_is_the_file_and_not_its_path_in_another_root() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("control").expect("a directory");
    let root = image(&scratch);
    make_run_directory(&root);
    // The same path here and there.
    let path = scratch.write("c.toml", CONFIGURATION).expect("written");
    let there = root.join(path.strip_prefix("/").expect("an absolute path"));
    fs::create_dir_all(there.parent().expect("a directory")).expect("made");
    fs::copy(&path, &there).expect("copied");
    let [path, there] = [&path, &there].map(|path| path.to_str().expect("UTF-8"));
    let relay = Relay::spawn(&mut in_image(&root, &["run", "--config", path]));
    let asked = |path: &str| {
        let asked = output(&mut command(&["status", "--json", "--config", path]));
        asked.status.success().then(|| {
            let told: Value = serde_json::from_slice(&asked.stdout).expect("JSON");
            told[0]["process"]["pid"].clone()
        })
    };
    until("it is found", || asked(there) == Some(relay.id().into()));
    assert_eq!(asked(path), None);
    let told = failure(&mut command(&["reload", "--config", path]), 1);
    assert!(
        told.contains("no process that this user may ask runs"),
        "{told}"
    );
    // From within, and by a name that only the host has.
    let reload = output(&mut in_image(&root, &["reload", "--config", path]));
    assert!(reload.status.success(), "{reload:?}");
    let link = scratch.path().join("link");
    symlink(there, &link).expect("linked");
    assert_eq!(
        asked(link.to_str().expect("UTF-8")),
        Some(relay.id().into())
    );
    fs::remove_file(there).expect("removed");
    assert_eq!(asked(path), None);
}

#[test]
fn a_process_that_drains_is_left_out_only_if_another_one_serves_its_file() {
    if !available(Need::Root) {
        return;
    }
    let home = Home::new(65525);
    let server = Server::new();
    let (mut draining, first) = home.start("1.toml", &to(&server));
    answers(&home.run(&format!("{}.sock", draining.id())));
    let session = join(&draining, &server);
    draining.signal(Signal::TERM);
    draining.wait_logged("no longer accepting");
    let (serving, second) = home.start("2.toml", &to(&server));
    answers(&home.run(&format!("{}.sock", serving.id())));
    let refused = home.ask(&["reload"]);
    assert_eq!(refused.status.code(), Some(1));
    let told = String::from_utf8_lossy(&refused.stderr);
    for (relay, file) in [(&draining, &first), (&serving, &second)] {
        let part = format!("process {} runs \"{file}\"", relay.id());
        assert!(told.contains(&part), "no {part:?} in {told:?}");
    }
    expect_done(&home.ask(&["reload", "--config", &second]));
    let ending = home.ask(&["reload", "--config", &first]);
    let told = String::from_utf8_lossy(&ending.stderr);
    assert!(told.contains("the process is ending"), "{told}");
    // Now another one serves it.
    let (successor, _) = home.start("1.toml", &to(&server));
    answers(&home.run(&format!("{}.sock", successor.id())));
    expect_done(&home.ask(&["reload", "--config", &first]));
    // An order goes to the one that serves, but a server is empty only once it is so in both.
    let drain = ["drain", &server.address, "--config", &first, "--wait"];
    let late = home.ask(&[&drain[..], &["--timeout", "10ms"]].concat());
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    let lines = |said: &[u8]| {
        String::from_utf8_lossy(said)
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let line = |process: &str, state: &str, count: &str| {
        format!(
            "{process}, backend b, server {}: {state}, {count}, weight 1",
            server.address
        )
    };
    let old = format!("draining process {}", draining.id());
    let new = format!("process {}", successor.id());
    let drained = line(&new, "drained", "0 connections");
    let has_one = line(&old, "not checked", "1 connection");
    let expected = [drained, has_one];
    assert_eq!(lines(&late.stdout), expected);
    assert!(String::from_utf8_lossy(&late.stderr).contains("still has 1 connection after 10ms"));
    let told = thread::scope(|scope| {
        let waiting = scope.spawn(|| home.ask(&drain));
        let has_asked = || successor.lines_logged("was asked for by") == 3;
        until("it is drained again", has_asked);
        drop(session);
        waiting.join().expect("it returns")
    });
    assert!(told.status.success(), "{told:?}");
    // The other one may have ended with its last session before it was looked at.
    assert_eq!(lines(&told.stdout)[0], expected[0]);
    draining.wait_end();
}

#[test]
fn orders_to_a_process_that_drains_say_that_none_serves() {
    if !available(Need::Root) {
        return;
    }
    let home = Home::new(65522);
    let server = Server::new();
    let (draining, _) = home.start("1.toml", &to(&server));
    answers(&home.run(&format!("{}.sock", draining.id())));
    let _session = join(&draining, &server);
    draining.signal(Signal::TERM);
    draining.wait_logged("no longer accepting");
    for order in ["drain", "undrain"] {
        let done = home.ask(&[order, &server.address]);
        assert!(done.status.success(), "{done:?}");
        let told = String::from_utf8_lossy(&done.stderr);
        let why = format!(
            "process {} drains and takes no new clients; no process is reached",
            draining.id()
        );
        assert!(told.contains(&why), "{told}");
    }
}
