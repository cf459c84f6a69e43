//! `spliced bypass`: the command, its refusals, and how it ends.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use netlab::{BpfFileSystem, ControlGroup, Lab, Need, Process, Scratch, available};
use rustix::process::Signal;
use serde_json::Value;

use crate::patience::until;
use crate::relay::{BINARY, Relay, command, output};

/// Two namespaces, a covered group, and a directory for pins.
pub(crate) struct Place {
    pub(crate) lab: Lab,
    pub(crate) group: ControlGroup,
    pub(crate) pins: PathBuf,
    _file_system: BpfFileSystem,
}

impl Place {
    pub(crate) fn new() -> Option<Self> {
        if !available(Need::Root) {
            return None;
        }
        let file_system = BpfFileSystem::new("pins").expect("a BPF file system");
        Some(Self {
            lab: Lab::new().expect("a lab"),
            group: ControlGroup::new("covered").expect("a control group"),
            pins: file_system.path().join("bypass"),
            _file_system: file_system,
        })
    }

    pub(crate) fn pins(&self) -> &str {
        self.pins.to_str().expect("ASCII")
    }

    pub(crate) fn group(&self) -> &str {
        self.group.path().to_str().expect("ASCII")
    }

    pub(crate) fn start(&self, more: &[&str]) -> Relay {
        let started = self.spawn(more);
        started.wait_logged("bypass of connections between");
        started
    }

    /// Starts one, and does not wait for it.
    fn spawn(&self, more: &[&str]) -> Relay {
        let all = [
            "bypass",
            "--cgroup",
            self.group(),
            "--pins",
            self.pins(),
            "--despite-fionread",
        ];
        Relay::spawn_silent(&mut command(&[&all, more].concat()))
    }

    pub(crate) fn status(&self) -> Value {
        let told = output(&mut command(&[
            "bypass",
            "status",
            "--json",
            "--pins",
            self.pins(),
        ]));
        assert!(told.status.success(), "{told:?}");
        serde_json::from_slice(&told.stdout).expect("JSON")
    }

    pub(crate) fn off(&self) -> String {
        let told = output(&mut command(&["bypass", "off", "--pins", self.pins()]));
        assert!(told.status.success(), "{told:?}");
        String::from_utf8(told.stdout).expect("a text")
    }

    /// A connection between the two namespaces, both ends in the group.
    pub(crate) fn connect(&self) -> Ends {
        let within = |work: &(dyn Fn() -> TcpStream + Sync)| {
            let client = self.lab.client();
            let made = self.group.enter(|| client.enter(work).expect("entered"));
            made.expect("entered")
        };
        let listen = || TcpListener::bind((Lab::SERVER_V4, 0)).expect("a listener");
        let server = self.lab.server();
        let listener = self.group.enter(|| server.enter(listen).expect("entered"));
        let listener = listener.expect("entered");
        let to = listener.local_addr().expect("bound");
        let client = within(&|| TcpStream::connect(to).expect("connected"));
        let (server, _) = listener.accept().expect("accepted");
        for end in [&client, &server] {
            end.set_nodelay(true).expect("set");
        }
        Ends { client, server }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.pins.exists() {
            // Only a test that fails leaves something.
            let _ = command(&["bypass", "off", "--pins", self.pins()]).output();
        }
    }
}

pub(crate) struct Ends {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
}

impl Ends {
    /// Questions and answers, compared.
    pub(crate) fn converse(&self, rounds: u32) {
        let (mut client, mut server) = (&self.client, &self.server);
        for round in 0..rounds {
            let message = round.to_ne_bytes().repeat(1 + round as usize % 200);
            let mut heard = vec![0; message.len()];
            client.write_all(&message).expect("sent");
            server.read_exact(&mut heard).expect("received");
            assert!(heard == message);
            server.write_all(&heard).expect("sent");
            client.read_exact(&mut heard).expect("received");
            assert!(heard == message);
        }
    }

    /// Converses without a pause until `work` is done.
    pub(crate) fn under_load(&self, work: impl FnOnce()) {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let over = Over(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    self.converse(20);
                }
            });
            work();
            drop(over);
        });
    }
}

/// Ends the load of a test that fails, too.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) fn redirected(status: &Value) -> u64 {
    status["redirected_messages"].as_u64().expect("a number")
}

