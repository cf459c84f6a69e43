//! A sender at the rate of its link.

use netlab::{Lab, Need, available};
use splice::Splicer;

use crate::stage::{
    Joined, SOCKMAP, join_across, missing, options, send_through, until_redirected,
};

const MEGABITS: u64 = 500;
const BYTES: u64 = MEGABITS * 1_000_000 / 8 * 2;
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
    let before = handle.redirected().a_to_b;
    send_through(&a, &b, 0..BYTES);
    let share = (handle.redirected().a_to_b - before) as f64 / BYTES as f64;
    eprintln!("{share:.3} redirected");
    assert!(
        share >= 0.95,
        "only {share:.3} of the bytes were redirected"
    );
}
