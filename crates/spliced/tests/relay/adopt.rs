//! `spliced adopt`: the sockets of running programs, spliced and given back.

mod flow;
mod killed;
mod list;
mod meanwhile;
mod owner;
mod refusals;
mod sudden_end;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use self::flow::in_full_flow;
use self::owner::{Owner, READS_FAR_AHEAD, adopt_by, adopting, both_ways};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::End;
use crate::relay::{CUT_SHORT, SAME_REQUEST};

fn adopt_in_full_flow(owner: &Owner, times: usize) {
    in_full_flow(owner, |wait_further| {
        for round in 0..times {
            wait_further();
            let mut adopt = owner.adopt();
            assert!(!owner.has_its_sockets());
            adopt.wait_logged("spliced moves everything");
            wait_further();
            // Ctrl-C does the same.
            let signal = [Signal::TERM, Signal::INT][round % 2];
            adopt.signal(signal);
            assert!(adopt.wait_end().success());
            let line = adopt.wait_logged("given back because of a signal");
            assert!(!line.contains(" 0 bytes"), "{line}");
            assert!(owner.has_its_sockets());
        }
        wait_further();
    });
}

#[test]
fn socat_in_full_flow_loses_no_byte() {
    if let Some(owner) = Owner::socat() {
        adopt_in_full_flow(&owner, 5);
        owner.client.end_stream();
        owner.server.expect_end();
    }
}

#[test]
fn nginx_in_full_flow_loses_no_byte() {
    if let Some(owner) = Owner::nginx() {
        adopt_in_full_flow(&owner, 5);
        owner.client.end_stream();
        owner.server.expect_end();
    }
}

#[test]
fn haproxy_in_full_flow_loses_no_byte() {
    if let Some(owner) = Owner::haproxy() {
        adopt_in_full_flow(&owner, 5);
        owner.client.end_stream();
        owner.server.expect_end();
    }
}

#[test]
fn a_python_relay_in_full_flow_loses_no_byte() {
    if let Some(owner) = Owner::python() {
        adopt_in_full_flow(&owner, 5);
        owner.client.end_stream();
        owner.server.expect_end();
    }
}

#[test]
#[ignore = "soak: 20 adoptions of each owner"]
fn owners_in_full_flow_are_adopted_twenty_times() {
    // One after the other: haproxy ends connections that are idle.
    for start in [Owner::socat, Owner::nginx, Owner::python, Owner::haproxy] {
        let Some(owner) = start() else {
            continue;
        };
        adopt_in_full_flow(&owner, 20);
        owner.client.end_stream();
        owner.server.expect_end();
    }
}

/// The same bytes, moved by the owner and by spliced.
#[test]
fn an_owner_whose_sockets_are_adopted_needs_no_cpu_time() {
    const BYTES: u64 = 60_000_000;
    // At most a twentieth of what it had needed.
    const PART: u32 = 20;
    for start in [Owner::socat, Owner::nginx, Owner::python] {
        let Some(owner) = start() else {
            continue;
        };
        let cpu_time = || owner.process.cpu_time().expect("it runs");
        let of_passing = || {
            let (before, since) = (cpu_time(), Instant::now());
            both_ways(&owner.client, &owner.server, 31, BYTES);
            let cpu_time = cpu_time() - before;
            let seconds = since.elapsed().as_secs_f64();
            eprintln!(
                "{cpu_time:?}, {:.0} MB/s",
                2.0 * BYTES as f64 / 1e6 / seconds
            );
            cpu_time
        };
        let by_itself = of_passing();
        let mut adopt = owner.adopt();
        let adopted = of_passing();
        adopt.terminate();
        assert!(adopted * PART <= by_itself, "{adopted:?} and {by_itself:?}");
    }
}

