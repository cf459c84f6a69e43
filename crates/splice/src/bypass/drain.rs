//! Members leave.
//!
//! ```text
//! ACTIVE ──▶ LEAVING ──no program redirects any more, and everything redirected is read──▶ LEFT, in no map
//! ```
//!
//! A removed member loses what was redirected to it and is not read, and a redirect to a removed member fails with EPIPE.

use std::collections::{HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use splice_bpf::types::{BypassKey, bypass_state};
use splice_bpf::wait_for_programs;

use super::reason::Reason;
use super::tables::{PROGRAM_MOST, Tables, members, unread};

/// How long the queues of both ends have to be empty if the count of what was read cannot be right, since a reader took
/// bytes by other means than recvmsg.
const EMPTY_FOR: Duration = Duration::from_secs(1);

/// Pairs that are about to leave.
#[derive(Debug, Default)]
pub(super) struct Drain {
    leaving: HashMap<Id, Option<Instant>>,
}

type Id = (u32, u32);

fn id(key: BypassKey) -> Id {
    (key.client_isn, key.server_isn)
}

fn key((client_isn, server_isn): Id) -> BypassKey {
    BypassKey {
        client_isn,
        server_isn,
    }
}

impl Drain {
    /// Has pairs leave. Returns when no program redirects their messages any more.
    pub(super) fn begin(&mut self, tables: &Tables, pairs: &[(BypassKey, Reason)]) {
        let pairs: Vec<_> = (pairs.iter().copied())
            .filter(|(of, _)| !self.leaving.contains_key(&id(*of)))
            .collect();
        if pairs.is_empty() {
            return;
        }
        for (of, reason) in pairs {
            tables.turn(of, bypass_state::LEAVING, Some(reason));
            self.leaving.insert(id(of), None);
        }
        if wait_for_programs().is_err() {
            thread::sleep(PROGRAM_MOST);
        }
    }

    /// Has all members leave, whoever made them members.
    pub(super) fn begin_all(&mut self, tables: &Tables) {
        let all: HashSet<Id> = tables
            .members()
            .iter()
            .map(|member| id(member.key))
            .collect();
        let all: Vec<_> = all
            .into_iter()
            .map(|of| (key(of), Reason::Stopped))
            .collect();
        self.begin(tables, &all);
    }

    /// Removes those that have nothing unread. Whether any is left.
    pub(super) fn go_on(&mut self, tables: &Tables) -> bool {
        self.leaving.retain(|of, empty_since| {
            let key = key(*of);
            let is_read = match tables.pair(key) {
                // Both ends are closed, and are in no map any more.
                None => true,
                // The kernel has removed an end that is closed, and drops what nobody can read. The other end may
                // still read.
                Some(pair) => {
                    let [by_client, by_server] = unread(&pair);
                    (by_client == 0 || pair.closed & 2 != 0)
                        && (by_server == 0 || pair.closed & 1 != 0)
                }
            };
            let is_empty = !members(key).iter().any(|member| tables.has_unread(*member));
            if !is_empty {
                *empty_since = None;
            }
            let since = empty_since.get_or_insert_with(Instant::now);
            if is_empty && (is_read || since.elapsed() > EMPTY_FOR) {
                tables.remove_both(key);
                let reason = tables.pair(key).and_then(|pair| Reason::of(pair.reason));
                tables.turn(key, bypass_state::LEFT, reason);
                return false;
            }
            true
        });
        !self.leaving.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.leaving.len()
    }
}
