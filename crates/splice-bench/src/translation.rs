//! Destination NAT by nftables: what the kernel offers without a relay.

use std::io::Write;
use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::site::Site;

/// The table that holds the rules, in the relay's namespace.
const TABLE: &str = "splice_bench";

/// Rules that translate addresses, removed on drop.
///
/// While a namespace has such rules, the kernel tracks every connection in it. They exist only while
/// they are measured, so that no other contestant pays for that.
#[derive(Debug)]
pub(crate) struct Translation<'a> {
    site: &'a Site,
}

impl<'a> Translation<'a> {
    /// From now on the kernel sends what comes for `address` to the server, in the name of the relay.
    pub(crate) fn install(site: &'a Site, address: SocketAddr) -> Result<Self> {
        ensure!(
            netlab::program("nft").is_some(),
            "nft is not installed: apt install nftables"
        );
        let (ip, port, server) = (address.ip(), address.port(), Site::server());
        let (to, to_port) = (server.ip(), server.port());
        nft(
            site,
            &format!(
                "table ip {TABLE} {{\n\
                 chain before {{ type nat hook prerouting priority dstnat;\n\
                 ip daddr {ip} tcp dport {port} dnat to {server}; }}\n\
                 chain behind {{ type nat hook postrouting priority srcnat;\n\
                 ct status dnat ip daddr {to} tcp dport {to_port} masquerade; }}\n}}\n"
            ),
        )?;
        Ok(Self { site })
    }
}

impl Drop for Translation<'_> {
    fn drop(&mut self) {
        if let Err(error) = nft(self.site, &format!("delete table ip {TABLE}\n")) {
            // A guard's drop has nobody to return an error to.
            eprintln!("splice-bench: the rules of nftables DNAT stay: {error:#}");
        }
    }
}

/// Runs a script of `nft` where the relays run.
fn nft(site: &Site, script: &str) -> Result<()> {
    let mut command = site.lab.relay().command("nft");
    command.args(["-f", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run nft")?;
    let mut input = child.stdin.take().context("the input of nft is piped")?;
    let written = input.write_all(script.as_bytes());
    drop(input);
    let output = child.wait_with_output().context("cannot wait for nft")?;
    let said = String::from_utf8_lossy(&output.stderr);
    // The first line says what is wrong, those below it where.
    let first = said.lines().next().unwrap_or_default();
    ensure!(
        output.status.success(),
        "nft refuses the rules for NAT (is nf_nat in the kernel?): {first}"
    );
    written.context("nft did not read its rules")
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use netlab::{Lab, Need, available};

    use super::Translation;
    use crate::cpus::Placement;
    use crate::site::{PATIENCE, Site};

    #[test]
    fn a_connection_is_translated_while_the_rules_exist_and_refused_after() {
        if !available(Need::Netns) || !available(Need::Nft) {
            return;
        }
        let site = Site::build(Placement::Spread).expect("root may");
        let address = Site::relay(7);
        site.enter(|| {
            let rules = Translation::install(&site, address)?;
            let connection = site.connect(address)?;
            // The server sees the relay, as it does behind a relay that is a program.
            assert_eq!(connection.server.peer_addr()?.ip(), Lab::RELAY_FAR_V4);
            drop(connection);
            drop(rules);
            let refused = TcpStream::connect_timeout(&address, PATIENCE);
            refused.expect_err("nobody listens there");
            Ok(())
        })
        .expect("the translated path works");
    }
}
