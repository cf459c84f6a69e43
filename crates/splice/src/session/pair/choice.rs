//! Which engine is reported for a pair, and why; at the end, what each engine has moved.

use super::Running;
use super::state::State;
use crate::direction::Direction;
use crate::kernel::Profile;
use crate::name::{EngineChoice, EngineName};
use crate::session::status::Chosen;

/// The reason if the pair has the engine that was chosen by name, and no byte took another path.
pub(crate) const BY_NAME: &str = "asked for by name";

impl Running {
    /// The engine of a running pair.
    pub(super) fn engine(&self) -> Chosen {
        match &self.state {
            State::InKernel(engaged) => {
                let profile = engaged.engine.profile();
                Chosen::new(profile.name, self.why_taken(profile))
            }
            _ => self.user_space_engine(),
        }
    }

    /// The engine of a pair that has ended: the kernel engine if it moved a byte, otherwise the one
    /// that moved the last bytes. If a kernel engine had or tried the pair, the reason includes how
    /// many bytes user space moved, and why.
    pub(super) fn engine_at_end(&self, user_space_bytes: u64, in_kernel_bytes: u64) -> Chosen {
        let Some(engine) = self.state.engine() else {
            return self.user_space_engine();
        };
        let profile = engine.profile();
        let Profile {
            name,
            left_to_user_space,
            ..
        } = profile;
        let user_space = self.user_space_engine();
        let carriers = match user_space.name {
            EngineName::Pipe => "copy and pipe",
            _ => "copy",
        };
        let total_bytes = user_space_bytes + in_kernel_bytes;
        if !self.state.was_taken() {
            let mut used = self.directions.iter().map(Direction::carriers_used);
            if used.any(|used| used.piped || used.no_pipe.is_some()) {
                return user_space;
            }
            return Chosen {
                name: user_space.name,
                why: format!("the pair ended before {name} took it: {left_to_user_space}").into(),
            };
        }
        match (user_space_bytes, in_kernel_bytes) {
            (0, _) => Chosen::new(*name, self.why_taken(profile)),
            (_, 0) => Chosen {
                name: user_space.name,
                why: match self.choice {
                    EngineChoice::Only(_) => format!(
                        "{name} took the pair, but {carriers} moved all {total_bytes} bytes: {left_to_user_space}"
                    ),
                    EngineChoice::Auto => {
                        let which = if user_space.name == EngineName::Pipe { "a" } else { "no" };
                        format!("{which} direction moved bulk; {name} took the pair and moved no byte")
                    }
                }
                .into(),
            },
            _ => Chosen {
                name: *name,
                why: format!(
                    "{}; {carriers} moved {user_space_bytes} of {total_bytes} bytes: {left_to_user_space}",
                    self.why_taken(profile),
                )
                .into(),
            },
        }
    }

    fn why_taken(&self, profile: &Profile) -> &'static str {
        match self.choice {
            EngineChoice::Only(_) => BY_NAME,
            EngineChoice::Auto => profile.why_picked,
        }
    }

    /// A kernel engine that was chosen by name begins with `copy`, too.
    fn user_space_engine(&self) -> Chosen {
        let used = self
            .directions
            .iter()
            .map(|direction| direction.carriers_used());
        let piped = used.clone().any(|used| used.piped);
        let missed = used.clone().find_map(|used| used.no_pipe);
        let declined = self
            .state
            .alone()
            .and_then(|alone| alone.declined.as_deref())
            .cloned();
        let (name, kernel_by_name) = match self.choice {
            EngineChoice::Only(name) if name.is_in_kernel() => (EngineName::Copy, true),
            EngineChoice::Only(name) => (name, false),
            EngineChoice::Auto if piped => (EngineName::Pipe, false),
            EngineChoice::Auto => (EngineName::Copy, false),
        };
        let by_name = self.choice != EngineChoice::Auto;
        if let Some(why) = &declined
            && by_name
            && !kernel_by_name
        {
            return Chosen {
                name,
                why: why.clone(),
            };
        }
        match (missed, declined) {
            (Some(errno), declined) => {
                let no_pipe =
                    format!("some bytes were copied, since no pipe could be created: {errno}");
                Chosen {
                    name,
                    why: match declined {
                        Some(why) => format!("{no_pipe}; {why}").into(),
                        None => no_pipe.into(),
                    },
                }
            }
            (None, Some(why)) if !piped => Chosen { name, why },
            (None, Some(why)) if !by_name => Chosen {
                name,
                why: format!("a direction moved bulk; {why}").into(),
            },
            (None, None) if piped && !by_name => Chosen::new(name, "a direction moved bulk"),
            // Before its first turn a pair has no engine yet.
            (None, _) if self.state.engine().is_some() || kernel_by_name => {
                Chosen::new(name, "no kernel engine has taken the pair yet")
            }
            (None, _) if by_name => Chosen::new(name, BY_NAME),
            (None, _) => Chosen::new(name, "no direction moved bulk"),
        }
    }
}
