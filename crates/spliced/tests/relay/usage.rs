//! Wrong usage and help.

use std::process::{Command, Output, Stdio};

use crate::relay::{command, output};

/// The only line on stderr; stdout must be empty.
pub(crate) fn sentence(output: &Output) -> String {
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    let text = String::from_utf8(output.stderr.clone()).expect("text");
    assert_eq!(text.matches('\n').count(), 1, "not one line: {text}");
    let line = text.strip_suffix('\n').expect("a whole line");
    let sentence = line.strip_prefix("spliced: ");
    let sentence = sentence.unwrap_or_else(|| panic!("who says it: {line}"));
    assert!(!sentence.contains("Usage:"), "{sentence}");
    assert!(!sentence.contains('\x1b'), "colours for a pipe: {sentence}");
    sentence.into()
}

/// The error message of `command`, which must exit with `status`.
pub(crate) fn failure(command: &mut Command, status: i32) -> String {
    let output = output(command);
    let sentence = sentence(&output);
    assert_eq!(output.status.code(), Some(status), "{sentence}");
    sentence
}

#[test]
fn a_weight_is_said_to_be_relative() {
    for weight in ["50%", "257", "-1", "1.5", ""] {
        // Not an option.
        let arguments = ["weigh", "10.0.0.7:80", "--", weight];
        let told = failure(&mut command(&arguments), 2);
        let why = "a weight is a number from 0 to 256, relative to those of the other servers";
        assert!(told.contains(&format!("'{weight}'")), "{told}");
        assert!(told.contains(why), "{told}");
    }
}

#[test]
fn a_wrong_address_is_named_with_its_argument_and_remedy() {
    for (address, what, remedy) in [
        ("", "port is missing", "write HOST:PORT"),
        ("127.0.0.1", "port is missing", "write HOST:PORT"),
        (
            "127.0.0.1:",
            "not a number",
            "write one behind the last colon",
        ),
        (
            "127.0.0.1:65536",
            "not a number from 0 to 65535",
            "write one behind the last colon",
        ),
        (
            "127.0.0.1:http",
            "not a number",
            "write one behind the last colon",
        ),
        ("::1:80", "needs brackets", "write [::1]:80"),
        ("[::1]80", "not a number", "write one behind the last colon"),
        ("[127.0.0.1]:80", "no IPv6 address", "write [::1]:80"),
        ("http://host:80", "contains '/'", "remove it"),
        ("unix:", "needs a name", "write unix:/path"),
        ("unix:@", "needs a name", "unix:@abstract"),
        (
            &format!("unix:/{}", "x".repeat(107)),
            "107 bytes",
            "shorten it",
        ),
    ] {
        for (place, arguments) in [
            ("<LISTEN>", ["relay", address, "127.0.0.1:1"]),
            ("<TARGET>", ["relay", "127.0.0.1:0", address]),
        ] {
            let sentence = failure(&mut command(&arguments), 2);
            for part in [address, place, what, remedy] {
                assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
            }
        }
    }
}

