//! The control socket: what it answers to whom.

mod added;
mod clients;
mod deployments;
mod drained;
mod hostile;
mod kept;
mod listeners;
mod log;
mod orders;
mod servers;
mod sessions;
mod status;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use netlab::{Need, Process, Scratch, available};
use serde_json::{Value, json};

use crate::doctor::{NOBODY, for_anybody};
use crate::patience::until;
use crate::relay::{Relay, command, output};
use crate::usage::failure;

const CONFIGURATION: &str = "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
                             [backend.b]\nservers = \"127.0.0.1:9\"\n";

/// The answer to `arguments` of curl, with its status.
fn curl(socket: &Path, arguments: &[&str]) -> (String, Value) {
    let mut curl = Process::command("curl");
    curl.args([
        "--silent",
        "--max-time",
        "40",
        "--write-out",
        "%{http_code}",
    ])
    .arg("--unix-socket")
    .arg(socket)
    .args(arguments);
    let output = output(&mut curl);
    let text = String::from_utf8(output.stdout).expect("text");
    let (answer, status) = text.rsplit_once('\n').expect("an answer and its status");
    (status.into(), serde_json::from_str(answer).expect("JSON"))
}

/// A control socket that is known to answer.
fn answers(socket: &Path) {
    until("it answers", || UnixStream::connect(socket).is_ok());
}

/// A relay whose target nobody listens at, and its control socket in a directory of its own.
fn relay_to_nobody() -> (Scratch, PathBuf, Relay) {
    let scratch = Scratch::new("control").expect("a directory");
    let socket = scratch.path().join("sock");
    let path = socket.to_str().expect("UTF-8");
    let relay = Relay::to("127.0.0.1:9", &["--control", path]);
    answers(&socket);
    (scratch, socket, relay)
}

#[test]
fn each_path_answers_curl() {
    let (_scratch, socket, relay) = relay_to_nobody();
    let (status, answer) = curl(&socket, &["http://x/v1/process"]);
    assert_eq!((&*status, &answer["pid"]), ("200", &json!(relay.id())));
    assert_eq!(answer["command"], "relay");
    let (_, answer) = curl(&socket, &["http://x/v1/listeners"]);
    let listener = &answer["listeners"][0];
    assert_eq!(listener["addresses"][0], relay.address);
    let (_, answer) = curl(&socket, &["http://x/v1/backends"]);
    assert_eq!(answer["backends"][0]["servers"][0]["server"], "127.0.0.1:9");
    let (_, answer) = curl(&socket, &["http://x/v1/status"]);
    for part in ["process", "connections", "listeners", "backends"] {
        assert!(!answer[part].is_null(), "no {part}");
    }
    // As a browser would do it.
    let browser = [
        "-H",
        "Content-Type: application/x-www-form-urlencoded; charset=UTF-8",
        "-H",
        "Origin: http://example.com",
        "-H",
        "Accept: text/html",
        "-d",
        "a=b",
        "http://x/v1/reload?x=y",
    ];
    let (status, answer) = curl(&socket, &browser);
    assert_eq!(status, "422");
    let why = "the process was started without a configuration, so there is nothing to read again";
    assert_eq!(answer["error"], why);
    for (arguments, expected) in [
        (&["http://x/"][..], "404"),
        (&["-X", "DELETE", "http://x/v1/status"], "405"),
        (&["http://x/v1/reload"], "405"),
    ] {
        let (status, answer) = curl(&socket, arguments);
        assert_eq!(status, expected);
        assert!(answer["error"].is_string(), "{answer}");
    }
}

/// Whoever shows a refusal on a terminal may have got the request from somebody else.
#[test]
fn what_a_request_has_for_a_terminal_is_escaped_in_the_refusal() {
    let scratch = Scratch::new("control").expect("a directory");
    let configuration = scratch.write("c.toml", CONFIGURATION).expect("written");
    let socket = scratch.path().join("sock");
    let [file, path] = [&configuration, &socket].map(|path| path.to_str().expect("UTF-8"));
    let _relay = Relay::spawn(&mut command(&["run", "--config", file, "--control", path]));
    answers(&socket);
    for (method, rest, status) in [
        ("GET", "sessions?%1B%5B31m=x", "400"),
        ("POST", "listeners/%1B%5B31m/drain", "404"),
        ("GET", "backends/%1B%5B31m/servers/x", "404"),
        ("GET", "backends/b/servers/%1B%5B31m", "404"),
        ("POST", "backends/b/servers/%1B%5B31m/drain", "404"),
        ("PUT", "backends/b/servers/%1B%5B31m", "422"),
        ("PUT", "backends/b/servers/%1B%5B31m:80", "422"),
        ("PUT", "backends/b/servers/unix:%1B%5B31m", "422"),
        ("DELETE", "backends/b/servers/%1B%5B31m", "404"),
    ] {
        let url = format!("http://x/v1/{rest}");
        let (found, answer) = curl(&socket, &["-X", method, &url]);
        assert_eq!(found, status, "{method} {rest}: {answer}");
        let sentence = answer["error"].as_str().expect("a sentence");
        assert!(!sentence.contains(char::is_control), "{sentence:?}");
        assert!(sentence.contains("\\u{1b}[31m"), "{sentence}");
    }
}

