//! PostgreSQL: queries and results in turn, over TCP and to a UNIX socket.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Stdio};

use netlab::{Process, Scratch};
use rustix::process::{Signal, geteuid};

use super::{ENGINES, Host, installed, run};
use crate::patience::{PATIENCE, until};
use crate::relay::Relay;
use crate::server::free_port;

const USER: &str = "postgres";

/// A running server with a new, empty cluster.
pub(super) struct Cluster {
    process: Process,
    pub(super) port: u16,
    directory: String,
    _scratch: Scratch,
}

/// A command of the server's, which refuses to run as root.
fn unprivileged(host: &Host<'_>, program: &Path) -> Command {
    if !geteuid().is_root() {
        return host.command(program);
    }
    let mut command = host.command("setpriv");
    command
        .args(["--reuid", USER, "--regid", USER, "--clear-groups"])
        // The change of user would clear it.
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program);
    command
}

impl Cluster {
    pub(super) fn start(host: &Host<'_>) -> Option<Self> {
        let postgres = installed("postgres", "postgresql")?;
        let initdb = installed("initdb", "postgresql")?;
        let scratch = Scratch::new("postgres").expect("a directory");
        let directory = scratch.path().display().to_string();
        if geteuid().is_root() {
            let id = run(Command::new("id").args(["--user", USER]));
            let id = id.trim().parse().expect("a user's number");
            chown(scratch.path(), Some(id), None).expect("chown");
        }
        let data = format!("{directory}/data");
        run(unprivileged(host, &initdb)
            .args([
                "--no-sync",
                "--auth",
                "trust",
                "--username",
                USER,
                "--pgdata",
                &data,
            ])
            .current_dir("/"));
        let clients = OpenOptions::new()
            .append(true)
            .open(format!("{data}/pg_hba.conf"));
        writeln!(clients.expect("a file"), "host all all 0.0.0.0/0 trust").expect("written");
        let port = free_port();
        let mut server = unprivileged(host, &postgres);
        server
            .args(["-D", &data, "-k", &directory, "-p", &port.to_string(), "-F"])
            .args(["-c", &format!("listen_addresses={}", host.ip)])
            .args(["-c", "logging_collector=off", "-c", "max_connections=60"])
            .current_dir("/")
            .stderr(Stdio::null());
        let process = Process::spawn(&mut server).expect("postgres");
        let cluster = Self {
            process,
            port,
            directory,
            _scratch: scratch,
        };
        let ready = installed("pg_isready", "postgresql-client")?;
        until("the server takes questions", || {
            Process::command(&ready)
                .args(["--quiet", "--host", &cluster.directory])
                .args(["--port", &port.to_string()])
                .status()
                .is_ok_and(|status| status.success())
        });
        Some(cluster)
    }
}

impl Drop for Cluster {
    /// Stops the server cleanly: after SIGKILL its children and its shared memory would remain.
    fn drop(&mut self) {
        let _ = self.process.signal(Signal::INT);
        let _ = self.process.wait_at_most(PATIENCE);
    }
}

/// The options of pgbench that all runs have in common.
pub(super) fn bench(pgbench: &Path, host: &Host<'_>, address: &str, options: &[&str]) -> String {
    let (ip, port) = address.rsplit_once(':').expect("a port");
    run(host
        .command(pgbench)
        .args(["--host", ip, "--port", port])
        .args(["--username", USER])
        .args(options)
        .arg("postgres")
        .env_remove("PGOPTIONS"))
}

/// Runs the same number of transactions for each client. All must succeed.
pub(super) fn transact(
    pgbench: &Path,
    host: &Host<'_>,
    address: &str,
    [clients, transactions]: [u64; 2],
    more: &[&str],
) {
    let (each, count) = (clients.to_string(), transactions.to_string());
    let whole = ["--client", &each, "--jobs", "2", "--transactions", &count];
    let options = [&whole[..], &["--protocol", "prepared", "--no-vacuum"], more];
    let report = bench(pgbench, host, address, &options.concat());
    let all = clients * transactions;
    for line in [
        format!("number of transactions actually processed: {all}/{all}"),
        "number of failed transactions: 0 (0.000%)".into(),
    ] {
        assert!(report.contains(&line), "no {line:?} in {report}");
    }
}

#[test]
fn pgbench_gets_every_answer_through_the_relay() {
    let Some(pgbench) = installed("pgbench", "postgresql-contrib") else {
        return;
    };
    let Some(cluster) = Cluster::start(&Host::HERE) else {
        return;
    };
    let tcp = format!("127.0.0.1:{}", cluster.port);
    let unix = format!("unix:{}/.s.PGSQL.{}", cluster.directory, cluster.port);
    bench(
        &pgbench,
        &Host::HERE,
        &Relay::to(&unix, &[]).address,
        &["--initialize", "--scale", "1", "--quiet"],
    );
    for engine in ENGINES {
        for target in [&tcp, &unix] {
            let relay = Relay::to(target, &["--engine", engine]);
            let before = relay.descriptors();
            // One connection for each client, then one for each transaction.
            for more in [&[][..], &["--connect"]] {
                transact(&pgbench, &Host::HERE, &relay.address, [6, 20], more);
            }
            relay.wait_descriptors(before);
        }
    }
}
