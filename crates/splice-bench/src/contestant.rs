//! The contestants.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use splice::{EngineChoice, EngineName};

use crate::client_hello::CLIENT_HELLO;
use crate::crowd::Crowd;
use crate::peer::{self, Haproxy};
use crate::relay::{Relay, Start};
use crate::results::Kind;
use crate::router::Router;
use crate::site::Site;
use crate::so_splice_proxy::SoSpliceProxy;
use crate::translation::Translation;

/// One way from the client to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Contestant {
    /// Routed through the relay's namespace, with no relay.
    Direct,
    /// The direct path again: how much two measurements of one path differ.
    DirectAgain,
    /// Ours, with this engine.
    Spliced(EngineChoice),
    /// The library's forwarding from the SYN on, with or without many other connections in its table.
    Forward(Company),
    /// HAProxy in TCP mode.
    Haproxy(Haproxy),
    /// Destination NAT by nftables, with no relay.
    Dnat,
    /// nginx's stream module.
    Nginx,
    /// Envoy's TCP proxy.
    Envoy,
    /// socat, which forks for each connection.
    Socat,
    /// The load balancer pen.
    Pen,
    /// Chooses the server by the SNI of a client's first message.
    BySni(Router),
    /// The proxy of the post on `SO_SPLICE`.
    SoSplice(SoSpliceProxy),
    /// The bench's own relay, which delays every message by this long.
    Delaying(Duration),
}

/// The other connections in the table of one that is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    Alone,
    Crowded,
}

/// The ways of HAProxy.
const HAPROXY: [Haproxy; 4] = [
    Haproxy::Copying,
    Haproxy::SplicingAuto,
    Haproxy::Splicing,
    Haproxy::SplicingTuned,
];

impl Contestant {
    /// All contestants of a comparison, in the order of all tables. The engines are those that the
    /// library knows; one that this machine or the measured program lacks names itself when it is
    /// started.
    pub(crate) fn all() -> Vec<Self> {
        let engines = EngineName::ALL.into_iter().map(EngineChoice::Only);
        [Self::Direct, Self::DirectAgain]
            .into_iter()
            .chain(engines.map(Self::Spliced))
            .chain([Self::Spliced(EngineChoice::Auto)])
            .chain([Company::Alone, Company::Crowded].map(Self::Forward))
            .chain(HAPROXY.into_iter().map(Self::Haproxy))
            .chain([Self::Nginx, Self::Envoy, Self::Socat, Self::Pen, Self::Dnat])
            .chain(Router::ALL.map(Self::BySni))
            .collect()
    }

