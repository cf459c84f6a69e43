//! The doctor's report, with every privilege and with one missing.

mod filter;
mod packet_filter;

use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Namespace, Need, Process, Scratch, available, present, program};
use serde_json::Value;

use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay, command, limit_with, output};
use crate::server::{Server, ask};

/// The user `nobody`, which owns nothing (Debian's `base-passwd`; kernel.overflowuid).
pub(crate) const NOBODY: &str = "65534";

/// Twice what an examination takes that nobody answers: 10 s for the engines, and 5 s for each of four trials of maps.
const EXAMINATION_MOST: Duration = Duration::from_secs(60);

/// An examination that has succeeded, whatever it has found.
fn examined(command: &mut Command) -> Output {
    let start = Instant::now();
    let output = output(command);
    let took = start.elapsed();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(took < EXAMINATION_MOST, "{took:?}");
    output
}

/// The JSON report of one examination, with every field checked.
fn report_at_once(command: &mut Command) -> Value {
    let output = examined(command);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        fields(&report),
        [
            "defects",
            "engines",
            "features",
            "kernel",
            "segments",
            "time_line"
        ]
    );
    let lists = ["time_line", "features"].map(|list| report[list].as_array().expect("a list"));
    for step in lists.into_iter().flatten() {
        assert_eq!(fields(step), ["reason", "since", "what", "works"]);
        assert!(!text(&step["reason"]).is_empty(), "{step}");
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    assert_eq!(report["kernel"], kernel.trim());
    let engines = report["engines"].as_array().expect("a list");
    let names: Vec<_> = engines.iter().map(|finding| &finding["engine"]).collect();
    let all = splice::EngineName::ALL.map(splice::EngineName::as_str);
    assert_eq!(names, all);
    for finding in engines {
        assert_eq!(fields(finding), ["engine", "reason", "remedy", "verdict"]);
        assert!(!text(&finding["reason"]).is_empty(), "{finding}");
        match text(&finding["verdict"]) {
            "yes" if finding["remedy"].is_null() => {}
            "yes" => {
                let reason = text(&finding["reason"]);
                let is_short = ["slowly", "keep it from"];
                assert!(
                    is_short.iter().any(|short| reason.contains(short)),
                    "{finding}"
                );
            }
            "no" => assert!(!text(&finding["remedy"]).is_empty(), "{finding}"),
            other => panic!("verdict {other:?}"),
        }
    }
    for defect in report["defects"].as_array().expect("a list") {
        assert_eq!(fields(defect), ["name", "present", "reason"]);
        assert!(!text(&defect["name"]).is_empty(), "{defect}");
        assert!(!text(&defect["reason"]).is_empty(), "{defect}");
        let present = &defect["present"];
        assert!(present.is_boolean() || present.is_null(), "{defect}");
    }
    report
}

/// The JSON report of an examination in which nothing was late.
///
/// A trial waits some seconds, and a busy machine can take longer. Such a finding says so, and shows nothing about the
/// kernel, so another examination has to. What never works is late in each.
fn report(command: &mut Command) -> Value {
    const EXAMINATIONS: u32 = 5;
    let mut late = Vec::new();
    for _ in 0..EXAMINATIONS {
        let report = report_at_once(command);
        late = late_findings(&report);
        if late.is_empty() {
            return report;
        }
        println!("another examination, since something was late: {late:?}");
    }
    panic!("late in each of {EXAMINATIONS} examinations, at last {late:?}");
}

/// The reasons that say that something took longer than the doctor waits.
fn late_findings(report: &Value) -> Vec<String> {
    let lists = ["engines", "defects", "time_line"];
    let all = lists.map(|list| report[list].as_array().expect("a list"));
    let reasons = all
        .into_iter()
        .flatten()
        .map(|finding| text(&finding["reason"]));
    reasons
        .filter(|reason| reason.contains("in time") || reason.contains("timed out"))
        .map(str::to_owned)
        .collect()
}

fn fields(value: &Value) -> Vec<&str> {
    let object = value.as_object().expect("an object");
    let mut names: Vec<_> = object.keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

fn finding<'a>(report: &'a Value, engine: &str) -> &'a Value {
    report["engines"]
        .as_array()
        .and_then(|all| all.iter().find(|finding| finding["engine"] == engine))
        .expect("a finding")
}

fn verdict<'a>(report: &'a Value, engine: &str) -> &'a str {
    text(&finding(report, engine)["verdict"])
}

/// The reason and the remedy for an engine that does not work.
fn refusal<'a>(report: &'a Value, engine: &str) -> (&'a str, &'a str) {
    let finding = finding(report, engine);
    assert_eq!(finding["verdict"], "no", "{finding}");
    (text(&finding["reason"]), text(&finding["remedy"]))
}

