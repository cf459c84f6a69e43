//! Live sessions on the control socket, and the commands that find the process of one.

use std::fs;
use std::os::unix::fs::chown;
use std::process::Output;

use netlab::{Need, Process, Scratch, available};
use serde_json::{Value, json};

use super::{answers, curl};
use crate::doctor::for_anybody;
use crate::patience::{until, until_found};
use crate::peer::Peer;
use crate::relay::{Relay, command, output};
use crate::server::Server;

/// Users whom no other test has: a user finds the processes of all tests that have it.
pub(super) const USERS: [u32; 3] = [65530, 65531, 65529];

/// A client of `relay`, and what it has at `server`.
pub(super) fn join(relay: &Relay, server: &Server) -> (Peer, Peer) {
    let near = Peer::connect(&relay.address);
    let far = server.accept();
    near.write_number(1);
    assert_eq!(far.read_number(), 1);
    (near, far)
}

#[test]
fn sessions_of_a_relay_are_shown_and_ended_by_curl() {
    let scratch = Scratch::new("control").expect("a directory");
    let [socket, for_reading] = ["sock", "read"].map(|name| scratch.path().join(name));
    let [path, read] = [&socket, &for_reading].map(|path| path.to_str().expect("UTF-8"));
    let server = Server::new();
    let options = [
        "--engine",
        "copy",
        "--control",
        path,
        "--control-read",
        read,
    ];
    let relay = Relay::to(&server.address, &options);
    answers(&socket);
    answers(&for_reading);
    let (_, answer) = curl(&socket, &["http://x/v1/sessions"]);
    assert_eq!(answer, json!({ "sessions": [] }));
    let (first, second) = (join(&relay, &server), join(&relay, &server));
    let all = until_found("both have passed a number", || {
        let (status, mut answer) = curl(&for_reading, &["http://x/v1/sessions"]);
        assert_eq!(status, "200");
        let all = answer["sessions"].as_array_mut().map(std::mem::take)?;
        let has_passed = |session: &Value| session["client_to_target_bytes"] == 8;
        (all.len() == 2 && all.iter().all(has_passed)).then_some(all)
    });
    for (number, (near, _)) in [&first, &second].into_iter().enumerate() {
        let session = &all[number];
        assert_eq!(session["id"], number + 1);
        assert_eq!(session["client"], near.local_address());
        assert_eq!(session["target"], server.address);
        assert_eq!(session["engine"], "copy");
        let (_, alone) = curl(&socket, &[&format!("http://x/v1/sessions/{}", number + 1)]);
        for field in ["id", "client", "listener", "accepted_at"] {
            assert_eq!(alone[field], session[field], "{field}");
        }
    }
    let filtered = |query: &str| {
        let (status, answer) = curl(&socket, &[&format!("http://x/v1/sessions?{query}")]);
        assert_eq!(status, "200", "{answer}");
        let sessions = answer["sessions"].as_array().expect("a list");
        let ids = sessions.iter().map(|session| session["id"].as_u64());
        ids.flatten().collect::<Vec<_>>()
    };
    assert_eq!(filtered("engine=copy&client=127.0.0.1"), [1, 2]);
    let of_second = second.0.local_address().replace(':', "%3A");
    assert_eq!(filtered(&format!("client={of_second}")), [2]);
    assert!(filtered("phase=queued").is_empty());
    for (socket, arguments, status, why) in [
        (
            &socket,
            &["http://x/v1/sessions?colour=red"][..],
            "400",
            "there is no field colour",
        ),
        (
            &socket,
            &["http://x/v1/sessions/9"],
            "404",
            "there is no session 9",
        ),
        (
            &socket,
            &["http://x/v1/sessions/x"],
            "404",
            "there is no such path",
        ),
        (
            &socket,
            &["-X", "DELETE", "http://x/v1/sessions/9"],
            "404",
            "there is no session 9",
        ),
        (
            &socket,
            &["-X", "DELETE", "http://x/v1/sessions"],
            "400",
            "which sessions are to end",
        ),
        (
            &socket,
            &["-X", "POST", "http://x/v1/sessions/1"],
            "405",
            "ask with GET or DELETE",
        ),
        (
            &for_reading,
            &["-X", "DELETE", "http://x/v1/sessions/1"],
            "403",
            "for reading only",
        ),
    ] {
        let (found, answer) = curl(socket, arguments);
        assert_eq!(found, status, "{arguments:?}");
        let sentence = answer["error"].as_str().expect("a sentence");
        assert!(sentence.contains(why), "{sentence}");
    }
    let (status, answer) = curl(&socket, &["-X", "DELETE", "http://x/v1/sessions/1"]);
    assert_eq!((&*status, answer), ("200", json!({ "ending": true })));
    first.0.expect_reset();
    first.1.expect_reset();
    let user = rustix::process::geteuid().as_raw();
    relay.wait_logged(&format!(
        "DELETE /v1/sessions/1 was asked for by user {user} (process "
    ));
    let failed = relay.wait_logged("DELETE /v1/sessions/9 of user ");
    assert!(
        failed.contains(" failed: there is no session 9;"),
        "{failed}"
    );
    until("the first one is gone", || filtered("") == [2]);
    second.1.write_number(2);
    assert_eq!(second.0.read_number(), 2);
}