    /// Its name in tables, charts and options.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Direct => "direct".into(),
            Self::DirectAgain => "direct again".into(),
            Self::Spliced(engine) => format!("spliced {engine}"),
            Self::Forward(Company::Alone) => "spliced forward".into(),
            Self::Forward(Company::Crowded) => "spliced forward crowded".into(),
            Self::Haproxy(Haproxy::Copying) => "HAProxy".into(),
            Self::Haproxy(Haproxy::SplicingAuto) => "HAProxy splice-auto".into(),
            Self::Haproxy(Haproxy::Splicing) => "HAProxy splice".into(),
            Self::Haproxy(Haproxy::SplicingTuned) => "HAProxy splice tuned".into(),
            Self::Dnat => "nftables DNAT".into(),
            Self::Nginx => "nginx stream".into(),
            Self::Envoy => "Envoy".into(),
            Self::Socat => "socat".into(),
            Self::Pen => "pen".into(),
            Self::BySni(Router::Spliced) => "spliced SNI".into(),
            Self::BySni(Router::Haproxy) => "HAProxy SNI".into(),
            Self::BySni(Router::Nginx) => "nginx SNI".into(),
            Self::SoSplice(SoSpliceProxy::Copying) => "proxy copy".into(),
            Self::SoSplice(SoSpliceProxy::Splicing(_)) => "proxy splice".into(),
            Self::Delaying(delay) => format!("delay {} us", delay.as_micros()),
        }
    }

    /// Its setup, in a line.
    pub(crate) fn how(self) -> String {
        match self {
            Self::Direct => "routed through the relay's namespace, no relay".into(),
            Self::DirectAgain => {
                "the direct path again: how much two measurements of one path differ".into()
            }
            Self::Spliced(EngineChoice::Auto) => "one thread, default engine".into(),
            Self::Spliced(engine) => format!("one thread, engine {engine} by name"),
            Self::Forward(Company::Alone) => {
                "splice::Forward, translated from the SYN on; its program is on the devices only while \
                 it is measured"
                    .into()
            }
            Self::Forward(Company::Crowded) => format!(
                "the same with {} idle connections in its table",
                Crowd::CONNECTIONS
            ),
            Self::Haproxy(Haproxy::Copying) => "mode tcp, nbthread 1, through its buffers".into(),
            Self::Haproxy(Haproxy::SplicingAuto) => {
                "mode tcp, nbthread 1, option splice-auto: HAProxy decides when to splice"
                    .into()
            }
            Self::Haproxy(Haproxy::Splicing) => {
                "mode tcp, nbthread 1, option splice-request and splice-response".into()
            }
            Self::Haproxy(Haproxy::SplicingTuned) => {
                "as HAProxy splice, with tune.pipesize 1048576 and tune.bufsize 65536".into()
            }
            Self::Dnat => {
                "dnat and masquerade in the relay's namespace; the kernel does it all, so no process \
                 has CPU time or memory for it; the rules exist only while it is measured"
                    .into()
            }
            Self::Nginx => "stream module, one process, otherwise default settings".into(),
            Self::Envoy => "tcp_proxy filter, --concurrency 1, otherwise default settings".into(),
            Self::Socat => "-b 65536, nodelay, a process for each connection".into(),
            Self::Pen => "no client tracking, otherwise default settings".into(),
            Self::BySni(Router::Spliced) => "spliced run, one thread, routes by SNI".into(),
            Self::BySni(Router::Haproxy) => {
                "as HAProxy splice-auto, use_backend by req.ssl_sni".into()
            }
            Self::BySni(Router::Nginx) => {
                "as nginx stream, ssl_preread and a map of $ssl_preread_server_name".into()
            }
            Self::SoSplice(SoSpliceProxy::Copying) => {
                "so_splice_proxy.c, read and write with 128 KiB, no library preloaded".into()
            }
            Self::SoSplice(SoSpliceProxy::Splicing(_)) => {
                "so_splice_proxy.c, SO_SPLICE both ways, with libso_splice.so preloaded".into()
            }
            Self::Delaying(delay) => format!("delays every message by {delay:?}"),
        }
    }

    /// Reference, ours or a peer.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::Direct | Self::DirectAgain => Kind::Reference,
            Self::Spliced(_)
            | Self::Forward(_)
            | Self::BySni(Router::Spliced)
            | Self::SoSplice(SoSpliceProxy::Splicing(_)) => Kind::Ours,
            _ => Kind::Peer,
        }
    }

    /// Whether a person means this one by `text`: capitals do not matter, a hyphen is as good as a
    /// space, and `copy` is as good as `spliced copy`.
    pub(crate) fn is_called(self, text: &str) -> bool {
        let plain = |text: &str| text.to_ascii_lowercase().replace('-', " ");
        let (name, text) = (plain(&self.name()), plain(text));
        name == text || name.strip_prefix("spliced ") == Some(&text)
    }

    /// Whether the others are held against it: the direct path, either time.
    pub(crate) fn is_reference(self) -> bool {
        self.kind() == Kind::Reference
    }

    /// Whether connections through it can come to the engine `segment`.
    pub(crate) fn uses_segment(self) -> bool {
        use EngineChoice::{Auto, Only};
        matches!(
            self,
            Self::Spliced(Auto | Only(EngineName::Segment))
                | Self::Forward(_)
                | Self::BySni(Router::Spliced)
        )
    }

    /// Whether its relay runs only while it is measured: the program that forwards looks at every segment of its
    /// devices, and the other contestants would pay for that.
    pub(crate) fn runs_in_its_turn(self) -> bool {
        matches!(self, Self::Forward(_))
    }

    /// The most connections that it is measured with.
    pub(crate) fn most_connections(self) -> u32 {
        match self {
            // A process each: more of them measure the scheduler, and the memory of the machine.
            Self::Socat => 100,
            _ => u32::MAX,
        }
    }

    /// What a client has to send before there is a connection to the server.
    pub(crate) fn first_bytes(self) -> &'static [u8] {
        match self {
            Self::BySni(_) => CLIENT_HELLO,
            _ => &[],
        }
    }

    /// Where the client connects to; `index` is unique among those that take part.
    pub(crate) fn address(self, index: u16) -> SocketAddr {
        if self.is_reference() {
            Site::server()
        } else {
            Site::relay(index)
        }
    }

    /// Starts its relay as number `index`; `None` for a path that needs no process.
    pub(crate) fn start(self, site: &Site, spliced: &Path, index: u16) -> Result<Option<Start>> {
        let address = self.address(index);
        let command = match self {
            Self::Direct | Self::DirectAgain => return Ok(None),
            Self::Dnat => {
                return Ok(match Translation::install(site, address) {
                    Ok(_for_a_moment) => None,
                    Err(error) => Some(Start::Refused(format!("{error:#}"))),
                });
            }
            Self::Spliced(engine) => {
                let mut command = site.lab.relay().command(&spliced.to_string_lossy());
                command.args(["relay", &address.to_string(), &Site::server().to_string()]);
                command.args(["--engine", &engine.to_string(), "--threads", "1"]);
                Ok(command)
            }
            Self::Forward(company) => Ok(forwarding(site, address, company)?),
            Self::Haproxy(how) => peer::haproxy(site, how, address, &peer::haproxy_relay(address))?,
            Self::Nginx => peer::nginx(site, address, &peer::nginx_relay(address))?,
            Self::BySni(router) => router.command(site, spliced, address)?,
            Self::Envoy => peer::envoy(site, address)?,
            Self::Socat => peer::socat(site, address),
            Self::Pen => peer::pen(site, address),
            Self::SoSplice(proxy) => proxy.command(site, address)?,
            Self::Delaying(delay) => Ok(delaying(site, address, delay)?),
        };
        Ok(Some(match command {
            Ok(command) => Relay::start(site, &self.name(), command, address, self.first_bytes())?,
            Err(missing) => Start::Refused(missing),
        }))
    }
}

