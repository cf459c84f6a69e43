//! The experiments measure what they say, notice what is wrong, and clean up.

#[path = "support/left_behind.rs"]
mod left_behind;
#[path = "support/stand_in.rs"]
mod stand_in;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use netlab::{Need, Process, Scratch, available, present, program};
use rustix::process::Signal;

use left_behind::left_behind_by;
use stand_in::{SPOIL, play, script, sound};

/// In seconds; none of these runs takes a tenth of it on an idle machine.
const PATIENCE_SECONDS: u64 = 120;

/// Not a test of its own: spliced for the others.
#[test]
#[ignore = "the child's part of the other tests"]
fn play_spliced() {
    play();
}

fn reproduce(arguments: &str, spliced: Option<&Path>) -> Command {
    let mut command = Command::new("timeout");
    command
        .arg(PATIENCE_SECONDS.to_string())
        .arg(env!("CARGO_BIN_EXE_splice-bench"))
        .arg("reproduce")
        .args(arguments.split_ascii_whitespace());
    if let Some(spliced) = spliced {
        command.arg("--spliced").arg(spliced);
    }
    command
}

fn run(arguments: &str, spliced: Option<&Path>) -> (Output, String) {
    let output = reproduce(arguments, spliced)
        .output()
        .expect("the bench has been built");
    let text = [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat();
    (output, text)
}

/// Answers every request at its argument with metrics that say nothing.
const METRICS_SERVER: &str = "
import socket, sys
address, port = sys.argv[1].rsplit(':', 1)
server = socket.create_server((address, int(port)))
while True:
    client, _ = server.accept()
    client.recv(65536)
    client.sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\n# EOF\\n')
    client.close()
";

fn without(name: &str) -> Option<String> {
    let missing = program(name).is_none();
    missing.then(|| format!("no {name} (apt install {name})"))
}

/// The proxy of `reproduce cpu` is built by the bench.
fn without_compiler() -> bool {
    let missing = program("cc").is_none();
    let why = missing.then(|| "no cc (apt install build-essential)".into());
    !present("cc", why)
}

/// The cell of a table in `text`: the last table whose heading line says `heading`, the row that
/// begins with `row`, counted from the right.
fn cell(text: &str, heading: &str, row: &str, from_right: usize) -> f64 {
    let (_, table) = text.rsplit_once(heading).expect(heading);
    let line = table.lines().find(|line| line.starts_with(row));
    let cell = line.and_then(|line| line.split_ascii_whitespace().rev().nth(from_right));
    cell.and_then(|cell| cell.parse().ok())
        .unwrap_or_else(|| panic!("no number in row {row:?} below {heading:?}: {text}"))
}

const POLLED: usize = 0;
const PACKETS: usize = 1;
const WAKE_UPS: usize = 3;

#[test]
fn the_echo_is_told_as_in_2019() {
    if !available(Need::Netns) || !available(Need::Bpf) {
        return;
    }
    let scratch = Scratch::new("echo").expect("a directory");
    let directory = scratch.path().join("results");
    let arguments = format!(
        "echo --runs 2 --bursts 50 --block 16KiB,128KiB --only copy,sockmap-2019 --output {}",
        directory.display()
    );
    let (output, text) = run(&arguments, Some(&sound(&scratch, "")));
    assert!(output.status.success(), "{text}");

    // Three servers, with and without busy polling, two sizes; each whole and without the worst.
    let values = text.lines().filter(|line| line.starts_with("Values min:"));
    let counted = values.filter(|line| line.ends_with(" count:100")).count();
    assert_eq!(counted, 12, "{text}");
    let trimmed = text
        .lines()
        .filter(|line| line.starts_with("without the worst 1 %: Values min:"));
    assert_eq!(
        trimmed.filter(|line| line.ends_with(" count:99")).count(),
        12,
        "{text}"
    );
    assert_eq!(text.matches(" value |-----").count(), 12, "{text}");

    // The kernel's own counter: SOCKMAP echoes without its process, a loop of read and write not.
    let heading = "Bursts of 16 KiB, normal";
    assert!(cell(&text, heading, "read/write", WAKE_UPS) > 0.5, "{text}");
    assert!(
        cell(&text, heading, "sockmap-2019", WAKE_UPS) < 0.1,
        "{text}"
    );

    // 16 KiB there and back are a packet each way at least, and no more than segments would be.
    let packets = cell(&text, heading, "read/write", PACKETS);
    assert!((2.0..50.0).contains(&packets), "{text}");

    let json = fs::read_to_string(directory.join("results.json")).expect("it was written");
    for part in [
        "echo-16384",
        "echo-131072",
        "sockmap-2019",
        "\"busy poll\"",
        "\"complete\": true",
    ] {
        assert!(json.contains(part), "{part} is not in {json}");
    }
}

#[test]
fn busy_polling_is_counted_where_there_is_a_device_to_poll() {
    let missing = program("ethtool")
        .is_none()
        .then(|| "no ethtool (apt install ethtool)".into());
    let one_cpu = thread::available_parallelism().map_or(1, Into::into) < 2;
    if !available(Need::Netns)
        || !present("ethtool", missing)
        || !present("cpus", one_cpu.then(|| "there is one CPU only".into()))
    {
        return;
    }
    let scratch = Scratch::new("polling").expect("a directory");
    let spliced = script(&scratch, "echo 'not asked for' >&2; exit 2");
    let polled = |more: &str| {
        let arguments =
            format!("echo --runs 1 --bursts 200 --block 16KiB --only read/write {more}");
        let (output, text) = run(&arguments, Some(&spliced));
        assert!(output.status.success(), "{text}");
        let of = |way| {
            cell(
                &text,
                &format!("Bursts of 16 KiB, {way}"),
                "read/write",
                POLLED,
            )
        };
        (of("normal"), of("busy poll"))
    };
    // A veth as it comes has no NAPI, so SO_BUSY_POLL finds nothing to do.
    assert_eq!(polled("--server-cpu 1"), (0.0, 0.0));
    let (normal, busy) = polled("--server-cpu 1 --napi");
    assert_eq!(normal, 0.0);
    assert!(busy > 0.0, "{busy}");
}

#[test]
fn an_echo_that_changes_a_bit_fails() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("spoiled").expect("a directory");
    let spliced = sound(&scratch, &format!("{SPOIL}=1"));
    let (output, text) = run(
        "echo --runs 1 --bursts 3 --block 1MiB --only copy",
        Some(&spliced),
    );
    assert_eq!(output.status.code(), Some(1), "{text}");
    let said = "spliced copy FAILED: run 1, bursts of 1 MiB: burst 1: byte 0 came back changed";
    assert!(text.contains(said), "{text}");
}

