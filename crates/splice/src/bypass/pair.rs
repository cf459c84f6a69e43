//! What is decided about a pair.
//!
//! ```text
//!            both are read from, in small messages, and nothing is against it
//! WATCHED ──────────────────────────────────────────────────────────────────▶ ACTIVE
//!    │ something is against it for good: TCP for ever
//!    ▼
//! (forgotten here; the reason stays in the table)
//! ```

use std::sync::atomic::Ordering;

use splice_bpf::types::{
    BypassEnd, BypassKey, BypassPair, BypassQuestion, bypass_answer, bypass_patience, bypass_trait,
    bypass_verb,
};

use super::filters::Filters;
use super::namespaces::Namespaces;
use super::reason::Reason;
use super::rule::{Facts, Rules};
use super::tables::{ROLES, Tables, address};

/// What comes of a look at a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Both ends are members now.
    Admitted,
    /// Look again.
    Later(Reason),
    /// TCP for ever.
    Never(Reason),
}

pub(super) fn decide(
    tables: &Tables,
    namespaces: &mut Namespaces,
    rules: &Rules,
    filters: Option<&mut Filters>,
    key: BypassKey,
    pair: &BypassPair,
) -> Decision {
    let settings = tables.settings();
    let [least, bulk] = [&settings.least_reads, &settings.bulk_bytes]
        .map(|setting| u64::from(setting.load(Ordering::Relaxed)));
    if pair.conflict != 0 {
        return Decision::Never(Reason::Conflict);
    }
    if let Some(why) = why_waits_end_early(pair) {
        return Decision::Never(why);
    }
    if pair.ends.iter().all(|end| end.traits != 0) {
        return Decision::Never(Reason::Reader);
    }
    if pair.ends.iter().all(|end| end.reads < least) {
        return Decision::Later(Reason::Young);
    }
    let is_bulk = |end: &BypassEnd| end.received_bytes > end.reads.max(1) * bulk;
    if pair.ends.iter().any(is_bulk) {
        return Decision::Never(Reason::Bulk);
    }
    let ask_both = |namespaces: &mut Namespaces, verb| {
        let mut all = ROLES.into_iter();
        all.find_map(|role| ask(tables, namespaces, key, pair, role, verb).err())
    };
    if let Some(decision) = ask_both(namespaces, bypass_verb::FIND) {
        return decision;
    }
    // Its users are known now.
    let Some(found) = tables.pair(key) else {
        return Decision::Never(Reason::Socket);
    };
    if !rules.accept(&facts(&found)) {
        return Decision::Never(Reason::Rule);
    }
    let Some(filters) = filters else {
        return ask_both(namespaces, bypass_verb::ADMIT).unwrap_or(Decision::Admitted);
    };
    if let Err(why) = filters.judge(namespaces, &found) {
        tables.explain(key, Some(&why));
        return Decision::Later(Reason::Filter);
    }
    tables.explain(key, None);
    if let Some(decision) = ask_both(namespaces, bypass_verb::ADMIT) {
        return decision;
    }
    filters.admit(namespaces, key, &found);
    Decision::Admitted
}

/// Why a redirected pair has to leave.
pub(super) fn why_unfit(pair: &BypassPair) -> Reason {
    let is_poor = |end: &BypassEnd| end.poor_windows == bypass_patience::OVER;
    if let Some(why) = why_waits_end_early(pair) {
        why
    } else if pair.ends.iter().any(is_poor) {
        Reason::Passing
    } else {
        Reason::Bulk
    }
}

/// Why a recv(2) that waits may return EAGAIN to a member.
fn why_waits_end_early(pair: &BypassPair) -> Option<Reason> {
    let has = |of| pair.ends.iter().any(|end| end.traits & of != 0);
    let all = [
        (bypass_trait::THREADS, Reason::Threads),
        (bypass_trait::MIXES, Reason::Mixes),
        (bypass_trait::WOKEN, Reason::Woken),
    ];
    let found = all.into_iter().find(|(of, _)| has(*of));
    found.map(|(_, why)| why)
}

/// What is against it.
fn ask(
    tables: &Tables,
    namespaces: &mut Namespaces,
    key: BypassKey,
    pair: &BypassPair,
    role: u32,
    verb: u32,
) -> Result<(), Decision> {
    let question = BypassQuestion {
        key,
        role,
        verb,
        ..BypassQuestion::default()
    };
    let network = pair.ends[role as usize].network;
    let Some(answer) = namespaces.within(network, || tables.ask(question)) else {
        return Err(Decision::Later(Reason::Network));
    };
    let answer = answer.map_err(|_| Decision::Later(Reason::Socket))?;
    match answer.answer {
        bypass_answer::DONE => Ok(()),
        bypass_answer::HAS_UPPER => Err(Decision::Never(Reason::UpperProtocol)),
        bypass_answer::ZEROCOPY => Err(Decision::Never(Reason::ZeroCopy)),
        bypass_answer::LOW_WATER => Err(Decision::Later(Reason::LowWater)),
        bypass_answer::REFUSED => Err(Decision::Never(Reason::Refused)),
        _ => Err(Decision::Later(Reason::Socket)),
    }
}

fn facts(pair: &BypassPair) -> Facts {
    let [client, server] = &pair.ends;
    Facts {
        addresses: [client.local, client.remote, server.local, server.remote].map(address),
        // Ports have 16 bits.
        server_ports: [client.remote_port as u16, server.local_port as u16],
        users: [client.user, server.user],
    }
}
