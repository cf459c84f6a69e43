use super::*;

const LIMITS: Thresholds = Thresholds {
    rise: 2,
    fall: 3,
    has_checks: true,
};

fn is_up(health: &Health, now: Instant) -> bool {
    health.state(now) == State::Up
}

#[test]
fn failed_checks_in_a_row_take_a_server_out_and_passed_ones_bring_it_back() {
    let now = Instant::now();
    let mut health = Health::new(LIMITS);
    assert_eq!(health.check_failed(), None);
    assert_eq!(health.check_failed(), None);
    // The row is broken.
    assert_eq!(health.check_passed(now), None);
    assert_eq!(health.check_failed(), None);
    assert_eq!(health.check_failed(), None);
    assert_eq!(health.check_failed(), Some(Change::WentDown));
    assert!(!is_up(&health, now + 10 * OUT_MOST));
    assert_eq!(health.check_passed(now), None);
    assert_eq!(health.check_failed(), None);
    assert_eq!(health.check_passed(now), None);
    assert_eq!(health.check_passed(now), Some(Change::CameUp));
    assert!(is_up(&health, now));
}

#[test]
fn weaker_evidence_clears_no_stronger_one() {
    let now = Instant::now();
    let mut health = Health::new(LIMITS);
    for _ in 0..2 {
        health.check_failed();
        health.connected(now);
        health.answered(now);
    }
    assert_eq!(health.check_failed(), Some(Change::WentDown));
    // Nor does it bring a server back.
    assert_eq!(health.connected(now), None);
    health.answered(now);
    assert_eq!(health.state(now), State::Down);

    let mut health = Health::new(LIMITS);
    assert!(!health.early_reset(now));
    health.connected(now);
    health.check_passed(now);
    assert!(!health.early_reset(now));
    health.connected(now);
    assert!(health.early_reset(now));
}

#[test]
fn what_a_server_sends_clears_early_resets_unless_its_connection_is_older() {
    let start = Instant::now();
    let later = start + Duration::from_secs(1);
    let mut health = Health::new(LIMITS);
    health.early_reset(later);
    health.early_reset(later);
    health.answered(start);
    assert!(health.early_reset(later));
    health.answered(later);
    assert!(!health.early_reset(later));
}

#[test]
fn a_server_that_refuses_is_out_for_a_while_that_grows() {
    let mut now = Instant::now();
    let mut health = Health::new(LIMITS);
    assert!(!health.connection_failed(now));
    health.connected(now);
    for _ in 0..2 {
        assert!(!health.connection_failed(now));
    }
    assert!(health.connection_failed(now));
    for seconds in [10, 20, 40, 80, 80] {
        let time = health.take_out(Cause::Refused, now).expect("it is up");
        assert_eq!(time.as_secs(), seconds);
        assert_eq!(health.state(now), State::Out(time));
        // It is out already.
        assert!(!health.connection_failed(now));
        now += time;
        assert!(is_up(&health, now));
        // The one that tries has no luck.
        assert!(health.connection_failed(now));
    }
    // It has been in for long enough.
    now += OUT_MOST;
    assert_eq!(health.take_out(Cause::Refused, now), Some(OUT_FIRST));
    assert_eq!(health.take_out(Cause::Resets, now), None, "it is out");
}

#[test]
fn a_connection_or_checks_end_the_absence_of_a_server_that_refused_and_of_no_other() {
    let now = Instant::now();
    let mut health = Health::new(LIMITS);
    health.take_out(Cause::Refused, now);
    assert_eq!(health.connected(now), Some(Change::CameUp));
    health.take_out(Cause::Refused, now);
    assert_eq!(health.check_passed(now), None);
    assert_eq!(health.check_passed(now), Some(Change::CameUp));
    assert!(is_up(&health, now));

    health.take_out(Cause::Resets, now);
    for _ in 0..5 {
        assert_eq!(health.connected(now), None);
        assert_eq!(health.check_passed(now), None);
    }
    assert!(!is_up(&health, now));
    assert!(is_up(&health, now + OUT_MOST));
}

#[test]
fn a_server_whose_checks_fail_is_down_whatever_its_traffic_says() {
    let now = Instant::now();
    let mut health = Health::new(LIMITS);
    health.take_out(Cause::Resets, now);
    for _ in 0..3 {
        health.check_failed();
    }
    assert_eq!(health.state(now), State::Down);
    assert_eq!(health.state(now + OUT_MOST), State::Down);
    // The checks pass, and it stays out.
    health.check_passed(now);
    assert_eq!(health.check_passed(now), None);
    assert_eq!(health.state(now), State::Out(OUT_FIRST));
}

#[test]
fn passed_checks_count_for_a_server_that_its_traffic_has_taken_out() {
    let now = Instant::now();
    // It has failed altogether: its clients notice first, then its checks.
    let mut health = Health::new(LIMITS);
    health.take_out(Cause::Refused, now);
    for _ in 0..3 {
        health.check_failed();
    }
    assert_eq!(health.check_passed(now), None);
    assert_eq!(health.check_passed(now), Some(Change::CameUp));
    assert!(is_up(&health, now));

    let mut health = Health::new(Thresholds { rise: 1, ..LIMITS });
    health.take_out(Cause::Refused, now);
    health.check_failed();
    health.check_failed();
    assert_eq!(health.check_passed(now), Some(Change::CameUp));
    // The row was broken.
    assert_eq!(health.check_failed(), None);
    assert!(is_up(&health, now));
}

#[test]
fn a_server_without_checks_is_not_down() {
    let now = Instant::now();
    let mut health = Health::new(LIMITS);
    for _ in 0..3 {
        health.check_failed();
    }
    assert_eq!(health.state(now), State::Down);
    health.set_thresholds(Thresholds {
        fall: 1,
        has_checks: false,
        ..LIMITS
    });
    assert!(is_up(&health, now));
    // One that was under way.
    assert_eq!(health.check_failed(), None);
    assert!(is_up(&health, now));
}

#[test]
fn traffic_takes_out_neither_the_last_server_nor_more_than_half() {
    assert!(!leaves_enough(0, 0, 1));
    assert!(leaves_enough(1, 0, 2));
    assert!(leaves_enough(2, 0, 3));
    assert!(!leaves_enough(1, 1, 3));
    assert!(leaves_enough(3, 1, 5));
    assert!(!leaves_enough(2, 2, 5));
    assert!(leaves_enough(3, 0, 4));
    assert!(leaves_enough(2, 1, 4));
    assert!(!leaves_enough(1, 2, 4));
    // The other is down.
    assert!(!leaves_enough(0, 0, 2));
}

#[test]
fn a_server_that_comes_back_gets_its_share_slowly() {
    let start = Instant::now();
    let slow = Some(Duration::from_secs(10));
    let mut health = Health::new(LIMITS);
    assert_eq!(health.share_percent(slow, start), 100);
    let back = start + health.take_out(Cause::Resets, start).expect("it is up");
    let after =
        |health: &Health, seconds| health.share_percent(slow, back + Duration::from_secs(seconds));
    assert_eq!(
        [0, 1, 5, 10, 11].map(|it| after(&health, it)),
        [1, 10, 50, 100, 100]
    );
    // The same once it has been noticed.
    health.connected(back);
    assert_eq!(after(&health, 5), 50);
    assert_eq!(health.share_percent(None, back), 100);
}
