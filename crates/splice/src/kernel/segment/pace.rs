//! When the pairs of one loop change over: while one does, the others wait, and many may want to at
//! once, as all that were accepted together.
//!
//! ```text
//! asks ──▶ at once, while fewer than `PAIRS_PER_TURN` have begun in this turn and none is booked
//!   └────▶ booked, `BETWEEN_PAIRS` behind the one before; asks again then
//! ```

use std::time::{Duration, Instant};

/// How far apart the pairs of a loop change over, ten to a tick of its deadlines. One takes 26 µs of the
/// loop's time, half of them in its first turn (1000 pairs under load, release build); the rest is for
/// bytes. But while some have changed over and others have not, the latter are served last where the
/// CPU is short, so it is not drawn out either.
const BETWEEN_PAIRS: Duration = Duration::from_micros(100);
/// The most that one turn of the loop begins with, should it come late.
const PAIRS_PER_TURN: u32 = 10;

/// Which pair may begin, and when the next one.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the next pair may begin to change over.
    next_at: Option<Instant>,
    /// The loop's turn that pairs last began in, and how many.
    begun: Option<(Instant, u32)>,
}

impl Pace {
    /// Whether a pair may begin to change over in the loop's turn of `now`, else when. A pair that is
    /// `booked` was given this time before.
    ///
    /// # Errors
    /// When the pair's turn comes.
    pub(crate) fn admit(&mut self, now: Instant, booked: bool) -> Result<(), Instant> {
        let begun = match self.begun {
            Some((turn, count)) if turn == now => count,
            _ => 0,
        };
        let next_at = self.next_at.map_or(now, |next| next.max(now));
        if begun < PAIRS_PER_TURN && (booked || next_at == now) {
            self.begun = Some((now, begun + 1));
            if !booked {
                self.next_at = Some(now + BETWEEN_PAIRS);
            }
            return Ok(());
        }
        let at = next_at + BETWEEN_PAIRS;
        self.next_at = Some(at);
        Err(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn pairs_that_ask_in_one_turn_begin_one_after_the_other() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.admit(now, false), Ok(()));
        let booked: Vec<_> = (0..25).map(|_| pace.admit(now, false)).collect();
        for (place, booked) in booked.iter().enumerate() {
            assert_eq!(*booked, Err(now + BETWEEN_PAIRS * (place as u32 + 2)));
        }
        // The loop comes late: no more than a turn's share of those that are booked begins.
        let late = now + BETWEEN_PAIRS * 100;
        let begun = (0..25).filter(|_| pace.admit(late, true).is_ok()).count();
        assert_eq!(begun, PAIRS_PER_TURN as usize);
    }

    #[test]
    fn booked_pairs_begin_ten_to_a_millisecond() {
        const PAIRS: usize = 1000;
        let mut pace = Pace::default();
        let begin = Instant::now();
        let mut waiting: VecDeque<(Instant, bool)> = (0..PAIRS).map(|_| (begin, false)).collect();
        let mut turns = 0;
        while !waiting.is_empty() {
            // Once the loop comes late.
            let late = Duration::from_millis(if turns > 50 { 20 } else { 0 });
            let now = begin + Duration::from_millis(turns) + late;
            let mut begun = 0;
            for _ in 0..waiting.len() {
                let (at, booked) = waiting.pop_front().expect("so many are there");
                if at > now {
                    waiting.push_back((at, booked));
                    continue;
                }
                match pace.admit(now, booked) {
                    Ok(()) => begun += 1,
                    Err(later) => waiting.push_back((later, true)),
                }
            }
            assert!(begun <= PAIRS_PER_TURN, "{begun} in turn {turns}");
            turns += 1;
        }
        // Nobody takes the relay for slow meanwhile.
        assert!(turns <= 150, "{turns} ms");
        let later = begin + Duration::from_secs(1);
        assert_eq!(pace.admit(later, false), Ok(()), "the next waits for none");
    }

    #[test]
    fn a_pair_that_comes_alone_begins_at_once() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        for turn in 0..5 {
            let now = now + BETWEEN_PAIRS * turn;
            assert_eq!(pace.admit(now, false), Ok(()), "turn {turn}");
        }
    }
}
