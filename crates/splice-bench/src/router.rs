//! The relays that choose a server by SNI: two names, two servers, and the hello has the second name.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::peer::{self, Haproxy};
use crate::site::Site;

/// The name in [`CLIENT_HELLO`](crate::client_hello::CLIENT_HELLO) that leads to the server.
#[cfg(test)]
pub(crate) const SERVER_NAME: &str = "bench.example.org";

const SPLICED: &str = include_str!("router/spliced.toml");
const HAPROXY: &str = include_str!("router/haproxy.cfg");
const NGINX: &str = include_str!("router/nginx.conf");

/// A program that routes by SNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Router {
    Spliced,
    Haproxy,
    Nginx,
}

impl Router {
    pub(crate) const ALL: [Self; 3] = [Self::Spliced, Self::Haproxy, Self::Nginx];

    /// The command that runs it on one thread, or what to install.
    pub(crate) fn command(
        self,
        site: &Site,
        spliced: &Path,
        address: SocketAddr,
    ) -> Result<Result<Command, String>> {
        match self {
            Self::Spliced => {
                let name = format!("spliced-{}.toml", address.port());
                let file = site.scratch.write(&name, &filled(SPLICED, address))?;
                let mut command = site.lab.relay().command(&spliced.to_string_lossy());
                command.args(["run", "--config"]).arg(file);
                Ok(Ok(command))
            }
            Self::Haproxy => peer::haproxy(
                site,
                Haproxy::SplicingAuto,
                address,
                &filled(HAPROXY, address),
            ),
            Self::Nginx => peer::nginx(site, address, &filled(NGINX, address)),
        }
    }
}

/// A configuration with its addresses. Nothing listens where the first name leads.
fn filled(template: &str, address: SocketAddr) -> String {
    let nowhere = SocketAddr::new(Site::server().ip(), 1);
    template
        .replace("@LISTEN@", &address.to_string())
        .replace("@SERVER@", &Site::server().to_string())
        .replace("@NOWHERE@", &nowhere.to_string())
}

#[cfg(test)]
mod tests {
    use super::{HAPROXY, NGINX, SERVER_NAME, SPLICED, filled};
    use crate::site::Site;

    #[test]
    fn every_configuration_knows_both_names_and_all_addresses() {
        for template in [SPLICED, HAPROXY, NGINX] {
            let text = filled(template, Site::relay(0));
            assert!(!text.contains('@'), "{text}");
            let parts = [SERVER_NAME.into(), "other.example.org".into()].into_iter();
            let addresses = [Site::relay(0), Site::server()].map(|one| one.to_string());
            for part in parts.chain(addresses) {
                assert!(text.contains(&part), "no {part} in {text}");
            }
        }
    }
}
