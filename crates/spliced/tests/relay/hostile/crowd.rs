//! Connections that are attacked side by side: one for each kind of attack and each end that the forged
//! segments claim to come from.

use std::fmt::Debug;
use std::thread;

use super::connection::{Connection, Side};
use super::forger::Forger;
use super::segment::Segment;
use super::stage::Stage;

pub(super) struct Crowd<'a, K> {
    stage: &'a Stage,
    victims: Vec<Victim<K>>,
}

struct Victim<K> {
    kind: K,
    /// The end that the forged segments claim to come from.
    claimed: Side,
    connection: Connection,
}

impl<'a, K: Copy + Debug + Sync> Crowd<'a, K> {
    pub(super) fn on(stage: &'a Stage, kinds: &[K]) -> Self {
        let roles = kinds
            .iter()
            .flat_map(|kind| Side::BOTH.map(|claimed| (*kind, claimed)));
        let connections = stage.connect(2 * kinds.len());
        let victims = roles.zip(connections);
        let victims = victims.map(|((kind, claimed), connection)| Victim {
            kind,
            claimed,
            connection,
        });
        Self {
            stage,
            victims: victims.collect(),
        }
    }

    /// `attack` gets what the claimed end would send next.
    pub(super) fn attack(&self, mut attack: impl FnMut(K, &Forger, Segment)) {
        for victim in &self.victims {
            let next = Segment::next_of(victim.connection.end(victim.claimed));
            attack(victim.kind, self.stage.forger(victim.claimed), next);
        }
    }

    /// Checks all connections at once, and fails with the list of those that do not pass.
    pub(super) fn check(&self, check: impl Fn(Side, &Connection) + Sync) {
        let check = &check;
        let failed: Vec<_> = thread::scope(|scope| {
            let checks: Vec<_> = self
                .victims
                .iter()
                .map(|victim| {
                    let work = move || check(victim.claimed, &victim.connection);
                    (victim, scope.spawn(work))
                })
                .collect();
            checks
                .into_iter()
                .filter_map(|(victim, check)| {
                    let failed = check.join().is_err();
                    failed.then(|| format!("{:?} from {:?}", victim.kind, victim.claimed))
                })
                .collect()
        });
        assert!(
            failed.is_empty(),
            "{} of {} connections fail: {failed:#?}",
            failed.len(),
            self.victims.len()
        );
    }

    /// Closes all ends, and waits until the relay has nothing left of them.
    pub(super) fn close(self, outcomes: &[&str]) {
        let pairs = self.victims.len();
        drop(self.victims);
        self.stage.expect_ended(pairs, outcomes);
    }
}