#[test]
fn sockets_of_two_processes_are_adopted() {
    // A chain: what the first socat has read and the second one has not written is in between.
    let (Some(first), Some(second)) = (Owner::socat(), Owner::socat()) else {
        return;
    };
    // The server of the first one passes on to the second one.
    both_ways(&first.client, &first.server, 3, 5000);
    both_ways(&second.client, &second.server, 3, 5000);
    let numbers = [
        first.number_to(&first.client),
        second.number_to(&second.server),
    ];
    let numbers = numbers.map(|number| number.expect("it is connected"));
    let processes = [&first.process, &second.process];
    let mut adopt = adopt_by(|| {
        let mut command = adopting(processes, numbers);
        command.stdout(Stdio::null());
        command
    });
    both_ways(&first.client, &second.server, 4, 300_000);
    adopt.terminate();
    adopt.wait_logged("300000 bytes moved from");
    for owner in [&first, &second] {
        assert!(owner.has_its_sockets());
        owner.expect_both_ways();
    }
}

/// What the owner had read and could not write is delivered before anything that came later.
#[test]
fn a_server_that_does_not_read_is_waited_for() {
    let Some(owner) = Owner::nginx_with(READS_FAR_AHEAD) else {
        return;
    };
    let payload = Payload::new(9);
    let sent = owner.fill_towards_the_server(payload);
    let mut adopt = owner.adopt_reporting(&["--json"]);
    let mut lines = BufReader::new(adopt.take_stdout()).lines();
    let mut state = || {
        let line = lines.next().expect("a report each second").expect("a line");
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        (line["state"].as_str().expect("a state").to_owned(), line)
    };
    assert_eq!(state().0, "settling");
    // The other direction does not wait.
    owner.server.send(payload, 0, 10_000);
    owner.client.expect(payload, 0, 10_000);
    // The one line tells that the server has to take what nginx had read, the next that the client has all.
    let (_, line) = state();
    let reason = line["directions"][0]["reason"].as_str();
    let reason = reason.expect("nothing moves");
    assert!(
        reason.ends_with(" bytes that the owner had read come first"),
        "{line}"
    );
    assert!(line["stood_still_seconds"].as_f64() > Some(0.0), "{line}");
    // The patience with the owner is 5 seconds; the server may take longer.
    (0..6).for_each(|_| assert_eq!(state().0, "settling"));
    owner.server.expect(payload, 0, sent);
    until("the sockets are spliced", || state().0 == "adopted");
    owner.client.send(payload, sent, 1_000_000);
    owner.server.expect(payload, sent, 1_000_000);
    let (_, line) = state();
    assert_eq!(line["directions"][1]["bytes"], 10_000, "{line}");
    assert!(
        line["directions"][0]["bytes"].as_u64() > Some(1_000_000),
        "{line}"
    );
    assert!(
        line["directions"][0]["bytes_per_second"].is_number(),
        "{line}"
    );
    // A server that reads no more.
    let sent = sent + 1_000_000;
    let more = netlab::until_at_rest(Duration::from_millis(300), {
        let mut more = 0;
        let client = &owner.client;
        move || {
            more += client.send_what_fits(payload, sent + more);
            more
        }
    });
    until("the report says why", || {
        let reason = &state().1["directions"][0]["reason"];
        reason
            .as_str()
            .is_some_and(|reason| reason.ends_with(" does not read"))
    });
    owner.server.expect(payload, sent, more);
    adopt.terminate();
    assert!(owner.has_its_sockets());
    owner.expect_both_ways();
}

#[test]
fn the_report_in_words_has_a_line_each_second_and_one_at_the_end() {
    const FORTH: u64 = 300_000;
    const BACK: u64 = 20_000;
    let Some(owner) = Owner::socat() else {
        return;
    };
    let [first, second] = owner.numbers();
    let mut adopt = owner.adopt_reporting(&[]);
    let mut lines = BufReader::new(adopt.take_stdout()).lines();
    let payload = Payload::new(11);
    owner.client.send(payload, 0, FORTH);
    owner.server.expect(payload, 0, FORTH);
    owner.server.send(payload, 0, BACK);
    owner.client.expect(payload, 0, BACK);
    let pid = owner.process.id();
    let (one, other) = (format!("{pid}:{first}"), format!("{pid}:{second}"));
    let moved = [
        format!("{one} to {other}: {FORTH} bytes ("),
        format!("{other} to {one}: {BACK} bytes ("),
    ];
    let is_now = |line: &str, state: &str| {
        let (seconds, rest) = line.split_once(" s  ").expect("the time");
        assert!(seconds.trim().parse::<f64>().is_ok(), "{line}");
        rest.starts_with(&format!("{state:<11}  "))
            && moved.iter().all(|moved| rest.contains(moved))
    };
    let mut next = || lines.next().map(|line| line.expect("a line"));
    let mut has_rate = false;
    until("the report has all, and nothing more moves", || {
        let line = next().expect("a report each second");
        has_rate |= line.contains(" bytes/s)");
        is_now(&line, "adopted")
            && line.contains(&format!("(the peer of {first} sends nothing)"))
            && line.contains(&format!("(the peer of {second} sends nothing)"))
    });
    assert!(has_rate);
    adopt.terminate();
    let last = std::iter::from_fn(next).last().expect("a last line");
    assert!(is_now(&last, "over"), "{last}");
    assert!(owner.has_its_sockets());
}