#[test]
fn an_engine_without_an_echo_is_named_with_its_reason() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("refusing").expect("a directory");
    let spliced = script(
        &scratch,
        "echo 'this kernel has no such engine' >&2; exit 2",
    );
    let (output, text) = run("echo --quick --block 16KiB --only aio", Some(&spliced));
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("\nspliced aio: this kernel has no such engine"),
        "{text}"
    );
}

#[test]
fn a_check_is_timed_for_each_configuration() {
    let scratch = Scratch::new("reproduce").expect("a directory");
    scratch
        .write("one.toml", "[[listener]]\n")
        .expect("written");
    // It is no measurement if the check was not one.
    let spliced = script(
        &scratch,
        "[ \"$1 $2\" = 'check --config' ] && grep -q 'listener' \"$3\" || kill -9 $$",
    );
    let examples = scratch.path().display();
    let arguments = format!("configurations --rounds 3 --listeners 7 --examples {examples}");
    let (output, text) = run(&arguments, Some(&spliced));
    assert!(output.status.success(), "{text}");
    for row in ["\none ", "\n7-listeners "] {
        assert!(text.contains(row), "{text}");
    }
    scratch.write("one.toml", "").expect("written");
    let (output, text) = run(&arguments, Some(&spliced));
    assert!(!output.status.success(), "{text}");
}

