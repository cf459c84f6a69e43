//! When the pairs of one loop change over. While one does, the others wait, and many may be due at once: all
//! that were accepted together.
//!
//! ```text
//! asks ──▶ begins at once, while fewer than `PAIRS_PER_TURN` have begun in this turn and none is booked
//!   └────▶ is booked, `BETWEEN_PAIRS` after the one before; asks again then
//! ```

use std::time::{Duration, Instant};

/// How far apart the pairs of a loop change over: ten to a tick of its timer. One takes 26 µs of the loop's
/// time, half of that in its first turn (1000 pairs under load, release build); the rest is for bytes. A
/// longer interval would be unfair: where the CPU is short, pairs that have not changed over are served last.
const BETWEEN_PAIRS: Duration = Duration::from_micros(100);
/// How many pairs one turn of the loop begins with at most, should it come late.
const PAIRS_PER_TURN: u32 = 10;

/// When the next pair may begin.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// When the next pair may begin to change over.
    next_at: Option<Instant>,
    /// The last turn of the loop in which pairs began, and how many did.
    begun: Option<(Instant, u32)>,
}

impl Pace {
    /// Lets a pair begin to change over in the loop's turn of `now`. A pair that is `booked` was given this
    /// time before.
    ///
    /// # Errors
    /// The time at which the pair is to ask again.
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
        // The loop comes late: of the booked pairs no more than one turn's share begins.
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
            // From turn 51 on the loop is late.
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
        // No peer notices a delay.
        assert!(turns <= 150, "{turns} ms");
        let later = begin + Duration::from_secs(1);
        assert_eq!(pace.admit(later, false), Ok(()), "the next waits for none");
    }

    #[test]
    fn a_single_pair_begins_at_once() {
        let (mut pace, now) = (Pace::default(), Instant::now());
        for turn in 0..5 {
            let now = now + BETWEEN_PAIRS * turn;
            assert_eq!(pace.admit(now, false), Ok(()), "turn {turn}");
        }
    }
}