/// The command that runs this program as a relay that delays.
fn delaying(site: &Site, address: SocketAddr, delay: Duration) -> Result<Command> {
    let mut command = this_program(site, "delay", address)?;
    command.arg(delay.as_micros().to_string());
    Ok(command)
}

/// The command that runs this program as a relay that forwards.
fn forwarding(site: &Site, address: SocketAddr, company: Company) -> Result<Command> {
    let mut command = this_program(site, "forward", address)?;
    if company == Company::Crowded {
        command.args(Crowd::arguments());
    }
    Ok(command)
}

/// The command that runs this program where the relays run, from `address` to the server.
fn this_program(site: &Site, what: &str, address: SocketAddr) -> Result<Command> {
    let program = std::env::current_exe().context("this program does not know where it is")?;
    let mut command = site.lab.relay().command(&program.to_string_lossy());
    command.args([what, &address.to_string(), &Site::server().to_string()]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::Contestant;

    #[test]
    fn names_are_unique() {
        let all = Contestant::all();
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                assert!(!other.is_called(&one.name()), "{} twice", one.name());
            }
        }
    }

    #[test]
    fn names_are_easy_to_type() {
        for (typed, meant) in [
            ("copy", "spliced copy"),
            ("haproxy-splice", "HAProxy splice"),
            ("Direct Again", "direct again"),
        ] {
            let called = Contestant::all()
                .into_iter()
                .filter(|one| one.is_called(typed));
            let names: Vec<String> = called.map(Contestant::name).collect();
            assert_eq!(names, [meant]);
        }
    }
}