fn fionread(report: &Value) -> &Value {
    report["defects"]
        .as_array()
        .and_then(|all| all.iter().find(|defect| defect["name"] == "fionread"))
        .expect("it was looked for")
}

/// A copy of the program that every user can run, independent of the build directory's owner and of the
/// umask.
pub(crate) fn for_anybody(scratch: &Scratch) -> PathBuf {
    let spliced = scratch.path().join("spliced");
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).expect("its mode");
    // A child of another test inherits a file that is open for writing here until it calls exec, and a file
    // that is open for writing cannot be executed.
    let copied = Process::command("install")
        .args(["--mode", "755", BINARY])
        .arg(&spliced)
        .status();
    assert!(copied.expect("install of coreutils").success());
    spliced
}

/// `program` with `arguments`, which executes the doctor at the end.
fn doctor_by(program: &str, arguments: &[&str]) -> Command {
    let mut command = Process::command(program);
    command
        .args(arguments)
        .args([BINARY, "doctor", "--json"])
        .env_remove("SPLICED_LOG");
    command
}

#[test]
fn with_every_privilege_every_engine_works() {
    let report = report(&mut command(&["doctor", "--json"]));
    assert_eq!(verdict(&report, "copy"), "yes");
    assert_eq!(verdict(&report, "pipe"), "yes");
    assert_eq!(verdict(&report, "aio"), "yes");
    let forbidden = splice::EngineName::Uring.probe().err();
    if present("uring", forbidden.map(|error| error.to_string())) {
        let uring = finding(&report, "uring");
        assert_eq!(uring["verdict"], "yes", "{uring}");
        let reason = text(&uring["reason"]);
        assert!(reason.contains("between TCP and between UNIX"), "{reason}");
    }
    if !available(Need::Bpf) {
        return;
    }
    let sockmap = finding(&report, "sockmap");
    assert_eq!(sockmap["verdict"], "yes", "{sockmap}");
    let reason = text(&sockmap["reason"]);
    assert!(reason.contains("the kernel moves the bytes"), "{reason}");
    assert!(reason.contains("not between UNIX sockets"), "{reason}");
    assert!(fionread(&report)["present"].is_boolean(), "{report}");
    for name in ["empty", "splice", "udp"] {
        let defects = report["defects"].as_array().expect("a list");
        let defect = defects.iter().find(|defect| defect["name"] == name);
        assert!(
            defect.is_some_and(|defect| defect["present"].is_boolean()),
            "{name}: {report}"
        );
    }
    for step in report["time_line"].as_array().expect("a list") {
        // The kernels that this is built for have all but some.
        let is_everywhere = !["4.6", "4.20", "5.10", "6.4", "7.2"].contains(&text(&step["since"]));
        assert!(!is_everywhere || step["works"] == true, "{step}");
    }
}

#[test]
fn the_text_has_aligned_rows() {
    let output = examined(&mut command(&["doctor"]));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.starts_with("Linux "), "{text}");
    for row in [
        "  copy      yes      ",
        "  pipe      yes      ",
        "  fionread  ",
    ] {
        assert!(
            text.lines().any(|line| line.starts_with(row)),
            "no {row:?} in {text}"
        );
    }
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
        assert_eq!(line, line.trim_end());
        // A continuation line starts in the column of the text.
        if line.starts_with("   ") {
            assert_eq!(line.len() - line.trim_start().len(), 21, "{line:?}");
        }
    }
}

#[test]
fn a_missing_capability_is_named() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("nobody").expect("a directory");
    let spliced = for_anybody(&scratch);
    let with = |capabilities: &str| {
        let mut command = Process::command("setpriv");
        command
            .args(["--reuid", NOBODY, "--clear-groups"])
            .arg(format!("--inh-caps=-all{capabilities}"))
            .arg(format!("--ambient-caps=-all{capabilities}"))
            .arg("--")
            .arg(&spliced)
            .args(["doctor", "--json"])
            .env_remove("SPLICED_LOG");
        report(&mut command)
    };
    const ALL: [&str; 3] = ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON"];
    for (capabilities, missing) in [
        ("", &ALL[..]),
        (",+bpf", &ALL[1..]),
        (",+bpf,+net_admin", &ALL[2..]),
        (",+net_admin,+perfmon", &ALL[..1]),
    ] {
        let report = with(capabilities);
        assert_eq!(verdict(&report, "copy"), "yes");
        assert_eq!(verdict(&report, "pipe"), "yes");
        let (reason, remedy) = refusal(&report, "sockmap");
        for name in ALL {
            let named = missing.contains(&name);
            assert_eq!(reason.contains(name), named, "{capabilities}: {reason}");
            assert_eq!(remedy.contains(name), named, "{capabilities}: {remedy}");
        }
        // A map without a program may show it.
        let has_maps = !missing.contains(&"CAP_BPF") && !missing.contains(&"CAP_NET_ADMIN");
        assert!(
            has_maps || fionread(&report)["present"].is_null(),
            "{report}"
        );
    }
    if available(Need::Bpf) {
        let report = with(",+bpf,+net_admin,+perfmon");
        assert_eq!(verdict(&report, "sockmap"), "yes", "{report}");
        // bpf(2) takes it for each of them, and netlink does not.
        let report = with(",+sys_admin");
        assert_eq!(verdict(&report, "sockmap"), "yes", "{report}");
        let (reason, _) = refusal(&report, "segment");
        assert_eq!(reason, "this process lacks CAP_NET_ADMIN");
    }
}

