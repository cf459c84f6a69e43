//! The order of the addresses of a name, and which of them is tried when (RFC 8305): no I/O, and no clock.
//!
//! ```text
//!          started                     failed, or given up for the next one
//! waiting ────────▶ under way ─────────────────────────────────────────────▶ over
//!    ▲  │               └──connected──▶ the race is over, and the others are closed
//!    └──┘ postponed
//! ```
//!
//! The next address is started once the last one has been under way for [`DELAY`], or as soon as one fails. If this host
//! has no room for it, the oldest one is given up that has had that time: other clients may hold on to theirs, too.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::socket_address::SocketAddress;

/// The recommended Connection Attempt Delay of RFC 8305, section 8. It is shorter where the time would not suffice for
/// all addresses.
const DELAY: Duration = Duration::from_millis(250);

/// How many connections one client is worth at a time: as each has [`DELAY`] alone, the first one is given up after two
/// seconds, and so has sent its SYN twice (`TCP_TIMEOUT_INIT`). Fewer addresses have all the time there is.
const MOST_UNDER_WAY: usize = 8;

/// How long the address is preferred that has answered where the first one did not: on the order of what RFC 6555
/// recommends. Then the resolver's order counts again, since the network may have been mended.
const PREFERRED_FOR: Duration = Duration::from_secs(10 * 60);

/// The addresses of one attempt, by their index.
#[derive(Debug)]
pub(crate) struct Race {
    waiting: VecDeque<usize>,
    /// In the order in which they were started.
    under_way: VecDeque<UnderWay>,
    /// When the next one is started beside those under way.
    next_at: Option<Instant>,
}

#[derive(Debug)]
struct UnderWay {
    index: usize,
    /// From then on the next one may be started.
    has_had_its_time_at: Instant,
}

/// What to do about a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Connect to this address.
    Start(usize),
    /// Close the connection to this address first: too many are under way.
    GiveUp(usize),
    /// Ask again at that time, or when one under way has failed.
    Wait(Option<Instant>),
    /// Every address has failed.
    Over,
}

impl Race {
    /// Of so many addresses, in the order of their indices.
    pub(crate) fn new(count: usize) -> Self {
        Self {
            waiting: (0..count).collect(),
            under_way: VecDeque::new(),
            next_at: None,
        }
    }

    pub(crate) fn turn(&self, now: Instant) -> Turn {
        match (self.waiting.front(), self.under_way.front()) {
            (None, None) => Turn::Over,
            (None, Some(_)) => Turn::Wait(None),
            (Some(_), Some(_)) if self.next_at.is_some_and(|at| now < at) => {
                Turn::Wait(self.next_at)
            }
            (Some(_), Some(oldest)) if self.under_way.len() >= MOST_UNDER_WAY => {
                Turn::GiveUp(oldest.index)
            }
            (Some(next), _) => Turn::Start(*next),
        }
    }

    /// The connection is under way; `until` is the end of the time for all.
    pub(crate) fn started(&mut self, index: usize, now: Instant, until: Instant) {
        self.waiting.retain(|waiting| *waiting != index);
        let shares = self.waiting.len() as u32 + 1;
        let share = until.saturating_duration_since(now) / shares;
        let has_had_its_time_at = now + share.min(DELAY);
        self.under_way.push_back(UnderWay {
            index,
            has_had_its_time_at,
        });
        self.next_at = Some(has_had_its_time_at);
    }

    /// It cannot be started, for want of something on this host. Those under way may still connect. Returns the one that
    /// makes room for it, to be given up now.
    pub(crate) fn postponed(&mut self, now: Instant) -> Option<usize> {
        let oldest = self.under_way.front()?;
        if now >= oldest.has_had_its_time_at {
            return Some(oldest.index);
        }
        self.next_at = Some(oldest.has_had_its_time_at);
        None
    }

    /// It could not be started, has failed or is given up. The next one has its turn at once.
    pub(crate) fn failed(&mut self, index: usize) {
        self.waiting.retain(|waiting| *waiting != index);
        self.under_way.retain(|under_way| under_way.index != index);
        self.next_at = None;
    }

    pub(crate) fn is_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }
}

/// The address of a name that has answered where the first one did not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preference(Option<(SocketAddress, Instant)>);

