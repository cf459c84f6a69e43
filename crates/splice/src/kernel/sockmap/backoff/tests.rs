use super::*;

/// How long each backoff is, after openings of these lengths.
fn lengths(openings: impl IntoIterator<Item = Duration>) -> Vec<Duration> {
    let (mut backoff, mut now) = (Backoff::default(), Instant::now());
    let mut lengths = Vec::new();
    for opening in openings {
        backoff.end(now);
        now += opening;
        backoff.begin(now);
        let ends_at = backoff.ends_at(now);
        lengths.push(ends_at - now);
        now = ends_at;
    }
    lengths
}

#[test]
fn each_short_opening_doubles_the_backoff() {
    let short = SHORT_OPENING - Duration::from_nanos(1);
    let milliseconds: Vec<_> = lengths([short; 7])
        .iter()
        .map(Duration::as_millis)
        .collect();
    assert_eq!(milliseconds, [4, 8, 16, 32, 64, 64, 64]);
}

#[test]
fn a_long_opening_ends_the_doubling() {
    let (short, long) = (Duration::ZERO, SHORT_OPENING);
    let lengths = lengths([short, short, long, short]);
    assert_eq!(
        lengths,
        [2 * SHORTEST, 4 * SHORTEST, SHORTEST, 2 * SHORTEST]
    );
}

#[test]
fn the_first_backoff_begins_with_the_first_look() {
    let (mut backoff, now) = (Backoff::default(), Instant::now());
    assert_eq!(backoff.began_at(now), now);
    let later = now + LONGEST;
    assert_eq!(backoff.began_at(later), now);
    assert_eq!(backoff.ends_at(later), now + SHORTEST);
}

#[test]
fn a_target_that_takes_nothing_is_looked_at_less_and_less() {
    let mut backoff = Backoff::default();
    assert_eq!(backoff.look_after(1_000), LOOK_AGAIN);
    let milliseconds: Vec<_> = (0..7)
        .map(|_| backoff.look_after(1_000).as_millis())
        .collect();
    assert_eq!(milliseconds, [2, 4, 8, 16, 32, 32, 32]);
    assert_eq!(backoff.look_after(999), LOOK_AGAIN);
}
