//! The registry of engines: which of them work here, and which pairs each takes.

use splice_base::error::{Error, ErrorKind, Result};
use splice_base::obstacle::Obstacle;

use crate::carrier::{aio, pipe, uring};
use crate::direction::CarrierChoice;
use crate::endpoint::Kind;
use crate::kernel::segment::datapath::{Datapath, DatapathHandle, absence};
use crate::kernel::sockmap;
use crate::name::{EngineChoice, EngineName};
use crate::reactor::EventLoop;

impl EngineName {
    /// Tests whether this process can use the engine at all. Whether it can take a given pair shows
    /// when that is joined.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] with the reason and what to do about it.
    pub fn probe(self) -> Result<()> {
        let probed = match self {
            Self::Copy => Ok(()),
            Self::Pipe => pipe::probe(),
            Self::Aio => aio::AioContext::new().map(drop),
            Self::Uring => uring::probe(),
            Self::Sockmap => sockmap::probe(),
            Self::Segment => Datapath::found().map(drop),
        };
        probed.map_err(|obstacle| self.unavailable(obstacle))
    }

    /// Whether this process has the rights that the engine needs, as far as it shows without loading anything:
    /// [`probe`](Self::probe) takes tens of milliseconds, and descriptors.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] with the reason and what to do about it.
    pub fn is_permitted(self) -> Result<()> {
        let obstacle = match self {
            Self::Copy | Self::Pipe | Self::Aio | Self::Uring => None,
            Self::Sockmap => Obstacle::foreseen(),
            Self::Segment => Obstacle::foreseen().or_else(Obstacle::without_net_admin),
        };
        obstacle.map_or(Ok(()), |obstacle| Err(self.unavailable(obstacle)))
    }

    /// Why pairs of this process that no engine was chosen for go without this one, although its rights showed no reason:
    /// what has kept it from being loaded the last time, such as a want of descriptors.
    pub fn why_absent(self) -> Option<Error> {
        let obstacle = match self {
            Self::Segment => absence::now(),
            _ => None,
        };
        obstacle.map(|obstacle| self.unavailable(obstacle))
    }

    /// Whether the engine can splice a socket to itself, regardless of this process's rights.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] with the reason.
    pub fn can_echo(self) -> Result<()> {
        let why = match self {
            Self::Copy | Self::Pipe | Self::Aio | Self::Uring | Self::Sockmap => {
                return Ok(());
            }
            Self::Segment => "it translates the segments of one connection into those of another",
        };
        Err(Error::new(ErrorKind::EngineRefused, why)
            .about(format!("engine {self} cannot splice a socket to itself"))
            .with_remedy("choose another"))
    }

    /// By what user space moves the bytes of a pair for which the engine was chosen by name: the engines in the kernel
    /// begin with `copy`.
    pub(crate) fn carrier(self) -> CarrierChoice {
        match self {
            Self::Copy | Self::Sockmap | Self::Segment => CarrierChoice::Copy,
            Self::Pipe => CarrierChoice::Pipe,
            Self::Aio => CarrierChoice::Aio,
            Self::Uring => CarrierChoice::Ring,
        }
    }

    /// Whether the engine takes pairs with such sockets, regardless of this process's rights.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] with the reason.
    pub fn can_take(self, kind: Kind) -> Result<()> {
        let why = match (self, kind) {
            // `unix_shutdown` removes the socket at the other end from every map, together with
            // what was redirected to it and not yet sent.
            (Self::Sockmap, Kind::Unix) => {
                "a UNIX socket loses bytes in flight to it when its peer half-closes"
            }
            (Self::Sockmap, Kind::Mptcp) => {
                "the kernel accepts no Multipath TCP socket in a map of sockets"
            }
            (Self::Segment, Kind::Unix | Kind::Mptcp) => {
                "it translates the segments of plain TCP connections"
            }
            (Self::Copy, _) => return Ok(()),
            (_, Kind::Vsock) => {
                return Err(self.declines("one end is a VSOCK socket", "use auto or copy"));
            }
            (_, kind) if kind.keeps_messages() => {
                return Err(self.declines("its sockets keep messages apart", "use auto or copy"));
            }
            _ => return Ok(()),
        };
        Err(self.declines(why, "use copy or pipe"))
    }
}

impl EventLoop {
    /// Loads in advance what an engine needs once per process. Otherwise its first pair waits for
    /// that or, with [`EngineChoice::Auto`], goes without it for a while. It stays loaded while
    /// this loop has tasks.
    ///
    /// # Errors
    /// As [`EngineName::probe`]. After an error, `auto` picks other engines.
    pub fn prepare(&mut self, engine: EngineChoice) -> Result<()> {
        let segment = |obstacle: Obstacle| EngineName::Segment.unavailable(obstacle);
        match engine {
            EngineChoice::Only(EngineName::Segment) => {
                self.local::<DatapathHandle>().prepare().map_err(segment)
            }
            EngineChoice::Auto => {
                let found = self.local::<DatapathHandle>().datapath_for_auto();
                found.map(drop).map_err(segment)
            }
            EngineChoice::Only(EngineName::Sockmap) => {
                let notifier = sockmap::notifier();
                let sockmap = |obstacle| EngineName::Sockmap.unavailable(obstacle);
                self.watch_notifier(notifier.map_err(sockmap)?)
            }
            EngineChoice::Only(other) => other.probe(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_driven_loop_keeps_what_was_prepared() {
        let engine = EngineChoice::Only(EngineName::Sockmap);
        let forbidden = EngineName::Sockmap.probe().err();
        if !netlab::present("sockmap", forbidden.map(|error| error.to_string())) {
            return;
        }
        let mut event_loop = EventLoop::new().unwrap();
        event_loop.prepare(engine).unwrap();
        for _ in 0..3 {
            event_loop.turn(Some(Duration::ZERO)).unwrap();
        }
        assert_eq!(event_loop.notifiers(), 1);
    }
}
