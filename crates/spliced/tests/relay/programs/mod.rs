//! Real programs through the relay.

mod haproxy;
mod iperf3;
mod nginx;
mod postgresql;
mod segment;
mod ssh;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use netlab::{Namespace, Process};

use crate::patience::until;
use crate::peer::Peer;

const ENGINES: [&str; 4] = ["auto", "copy", "pipe", "uring"];

/// The path of `program`. Without it the test is skipped, or fails if `SPLICED_REQUIRE` lists it.
pub(crate) fn installed(program: &str, package: &str) -> Option<PathBuf> {
    let found = netlab::program(program).or_else(|| of_postgresql(program));
    let missing = found.is_none();
    let why = missing.then(|| format!("no {program} (apt install {package})"));
    netlab::present(program, why);
    found
}

/// Debian has a directory for each version of PostgreSQL.
fn of_postgresql(program: &str) -> Option<PathBuf> {
    fs::read_dir("/usr/lib/postgresql")
        .ok()?
        .filter_map(|version| Some(version.ok()?.path().join("bin").join(program)))
        .find(|path| path.exists())
}

fn wait_listening(address: &str) {
    Host::HERE.wait_listening(address);
}

/// The place where a program runs.
#[derive(Clone, Copy)]
struct Host<'a> {
    /// `None` for the namespace of the tests.
    namespace: Option<&'a Namespace>,
    ip: IpAddr,
}

impl Host<'_> {
    const HERE: Self = Self {
        namespace: None,
        ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
    };

    fn command(&self, program: impl AsRef<Path>) -> Command {
        match self.namespace {
            None => Process::command(program),
            Some(namespace) => namespace.command(program.as_ref().to_str().expect("a path")),
        }
    }

    fn wait_listening(&self, address: &str) {
        let listens = || Peer::try_connect(address).is_ok();
        until("the program listens", || match self.namespace {
            None => listens(),
            Some(namespace) => namespace.enter(listens).expect("entered"),
        });
    }
}

/// Runs a program, which must succeed. Returns its output.
fn run(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = crate::relay::output(command);
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    let stderr = String::from_utf8_lossy(&stderr);
    assert!(
        status.success(),
        "{command:?}: {status}\n{stdout}\n{stderr}"
    );
    stdout
}
