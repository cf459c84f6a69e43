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

use splice_bpf::types::{BypassKey, BypassMember, bypass_state};
use splice_bpf::wait_for_programs;

use super::reason::Reason;
use super::tables::{PROGRAM_MOST, Tables, members, unread};

/// How long the queues of both ends have to be empty if the count of what was read cannot be right, since a reader took
/// bytes by other means than recvmsg.
const EMPTY_FOR: Duration = Duration::from_secs(1);

/// Pairs that are about to leave, with both their members by role.
#[derive(Debug, Default)]
pub(super) struct Drain {
    leaving: HashMap<Id, [Leaving; 2]>,
}

/// A member that is about to leave.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    /// Something may wait in its queue.
    Unread,
    /// Nothing has since then.
    Empty(Instant),
    Left,
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
            self.leaving.insert(id(of), [Leaving::Unread; 2]);
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

    /// Removes those that have nothing unread. Whether any is left. An end does not wait for the other one, which may never read.
    pub(super) fn go_on(&mut self, tables: &Tables) -> bool {
        self.leaving.retain(|of, ends| {
            let key = key(*of);
            // Without a pair, both ends are closed, and are in no map any more.
            let pair = tables.pair(key);
            let sent = pair.as_ref().map_or([0; 2], unread);
            let closed = pair.as_ref().map_or(3, |pair| pair.closed);
            for (role, (member, end)) in members(key).into_iter().zip(&mut *ends).enumerate() {
                // The kernel has removed an end that is closed, and drops what nobody can read.
                let is_read = sent[1 - role] == 0 || closed & 1 << role != 0;
                *end = go(tables, member, *end, is_read);
            }
            let have_left = ends.iter().all(|end| matches!(end, Leaving::Left));
            if have_left {
                let reason = tables.pair(key).and_then(|pair| Reason::of(pair.reason));
                tables.turn(key, bypass_state::LEFT, reason);
            }
            !have_left
        });
        !self.leaving.is_empty()
    }

    pub(super) fn count(&self) -> usize {
        self.leaving.len()
    }
}

/// Removes a member if it has nothing unread. `is_read`: all that was redirected to it has been read, as far as that was counted.
fn go(tables: &Tables, member: BypassMember, end: Leaving, is_read: bool) -> Leaving {
    let since = match end {
        Leaving::Left => return Leaving::Left,
        _ if tables.has_unread(member) => return Leaving::Unread,
        Leaving::Unread => Instant::now(),
        Leaving::Empty(since) => since,
    };
    if !is_read && since.elapsed() <= EMPTY_FOR {
        return Leaving::Empty(since);
    }
    tables.remove(member);
    Leaving::Left
}
