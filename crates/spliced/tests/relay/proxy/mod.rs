//! `spliced run`: listeners, routes and backends of a configuration.

mod admin_socket;
mod availability;
mod backends;
mod early_resets;
mod evidence;
mod examples;
mod fickle;
mod going_down;
mod guards;
mod headers;
mod health;
pub(crate) mod hostile;
mod leaving;
mod limits;
mod logged;
mod other_programs;
mod peers;
mod reload;
mod reload_under_load;
mod requested;
mod routes;
mod sessions;
pub(crate) mod shortage;
pub(crate) mod slow_names;
mod source;
mod srv;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use netlab::{Namespace, Process, Scratch};
use serde_json::Value;

use crate::patience::{PATIENCE, until_found};
use crate::relay::{BINARY, Relay, command, output};

/// A process that runs a configuration.
pub(crate) struct Proxy {
    pub(crate) relay: Relay,
    _directory: Scratch,
    configuration: PathBuf,
}

impl Proxy {
    /// Runs `configuration`, and waits until it listens.
    pub(crate) fn run(configuration: &str) -> Self {
        Self::start(configuration, &mut command(&[]))
    }

    /// The same in a network namespace.
    pub(crate) fn run_in(namespace: &Namespace, configuration: &str) -> Self {
        let mut command = namespace.command(BINARY);
        Self::start(configuration, command.env_remove("SPLICED_LOG"))
    }

    /// The same by a command that takes the arguments.
    pub(crate) fn start(configuration: &str, command: &mut Command) -> Self {
        let directory = Scratch::new("proxy").expect("a directory");
        let path = directory.path().join("proxy.toml");
        fs::write(&path, configuration).expect("written");
        let path_text = path.to_str().expect("UTF-8");
        command.args(["run", "--config", path_text]);
        let relay = Relay::spawn_silent(command);
        let proxy = Self {
            relay,
            _directory: directory,
            configuration: path,
        };
        until_found("it listens", || proxy.try_status());
        proxy
    }

    pub(crate) fn configuration(&self) -> &str {
        self.configuration.to_str().expect("UTF-8")
    }

    fn ask(&self, what: &str) -> Output {
        self.ask_with(&[what])
    }

    pub(crate) fn ask_with(&self, arguments: &[&str]) -> Output {
        output(&mut self.command(arguments))
    }

    /// A command that asks this process, and none of another test: that would take a descriptor of it.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command.args(["--config", self.configuration()]);
        command
    }

    fn try_status(&self) -> Option<Value> {
        self.all().into_iter().next()
    }

    /// The status of every process that runs the configuration.
    pub(crate) fn all(&self) -> Vec<Value> {
        let output = self.ask_with(&["status", "--json"]);
        match output.status.success() {
            true => serde_json::from_slice(&output.stdout).expect("JSON"),
            false => Vec::new(),
        }
    }

    pub(crate) fn status(&self) -> Value {
        self.try_status().expect("it runs")
    }

    /// The sessions that are alive, as `spliced sessions --json` has them.
    pub(crate) fn sessions(&self) -> Vec<Value> {
        // Many of them do not fit into a pipe.
        let scratch = Scratch::new("told").expect("a directory");
        let told = scratch.path().join("sessions.json");
        let file = fs::File::create(&told).expect("a file");
        let mut command = self.command(&["sessions", "--json"]);
        let mut process = Process::spawn(command.stdout(file)).expect("it starts");
        let status = process
            .wait_at_most(PATIENCE)
            .expect("it can be waited for");
        assert!(status.expect("it ends").success());
        let told = fs::read(told).expect("what it has told");
        let mut answer: Value = serde_json::from_slice(&told).expect("JSON");
        match answer["sessions"].take() {
            Value::Array(sessions) => sessions,
            other => panic!("no list: {other}"),
        }
    }

    /// The part of the status with this name.
    pub(crate) fn of(&self, list: &str, name: &str) -> Value {
        let mut status = self.status();
        let list = status[list].as_array_mut().expect("a list");
        let found = list.iter_mut().find(|part| part["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}")).take()
    }

    /// The address of a listener.
    pub(crate) fn address(&self, listener: &str) -> String {
        let listener = self.of("listeners", listener);
        listener["addresses"][0]
            .as_str()
            .expect("an address")
            .into()
    }

    /// The count of a listener.
    pub(crate) fn count(&self, listener: &str, count: &str) -> u64 {
        let listener = self.of("listeners", listener);
        listener["counts"][count].as_u64().expect("a count")
    }

    /// Whether bytes lie in the receive queue of a socket of its namespace: what the relay reads, it acts on at once.
    pub(crate) fn has_unread_bytes(&self) -> bool {
        let sockets = format!("/proc/{}/net/tcp", self.relay.id());
        let sockets = fs::read_to_string(sockets).expect("sockets");
        sockets.lines().skip(1).any(|line| {
            let mut words = line.split_whitespace().skip(3);
            let (state, queues) = (words.next(), words.next());
            // TCP_ESTABLISHED. An end of stream that nobody has read counts as a byte, too.
            state == Some("01") && queues.is_some_and(|queues| !queues.ends_with(":00000000"))
        })
    }

    /// Changes the file, and has it read.
    pub(crate) fn reload(&self, configuration: &str) -> Output {
        self.write(configuration);
        self.ask("reload")
    }

    /// A file in the directory of the configuration.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.configuration.with_file_name(name)
    }

    /// Changes the file.
    pub(crate) fn write(&self, configuration: &str) {
        fs::write(&self.configuration, configuration).expect("written");
    }
}
