//! What competes.

use std::path::Path;

use anyhow::Result;

use crate::peer::{self, Haproxy};
use crate::relay::{Relay, Start};
use crate::site::Site;

/// The engines of spliced that are measured. One that this machine or this build lacks is named with
/// its reason.
const ENGINES: [&str; 5] = ["copy", "pipe", "uring", "sockmap", "segment"];

/// One way from the client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// Routed through the relay's namespace, with no relay.
    Direct,
    /// The same again: how much two measurements of one thing differ.
    DirectAgain,
    /// Ours, with this engine.
    Spliced(&'static str),
    /// HAProxy in TCP mode.
    Haproxy(Haproxy),
    /// nginx's stream module.
    Nginx,
}

impl Contestant {
    /// All of them, in the order of the table.
    pub(crate) fn all() -> Vec<Self> {
        let peers = [
            Self::Haproxy(Haproxy::Copying),
            Self::Haproxy(Haproxy::SplicingAuto),
            Self::Haproxy(Haproxy::Splicing),
            Self::Haproxy(Haproxy::SplicingTuned),
            Self::Nginx,
        ];
        [Self::Direct, Self::DirectAgain]
            .into_iter()
            .chain(ENGINES.into_iter().map(Self::Spliced))
            .chain(peers)
            .collect()
    }

    /// What the table calls it.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Direct => "direct".into(),
            Self::DirectAgain => "direct again".into(),
            Self::Spliced(engine) => format!("spliced {engine}"),
            Self::Haproxy(Haproxy::Copying) => "HAProxy".into(),
            Self::Haproxy(Haproxy::SplicingAuto) => "HAProxy splice-auto".into(),
            Self::Haproxy(Haproxy::Splicing) => "HAProxy splice".into(),
            Self::Haproxy(Haproxy::SplicingTuned) => "HAProxy splice tuned".into(),
            Self::Nginx => "nginx stream".into(),
        }
    }

    /// Whether there is a relay to start.
    pub(crate) fn relays(self) -> bool {
        !matches!(self, Self::Direct | Self::DirectAgain)
    }

    /// Starts its relay as number `index`; only for one that [relays](Self::relays).
    pub(crate) fn start(self, site: &Site, spliced: &Path, index: u16) -> Result<Start> {
        let address = Site::relay(index);
        let command = match self {
            Self::Direct | Self::DirectAgain => return Ok(Start::Refused("no relay".into())),
            Self::Spliced(engine) => {
                let mut command = site.lab.relay().command(&spliced.to_string_lossy());
                command.args(["relay", &address.to_string(), &Site::server().to_string()]);
                command.args(["--engine", engine, "--threads", "1"]);
                Ok(command)
            }
            Self::Haproxy(how) => peer::haproxy(site, how, address)?,
            Self::Nginx => peer::nginx(site, address)?,
        };
        match command {
            Ok(command) => Relay::start(site, &self.name(), command, address),
            Err(missing) => Ok(Start::Refused(missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Contestant;

    #[test]
    fn names_are_unique() {
        let names: Vec<String> = Contestant::all()
            .into_iter()
            .map(Contestant::name)
            .collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name} twice");
        }
    }
}