impl Preference {
    /// `address`, of those in the order `tried`, has answered. A first one that answers changes nothing, so that name
    /// servers may have their addresses take turns. Returns whether the order is another one now.
    pub(crate) fn answered(
        &mut self,
        address: &SocketAddress,
        tried: &[SocketAddress],
        now: Instant,
    ) -> bool {
        let is_new =
            tried.first().is_some_and(|first| first != address) && self.get(now) != Some(address);
        if is_new {
            self.0 = Some((address.clone(), now + PREFERRED_FOR));
        }
        is_new
    }

    /// `address` has failed, and nobody has tried another one of `answer`: the next one is preferred, if that was the
    /// first one to try. Returns whether the order is another one now.
    pub(crate) fn failed(
        &mut self,
        address: &SocketAddress,
        answer: &[SocketAddress],
        now: Instant,
    ) -> bool {
        let is_first = self.order(answer, now).first() == Some(address);
        let at = answer.iter().position(|other| other == address);
        match at {
            Some(at) if is_first && answer.len() > 1 => {
                let next = &answer[(at + 1) % answer.len()];
                self.0 = Some((next.clone(), now + PREFERRED_FOR));
                true
            }
            _ => false,
        }
    }

    /// The addresses of an answer in the order in which to try them: the preferred one; then one of the other family
    /// and one of its own in turns, each family in the order of the answer. Without a preferred one the first of the
    /// answer is first: getaddrinfo(3) sorts them by what this host has (RFC 6724) and its administrator wants
    /// (gai.conf(5)).
    pub(crate) fn order(&self, answer: &[SocketAddress], now: Instant) -> Vec<SocketAddress> {
        let preferred = self.get(now);
        let Some(first) = preferred.or_else(|| answer.first()) else {
            return Vec::new();
        };
        let is_first_family = |address: &&SocketAddress| address.is_ipv4() == first.is_ipv4();
        let (mut own, other): (VecDeque<_>, VecDeque<_>) = answer.iter().partition(is_first_family);
        if let Some(at) = own.iter().position(|address| *address == first)
            && let Some(first) = own.remove(at)
        {
            own.push_front(first);
        }
        let mut families = [own, other];
        let mut order = Vec::with_capacity(answer.len());
        while order.len() < answer.len() {
            let next = families.iter_mut().filter_map(VecDeque::pop_front);
            order.extend(next.cloned());
        }
        order
    }

    pub(crate) fn has_expired(&self, now: Instant) -> bool {
        self.0.is_some() && self.get(now).is_none()
    }

