//! When a peer that has fallen silent is given up, as the relay's socket would give it up.
//!
//! ```text
//!               accepted                 accepted
//!            ┌─────────────┐    ┌───────────────────────────┐
//!            ▼             │    ▼                           │
//! silence begins ──wait──▶ asked ──no answer, asked again──▶ ... ──no answer──▶ given up
//! ```
//!
//! TCP gives a peer up if nothing that was sent to it is acknowledged (`tcp_retries2`, `TCP_USER_TIMEOUT`), or, where
//! nothing was, by keep-alive. Otherwise a silent peer stays for ever. Here the other peer sends and retransmits, and
//! the peer is asked as well before it is given up: a forged segment may make it look as if something were sent to it.
//!
//! This file neither reads a clock nor asks the kernel.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use splice_bpf::types::{SegmentFlow, SegmentSide, segment_mark as mark};

/// How long a socket bears the silence of its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    /// While it waits for an acknowledgement.
    pub(super) awaited: Duration,
    /// The same after both streams have ended: a socket is an orphan then.
    pub(super) orphaned: Duration,
    /// While it waits for nothing.
    pub(super) keep_alive: Option<KeepAlive>,
}

/// The keep-alive of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeepAlive {
    /// From the last segment to the first probe.
    pub(super) idle: Duration,
    /// From one probe to the next, or to the end.
    pub(super) interval: Duration,
    pub(super) probes: u32,
}

/// What a peer's silence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Silence {
    /// Tells it from an earlier one that has lasted as long.
    pub(super) begun: [u32; 2],
    pub(super) lasts: Duration,
    /// Something was sent to the peer that it has not acknowledged, or it was asked for room.
    pub(super) is_waited_for: bool,
    /// That, or nothing but the last acknowledgement can be missing.
    pub(super) is_awaited: bool,
    /// Both streams have ended.
    pub(super) is_orphaned: bool,
}

impl Silence {
    /// That of one peer of a flow, at `now_ns`.
    pub(super) fn of(flow: &SegmentFlow, peer: usize, now_ns: u64) -> Self {
        let (side, other) = (&flow.side[peer], &flow.side[1 - peer]);
        let begun = [&side.accepted_at, &other.waiting].map(|at| at.load(Relaxed));
        let heard = side.silent_for(now_ns);
        // What stands after a gap may be forged. Whoever has sent it, and what is missing before it, sends that again.
        let is_made_up = other.marks() & mark::GAP != 0 && other.silent_for(now_ns) >= heard;
        let awaited = other.waits_for(now_ns).filter(|_| !is_made_up);
        // The last acknowledgement of such a pair has not been seen, or one of the ends was a forged one.
        let is_orphaned = flow.side.iter().all(SegmentSide::has_come_to_its_end);
        Self {
            begun,
            lasts: awaited.map_or(heard, |awaited| awaited.min(heard)),
            is_awaited: awaited.is_some() || is_orphaned,
            is_waited_for: awaited.is_some(),
            is_orphaned,
        }
    }

    /// The same where sockets look after the ends of the streams.
    pub(super) fn without_ends(self) -> Self {
        Self {
            is_awaited: self.is_waited_for,
            is_orphaned: false,
            ..self
        }
    }
}

/// What to do about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing for so long; nothing at all.
    Wait(Option<Duration>),
    /// Ask it for a sign of life, and look again after so long.
    Ask(Duration),
    GiveUp,
}

/// One peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Liveness {
    /// How often it was asked since its silence began, and how long that had lasted at the last time.
    asked: u32,
    asked_at: Duration,
    /// What was silent at the last look: since when, and whether it was awaited.
    silence: ([u32; 2], bool),
}

/// How often a peer is asked whose acknowledgement is awaited: when a half, three quarters and all of the time have passed.
const ASKED_FOR_ACKNOWLEDGEMENT: u32 = 3;

/// How long it is waited for the answer to the last of these questions, beside a twentieth of the time. The kernel's last
/// retransmission is as late, and it waits for longer.
const LAST_ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The shortest retransmission timeout (`TCP_RTO_MIN` in net/tcp.h).
const SHORTEST_RTO: Duration = Duration::from_millis(200);

