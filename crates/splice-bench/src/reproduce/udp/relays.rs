//! The relays of datagrams that are compared.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use netlab::Process;

use super::super::record::missing;
use super::REFERENCE;
use crate::peer::nginx;
use crate::results::{self, Kind, Missing};
use crate::site::Site;

/// A relay that runs.
pub(super) struct Running {
    pub(super) name: &'static str,
    how: &'static str,
    kind: Kind,
    pub(super) address: SocketAddr,
    process: Process,
    /// It serves all clients itself.
    is_one_process: bool,
}

/// The one that forks.
const SOCAT: &str = "socat";

impl Running {
    /// The CPU time that it has used, if it is one process.
    pub(super) fn cpu_time(&self) -> Result<Option<Duration>> {
        match self.is_one_process {
            true => self.process.cpu_time().map(Some),
            false => Ok(None),
        }
    }

    /// For the results.
    pub(super) fn told(&self) -> results::Contestant {
        results::Contestant {
            name: self.name.into(),
            how: self.how.into(),
            kind: self.kind,
        }
    }
}

/// How to start one, or why it cannot be.
type Started = Result<Result<Command, String>>;

/// Starts all relays, or those that `only` names and the reference.
pub(super) fn start(
    site: &Site,
    spliced: &Path,
    only: &[String],
) -> Result<(Vec<Running>, Vec<Missing>)> {
    let server = Site::server();
    let of_spliced = |address: SocketAddr| -> Started {
        let mut command = site.lab.relay().command(&spliced.to_string_lossy());
        command
            .arg("relay")
            .args([format!("udp:{address}"), format!("udp:{server}")])
            .args(["--threads", "1", "--log", "error"]);
        Ok(Ok(command))
    };
    let of_nginx = |address: SocketAddr| -> Started {
        let text = format!(
            "  server {{\n    listen {address} udp rcvbuf=4m;\n    proxy_pass {server};\n    proxy_timeout 60s;\n  }}\n"
        );
        nginx(site, address, &text)
    };
    let of_socat = |address: SocketAddr| -> Started {
        let Some(program) = netlab::program("socat") else {
            return Ok(Err("not installed: apt install socat".into()));
        };
        let mut command = site.lab.relay().command(&program.to_string_lossy());
        command
            .args(["-T60".into(), listen_of_socat(address)])
            .arg(format!("UDP4:{server}"));
        Ok(Ok(command))
    };
    type Starter<'a> = &'a dyn Fn(SocketAddr) -> Started;
    let all: [(&'static str, &'static str, Kind, Starter<'_>); 3] = [
        (
            "spliced",
            "relay udp: udp:, one thread",
            Kind::Ours,
            &of_spliced,
        ),
        (
            REFERENCE,
            "listen udp rcvbuf=4m (as large as that of spliced), one worker, proxy_timeout 60s",
            Kind::Peer,
            &of_nginx,
        ),
        (
            SOCAT,
            "UDP4-LISTEN,fork: a process for each client",
            Kind::Peer,
            &of_socat,
        ),
    ];
    let (mut running, mut absent) = (Vec::new(), Vec::new());
    for (index, (name, how, kind, command)) in (0..).zip(all) {
        if !only.is_empty() && name != REFERENCE && !only.iter().any(|one| one == name) {
            continue;
        }
        let address = Site::relay(index);
        match command(address)? {
            Ok(mut command) => {
                command.stdin(Stdio::null()).stdout(Stdio::null());
                running.push(Running {
                    name,
                    how,
                    kind,
                    address,
                    process: Process::spawn(&mut command)?,
                    is_one_process: name != SOCAT,
                });
            }
            Err(why) => absent.push(missing(name, &why)),
        }
    }
    Ok((running, absent))
}

fn listen_of_socat(address: SocketAddr) -> String {
    format!(
        "UDP4-LISTEN:{},bind={},fork,reuseaddr",
        address.port(),
        address.ip()
    )
}
