//! A relay with a thread of its own, and its pairs.

use std::os::fd::OwnedFd;
use std::thread;

use splice::{
    Endpoint, EngineChoice, EngineName, Handle, Limits, Options, Outcome, Reason, Splicer,
};

use crate::support::contestant::{Contestant, SEGMENT};
use crate::support::mix::Mix;
use crate::support::patience::{PATIENCE, until};
use crate::support::payload::Payload;
use crate::support::peer::Peer;
use crate::support::transfer::{Pace, receive_to_end};
use crate::support::witness::Witness;

pub(crate) struct Relay {
    pub(crate) splicer: Splicer,
    pub(crate) options: Options,
    /// The witness of pairs that `segment` moves.
    witness: Option<Witness>,
}

/// Two peers and the pair between them.
pub(crate) struct Joined {
    pub(crate) a: Peer,
    pub(crate) b: Peer,
    pub(crate) handle: Handle,
}

impl Joined {
    /// Both peers have sent so many bytes and EOF: each gets the other's, and the pair ends.
    pub(crate) fn end_with(&self, sent: [u64; 2]) {
        let [from_a, from_b] = payloads();
        thread::scope(|scope| {
            scope.spawn(|| receive_to_end(&self.b, from_a, 0..sent[0], Pace::Steady));
            receive_to_end(&self.a, from_b, 0..sent[1], Pace::Steady);
        });
        let outcome = outcome(&self.handle);
        assert_eq!(outcome.reason, Reason::EndOfStream);
        assert_eq!([outcome.moved.a_to_b, outcome.moved.b_to_a], sent);
    }
}

/// What `a` sends, and what `b` sends.
pub(crate) const FROM_A: u64 = 1;
pub(crate) const FROM_B: u64 = 2;

pub(crate) fn payloads() -> [Payload; 2] {
    [Payload::new(FROM_A), Payload::new(FROM_B)]
}

impl Relay {
    pub(crate) fn new(engine: &Contestant) -> Self {
        Self::with_limits(engine, Limits::default())
    }

    pub(crate) fn with_limits(engine: &Contestant, limits: Limits) -> Self {
        let (splicer, witness) = if engine.choice == SEGMENT.choice {
            let (splicer, witness) = Witness::of_new_splicer();
            (splicer, Some(witness))
        } else {
            (Splicer::new(1).expect("an event loop"), None)
        };
        Self {
            splicer,
            witness,
            options: Options {
                limits,
                ..engine.options()
            },
        }
    }

    pub(crate) fn join(&self, mix: Mix) -> Joined {
        let (a, near) = Peer::connected(mix.a);
        let (b, far) = Peer::connected(mix.b);
        let handle = self.join_sockets(near, far);
        self.wait_for_kernel(&handle);
        Joined { a, b, handle }
    }

    /// A kernel engine takes a pair that is calm, and the rule then applies to it there. On a
    /// machine that stood still, a pair with a short idle timeout may have ended before.
    pub(crate) fn wait_for_kernel(&self, handle: &Handle) {
        let sockmap = EngineName::Sockmap;
        if self.options.engine == EngineChoice::Only(sockmap)
            && self.options.limits.byte_limit.is_none()
        {
            until("the kernel has the pair", || {
                handle.engine().0 == sockmap || handle.outcome().is_some()
            });
        }
        if let Some(witness) = &self.witness {
            until("the kernel has the pair", || {
                handle.engine() == (EngineName::Segment, "asked for by name".into())
                    || handle.outcome().is_some()
            });
            witness.begin();
        }
    }

    pub(crate) fn join_sockets(&self, a: OwnedFd, b: OwnedFd) -> Handle {
        self.witness.iter().for_each(Witness::end);
        let a = Endpoint::new(a).expect("endpoint a");
        let b = Endpoint::new(b).expect("endpoint b");
        self.splicer.join(a, b, &self.options).expect("a pair")
    }
}

/// The outcome of a pair that must end now.
pub(crate) fn outcome(handle: &Handle) -> Outcome {
    handle
        .wait_timeout(PATIENCE)
        .unwrap_or_else(|| panic!("the pair has not ended: {handle:?}"))
}