/// How long TCP retransmits at least, from the first transmission on, if the first retransmission comes after `rto`.
/// `retries` is a number only by name: so many retransmissions would take as long whose first one came after the shortest
/// time (`tcp_model_timeout`). The next retransmission after that gives up instead, unless a router has said before that
/// the peer cannot be reached (RFC 6069). `longest`: between two of them.
pub(super) fn retransmitting(rto: Duration, retries: u32, longest: Duration) -> Duration {
    let mut pause = SHORTEST_RTO.min(longest);
    let mut lasts = rto;
    for _ in 0..=retries {
        lasts += pause;
        pause = (pause * 2).min(longest);
    }
    lasts
}

impl Patience {
    /// When the silence has lasted for so long, the peer is asked for the time after `asked` times; `None`: no more.
    fn asks_at(&self, silence: &Silence, asked: u32) -> Option<Duration> {
        if silence.is_awaited {
            let most = self.awaits(silence);
            return match asked {
                0 => Some(most / 2),
                1 => Some(most - most / 4),
                2 => Some(most),
                _ => None,
            };
        }
        let keep_alive = self.keep_alive?;
        (asked < keep_alive.probes).then(|| keep_alive.idle + keep_alive.interval * asked)
    }

    fn awaits(&self, silence: &Silence) -> Duration {
        if silence.is_orphaned {
            self.orphaned
        } else {
            self.awaited
        }
    }

    /// How long the peer has to answer once it was asked so often.
    fn answer_within(&self, silence: &Silence, asked: u32) -> Duration {
        match self.keep_alive {
            Some(keep_alive) if !silence.is_awaited => keep_alive.interval,
            _ if asked < ASKED_FOR_ACKNOWLEDGEMENT => self.awaits(silence) / 4,
            _ => self.awaits(silence) / 20 + LAST_ANSWER_WITHIN,
        }
    }

    /// The peer need not be asked yet.
    pub(super) fn bears(&self, silence: &Silence) -> bool {
        let first = self.asks_at(silence, 0);
        first.is_none_or(|first| silence.lasts < first)
    }

    /// At least so often a peer has to be looked at whose silence may have become another one meanwhile.
    pub(super) fn looks_every(&self) -> Duration {
        self.awaited.min(self.orphaned) / 4
    }
}