/// Its listener has a UNIX socket, which has no reset.
#[test]
fn sessions_of_a_relay_are_shown_and_ended_by_the_commands() {
    let scratch = Scratch::new("control").expect("a directory");
    let [socket, listen] = ["sock", "listen"].map(|name| scratch.path().join(name));
    let path = socket.to_str().expect("UTF-8");
    let listen = format!("unix:{}", listen.display());
    let server = Server::new();
    let relay = Relay::between(&listen, &server.address, &["--control", path]);
    answers(&socket);
    let (near, far) = join(&relay, &server);
    let shown = |arguments: &[&str]| {
        let output = output(command(arguments).args(["--control", path]));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let told: Value = serde_json::from_str(&shown(&["sessions", "--json"])).expect("JSON");
    let session = &told["sessions"][0];
    assert_eq!(session["process"], relay.id());
    assert_eq!(session["socket"], path);
    assert_eq!(session["target"], server.address);
    let table = shown(&["sessions"]);
    assert!(table.starts_with("ID  LISTENER"), "{table}");
    assert_eq!(shown(&["kill", "1"]), "");
    near.expect_end();
    far.expect_reset();
    until("it is gone", || shown(&["sessions"]) == "no sessions\n");
}

#[test]
fn all_sessions_that_the_filters_take_are_ended_and_no_others() {
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let path = socket.to_str().expect("UTF-8");
    let server = Server::new();
    let relay = Relay::between("127.0.0.1:0", &server.address, &["--control", path]);
    answers(&socket);
    let kill = |filters: &[&str]| {
        let filters = filters.iter().flat_map(|filter| ["--filter", filter]);
        let mut kill = command(&["kill", "--control", path]);
        output(kill.args(filters))
    };
    let mut live: Vec<_> = (0..4).map(|_| join(&relay, &server)).collect();
    let (near, far) = live.pop().expect("four");
    let own = near.local_address();
    let nobody = kill(&["client=127.0.0.1", "engine=sockmap"]);
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    let told = String::from_utf8(nobody.stderr).expect("text");
    let why = "there is no session with client=127.0.0.1 and engine=sockmap; 'spliced sessions'";
    assert!(told.contains(why), "{told}");
    let said = |killed: Output| {
        assert!(killed.status.success(), "{killed:?}");
        String::from_utf8(killed.stdout).expect("text")
    };
    let own_filter = format!("client={own}");
    let process = relay.id();
    assert_eq!(
        said(kill(&[&own_filter])),
        format!("process {process}: 1 session ends\n")
    );
    near.expect_reset();
    far.expect_reset();
    for (near, far) in &live {
        near.write_number(2);
        assert_eq!(far.read_number(), 2);
    }
    until("it is gone", || {
        kill(&[&own_filter]).status.code() == Some(1)
    });
    assert_eq!(
        said(kill(&["client=127.0.0.1", "phase=relaying"])),
        format!("process {process}: 3 sessions end\n")
    );
    for (near, far) in &live {
        near.expect_reset();
        far.expect_reset();
    }
}

/// Processes of a user who may ask no other ones.
pub(super) struct Several {
    user: u32,
    scratch: Scratch,
    pub(super) servers: [Server; 2],
    pub(super) relays: [Relay; 2],
}

impl Several {
    pub(super) fn start(user: u32) -> Self {
        let scratch = Scratch::new("control").expect("a directory");
        for_anybody(&scratch);
        let run = scratch.path().join("run");
        fs::create_dir(&run).expect("made");
        chown(&run, Some(user), Some(user)).expect("given away");
        let servers = [Server::new(), Server::new()];
        let relays = [0, 1].map(|number: usize| {
            let target = &servers[number].address;
            let arguments = ["relay", "127.0.0.1:0", target, "--engine", "copy"];
            let relay = Relay::spawn(&mut as_user(user, &scratch, &arguments));
            answers(&run.join(format!("{}.sock", relay.id())));
            relay
        });
        Self {
            user,
            scratch,
            servers,
            relays,
        }
    }

    /// One more to a server that has one already.
    pub(super) fn another(&self, number: usize) -> Relay {
        let arguments = ["relay", "127.0.0.1:0", &self.servers[number].address];
        let relay = Relay::spawn(&mut as_user(self.user, &self.scratch, &arguments));
        let name = format!("run/{}.sock", relay.id());
        answers(&self.scratch.path().join(name));
        relay
    }

    pub(super) fn ask(&self, arguments: &[&str]) -> Output {
        output(&mut as_user(self.user, &self.scratch, arguments))
    }

    pub(super) fn socket(&self, number: usize) -> String {
        let name = format!("run/{}.sock", self.relays[number].id());
        self.scratch.path().join(name).display().to_string()
    }
}

/// The program of [`for_anybody`] with `arguments`.
pub(super) fn as_user(user: u32, scratch: &Scratch, arguments: &[&str]) -> std::process::Command {
    let user = user.to_string();
    let mut command = Process::command("setpriv");
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"])
        .arg(scratch.path().join("spliced"))
        .args(arguments)
        .env("RUNTIME_DIRECTORY", scratch.path().join("run"))
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("SPLICED_LOG");
    command
}

#[test]
fn sessions_of_several_processes_carry_theirs_and_one_of_them_is_ended() {
    if !available(Need::Root) {
        return;
    }
    let several = Several::start(USERS[0]);
    let [one, other] = [0, 1].map(|number| (&several.relays[number], &several.servers[number]));
    let alone = join(one.0, one.1);
    let (first, second) = (join(other.0, other.1), join(other.0, other.1));
    let told = several.ask(&["sessions", "--json"]);
    assert!(told.status.success(), "{told:?}");
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let sessions = told["sessions"].as_array().expect("a list");
    let of = sessions.iter().map(|session| {
        let number = |name: &str| session[name].as_u64().expect("a number");
        let socket = session["socket"].as_str().expect("a path").to_owned();
        (number("process"), socket, number("id"))
    });
    let mut found: Vec<_> = of.collect();
    found.sort_unstable();
    let expected = |number: usize, id| {
        let process = u64::from(several.relays[number].id());
        (process, several.socket(number), id)
    };
    let mut all = [expected(0, 1), expected(1, 1), expected(1, 2)];
    all.sort_unstable();
    assert_eq!(found, all);
    let table = several.ask(&["sessions"]);
    let table = String::from_utf8(table.stdout).expect("text");
    let first_words = table.lines().map(|line| {
        let words = line.split_whitespace().take(2);
        words.collect::<Vec<_>>().join(" ")
    });
    let [of_one, of_other] = [one.0.id(), other.0.id()];
    let mut rows = first_words.collect::<Vec<_>>();
    rows.sort_unstable();
    let mut expected = [
        "PROCESS ID".to_owned(),
        format!("{of_one} 1"),
        format!("{of_other} 1"),
        format!("{of_other} 2"),
    ];
    expected.sort_unstable();
    assert_eq!(rows, expected, "{table}");
    // Both have it.
    let refused = several.ask(&["kill", "1"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    for part in [
        format!("process {of_one} ({})", several.socket(0)),
        format!("process {of_other} ({})", several.socket(1)),
        "have a session 1 each; choose with --control".into(),
    ] {
        assert!(said.contains(&part), "no {part:?} in {said:?}");
    }
    let refused = several.ask(&["kill", "9"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("there is no session 9"), "{said}");
    let ended = several.ask(&["kill", "2"]);
    assert!(ended.status.success(), "{ended:?}");
    second.0.expect_reset();
    second.1.expect_reset();
    other
        .0
        .wait_logged("DELETE /v1/sessions/2 was asked for by user 65530 (process ");
    let ended = several.ask(&["kill", "1", "--control", &several.socket(0)]);
    assert!(ended.status.success(), "{ended:?}");
    alone.0.expect_reset();
    alone.1.expect_reset();
    first.1.write_number(3);
    assert_eq!(first.0.read_number(), 3);
}

/// It may have the session that is meant.
#[test]
fn a_process_that_does_not_answer_is_not_passed_over_by_a_kill() {
    if !available(Need::Root) {
        return;
    }
    let several = Several::start(USERS[1]);
    let (near, far) = join(&several.relays[0], &several.servers[0]);
    several.relays[1].hold_still();
    let shown = several.ask(&["sessions", "--json"]);
    let refused = several.ask(&["kill", "1"]);
    let chosen = several.ask(&["kill", "1", "--control", &several.socket(0)]);
    several.relays[1].go_on();
    assert!(shown.status.success(), "{shown:?}");
    let told: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(told["sessions"].as_array().map(Vec::len), Some(1), "{told}");
    for output in [&shown, &refused] {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("is stopped and cannot answer"), "{said}");
    }
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        said.contains("it may have a session 1, so choose"),
        "{said}"
    );
    assert!(chosen.status.success(), "{chosen:?}");
    near.expect_reset();
    far.expect_reset();
}