#[test]
fn datagrams_before_loss_are_measured_beside_peers() {
    let one_cpu = thread::available_parallelism().map_or(1, Into::into) < 2;
    let missing = program("nginx")
        .is_none()
        .then(|| "no nginx (apt install nginx-light)".into());
    if !available(Need::Netns)
        || !present("nginx", missing)
        || !present("cpus", one_cpu.then(|| "there is one CPU only".into()))
    {
        return;
    }
    let scratch = Scratch::new("udp").expect("a directory");
    // The stand-in is no relay of datagrams: its absence must be told, and the peer be measured.
    let spliced = script(&scratch, "echo 'no datagrams here' >&2; exit 2");
    let (output, text) = run(
        &format!(
            "udp --rounds 1 --milliseconds 20 --clients 5 --size 64 --burst 2 --only spliced --output {}",
            scratch.path().join("out").display()
        ),
        Some(&spliced),
    );
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("spliced FAILED: the relay passes on only 0 of 5 clients"),
        "{text}"
    );
    let results = fs::read_to_string(scratch.path().join("out/results.json")).expect("results");
    assert!(
        results.contains("Datagrams a second before loss"),
        "{results}"
    );
    assert!(results.contains("nginx stream"), "{results}");
}

#[test]
fn a_bypassed_connection_is_measured_beside_a_plain_one() {
    if !available(Need::Netns) || !available(Need::Bpf) {
        return;
    }
    let scratch = Scratch::new("bypass").expect("a directory");
    let arguments = format!(
        "bypass --quick --output {}",
        scratch.path().join("out").display()
    );
    // It fails by itself when a connection is not taken past TCP, or once it is, more than a twentieth of its messages
    // do not take that way.
    let (output, text) = run(&arguments, None);
    assert!(output.status.success(), "{text}");
    for row in ["plain TCP", "send to local"] {
        assert!(cell(&text, "p99.9 (ratio)", row, 0) > 100.0, "{text}");
    }
    let (output, text) = run(&arguments, None);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("holds results already"), "{text}");
}

#[test]
fn relays_are_measured_beside_the_direct_path() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("relays").expect("a directory");
    let spliced = sound(&scratch, "");
    for (experiment, extent, heading) in [
        ("relay", "--quick", "p99.9 (ratio)"),
        (
            "cpu",
            "--rounds 1 --milliseconds 100",
            "sum of parts (ratio)",
        ),
    ] {
        let directory = scratch.path().join(experiment);
        let arguments = format!(
            "{experiment} {extent} --only copy --output {}",
            directory.display()
        );
        let (output, text) = run(&arguments, Some(&spliced));
        assert!(output.status.success(), "{text}");
        for row in ["direct ", "direct again", "spliced copy"] {
            assert!(cell(&text, heading, row, 0) >= 0.0, "{text}");
        }
        assert!(directory.join("results.json").is_file(), "{text}");
    }
}

/// The stand-in has no metrics itself.
#[test]
fn scrapes_are_measured_and_one_that_fails_is_told() {
    if !available(Need::Netns) || !present("python3", without("python3")) {
        return;
    }
    let scratch = Scratch::new("scrapes").expect("a directory");
    let sound = sound(&scratch, "");
    let sound = fs::read_to_string(sound).expect("a script");
    let (_, relay) = sound.split_once('\n').expect("its first line");
    let server = scratch.write("metrics.py", METRICS_SERVER).expect("a file");
    // The arguments are `relay LISTEN TARGET --engine NAME --threads N --metrics ADDRESS`.
    let text = format!("python3 {} \"$9\" &\n{relay}", server.display());
    for (text, is_whole) in [(text.as_str(), true), (relay, false)] {
        let spliced = script(&scratch, text);
        let (output, text) = run("scrape --quick --sessions 20", Some(&spliced));
        assert_eq!(output.status.success(), is_whole, "{text}");
        assert_eq!(text.contains("a scrape failed"), !is_whole, "{text}");
        if is_whole {
            for row in ["not scraped", "scraped"] {
                assert!(cell(&text, "p99.9 (ratio)", row, 0) > 0.0, "{text}");
            }
            assert!(text.contains(" scrapes: median "), "{text}");
        }
    }
}