#[test]
fn a_conversation_is_redirected_and_shown() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&[]);
    let ends = place.connect();
    until("it is redirected", || {
        ends.converse(50);
        redirected(&place.status()) > 0
    });
    let status = place.status();
    assert_eq!(status["owner"], bypass.id());
    assert_eq!(status["is_alive"], true);
    assert_eq!(status["members"], 2);
    let [connection] = &status["connections"].as_array().expect("a list")[..] else {
        panic!("{status}");
    };
    assert_eq!(connection["state"], "redirected");
    for (role, end) in [("client", &ends.client), ("server", &ends.server)] {
        let told = &connection[role];
        assert_eq!(told["local"], end.local_addr().expect("bound").to_string());
        assert_eq!(told["process"], std::process::id());
        let name = fs::read_to_string("/proc/self/comm").expect("a name");
        assert_eq!(told["command"], name.trim_end());
        let group = told["cgroup"].as_str().expect("a path");
        assert!(place.group().ends_with(group), "{group}");
        assert_eq!(told["container"], Value::Null);
        assert!(told["messages"].as_u64() > Some(0));
    }
    let table = output(&mut command(&["bypass", "status", "--pins", place.pins()]));
    let table = String::from_utf8(table.stdout).expect("a text");
    for part in [
        "CLIENT",
        "MESSAGES/S",
        "redirected",
        &format!("({})", std::process::id()),
    ] {
        assert!(table.contains(part), "no {part:?} in {table}");
    }
    let mut watching = command(&["bypass", "status", "--watch", "--pins", place.pins()]);
    let mut watching = Relay::spawn_silent(watching.stdout(std::process::Stdio::piped()));
    let mut shown = watching.take_stdout();
    let mut text = Vec::new();
    until("it is shown twice", || {
        let mut buffer = [0; 4096];
        let count = shown.read(&mut buffer).expect("read");
        text.extend(&buffer[..count]);
        String::from_utf8_lossy(&text).matches("CLIENT").count() >= 2
    });
    watching.signal(Signal::TERM);
    watching.wait_end();
    ends.under_load(|| bypass.terminate());
    assert!(!place.pins.exists());
    assert_eq!(bypass.lines_logged("the bypass is off"), 1);
}

#[test]
fn a_signal_while_it_starts_leaves_no_pins() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.spawn(&[]);
    until("it begins to pin", || place.pins.exists());
    bypass.terminate();
    assert!(!place.pins.exists());
}

#[test]
fn off_ends_it_from_outside() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&["--bulk-bytes", "2000"]);
    assert_eq!(place.status()["bulk_bytes"], 2000);
    let ends = place.connect();
    until("it is redirected", || {
        ends.converse(50);
        redirected(&place.status()) > 0
    });
    ends.under_load(|| {
        assert!(place.off().contains("is off"));
        assert_eq!(bypass.wait_end().code(), Some(0));
    });
    assert!(!place.pins.exists());
    assert!(place.off().contains("no bypass has its pins"));
}

#[test]
fn what_is_unread_keeps_its_pins_and_a_second_signal_ends_the_wait() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&[]);
    let ends = place.connect();
    until("it is redirected", || {
        ends.converse(50);
        redirected(&place.status()) > 0
    });
    (&ends.client).write_all(b"unread").expect("sent");
    bypass.signal_until_it_ends(Signal::TERM);
    assert_eq!(bypass.wait_end().code(), Some(3));
    assert_eq!(bypass.lines_logged("have not read"), 1);
    assert!(place.pins.exists());
    (&ends.client).write_all(b", read").expect("sent");
    let mut heard = [0; 12];
    (&ends.server).read_exact(&mut heard).expect("received");
    assert_eq!(&heard, b"unread, read");
    assert!(place.off().contains("is off"));
}

#[test]
fn rules_are_kept() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&["--deny", "net:198.18.0.0/15,port:1-65535"]);
    let ends = place.connect();
    until("it is refused", || {
        ends.converse(50);
        let status = place.status();
        status["connections"][0]["why"] == "the rules exclude it"
    });
    assert_eq!(redirected(&place.status()), 0);
    bypass.terminate();
}