#[test]
fn a_remedy_is_told_once() {
    let mut command = Process::command("setpriv");
    command
        .args(["--bounding-set=-all", "--inh-caps=-all", "--"])
        .args([BINARY, "doctor"])
        .env_remove("SPLICED_LOG");
    if !available(Need::Root) {
        return;
    }
    let text = String::from_utf8(output(&mut command).stdout).expect("text");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = |part: &str| words.matches(part).count();
    assert_eq!(count("(setcap on"), 1, "{text}");
    assert_eq!(count("Remedy: that of sockmap"), 1, "{text}");
    let others = count("not tried: maps of sockets cannot be used: as engine sockmap");
    assert!(others > 5, "{text}");
}

#[test]
fn it_shows_what_the_programs_of_relays_have_counted() {
    if !available(Need::Bpf) {
        return;
    }
    let server = Relay::echo("127.0.0.1:0", &[]);
    let relay = Relay::to(&server.address, &["--engine", "segment"]);
    let mut client = TcpStream::connect(&relay.address).expect("connected");
    until("segments are counted", || {
        client.write_all(b"x").expect("written");
        client.read_exact(&mut [0]).expect("given back");
        let report = report_at_once(&mut command(&["doctor", "--json"]));
        report["segments"]["translated"].as_u64() > Some(0)
    });
    let text = String::from_utf8(examined(&mut command(&["doctor"])).stdout).expect("text");
    let (_, counts) = text
        .split_once("Segments in the relays")
        .expect("a part of the text");
    assert!(
        counts.contains(" rewritten and sent on (translated)\n"),
        "{counts}"
    );
}

