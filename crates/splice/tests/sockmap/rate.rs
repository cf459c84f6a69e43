//! A sender at the rate of its link.

use netlab::{Lab, Need, available};
use splice::Splicer;

use crate::stage::{
    Joined, SOCKMAP, join_across, missing, options, send_through, until_redirected,
};

const MEGABITS: u64 = 500;
/// For 300 ms.
const ROUND_BYTES: u64 = MEGABITS * 1_000_000 / 8 * 3 / 10;
const ROUNDS: usize = 7;
/// The token bucket of the client's link has room for four of the largest segments.
const BUCKET: &str = "256kb";
/// More than TCP has in flight there, so that nothing is dropped.
const QUEUE: &str = "32mb";

#[test]
fn a_sender_at_the_rate_of_its_link_stays_with_the_kernel() {
    if missing() || !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().unwrap();
    lab.set_sysctl("net.ipv4.tcp_congestion_control", "reno")
        .unwrap();
    let limited = lab
        .client()
        .command("tc")
        .args(["qdisc", "replace", "dev", Lab::TO_RELAY, "root", "tbf"])
        .args(["rate", &format!("{MEGABITS}mbit")])
        .args(["burst", BUCKET, "limit", QUEUE])
        .status();
    assert!(limited.unwrap().success(), "tc");
    let splicer = Splicer::new(1).unwrap();
    let mut joined = join_across(&lab, &splicer, &options(SOCKMAP));
    until_redirected(&mut joined);
    let Joined { a, b, handle } = joined;
    let mut shares = [0; ROUNDS].map(|_| {
        let before = handle.redirected().a_to_b;
        send_through(&a, &b, 0..ROUND_BYTES);
        (handle.redirected().a_to_b - before) as f64 / ROUND_BYTES as f64
    });
    eprintln!("redirected: {shares:.3?}");
    // If the machine stops the receiver or the kernel's worker, the gate closes, as it should. That costs the
    // rounds in which it happens. A pair that does not stay with the kernel loses in each of them.
    shares.sort_by(f64::total_cmp);
    let median = shares[ROUNDS / 2];
    assert!(
        median >= 0.95,
        "only {median:.3} of the bytes were redirected"
    );
}
