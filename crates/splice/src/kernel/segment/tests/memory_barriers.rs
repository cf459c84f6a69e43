//! The memory barriers that machines with weakly ordered CPUs need.

use std::process::Command;

use super::*;
use splice_bpf::FORCE_FENCES;

/// This machine may be strongly ordered, so the test cannot show that a barrier is in the right place. It
/// shows that the programs load with them and do the same.
#[test]
fn pairs_are_spliced_with_fences() {
    const TESTS: [&str; 4] = [
        "kernel::segment::tests::change_over::change_overs_at_random_places_over_lo",
        "kernel::segment::tests::pair_ends::one_half_ends_and_the_other_goes_on",
        "kernel::segment::tests::same_host::relays_in_a_row",
        "kernel::sockmap::tests::gate::a_live_source_is_taken_out_and_put_in_again_many_times",
    ];
    if !available(Need::Root) {
        return;
    }
    let done = Command::new(std::env::current_exe().expect("this program"))
        .arg("--exact")
        .args(TESTS)
        .env(FORCE_FENCES, "")
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&done.stdout);
    let passed = format!("{} passed", TESTS.len());
    assert!(done.status.success() && said.contains(&passed), "{done:?}");
}
