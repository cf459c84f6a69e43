//! A contestant that takes part in a run.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, bail};

use crate::contestant::{Company, Contestant};
use crate::crowd::Crowd;
use crate::relay::{Relay, Start};
use crate::site::{Connection, Site};
use crate::translation::Translation;

/// A contestant, and its relay while that runs.
#[derive(Debug)]
pub(crate) struct Entrant {
    pub(crate) contestant: Contestant,
    pub(crate) relay: Option<Relay>,
    index: u16,
}

/// A contestant that could not take part, with the reason.
pub(crate) type Absent = (Contestant, String);

impl Entrant {
    /// Starts the relays of `contestants`. Those that do not start are absent.
    pub(crate) fn start_all(
        site: &Site,
        spliced: &Path,
        contestants: &[Contestant],
    ) -> Result<(Vec<Self>, Vec<Absent>)> {
        let (mut entrants, mut absent) = (Vec::new(), Vec::new());
        for (index, &contestant) in (0..).zip(contestants) {
            let relay = match contestant.start(site, spliced, index)? {
                Some(Start::Running(relay)) => {
                    Some(relay).filter(|_| !contestant.runs_in_its_turn())
                }
                None => None,
                Some(Start::Refused(why)) => {
                    eprintln!("{} does not take part: {why}", contestant.name());
                    absent.push((contestant, why));
                    continue;
                }
            };
            entrants.push(Self {
                contestant,
                relay,
                index,
            });
        }
        Ok((entrants, absent))
    }

    /// Where the client connects to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.contestant.address(self.index)
    }

    /// A connection to the server, past what a client has to send first.
    pub(crate) fn connect(&self, site: &Site) -> Result<Connection> {
        site.connect_with(self.address(), self.contestant.first_bytes())
    }

    /// Has `measure` done with everything in place that must be there while this contestant is measured, and only
    /// then.
    pub(crate) fn in_its_turn<T>(
        &mut self,
        site: &Site,
        spliced: &Path,
        measure: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let _translation = match self.contestant {
            Contestant::Dnat => Some(Translation::install(site, self.address())?),
            _ => None,
        };
        if !self.contestant.runs_in_its_turn() {
            return measure(self);
        }
        let prepared = self.prepare(site, spliced);
        let outcome = prepared.and_then(|()| measure(self));
        // Also after a failure: it would have the port, and the server, of those that are measured next.
        self.relay = None;
        outcome
    }

    /// Starts a relay that runs only in its turn, with the company that it has.
    fn prepare(&mut self, site: &Site, spliced: &Path) -> Result<()> {
        self.start(site, spliced)?;
        if let (Contestant::Forward(Company::Crowded), Some(relay)) = (self.contestant, &self.relay)
        {
            Crowd::gather(site, relay)?;
        }
        Ok(())
    }

    /// Replaces the relay by a fresh one: memory is measured of a process that has not been busy.
    pub(crate) fn restart(&mut self, site: &Site, spliced: &Path) -> Result<()> {
        // The port must be free first.
        if self.relay.take().is_none() {
            return Ok(());
        }
        self.start(site, spliced)
    }

    fn start(&mut self, site: &Site, spliced: &Path) -> Result<()> {
        match self.contestant.start(site, spliced, self.index)? {
            Some(Start::Running(relay)) => self.relay = Some(relay),
            None => {}
            Some(Start::Refused(why)) => {
                bail!("{} ran before but now says: {why}", self.contestant.name())
            }
        }
        Ok(())
    }
}

/// The contestants of `all` that `only` leaves (all when it is empty) without `except`. The direct
/// path always runs, as the others are held against it.
pub(crate) fn chosen(
    all: Vec<Contestant>,
    only: &[String],
    except: &[String],
) -> Result<Vec<Contestant>, String> {
    for (option, names) in [("--only", only), ("--except", except)] {
        let unknown = |name: &&String| !all.iter().any(|one| one.is_called(name));
        if let Some(unknown) = names.iter().find(unknown) {
            let names: Vec<String> = all.into_iter().map(Contestant::name).collect();
            return Err(format!(
                "{option} does not know {unknown:?}: choose from {}",
                names.join(", ")
            ));
        }
    }
    let named = |one: Contestant, names: &[String]| names.iter().any(|name| one.is_called(name));
    let wanted = |one: &Contestant| {
        let kept = only.is_empty() || one.is_reference() || named(*one, only);
        *one == Contestant::Direct || kept && !named(*one, except)
    };
    Ok(all.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::chosen;
    use crate::contestant::Contestant;

    fn names(only: &[&str], except: &[&str]) -> Vec<String> {
        let owned = |names: &[&str]| names.iter().map(|&name| name.into()).collect::<Vec<_>>();
        let chosen = chosen(Contestant::all(), &owned(only), &owned(except));
        chosen.map_or_else(
            |error| vec![error],
            |chosen| chosen.into_iter().map(Contestant::name).collect(),
        )
    }

    #[test]
    fn the_direct_path_always_runs() {
        assert_eq!(
            names(&["copy"], &["direct-again", "direct"]),
            ["direct", "spliced copy"]
        );
        assert_eq!(names(&["pen"], &[]), ["direct", "direct again", "pen"]);
        assert_eq!(names(&[], &[]).len(), Contestant::all().len());
        assert_eq!(names(&[], &["pen"]).len(), Contestant::all().len() - 1);
    }

    #[test]
    fn a_name_that_nobody_has_is_told_with_those_that_there_are() {
        let said = names(&[], &["traefik"]).concat();
        assert!(said.starts_with("--except does not know \"traefik\": choose from direct, "));
    }
}
