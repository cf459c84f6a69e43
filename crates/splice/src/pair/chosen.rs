//! Which engine a pair has, and why.

use super::Pair;
use crate::engine::{Chosen, EngineChoice, EngineName};

/// Why a pair has the engine that it was to have, and no byte went another way.
pub(crate) const BY_NAME: &str = "asked for by name";

impl Pair {
    pub(super) fn engine(&self) -> Chosen {
        let piped = self
            .directions
            .iter()
            .any(|direction| direction.way_taken().piped);
        let missed = self
            .directions
            .iter()
            .find_map(|direction| direction.way_taken().no_pipe);
        let by_name = matches!(self.choice, EngineChoice::Only(_));
        if self.taken
            && let Some(kernel) = &self.kernel
        {
            if let Some(why) = self.filtered.as_deref().cloned() {
                return Chosen {
                    name: kernel.name(),
                    why,
                };
            }
            let why = if by_name {
                BY_NAME
            } else if kernel.name() == EngineName::Segment {
                "it lived long or moved much, and its segments can be translated"
            } else {
                "it lives long and moves little at a time"
            };
            return Chosen::new(kernel.name(), why);
        }
        if let EngineChoice::Only(
            name @ (EngineName::Segment | EngineName::Aio | EngineName::Uring),
        ) = self.choice
            && let Some(why) = self.declined.as_deref().cloned()
        {
            return Chosen { name, why };
        }
        let name = match self.choice {
            EngineChoice::Only(EngineName::Sockmap) => EngineName::Copy,
            EngineChoice::Only(name) => name,
            EngineChoice::Auto if piped => EngineName::Pipe,
            EngineChoice::Auto => EngineName::Copy,
        };
        match missed {
            Some(errno) => Chosen {
                name,
                why: format!("some bytes were copied, since no pipe could be had: {errno}").into(),
            },
            None if !piped && self.declined.is_some() => Chosen {
                name,
                why: self.declined.as_deref().cloned().unwrap_or_default(),
            },
            None if piped && !by_name => Chosen::new(name, "a direction moved bulk"),
            // One that is to be translated has a program to wait for first.
            None if self.kernel.is_some() || (by_name && name == EngineName::Segment) => {
                Chosen::new(name, "no engine in the kernel has taken it yet")
            }
            None if by_name => Chosen::new(name, BY_NAME),
            None => Chosen::new(name, "no direction moved bulk"),
        }
    }
}
