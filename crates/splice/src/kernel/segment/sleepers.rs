//! Whether the peers of a pair are there, and what its sockets still get that sleep.

use std::time::{Duration, Instant};

use super::Segment;
use super::change_over::{Asleep, LONGEST_OVERLAP_PAUSE, Progress, SLEEPING_PAUSE};
use super::flow::Flow;
use super::liveness::{Liveness, Step};
use super::patience::{Retries, Timeouts};
use super::sockets::{ask, ask_by_keep_alive, end_timers, probe, wake};
use crate::endpoint::Endpoint;
use crate::kernel::tcp_state;
use crate::outcome::Side;
use splice_bpf::types::SegmentInspection;

/// How long a question may take to leave: its device may have to find the neighbour first.
const QUESTION_WITHIN: Duration = Duration::from_secs(2);

/// A socket that is not established can ask so often in its life: at 127 questions, none of which it knows the answer
/// to, the kernel gives its peer up (`MAX_TCP_KEEPCNT` in net/tcp.h). Then the peer stays.
const MOST_QUESTIONS: u32 = 120;

/// A peer whose silence is shorter than this need not be looked at in Overlap.
const SHORTEST_SILENCE: Duration = Duration::from_millis(500);

/// The peers of a pair that bypasses its sockets.
#[derive(Debug)]
pub(super) struct Peers {
    /// The sockets have sent their last acknowledgement, and send no more unasked.
    pub(super) sleep: bool,
    /// Their timers were ended.
    timeless: bool,
    timeouts: [Timeouts; 2],
    liveness: [Liveness; 2],
    /// Peers that answer, but have no room: where their window ends, and since when it has been known.
    without_room: [Option<(u32, Instant)>; 2],
    /// How often each socket can still ask its peer.
    questions_left: [u32; 2],
    /// Connection tracking knew the connections when they were put to sleep.
    tracked: [bool; 2],
    /// A reset that was doubtful when it was first looked at: whose, its number, and when that was.
    doubtful_reset: Option<(usize, u32, Instant)>,
}

impl Peers {
    fn of(ends: [&Endpoint; 2]) -> Self {
        Self {
            sleep: false,
            timeless: false,
            timeouts: ends.map(Timeouts::of),
            liveness: Default::default(),
            without_room: [None; 2],
            questions_left: [0; 2],
            tracked: [false; 2],
            doubtful_reset: None,
        }
    }

    /// Those of sockets whose timers end here: nothing reaches them any more, so a timer would give up a peer that is
    /// there, also while this process is stopped.
    fn without_timers(ends: [&Endpoint; 2]) -> Self {
        let peers = Self::of(ends);
        for (end, timeouts) in ends.into_iter().zip(&peers.timeouts) {
            if timeouts.have_timers() {
                end_timers(end);
            }
        }
        Self {
            timeless: true,
            ..peers
        }
    }

    /// Sets the sockets as they were before they slept.
    pub(super) fn restore(&self, ends: [&Endpoint; 2]) {
        if self.timeless {
            for (end, timeouts) in ends.into_iter().zip(&self.timeouts) {
                timeouts.restore(end);
            }
        }
    }

    /// The sockets have sent their last acknowledgement.
    fn fall_asleep(&mut self, flow: &Flow, found: &SegmentInspection) {
        self.sleep = true;
        let sockets = found.socket.each_ref();
        self.questions_left = sockets.map(|socket| match socket.state {
            tcp_state::ESTABLISHED => u32::MAX,
            _ => MOST_QUESTIONS,
        });
        self.tracked = flow.is_tracked();
    }

    /// Ends a flow after a reset that the program could not judge, if nothing has spoken against it for a while. A peer
    /// that was still there would have sent again what is not acknowledged, several times.
    fn end_doubt(&mut self, flow: &Flow, now: Instant) {
        let Some((side, seq)) = flow.doubtful_reset() else {
            self.doubtful_reset = None;
            return;
        };
        match self.doubtful_reset {
            Some((known_side, known_seq, since)) if (known_side, known_seq) == (side, seq) => {
                if now.duration_since(since) >= SLEEPING_PAUSE {
                    flow.reset_by(side);
                }
            }
            _ => self.doubtful_reset = Some((side, seq, now)),
        }
    }

    /// Asks peers, in Overlap, that do not acknowledge what bypasses the sockets. Of everything else these take care
    /// themselves. Returns when to look again at the latest, or which peer is gone.
    fn look_awake(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        retries: Retries,
        now: Instant,
    ) -> Result<Duration, Side> {
        let mut pause = LONGEST_OVERLAP_PAUSE;
        for side in Side::BOTH {
            let at = side.index();
            if flow.is_taken_over(side.other().index()) {
                pause = pause.min(self.bears_no_room(flow, side, now)?);
            }
            let silence = flow.silence_of(at).without_ends();
            let can_ask = found.socket[at].state == tcp_state::ESTABLISHED;
            if !silence.is_awaited || !flow.is_taken_over(side.other().index()) || !can_ask {
                continue;
            }
            let patience = self.timeouts[at].patience(retries);
            match self.liveness[at].look(silence, &patience) {
                Step::Wait(time) => pause = pause.min(time.unwrap_or(pause)),
                Step::Ask(time) => {
                    probe(ends[at]);
                    pause = pause.min(time);
                }
                Step::GiveUp => return Err(side),
            }
        }
        Ok(pause)
    }