impl Liveness {
    /// What to do about the peer now.
    pub(super) fn look(&mut self, silence: Silence, patience: &Patience) -> Step {
        let known = (silence.begun, silence.is_awaited);
        if self.silence != known {
            *self = Self {
                silence: known,
                ..Self::default()
            };
        }
        // Who looks late, since the process was stopped, asks late, and waits for the answer all the same.
        let answers_until = match self.asked {
            0 => Duration::ZERO,
            asked => self.asked_at + patience.answer_within(&silence, asked),
        };
        match patience.asks_at(&silence, self.asked) {
            Some(at) => {
                let at = at.max(answers_until);
                if silence.lasts < at {
                    return Step::Wait(Some(at - silence.lasts));
                }
                self.asked += 1;
                self.asked_at = silence.lasts;
                Step::Ask(patience.answer_within(&silence, self.asked))
            }
            None if self.asked == 0 => Step::Wait(None),
            None if silence.lasts < answers_until => {
                Step::Wait(Some(answers_until - silence.lasts))
            }
            None => Step::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const PATIENCE: Patience = Patience {
        awaited: s(800),
        orphaned: s(80),
        keep_alive: Some(KeepAlive {
            idle: s(7200),
            interval: s(75),
            probes: 9,
        }),
    };

    fn quiet(lasts: Duration) -> Silence {
        Silence {
            begun: [1, 0],
            lasts,
            is_waited_for: false,
            is_awaited: false,
            is_orphaned: false,
        }
    }

    /// Looks when it is told to, and says when the peer was asked and when it was given up.
    fn watched(
        patience: &Patience,
        is_awaited: bool,
        is_orphaned: bool,
    ) -> (Vec<u64>, Option<u64>) {
        let mut liveness = Liveness::default();
        let (mut asked, mut lasts) = (Vec::new(), Duration::ZERO);
        loop {
            let silence = Silence {
                is_awaited,
                is_orphaned,
                ..quiet(lasts)
            };
            match liveness.look(silence, patience) {
                Step::Wait(Some(time)) => lasts += time,
                Step::Wait(None) => return (asked, None),
                Step::Ask(time) => {
                    asked.push(lasts.as_secs());
                    lasts += time;
                }
                Step::GiveUp => return (asked, Some(lasts.as_secs())),
            }
        }
    }

    #[test]
    fn an_awaited_peer_is_asked_three_times_and_given_up_when_tcp_gives_up() {
        assert_eq!(
            watched(&PATIENCE, true, false),
            (vec![400, 600, 800], Some(840))
        );
        assert_eq!(watched(&PATIENCE, true, true), (vec![40, 60, 80], Some(84)));
    }

    #[test]
    fn an_idle_peer_is_given_up_by_keep_alive_or_never() {
        let probes: Vec<_> = (0..9).map(|probe| 7200 + 75 * probe).collect();
        assert_eq!(watched(&PATIENCE, false, false), (probes, Some(7875)));
        let never = Patience {
            keep_alive: None,
            ..PATIENCE
        };
        assert_eq!(watched(&never, false, false), (vec![], None));
    }

    #[test]
    fn a_peer_that_answers_is_asked_anew_and_stays() {
        let mut liveness = Liveness::default();
        for begun in 0..1000 {
            let mut silence = quiet(s(7200));
            silence.begun[0] = begun;
            assert_eq!(liveness.look(silence, &PATIENCE), Step::Ask(s(75)));
            silence.lasts = s(7274);
            assert_eq!(liveness.look(silence, &PATIENCE), Step::Wait(Some(s(1))));
        }
    }

    /// The look after the question comes so late that the new silence has lasted as long as the old one.
    #[test]
    fn an_answer_counts_however_late_it_is_seen() {
        let patience = Patience {
            keep_alive: Some(KeepAlive {
                idle: s(1),
                interval: s(1),
                probes: 1,
            }),
            ..PATIENCE
        };
        let mut liveness = Liveness::default();
        for begun in 0..1000 {
            let mut silence = quiet(s(2));
            silence.begun[0] = begun;
            assert_eq!(liveness.look(silence, &patience), Step::Ask(s(1)));
        }
    }

    #[test]
    fn after_a_pause_of_the_process_every_peer_is_asked_first() {
        for is_awaited in [false, true] {
            let mut silence = quiet(s(100_000));
            silence.is_awaited = is_awaited;
            let mut liveness = Liveness::default();
            let mut asked = 0;
            while let Step::Ask(time) = liveness.look(silence, &PATIENCE) {
                asked += 1;
                silence.lasts += time;
            }
            assert_eq!(asked, if is_awaited { 3 } else { 9 });
            assert_eq!(liveness.look(silence, &PATIENCE), Step::GiveUp);
        }
    }

    #[test]
    fn what_begins_to_be_awaited_has_its_own_time() {
        let mut liveness = Liveness::default();
        let mut silence = quiet(s(7200));
        assert_eq!(liveness.look(silence, &PATIENCE), Step::Ask(s(75)));
        silence.is_awaited = true;
        silence.lasts = s(10);
        assert_eq!(liveness.look(silence, &PATIENCE), Step::Wait(Some(s(390))));
    }

    /// "The default value of 15 yields a hypothetical timeout of 924.6 seconds" (ip-sysctl.rst)
    #[test]
    fn retransmissions_last_as_long_as_the_kernels() {
        let rto = Duration::from_millis(200);
        for (retries, most_ms) in [(0, 400), (1, 800), (3, 3_200), (8, 102_400), (15, 924_800)] {
            let lasts = retransmitting(rto, retries, s(120));
            assert_eq!(lasts.as_millis(), most_ms, "{retries}");
        }
        // With net.ipv4.tcp_rto_max_ms = 1000.
        assert_eq!(retransmitting(rto, 8, s(1)).as_millis(), 7_600);
    }
}