#[test]
fn wrong_usage_is_one_sentence_and_status_2() {
    let relay = ["relay", "127.0.0.1:0", "127.0.0.1:1"];
    for (arguments, parts) in [
        (&["relay"][..], &["<LISTEN>", "<TARGET>"][..]),
        (&["relay", "127.0.0.1:0"], &["<TARGET>"]),
        (&["splice"], &["'splice'"]),
        (
            &["--engine", "smoke"],
            &["--engine", "\"smoke\"", "auto, copy, pipe"],
        ),
        (&["--engine"], &["--engine"]),
        (&["--warp"], &["'--warp'"]),
        (&["third"], &["'third'"]),
        (&["echo"], &["<LISTEN>"]),
        (&["echo", "127.0.0.1:0", "127.0.0.1:1"], &["'127.0.0.1:1'"]),
        (
            &["echo", "127.0.0.1:0", "--engine", "smoke"],
            &["--engine", "\"smoke\"", "auto, copy, pipe"],
        ),
        (&["matrix", "TCP"], &["'TCP'"]),
        (&["matrix", "--format", "json"], &["'--format'"]),
        (&["matrix", "--json=yes"], &["'yes'", "--json"]),
        (&["--threads", "0"], &["--threads", "1..=1024"]),
        (&["--threads", "x"], &["--threads", "'x'"]),
        (&["--max-connections", "0"], &["--max-connections", "1.."]),
        (
            &["--idle-timeout", "5"],
            &["--idle-timeout", "write a number and its unit"],
        ),
        (
            &["--idle-timeout", "0s"],
            &["--idle-timeout", "longer than zero"],
        ),
        (
            &["--half-close-timeout", "0s"],
            &["--half-close-timeout", "longer than zero"],
        ),
        (
            &["--keepalive", "30"],
            &["--keepalive", "write a number and its unit"],
        ),
        (
            &["--keepalive", "1500ms"],
            &["--keepalive", "whole seconds from 1s to 32767s"],
        ),
        (
            &["--keepalive", "30s,10h"],
            &["--keepalive", "interval cannot be 36000s"],
        ),
        (
            &["--keepalive", "30s,10s,128"],
            &["--keepalive", "cannot be 128; use 1 to 127"],
        ),
        (
            &["--user-timeout", "25days"],
            &["--user-timeout", "up to 2147483647ms"],
        ),
        (
            &["--connect-timeout", "0s"],
            &["--connect-timeout", "longer than zero"],
        ),
        (
            &["--drain-timeout", "soon"],
            &["--drain-timeout", "'soon'", "30s"],
        ),
        (
            &["--log", "loud"],
            &["--log", "'loud'", "off, error, warn, info"],
        ),
    ] {
        // An option, or an argument too many, follows a correct command line.
        let whole = match arguments.first() {
            Some(first) if first.starts_with("--") || *first == "third" => {
                [&relay[..], arguments].concat()
            }
            _ => arguments.to_vec(),
        };
        let sentence = failure(&mut command(&whole), 2);
        let help = match whole[0] {
            "splice" => "; see 'spliced --help'".into(),
            subcommand => format!("; see 'spliced {subcommand} --help'"),
        };
        for part in parts.iter().chain(&[help.as_str()]) {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

#[test]
fn an_error_names_the_help_of_the_subcommand() {
    for (arguments, help) in [
        (&["--log", "loud", "relay", ":0", ":1"][..], "spliced relay"),
        (&["--log=loud", "echo", ":0"], "spliced echo"),
        (&["doctor", "now"], "spliced doctor"),
        (&["--log", "relay"], "spliced"),
        (&["--warp", "relay"], "spliced relay"),
    ] {
        let sentence = failure(&mut command(arguments), 2);
        let words = format!("; see '{help} --help'");
        assert!(sentence.ends_with(&words), "no {words:?} in {sentence:?}");
    }
}

#[test]
fn a_mistyped_option_is_told_what_it_may_mean() {
    for (arguments, told) in [
        (
            &["relay", "--max-session", "4"][..],
            "write --max-sessions if that is meant",
        ),
        (&["sesions"], "write sessions if that is meant"),
        (
            &["relay", "--threads", "1k"],
            "'1k' for '--threads <N>': it is not a number;",
        ),
    ] {
        let sentence = failure(&mut command(arguments), 2);
        assert!(sentence.contains(told), "{sentence}");
    }
}

#[test]
fn without_a_subcommand_the_subcommands_are_listed() {
    let output = output(&mut command(&[]));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(output.stdout, b"");
    let text = String::from_utf8(output.stderr).expect("text");
    assert!(text.contains("relay"), "{text}");
}

#[test]
fn the_environment_variable_is_validated_like_the_option() {
    let mut wrong = command(&["relay", "127.0.0.1:0", "127.0.0.1:1"]);
    let sentence = failure(wrong.env("SPLICED_LOG", "loud"), 2);
    assert!(sentence.contains("'loud'"), "{sentence}");
    assert!(sentence.contains("debug"), "{sentence}");
}

#[test]
fn an_unresolvable_name_to_listen_on_is_a_runtime_failure() {
    // The resolver rejects a label of more than 63 bytes without asking a server.
    let name = format!("{}:80", "x".repeat(64));
    let sentence = failure(&mut command(&["relay", &name, "127.0.0.1:1"]), 1);
    for part in [&name, "cannot be resolved; check it"] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
}

/// Otherwise the relay would reset every client.
#[test]
fn segment_refuses_to_start_without_a_common_address_family() {
    for (listen, target, theirs) in [
        ("127.0.0.1:0", "[::1]:1", "[::1]:1 is reached over IPv6"),
        ("0.0.0.0:0", "[::1]:1", "clients come over IPv4"),
        ("[::1]:0", "127.0.0.1:1", "127.0.0.1:1 is reached over IPv4"),
        ("[::1]:0", "[::ffff:127.0.0.1]:1", "is reached over IPv4"),
    ] {
        let arguments = ["relay", listen, target, "--engine", "segment"];
        let sentence = failure(&mut command(&arguments), 2);
        for part in ["engine segment", theirs, "use copy or pipe"] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

/// Otherwise the relay would reset every client.
#[test]
fn an_engine_without_unix_support_refuses_to_start_with_unix_sockets() {
    let unix = format!("unix:@spliced-test-usage-{}", std::process::id());
    for (arguments, engine) in [
        (&["relay", "127.0.0.1:0", &unix][..], "sockmap"),
        (&["relay", &unix, "127.0.0.1:1"], "sockmap"),
        (&["relay", "127.0.0.1:0", &unix], "segment"),
        (&["relay", &unix, "127.0.0.1:1"], "segment"),
        (&["echo", &unix], "sockmap"),
    ] {
        let whole = [arguments, &["--engine", engine]].concat();
        let sentence = failure(&mut command(&whole), 2);
        for part in [engine, "cannot take", "use copy or pipe"] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

/// The text of the help, independent of the terminal's width.
fn in_one_line(help: Vec<u8>) -> String {
    let text = String::from_utf8(help).expect("text");
    let words: Vec<_> = text.split_whitespace().collect();
    words.join(" ")
}

#[test]
fn the_help_describes_every_address_option_and_signal() {
    let all = output(&mut command(&["--help"]));
    assert_eq!(all.status.code(), Some(0));
    assert_eq!(all.stderr, b"");
    let text = in_one_line(all.stdout);
    for part in ["relay", "doctor", "--log", "SPLICED_LOG", "Usage: spliced"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    for arguments in [["relay", "--help"], ["help", "relay"]] {
        let relay = output(&mut command(&arguments));
        assert_eq!(relay.status.code(), Some(0));
        assert_eq!(relay.stderr, b"");
        let text = in_one_line(relay.stdout);
        for part in [
            "<LISTEN> <TARGET>",
            "127.0.0.1:80",
            "[::1]:80",
            ":80",
            "host:port",
            "unix:/path",
            "unix:@abstract",
            "--engine",
            "copy",
            "pipe",
            "uring",
            "kernel.io_uring_disabled",
            "sockmap",
            "segment",
            "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
            "spliced doctor",
            "--threads",
            "--idle-timeout",
            "5m",
            "--half-close-timeout",
            "--keepalive",
            "30s,10s,3",
            "--user-timeout",
            "--connect-timeout",
            "[default: 5s]",
            "--max-connections",
            "--drain-timeout",
            "[default: 30s]",
            "--access-log",
            "--log",
            "SPLICED_LOG",
            "SIGTERM",
            "SIGINT",
            "SIGHUP",
            "SIGUSR1",
            "SIGUSR2",
            "one second after",
            "dropped and counted",
            "Exit status: 0",
            "3 connections were reset",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }
}

#[test]
fn the_doctors_help_names_the_engines_and_the_output() {
    let help = output(&mut command(&["doctor", "--help"]));
    assert_eq!(help.status.code(), Some(0));
    let text = in_one_line(help.stdout);
    let engines = splice::EngineName::ALL.map(splice::EngineName::as_str);
    for part in engines
        .iter()
        .chain(&["--json", "Exit status:", "0 examined"])
    {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    let sentence = failure(&mut command(&["doctor", "now"]), 2);
    assert!(sentence.contains("'now'"), "{sentence}");
}

#[test]
fn version_is_printed() {
    let version = output(&mut command(&["--version"]));
    assert_eq!(version.status.code(), Some(0));
    // The commit follows, if it is known.
    let said = String::from_utf8_lossy(&version.stdout);
    let expected = concat!("spliced ", env!("CARGO_PKG_VERSION"));
    let rest = said.strip_prefix(expected).expect("name and version");
    assert!(rest == "\n" || rest.starts_with(" ("), "{said}");
}

#[test]
fn a_time_beyond_the_clock_is_refused() {
    let arguments = ["relay", ":0", ":1", "--connect-timeout", "400000000000y"];
    let sentence = failure(&mut command(&arguments), 2);
    assert!(sentence.contains("longer than a year"), "{sentence}");
}

/// As behind `| head`, which has read enough.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    for arguments in [
        &["--help"][..],
        &["doctor", "--json"],
        &["bypass", "off", "--pins", "/sys/fs/bpf/no-such-bypass"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = command(arguments);
        let process = command.stdout(writer).stderr(Stdio::piped()).output();
        let process = process.expect("it runs");
        let told = String::from_utf8_lossy(&process.stderr);
        assert!(process.status.success(), "{arguments:?}: {told}");
        assert!(!told.contains("panicked"), "{arguments:?}: {told}");
    }
}