#[test]
fn how_long_the_owner_stood_still_is_told_and_bounded() {
    let Some(owner) = Owner::nginx() else {
        return;
    };
    for _ in 0..5 {
        owner.expect_both_ways();
        let mut adopt = owner.adopt_reporting(&["--json"]);
        let line = adopt.wait_logged("; the owner stood still for ");
        let mut lines = BufReader::new(adopt.take_stdout()).lines();
        let report = lines.next().expect("a report").expect("a line");
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let seconds = report["stood_still_seconds"].as_f64().expect("seconds");
        assert!(seconds > 0.0 && seconds <= 0.1, "{report}");
        let told = format!("stood still for {:.1} ms", seconds * 1000.0);
        assert!(line.contains(&told), "{line}: {report}");
        adopt.terminate();
        adopt.wait_logged("; the owner stood still for ");
    }
}

#[test]
fn the_end_of_a_stream_gives_the_sockets_back() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let mut adopt = owner.adopt();
    let payload = Payload::new(5);
    owner.client.send(payload, 0, 700_000);
    owner.client.end_stream();
    owner.server.expect(payload, 0, 700_000);
    assert!(adopt.wait_end().success());
    adopt.wait_logged("because of the end of the stream of");
    owner.server.expect_end();
    // The other direction lives on, in the hands of the owner.
    owner.server.send(payload, 0, 300_000);
    owner.client.expect(payload, 0, 300_000);
}

/// As without an adoption: socat reads the error, and ends.
#[test]
fn the_owner_meets_the_reset_of_a_connection() {
    let Some(mut owner) = Owner::socat() else {
        return;
    };
    let [number, _] = owner.numbers();
    let mut adopt = owner.adopt();
    owner.expect_both_ways();
    owner.client.reset();
    owner.server.expect_end();
    assert!(adopt.wait_end().success());
    adopt.wait_logged(&format!(
        "because of a failure of the connection of {number}"
    ));
    let ended = owner
        .process
        .wait_at_most(crate::patience::PATIENCE)
        .expect("waited");
    assert!(ended.is_some(), "the owner has met it");
}

#[test]
fn an_owner_that_is_killed_ends_its_connections() {
    let Some(owner) = Owner::socat() else {
        return;
    };
    let mut adopt = owner.adopt();
    let payload = Payload::new(6);
    owner.client.send(payload, 0, 200_000);
    owner.server.expect(payload, 0, 200_000);
    owner.process.signal(Signal::KILL).expect("killed");
    assert!(adopt.wait_end().success());
    // As the kernel ends the connections of any process.
    assert_eq!(
        owner.server.read_to_end(payload, 200_000),
        (0, End::OfStream)
    );
    assert_eq!(owner.client.read_to_end(payload, 0), (0, End::OfStream));
}

#[test]
fn a_second_signal_cuts_off_what_nobody_reads() {
    let Some(owner) = Owner::nginx_with(READS_FAR_AHEAD) else {
        return;
    };
    let payload = Payload::new(8);
    let sent = owner.fill_towards_the_server(payload);
    let mut adopt = owner.adopt();
    adopt.signal(Signal::TERM);
    thread::sleep(SAME_REQUEST);
    assert!(adopt.is_running());
    adopt.signal_until_it_ends(Signal::TERM);
    assert_eq!(adopt.wait_end().code(), Some(CUT_SHORT));
    let (received, end) = owner.server.read_to_end(payload, 0);
    assert!(received < sent);
    assert_eq!(end, End::Reset);
}