#[test]
fn what_cannot_be_is_refused_in_one_sentence() {
    let Some(place) = Place::new() else { return };
    let root = place.group.path().ancestors();
    let root = root
        .filter(|path| path.join("cgroup.procs").exists())
        .last();
    let root = root.expect("a root").display().to_string();
    let (group, pins) = (place.group(), place.pins());
    for (arguments, words) in [
        (vec!["bypass"], "give --cgroup PATH"),
        (
            vec!["bypass", "--cgroup", "/nowhere"],
            "the control group /nowhere cannot be used",
        ),
        (
            vec!["bypass", "--cgroup", "/tmp"],
            "is no directory of a control group",
        ),
        (vec!["bypass", "--cgroup", &root], "say so with --all"),
        (
            vec!["bypass", "--cgroup", group, "--allow", "host:x"],
            "is no condition",
        ),
    ] {
        let told = output(&mut command(&arguments));
        let text = String::from_utf8(told.stderr).expect("a text");
        assert_eq!(told.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(
            text.contains(words) && text.lines().count() == 1,
            "{arguments:?}: {text}"
        );
    }
    let despite = ["bypass", "--despite-fionread", "--cgroup", group, "--pins"];
    let status = ["bypass", "status", "--pins", pins];
    for (arguments, words) in [
        (
            [&despite[..], &["/tmp/pins"]].concat(),
            "is in no BPF file system",
        ),
        (
            // No directory can be made here, as at /sys/fs/bpf before it is mounted.
            [&despite[..], &["/sys/kernel/pins"]].concat(),
            "is in no BPF file system",
        ),
        (
            [&despite[..], &["/proc/version/pins"]].concat(),
            "/proc/version/pins: Not a directory",
        ),
        (status.to_vec(), "no bypass has its pins in"),
    ] {
        let told = output(&mut command(&arguments));
        let text = String::from_utf8(told.stderr).expect("a text");
        assert_eq!(told.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(
            text.matches("os error").count() <= 1,
            "{arguments:?}: {text}"
        );
        assert!(
            text.contains(words) && text.lines().count() == 1,
            "{arguments:?}: {text}"
        );
    }
    let mut first = place.start(&[]);
    let told = output(&mut command(&[&despite[..], &[pins]].concat()));
    let text = String::from_utf8(told.stderr).expect("a text");
    assert!(
        text.contains("runs already") && text.lines().count() == 1,
        "{text}"
    );
    first.terminate();
    let mut without_rights = Process::command("setpriv");
    without_rights.args(["--bounding-set=-all", "--", BINARY]);
    without_rights.args(despite).arg(pins);
    let told = output(&mut without_rights);
    let text = String::from_utf8(told.stderr).expect("a text");
    assert_eq!(told.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_configuration_has_bypasses_of_its_own() {
    let Some(place) = Place::new() else { return };
    let scratch = Scratch::new("bypass").expect("a directory");
    let text = |deny: &str| {
        format!(
            "[[bypass]]\ncgroups = [\"{}\"]\npins = \"{}\"\ndespite_fionread = true\nbulk_bytes = \"4KiB\"\n{deny}",
            place.group(),
            place.pins()
        )
    };
    let path = scratch.write("spliced.toml", &text("")).expect("a file");
    let shown = path.display().to_string();
    let checked = output(&mut command(&["check", "--config", &shown]));
    assert!(checked.status.success(), "{checked:?}");
    let mut process = Relay::spawn_silent(&mut command(&["run", "--config", &shown]));
    process.wait_logged("bypass of connections between");
    let ends = place.connect();
    until("it is redirected", || {
        ends.converse(50);
        redirected(&place.status()) > 0
    });
    // A reload replaces what has changed.
    scratch
        .write("spliced.toml", &text("deny = [\"uid:0\"]\n"))
        .expect("a file");
    ends.under_load(|| {
        process.signal(Signal::HUP);
        process.wait_logged("the configuration was reloaded");
    });
    assert_eq!(redirected(&place.status()), 0);
    process.terminate();
    assert!(!place.pins.exists());

    let mistaken = "[[bypass]]\nallow = [\"host:1\"]\n[[bypass]]\ncgroups = [\"/tmp\"]\nfoo = 1\n";
    scratch.write("spliced.toml", mistaken).expect("a file");
    let told = output(&mut command(&["check", "--config", &shown]));
    let text = String::from_utf8([told.stdout, told.stderr].concat()).expect("a text");
    for words in [
        "add cgroups = [\"PATH\"]",
        "is no condition",
        "is no directory of a control group",
        "has no key \"foo\"",
        "give each a directory of its own",
    ] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}
