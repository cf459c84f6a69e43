//! What ss(8) shows of the relay's sockets: with `copy` they are the connections, and those of a spliced pair stand still.
//! docs/segment.md says so.

use super::connection::Side;
use super::stage::Stage;
use crate::patience::until;

/// The connected sockets of the relay's host, with their counters and timers.
fn listed(stage: &Stage) -> Vec<String> {
    let run = stage.lab().relay().command("ss").arg("-HtnoiO").output();
    let run = run.expect("ss runs");
    assert!(run.status.success(), "{run:?}");
    let text = String::from_utf8(run.stdout).expect("text");
    text.lines().map(str::to_owned).collect()
}

/// The state and the counters of each.
fn counted(stage: &Stage) -> Vec<String> {
    let kept = |line: &String| {
        let words = line.split_ascii_whitespace().enumerate();
        let is_kept = |(place, word): &(usize, &str)| {
            *place == 0 || word.contains("bytes_") || word.contains("segs_")
        };
        let kept = words.filter(is_kept).map(|(_, word)| word);
        kept.collect::<Vec<_>>().join(" ")
    };
    listed(stage).iter().map(kept).collect()
}

fn have_timers(stage: &Stage) -> bool {
    listed(stage)
        .iter()
        .all(|line| line.contains(" timer:(keepalive,"))
}

fn a_spliced_pairs_sockets_stand_still(stage: &Stage) {
    let connection = stage.connect(1).remove(0);
    if stage.splices() {
        until("no timer runs", || {
            !listed(stage).iter().any(|line| line.contains("timer:"))
        });
    } else {
        assert!(have_timers(stage));
    }
    let before = counted(stage);
    assert_eq!(before.len(), 2);
    connection.moves_data();
    connection.client.end_stream();
    connection.server.expect_end();
    if !stage.splices() {
        assert_ne!(counted(stage), before);
        return;
    }
    assert_eq!(counted(stage), before);
    for line in &before {
        assert!(line.starts_with("ESTAB "), "{line}");
    }
    // Once they have taken their connections up, they count from there.
    stage.stop_clients();
    stage.until_all_are_back();
    stage.let_clients_pass();
    connection.moves_a_byte(Side::Server);
    let after = counted(stage);
    assert!(
        after.iter().any(|line| line.contains(" bytes_sent:1 ")),
        "{after:?}"
    );
    until("their timers run again", || have_timers(stage));
}

with_each_engine!(a_spliced_pairs_sockets_stand_still, routed);