    /// Asks peers that have been silent for long. Returns when to look again, or which peer is gone.
    fn look(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        retries: Retries,
        now: Instant,
    ) -> Result<Duration, Side> {
        flow.end_questions();
        let mut pause = SLEEPING_PAUSE;
        for side in Side::BOTH {
            let at = side.index();
            pause = pause.min(self.bears_no_room(flow, side, now)?);
            if self.questions_left[at] < MOST_QUESTIONS {
                // Its next question is user space's decision again.
                end_timers(ends[at]);
            }
            if self.questions_left[at] == 0 {
                continue;
            }
            let patience = self.timeouts[at].patience(retries);
            let silence = flow.silence_of(at);
            pause = pause.min(patience.looks_every());
            match self.liveness[at].look(silence, &patience) {
                Step::Wait(Some(time)) => pause = pause.min(time),
                Step::Wait(None) => {}
                Step::Ask(time) => {
                    flow.begin_question(at);
                    self.ask(ends[at], at);
                    pause = pause.min(time).min(QUESTION_WITHIN);
                }
                // Rules that let only known connections pass have dropped the questions.
                Step::GiveUp if !silence.is_awaited && self.is_forgotten(flow, at) => {}
                Step::GiveUp => return Err(side),
            }
        }
        Ok(pause)
    }

    /// With `TCP_USER_TIMEOUT`, TCP gives up also a peer that answers whenever it is asked for room, but has none
    /// (`tcp_probe_timer`). Returns when to look again at the latest, or that this is so.
    fn bears_no_room(&mut self, flow: &Flow, side: Side, now: Instant) -> Result<Duration, Side> {
        let at = side.index();
        let Some(timeout) = self.timeouts[at].user() else {
            return Ok(SLEEPING_PAUSE);
        };
        let since = match (flow.withholds_room(at), self.without_room[at]) {
            (Some(edge), Some((known, since))) if edge == known => since,
            (Some(edge), None) => {
                self.without_room[at] = Some((edge, now));
                now
            }
            // It has room, or has had some since it was asked.
            _ => {
                flow.forget_asking_for_room(at);
                self.without_room[at] = None;
                now
            }
        };
        match timeout.checked_sub(now.duration_since(since)) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(side),
        }
    }

    fn ask(&mut self, end: &Endpoint, at: usize) {
        if self.questions_left[at] == u32::MAX {
            ask(end);
        } else {
            self.questions_left[at] -= 1;
            ask_by_keep_alive(end);
        }
    }

    /// Connection tracking knew this side's connection, and does not any more.
    fn is_forgotten(&self, flow: &Flow, at: usize) -> bool {
        self.tracked[at] && !flow.is_tracked()[at]
    }
}

impl Segment {
    /// Looks, in Overlap, whether both peers are there. Returns when to look again at the latest, or which peer is gone.
    pub(super) fn look_for_gone(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        now: Instant,
    ) -> Result<Duration, Side> {
        let mut silences = (0..2).map(|side| flow.silence_of(side));
        if silences.all(|silence| silence.lasts < SHORTEST_SILENCE) {
            return Ok(LONGEST_OVERLAP_PAUSE);
        }
        let retries = self.datapath.settings().retries();
        let peers = self.peers.get_or_insert_with(|| Box::new(Peers::of(ends)));
        peers.look_awake(flow, ends, found, retries, now)
    }

    pub(super) fn look_at_sleepers(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        found: &SegmentInspection,
        now: Instant,
    ) -> Progress {
        let asleep = self
            .change_over
            .look_at_sleepers(found, flow.is_over(), now);
        match asleep {
            Asleep::Late => {
                ends.into_iter().for_each(wake);
                self.restore_timers(ends);
                flow.overlap_again();
                self.change_over.overlap_again();
                Progress::Again
            }
            Asleep::MaySend(left) => {
                self.without_timers(ends);
                Progress::Spliced(left)
            }
            Asleep::Silent => {
                // Nothing reaches the sockets any more but resets, and nothing leaves them unasked.
                self.without_timers(ends).fall_asleep(flow, found);
                self.look_at_peers(flow, ends, now)
            }
        }
    }

    /// The peers of sockets whose timers have ended. A pair that ends with its first look does without these calls.
    fn without_timers(&mut self, ends: [&Endpoint; 2]) -> &mut Peers {
        let peers = self.peers.take().filter(|peers| peers.timeless);
        let peers = peers.unwrap_or_else(|| Box::new(Peers::without_timers(ends)));
        self.peers.insert(peers)
    }

    /// Looks at a pair whose sockets are known to be silent.
    pub(super) fn look_at_peers(
        &mut self,
        flow: &Flow,
        ends: [&Endpoint; 2],
        now: Instant,
    ) -> Progress {
        let Some(peers) = &mut self.peers else {
            return Progress::Spliced(SLEEPING_PAUSE);
        };
        peers.end_doubt(flow, now);
        match peers.look(flow, ends, self.datapath.settings().retries(), now) {
            Ok(pause) => Progress::Spliced(pause),
            Err(side) => Progress::GivenUp(side),
        }
    }
}