#[test]
fn a_relay_without_the_capabilities_names_them_too() {
    if !available(Need::Root) {
        return;
    }
    for engine in ["sockmap", "segment"] {
        let mut command = Process::command("setpriv");
        command
            .args(["--bounding-set=-all", "--", BINARY, "relay"])
            .args(["127.0.0.1:0", "127.0.0.1:1", "--engine", engine])
            .env_remove("SPLICED_LOG");
        let sentence = crate::usage::failure(&mut command, 2);
        for part in [
            &format!("engine {engine} cannot be used"),
            "lacks CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
            "run it as root, or give it",
        ] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

/// Without the capabilities `auto` still relays.
#[test]
fn with_auto_missing_engines_are_logged_at_debug_level() {
    if !available(Need::Root) {
        return;
    }
    const CHANCES: u32 = 20;
    /// `auto` tries `segment` for a connection after 50 ms.
    const OLD: Duration = Duration::from_millis(60);
    let server = Server::new().answering();
    let mut command = Process::command("setpriv");
    command
        .args(["--bounding-set=-all", "--", BINARY, "relay"])
        .args(["127.0.0.1:0", &server.address, "--log", "debug"])
        .env_remove("SPLICED_LOG");
    let mut relay = Relay::spawn(&mut command);
    let refusal = relay.wait_logged("engine sockmap cannot be used");
    let missing = "lacks CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";
    assert!(refusal.contains(missing), "{refusal}");
    let mut number = 0;
    let mut end_after = |life| {
        number += 1;
        let client = Peer::connect(&relay.address);
        thread::sleep(life);
        ask(&client, 0, 10, 10);
        let end = relay.wait_logged(&format!("connection {number} ended"));
        let is_known = end.contains("no direction moved bulk") || end.contains(missing);
        assert!(end.contains("engine copy: ") && is_known, "{end}");
        end
    };
    // On a busy machine the connection may live longer.
    let young = (0..CHANCES).find(|_| !end_after(Duration::ZERO).contains(missing));
    assert!(young.is_some(), "none of {CHANCES} was young");
    until("an old one tells what is missing", || {
        end_after(OLD).contains(missing)
    });
    relay.terminate();
}

#[test]
fn a_low_descriptor_limit_is_named() {
    /// Enough for the loop and a listener, but not for a connection.
    const TOO_FEW: usize = 7;
    let limited = |spare: usize| {
        let limit = format!("--nofile={0}:{0}", limit_with(spare));
        report(&mut doctor_by("prlimit", &[&limit]))
    };
    let is_blamed = |report: &Value, engine: &str| {
        let (reason, remedy) = refusal(report, engine);
        assert!(remedy.contains("RLIMIT_NOFILE"), "{engine}: {remedy}");
        let named = reason.contains("open files") || reason.contains("descriptors");
        assert!(named, "{engine}: {reason}");
    };
    let is_short = |report: &Value| {
        is_blamed(report, "pipe");
        refusal(report, "sockmap");
        if available(Need::Bpf) {
            is_blamed(report, "sockmap");
        }
    };
    let report = limited(TOO_FEW);
    is_blamed(&report, "copy");
    is_short(&report);
    // A limit that is enough for a pair is still too low for a pipe.
    let first = (TOO_FEW + 1..2 * TOO_FEW)
        .map(limited)
        .find(|report| verdict(report, "copy") == "yes")
        .expect("enough for a pair");
    is_short(&first);
}

#[test]
fn small_pipes_are_reported_with_their_limit() {
    /// A user that no other test uses.
    const USER: &str = "65533";
    /// One pipe more than fit into `fs.pipe-user-pages-soft` with 16 pages each, held while the doctor
    /// runs.
    const SCRIPT: &str = r#"
        my $pipes = shift(@ARGV);
        my @held;
        for (1..$pipes) { pipe(my $r, my $w) or die "pipe: $!"; push(@held, $r, $w); }
        exit(system(@ARGV) >> 8);
    "#;
    const SOFT: &str = "/proc/sys/fs/pipe-user-pages-soft";
    let perl = program("perl").map_or_else(|| Some("no perl".into()), |_| None);
    if !available(Need::Root) || !present("perl", perl) {
        return;
    }
    let soft = fs::read_to_string(SOFT).ok();
    let soft = soft.and_then(|text| text.trim().parse::<u32>().ok());
    let pipes = soft.unwrap_or_default() / 16 + 1;
    let many = (soft == Some(0) || pipes > 4096).then(|| format!("{SOFT} is no usual limit"));
    if !present("pipe-limit", many) {
        return;
    }
    let scratch = Scratch::new("pipes").expect("a directory");
    let spliced = for_anybody(&scratch);
    let mut command = Process::command("prlimit");
    command
        .arg("--nofile=10000")
        .args(["setpriv", "--reuid", USER, "--clear-groups"])
        .args(["--inh-caps=-all", "--", "perl", "-e", SCRIPT])
        .arg(pipes.to_string())
        .arg(&spliced)
        .args(["doctor", "--json"])
        .env_remove("SPLICED_LOG");
    let report = report(&mut command);
    let finding = finding(&report, "pipe");
    assert_eq!(finding["verdict"], "yes", "{finding}");
    let (reason, remedy) = (text(&finding["reason"]), text(&finding["remedy"]));
    assert!(
        reason.contains("slowly, since a pipe holds 8 KiB"),
        "{reason}"
    );
    assert!(remedy.contains("fs.pipe-user-pages-soft"), "{remedy}");
}

#[test]
fn without_loopback_the_doctor_reports_that_and_ends() {
    if !available(Need::Netns) {
        return;
    }
    // A loopback that was never up has no route; after down, it drops every packet.
    let namespace = Namespace::new("down").expect("a namespace");
    let mut down = namespace.command("ip");
    let status = down.args(["link", "set", "lo", "down"]).status();
    assert!(status.is_ok_and(|status| status.success()));
    let mut silent = namespace.command(BINARY);
    silent.args(["doctor", "--json"]).env_remove("SPLICED_LOG");
    let mut unreachable = doctor_by("unshare", &["--net", "--"]);
    for (command, is_late) in [(&mut silent, true), (&mut unreachable, false)] {
        let report = report_at_once(command);
        let late = late_findings(&report);
        assert!(
            !is_late || late.len() > splice::EngineName::ALL.len(),
            "{late:?}"
        );
        for engine in splice::EngineName::ALL {
            let (reason, remedy) = refusal(&report, engine.as_str());
            assert!(reason.contains("on loopback"), "{reason}");
            assert!(remedy.contains("ip link set lo up"), "{remedy}");
        }
    }
}

#[test]
fn a_closed_stdout_is_not_a_failure() {
    let mut command = Process::command("sh");
    command
        .args(["-c", r#"("$0" doctor; echo $? >&2) | true"#, BINARY])
        .env_remove("SPLICED_LOG");
    let output = output(&mut command);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "0\n");
}