#[test]
fn the_proxy_that_splices_is_named_as_absent_with_its_reason() {
    if !available(Need::Netns) || without_compiler() {
        return;
    }
    let scratch = Scratch::new("proxies").expect("a directory");
    let spliced = sound(&scratch, "");
    // The loader ignores what is no library, and the proxy then finds no SO_SPLICE.
    let other = scratch.write("other.so", "").expect("it is writable");
    let beside = scratch.path().join("libso_splice.so");
    for (library, why) in [
        (None, format!("there is no {}: build it", beside.display())),
        (Some(&other), "so_splice_proxy: no SO_SPLICE here: ".into()),
    ] {
        let mut arguments = String::from("cpu --rounds 1 --milliseconds 100 --only proxy-splice");
        if let Some(library) = library {
            arguments += &format!(" --so-splice {}", library.display());
        }
        let (output, text) = run(&arguments, Some(&spliced));
        assert!(output.status.success(), "{text}");
        assert!(text.contains(&format!("\nproxy splice: {why}")), "{text}");
        let heading = "sum of parts (ratio)";
        assert!(cell(&text, heading, "proxy copy", 0) >= 0.0, "{text}");
    }
}

#[test]
fn what_cannot_be_meant_is_one_sentence() {
    if !available(Need::Root) {
        return;
    }
    for (arguments, said) in [
        ("echo --spliced /no/such", "there is no program /no/such"),
        (
            "echo --spliced /bin/sh --only envoy",
            "--only does not know \"envoy\"",
        ),
        (
            "echo --spliced /bin/sh --block 7",
            "a burst is a multiple of 8 bytes",
        ),
        ("echo --spliced /bin/sh --runs 0", "0 is not in 1.."),
        ("echo --spliced /bin/sh --napi", "--server-cpu"),
        ("relay", "--spliced"),
        ("scrape --spliced /bin/sh --sessions 0", "0 is not in 1.."),
        (
            "relay --spliced /bin/sh --only nginx",
            "--only does not know \"nginx\"",
        ),
        ("cpu --spliced /bin/sh --milliseconds 0", "0 is not in 1.."),
        (
            "bypass --spliced /bin/sh",
            "unexpected argument '--spliced'",
        ),
    ] {
        let (output, text) = run(arguments, None);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {text}");
        assert!(text.contains(said), "{arguments}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{arguments}: {text}");
    }
}

#[test]
fn an_interrupted_run_tells_what_it_has_and_leaves_nothing() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("interrupted").expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_splice-bench"));
    command
        .args(["reproduce", "echo", "--bursts", "100", "--runs", "1000"])
        .args(["--block", "16KiB", "--only", "copy", "--spliced"])
        .arg(sound(&scratch, ""))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command).expect("the bench has been built");
    let lines = BufReader::new(process.child_mut().stderr.take().expect("it is piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(
        lines.any(|line| line.starts_with("run 2 of 1000")),
        "it got to its second run"
    );

    process.signal(Signal::INT).expect("it still runs");
    let status = process
        .wait_at_most(Duration::from_secs(PATIENCE_SECONDS))
        .expect("it is a child")
        .expect("it ends");
    assert_eq!(status.code(), Some(128 + Signal::INT.as_raw()));
    assert!(lines.any(|line| line.contains("interrupted")), "it says so");
    assert_eq!(left_behind_by(process.id()), Vec::<String>::new());
}