#[test]
fn relays_of_datagrams_and_of_messages_answer_too() {
    let scratch = Scratch::new("control").expect("a directory");
    for (kind, target) in [("udp", "127.0.0.1:9"), ("seqpacket", "/nowhere")] {
        let socket = scratch.path().join(kind);
        let path = socket.to_str().expect("UTF-8");
        let listen = match kind {
            "udp" => "udp:127.0.0.1:0".into(),
            _ => format!("seqpacket:{path}.listen"),
        };
        let target = format!("{kind}:{target}");
        let relay = Relay::spawn(&mut command(&[
            "relay",
            &listen,
            &target,
            "--control",
            path,
        ]));
        answers(&socket);
        let output = output(&mut command(&["status", "--json", "--control", path]));
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let status = &status[0];
        assert_eq!(status["process"]["pid"], relay.id());
        assert_eq!(status["listeners"][0]["addresses"][0], relay.address);
        let server = &status["backends"][0]["servers"][0];
        assert_eq!(
            (&server["server"], &server["connections"]),
            (&json!(target), &json!(0))
        );
        let (status, _) = curl(&socket, &["-X", "POST", "http://x/v1/reload"]);
        assert_eq!(status, "422");
    }
}

/// As Kubernetes does it with a ConfigMap.
#[test]
fn a_file_behind_a_link_that_was_exchanged_is_found_by_all_its_names() {
    let scratch = Scratch::new("control").expect("a directory");
    let path = |name: &str| scratch.path().join(name);
    for name in ["1", "2"] {
        fs::create_dir(path(name)).expect("made");
        fs::write(path(name).join("c.toml"), CONFIGURATION).expect("written");
    }
    symlink("1", path("data")).expect("linked");
    symlink("data/c.toml", path("c.toml")).expect("linked");
    let named = path("c.toml");
    let relay = Relay::spawn(&mut command(&[
        "run",
        "--config",
        named.to_str().expect("UTF-8"),
    ]));
    let asks = |name: &str| {
        let path = path(name);
        let path = path.to_str().expect("UTF-8");
        let output = output(&mut command(&["status", "--json", "--config", path]));
        let Ok(all) = serde_json::from_slice::<Vec<Value>>(&output.stdout) else {
            return false;
        };
        all.len() == 1 && all[0]["process"]["pid"] == relay.id()
    };
    until("it is found", || asks("c.toml"));
    assert!(asks("data/c.toml") && asks("1/c.toml") && !asks("2/c.toml"));
    symlink("2", path("new")).expect("linked");
    fs::rename(path("new"), path("data")).expect("exchanged");
    assert!(asks("c.toml") && asks("data/c.toml") && asks("2/c.toml") && !asks("1/c.toml"));
}

#[test]
fn a_group_may_ask_and_those_who_only_read_change_nothing() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("control").expect("a directory");
    let spliced = for_anybody(&scratch);
    let text = format!(
        "[process]\ncontrol = \"control\"\ncontrol_group = 4321\ncontrol_read = \"read\"\ncontrol_read_group = 4322\n\
         {CONFIGURATION}"
    );
    let configuration = scratch.write("c.toml", &text).expect("written");
    let [control, read] = ["control", "read"].map(|name| scratch.path().join(name));
    let path = configuration.to_str().expect("UTF-8");
    let relay = Relay::spawn(&mut command(&["run", "--config", path]));
    answers(&control);
    answers(&read);
    for (socket, group) in [(&control, 4321), (&read, 4322)] {
        let found = fs::metadata(socket).expect("a file");
        assert_eq!((found.mode() & 0o777, found.gid()), (0o660, group));
    }
    let ask = |group: &str, verb: &str, socket: &Path| {
        let mut command = Process::command("setpriv");
        command
            .args([
                "--reuid", NOBODY, "--regid", NOBODY, "--groups", group, "--",
            ])
            .arg(&spliced)
            .args([verb, "--control", socket.to_str().expect("UTF-8")])
            .env_remove("SPLICED_LOG");
        output(&mut command)
    };
    assert!(ask("4321", "status", &control).status.success());
    assert!(ask("4321", "reload", &control).status.success());
    relay.wait_logged("was asked for by user 65534");
    assert!(ask("4322", "status", &read).status.success());
    for (group, verb, socket, why) in [
        ("4322", "status", &control, "may not connect to"),
        ("4321", "status", &read, "may not connect to"),
        ("4322", "reload", &read, "this socket is for reading only"),
    ] {
        let output = ask(group, verb, socket);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && told.contains(why), "{told}");
    }
    // The file may have been opened to more.
    fs::set_permissions(&control, Permissions::from_mode(0o666)).expect("set");
    let output = ask("4323", "status", &control);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("user 65534 may not ask"), "{told}");
    assert!(
        told.contains("--control-group GROUP, or control_group of [process]"),
        "{told}"
    );
    relay.wait_logged(&format!("INFO control socket at {}", control.display()));
    relay.wait_logged(&format!(
        "INFO control socket for reading at {}",
        read.display()
    ));
}

#[test]
fn a_status_whose_reader_goes_away_is_no_failure() {
    let (_scratch, socket, _relay) = relay_to_nobody();
    let path = socket.to_str().expect("UTF-8");
    for arguments in [
        &["status", "--control", path][..],
        &["status", "--json", "--control", path],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = command(arguments);
        let output = command.stdout(writer).stderr(Stdio::piped()).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

#[test]
fn what_cannot_be_asked_is_named() {
    let scratch = Scratch::new("control").expect("a directory");
    let nowhere = scratch.path().join("sock");
    let nowhere = nowhere.to_str().expect("UTF-8");
    let told = failure(&mut command(&["status", "--control", nowhere]), 1);
    assert!(
        told.contains("no process has the control socket /"),
        "{told}"
    );
    let told = failure(&mut command(&["reload", "--config", nowhere]), 1);
    assert!(
        told.contains("no process that this user may ask runs /"),
        "{told}"
    );
    let told = failure(
        &mut command(&["status", "--control", nowhere, "--config", nowhere]),
        2,
    );
    assert!(told.contains("cannot be used with"), "{told}");
}
