//! The servers of a backend that get no new clients.

use crate::plan::{BackendPlan, ServerPlan};
use crate::plural::counted;

/// So many of a kind are named: each one has a line of its own, too.
const NAMED_MOST: usize = 10;

/// Those that the configuration keeps new clients from.
pub(super) struct Idle {
    all: usize,
    disabled: Vec<String>,
    without_weight: Vec<String>,
}

impl Idle {
    pub(super) fn of(backend: &BackendPlan) -> Self {
        let names = |is_it: &dyn Fn(&ServerPlan) -> bool| {
            let those = backend.servers.iter().filter(|server| is_it(server));
            those.map(|server| server.address.to_string()).collect()
        };
        Self {
            all: backend.servers.len(),
            disabled: names(&|server| server.disabled),
            without_weight: names(&|server| {
                // SRV records have weights of their own.
                let has_own = server.address.fixed().is_some();
                has_own && !server.disabled && server.weight == 0
            }),
        }
    }

    /// How many there are and which, such as `3 servers, 1 disabled (10.0.0.3:80)`; `None` if there are none.
    pub(super) fn told(&self) -> Option<String> {
        let mut told = counted(self.all, "server");
        for (servers, what) in [
            (&self.disabled, "disabled"),
            (&self.without_weight, "with weight 0"),
        ] {
            if !servers.is_empty() {
                told += &format!(", {} {what} ({})", servers.len(), named(servers));
            }
        }
        (!self.disabled.is_empty() || !self.without_weight.is_empty()).then_some(told)
    }

    /// Whether no server is left that gets clients.
    pub(super) fn are_all(&self) -> bool {
        self.disabled.len() + self.without_weight.len() == self.all
    }
}

fn named(servers: &[String]) -> String {
    let more = servers.len().saturating_sub(NAMED_MOST);
    let named = servers[..servers.len() - more].join(", ");
    match more {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}