    fn get(&self, now: Instant) -> Option<&SocketAddress> {
        let (address, until) = self.0.as_ref()?;
        (now < *until).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn addresses(texts: &[&str]) -> Vec<SocketAddress> {
        let address = |text: &&str| SocketAddress::Inet(text.parse().expect("an address"));
        texts.iter().map(address).collect()
    }

    /// When each of `count` silent addresses is started, in milliseconds, and given up.
    fn silent(count: usize, time: Duration) -> (Vec<u128>, Vec<usize>) {
        let (mut race, begin) = (Race::new(count), Instant::now());
        let (mut now, until) = (begin, begin + time);
        let (mut started, mut given_up) = (Vec::new(), Vec::new());
        loop {
            match race.turn(now) {
                Turn::Start(index) => {
                    assert_eq!(index, started.len());
                    started.push((now - begin).as_millis());
                    race.started(index, now, until);
                }
                Turn::GiveUp(index) => {
                    given_up.push(index);
                    // As the caller does it, who starts the next one in its place.
                    race.failed(index);
                }
                Turn::Wait(Some(at)) => now = at,
                Turn::Wait(None) => return (started, given_up),
                Turn::Over => panic!("none has failed"),
            }
        }
    }

    #[test]
    fn silent_addresses_are_started_one_after_another() {
        assert_eq!(silent(3, 5 * SECOND), (vec![0, 250, 500], vec![]));
        let (started, given_up) = silent(10, 5 * SECOND);
        assert_eq!(started.last(), Some(&2250));
        assert_eq!(given_up, [0, 1]);
        // All of them have a turn within the time.
        assert_eq!(silent(4, Duration::from_millis(400)).0, [0, 100, 200, 300]);
        assert_eq!(Race::new(0).turn(Instant::now()), Turn::Over);
    }

    #[test]
    fn one_that_fails_lets_the_next_one_start_at_once() {
        let (mut race, now) = (Race::new(4), Instant::now());
        let until = now + 5 * SECOND;
        race.started(0, now, until);
        assert_eq!(race.turn(now), Turn::Wait(Some(now + DELAY)));
        race.failed(0);
        assert_eq!(race.turn(now), Turn::Start(1));
        // It could not even be started.
        race.failed(1);
        assert_eq!(race.turn(now), Turn::Start(2));
        race.started(2, now, until);
        race.started(3, now + DELAY, until);
        race.failed(2);
        assert_eq!(race.turn(now + DELAY), Turn::Wait(None));
        race.failed(3);
        assert_eq!(race.turn(now + DELAY), Turn::Over);
    }

    #[test]
    fn one_that_this_host_has_no_room_for_takes_that_of_the_oldest() {
        let (mut race, now) = (Race::new(4), Instant::now());
        let until = now + 5 * SECOND;
        assert_eq!(race.postponed(now), None);
        race.started(0, now, until);
        race.started(1, now, until);
        race.failed(1);
        // Its failure lets the next one start, and another client has taken its room.
        assert_eq!(race.turn(now), Turn::Start(2));
        assert_eq!(race.postponed(now), None);
        let later = now + DELAY;
        assert_eq!(race.turn(now), Turn::Wait(Some(later)));
        assert_eq!(race.turn(later), Turn::Start(2));
        assert_eq!(race.postponed(later), Some(0));
        race.failed(0);
        assert_eq!(race.turn(later), Turn::Start(2));
        race.started(2, later, until);
        // Nothing else has to make room for the last one than what has had its time.
        assert_eq!(race.turn(later + DELAY), Turn::Start(3));
        assert_eq!(race.postponed(later), None);
        assert_eq!(race.postponed(later + DELAY), Some(2));
    }

    #[test]
    fn families_take_turns_and_the_one_that_answered_begins() {
        let [six, six_two, four, four_two, four_three] = [
            "[2001:db8::1]:1",
            "[2001:db8::2]:1",
            "192.0.2.1:1",
            "192.0.2.2:1",
            "192.0.2.3:1",
        ];
        let answer = addresses(&[six, six_two, four, four_two, four_three]);
        let (mut preference, now) = (Preference::default(), Instant::now());
        let order = |preference: &Preference, now| preference.order(&answer, now);
        let plain = addresses(&[six, four, six_two, four_two, four_three]);
        assert_eq!(order(&preference, now), plain);
        // The first one answers.
        assert!(!preference.answered(&plain[0], &plain, now));
        assert_eq!(order(&preference, now), plain);
        let four_two_at = SocketAddress::Inet(four_two.parse().expect("an address"));
        assert!(preference.answered(&four_two_at, &plain, now));
        let preferred = addresses(&[four_two, six, four, six_two, four_three]);
        assert_eq!(order(&preference, now), preferred);
        assert!(!preference.answered(&four_two_at, &preferred, now));
        // It is gone from the answer, and its family is still the one that works.
        let others = addresses(&[six, four]);
        let without = preference.order(&others, now);
        assert_eq!(without, addresses(&[four, six]));
        assert_eq!(order(&preference, now + PREFERRED_FOR), plain);
        assert_eq!(preference.order(&[], now), []);
    }

    #[test]
    fn one_that_fails_makes_room_for_the_next_one() {
        let (mut preference, now) = (Preference::default(), Instant::now());
        let answer = addresses(&["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"]);
        // An old connection to an address that is not the first one any more.
        assert!(!preference.failed(&answer[1], &answer, now));
        for failed in [0, 1, 2, 0] {
            assert!(preference.failed(&answer[failed], &answer, now));
            let next = &answer[(failed + 1) % answer.len()];
            assert_eq!(preference.order(&answer, now).first(), Some(next));
            assert!(!preference.failed(&answer[failed], &answer, now));
        }
        assert!(!Preference::default().failed(&answer[0], &answer[..1], now));
    }
}
