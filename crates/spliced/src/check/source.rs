//! Whether this host lets a backend have the source address, mark and interface that it asks for.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::process::{Command, Stdio};

use nix::net::if_::if_nametoindex;
use serde_json::Value;

use crate::check::names::{Resolved, inet};
use crate::check::rights::{CAP_NET_ADMIN, has_right};
use crate::plan::{BackendPlan, Source};

/// Clients that stand for all others (RFC 5737, RFC 3849).
const SOME_CLIENT_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));
const SOME_CLIENT_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// How many servers of a backend are asked about. Each takes two processes of some milliseconds.
const WAYS_BACK: usize = 100;

/// Adds what is missing for `backend` to `warnings`. Returns what there is to say of it.
pub(super) fn report(
    backend: &BackendPlan,
    resolved: &Resolved,
    warnings: &mut Vec<String>,
) -> Vec<String> {
    let name = &backend.name;
    let mut notes = Vec::new();
    let needs_right = match (&backend.source, backend.mark) {
        (Source::Client, _) => Some("source = \"client\""),
        (_, Some(_)) => Some("mark"),
        _ => None,
    };
    if let Some(option) = needs_right
        && !has_right(CAP_NET_ADMIN)
    {
        warnings.push(format!(
            "backend {name:?}: {option} needs CAP_NET_ADMIN, which this user has not; give it to spliced"
        ));
    }
    if let Some(interface) = &backend.interface
        // Not by /sys/class/net, which may show another network namespace.
        && if_nametoindex(interface.as_str()).is_err()
    {
        warnings.push(format!(
            "backend {name:?}: there is no interface {interface}; create it, or correct the name"
        ));
    }
    match &backend.source {
        Source::Host => {}
        Source::Addresses(addresses) => {
            for address in addresses {
                if let Err(error) = TcpListener::bind((*address, 0)) {
                    warnings.push(format!(
                        "backend {name:?}: source {address} cannot be used ({error}); add it to an \
                         interface of this host"
                    ));
                }
            }
        }
        Source::Client => {
            let servers = backend.servers.iter();
            let addresses = servers.filter_map(|server| resolved.of(&server.address).ok());
            let addresses: BTreeSet<_> = addresses
                .flat_map(inet)
                .map(|server| server.ip().to_canonical())
                .collect();
            for server in addresses.iter().take(WAYS_BACK) {
                match way_back(*server) {
                    Ok(interface) => {
                        notes.push(format!(
                            "answers of {server} to clients come in through {interface} and stay here"
                        ));
                    }
                    Err(why) => warnings.push(format!("backend {name:?}: {why}")),
                }
            }
            if addresses.len() > WAYS_BACK {
                let more = addresses.len() - WAYS_BACK;
                notes.push(format!(
                    "where answers of {more} more servers go has not been asked"
                ));
            }
        }
    }
    notes
}

/// Asks the kernel where it would deliver what `server` sends to a client. Returns the interface that it
/// comes in through, if it stays on this host.
fn way_back(server: IpAddr) -> Result<String, String> {
    let client = match server {
        IpAddr::V4(_) => SOME_CLIENT_V4,
        IpAddr::V6(_) => SOME_CLIENT_V6,
    };
    let (server_text, client_text) = (server.to_string(), client.to_string());
    let to_server = route(&[&server_text])
        .map_err(|why| format!("the route to {server} cannot be found: {why}; check it"))?;
    let interface = to_server["dev"].as_str().unwrap_or_default().to_owned();
    let back = route(&[&client_text, "from", &server_text, "iif", &interface]);
    if back.is_ok_and(|back| back["type"] == "local") {
        return Ok(interface);
    }
    let (family, every) = match server {
        IpAddr::V4(_) => ("", "0.0.0.0/0"),
        IpAddr::V6(_) => (" -6", "::/0"),
    };
    Err(format!(
        "answers of {server} to clients would not stay on this host; run 'ip{family} rule add iif {interface} \
         from {server} lookup 100' and 'ip{family} route add local {every} dev lo table 100'"
    ))
}

/// What `ip route get` finds.
fn route(arguments: &[&str]) -> Result<Value, String> {
    let output = Command::new("ip")
        .args(["-json", "route", "get"])
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("ip(8) cannot be run ({error}; apt install iproute2)"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(said.trim().to_owned());
    }
    let routes: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| "ip(8) does not print JSON".to_owned())?;
    Ok(routes[0].clone())
}
