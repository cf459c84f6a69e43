//! `spliced bypass capture`: the file that other programs read.

use std::io::{Read, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use netlab::Process;
use rustix::process::Signal;

use crate::bypass::{Ends, Place, redirected};
use crate::patience::until;
use crate::random::Random;
use crate::relay::{Relay, command, output};

impl Place {
    fn capture(&self, more: &[&str]) -> Relay {
        let all = ["bypass", "capture", "--pins", self.pins()];
        let capture = Relay::spawn_silent(
            command(&[&all, more].concat())
                .stdin(Stdio::null())
                .stdout(Stdio::piped()),
        );
        capture.wait_logged("captures; a signal ends it");
        capture
    }
}

fn until_redirected(place: &Place) -> Ends {
    let ends = place.connect();
    until("it is redirected", || {
        ends.converse(50);
        redirected(&place.status()) > 0
    });
    ends
}

/// Random messages, in turns. What each end has sent.
fn talk(ends: &Ends) -> [Vec<u8>; 2] {
    let mut random = Random::of_run(63);
    let mut all = [Vec::new(), Vec::new()];
    for round in 0..300 {
        let message: Vec<u8> = (0..random.size(3000))
            .map(|_| random.next() as u8)
            .collect();
        let (mut from, mut to) = match round % 2 {
            0 => (&ends.client, &ends.server),
            _ => (&ends.server, &ends.client),
        };
        from.write_all(&message).expect("sent");
        let mut heard = vec![0; message.len()];
        to.read_exact(&mut heard).expect("received");
        assert!(heard == message);
        all[round % 2].extend(message);
    }
    all
}

fn tcpdump(arguments: &[&str]) -> Vec<u8> {
    let mut tcpdump = Process::command("tcpdump");
    tcpdump.args(arguments);
    let told = output(&mut tcpdump);
    assert!(told.status.success(), "{told:?}");
    told.stdout
}

/// The payload of both directions in a file of the older format (pcap), as tcpdump writes it: of segments from and to this
/// port of the client. Each follows the one before, and its timestamp is not before that one's.
fn payload(file: &[u8], client_port: u16) -> [Vec<u8>; 2] {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four"));
    // Microseconds or nanoseconds.
    assert!([0xa1b2_c3d4, 0xa1b2_3c4d].contains(&word(0)));
    let mut all = [Vec::new(), Vec::new()];
    let mut next = [None; 2];
    let mut before = (0, 0);
    let mut at = 24;
    while at < file.len() {
        let time = (word(at), word(at + 4));
        assert!(before <= time, "{before:?} {time:?}");
        before = time;
        let (captured, length) = (word(at + 8) as usize, word(at + 12) as usize);
        assert_eq!(captured, length, "a packet is cut");
        let packet = &file[at + 16..at + 16 + captured];
        let ip = if packet[0] >> 4 == 4 { 20 } else { 40 };
        let port = u16::from_be_bytes([packet[ip], packet[ip + 1]]);
        let of = usize::from(port != client_port);
        let sequence = u32::from_be_bytes(packet[ip + 4..ip + 8].try_into().expect("four"));
        let bytes = &packet[ip + 20..];
        assert!(next[of].is_none_or(|next| next == sequence), "a gap");
        next[of] = Some(sequence.wrapping_add(bytes.len() as u32));
        all[of].extend(bytes);
        at += 16 + captured;
    }
    all
}

/// The statistics at the end: what was received, and what was dropped.
fn statistics(file: &[u8]) -> [u64; 2] {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four"));
    let mut at = 0;
    let mut last = 0;
    while at < file.len() {
        last = at;
        let length = word(at + 4) as usize;
        assert_eq!(word(at + length - 4) as usize, length);
        at += length;
    }
    assert_eq!(word(last), 5, "no statistics");
    let value = |code: u16| {
        let mut at = last + 20;
        loop {
            let option = word(at);
            assert_ne!(option, 0, "no option {code}");
            if option as u16 == code {
                return u64::from(word(at + 4)) | u64::from(word(at + 8)) << 32;
            }
            at += 4 + ((option >> 16) as usize).next_multiple_of(4);
        }
    };
    [value(4), value(5)]
}

#[test]
fn tcpdump_reads_what_is_captured_and_it_is_what_was_sent() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&["--bulk-bytes", "4096"]);
    let ends = until_redirected(&place);
    let scratch = netlab::Scratch::new("capture").expect("a directory");
    let path = scratch.path().join("messages.pcapng");
    let shown = path.to_str().expect("ASCII");
    let client = ends.client.local_addr().expect("bound");
    let server = ends.server.local_addr().expect("bound");
    let filter = format!("{client}-{server}");
    let mut capture = place.capture(&["-w", shown, "--connection", &filter, "--with-passed"]);
    let sent = talk(&ends);
    capture.signal(Signal::INT);
    assert_eq!(capture.wait_end().code(), Some(0));
    assert_eq!(capture.lines_logged("300 messages captured, none lost"), 1);

    let file = std::fs::read(&path).expect("a file");
    assert_eq!(statistics(&file), [300, 0]);
    let packets = tcpdump(&["-r", shown, "-w", "-"]);
    assert!(payload(&packets, client.port()) == sent, "other bytes");
    let text = tcpdump(&["-r", shown, "-nn", "-v", "--absolute-tcp-sequence-numbers"]);
    let text = String::from_utf8(text).expect("a text");
    let dotted = |end: std::net::SocketAddr| format!("{}.{}", end.ip(), end.port());
    let [there, back] = [(client, server), (server, client)]
        .map(|(from, to)| format!("{} > {}: Flags [P.], cksum", dotted(from), dotted(to)));
    for way in [there, back] {
        assert_eq!(text.matches(&way).count(), 150, "{way} in {text}");
    }
    assert_eq!(text.matches("(correct)").count(), 300, "{text}");
    ends.under_load(|| bypass.terminate());
}

#[test]
fn a_reader_of_standard_output_sees_messages_as_they_come_and_may_go_away() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&[]);
    let ends = until_redirected(&place);
    let mut capture = place.capture(&["-w", "-", "-s", "4"]);
    let mut stdout = capture.take_stdout();
    let mut reader = Process::command("tcpdump");
    let reader = reader
        .args(["-r", "-", "-nn", "-c", "10"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut reader = reader.spawn().expect("tcpdump");
    let mut stdin = reader.stdin.take().expect("piped");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Until the reader has seen enough.
            let _ = std::io::copy(&mut stdout, &mut stdin);
        });
        ends.under_load(|| assert!(reader.wait().expect("waited").success()));
        ends.under_load(|| assert_eq!(capture.wait_end().code(), Some(0)));
    });
    let mut text = String::new();
    let mut shown = reader.stdout.take().expect("piped");
    shown.read_to_string(&mut text).expect("a text");
    assert_eq!(text.lines().count(), 10, "{text}");

    // A number of messages ends it, too.
    let mut capture = place.capture(&["-w", "-", "-c", "5"]);
    let mut stdout = capture.take_stdout();
    let mut file = Vec::new();
    ends.under_load(|| {
        stdout.read_to_end(&mut file).expect("read");
    });
    assert_eq!(capture.wait_end().code(), Some(0));
    assert_eq!(statistics(&file)[1], 0);
    bypass.terminate();
}

/// Longer than a capture that says nothing is taken for alive.
const STOPPED: Duration = Duration::from_secs(6);

#[test]
fn a_reader_that_stops_loses_messages_and_is_told_how_many() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&[]);
    let ends = until_redirected(&place);
    let mut capture = place.capture(&["-w", "-"]);
    let mut stdout = capture.take_stdout();
    let begun = Instant::now();
    let count = || redirected(&place.status());
    let before = count();
    // The pipe, and the buffer of the kernel behind it, are full by then.
    ends.under_load(|| {
        until("many have passed", || {
            begun.elapsed() > STOPPED && count() > before + 60_000
        });
    });
    capture.signal(Signal::INT);
    let mut file = Vec::new();
    stdout.read_to_end(&mut file).expect("read");
    assert_eq!(capture.wait_end().code(), Some(0));
    let [received, dropped] = statistics(&file);
    assert!(0 < dropped && dropped < received, "{dropped} of {received}");
    assert!(received >= count() - before, "{received}");
    assert_eq!(capture.lines_logged("were lost, since they came faster"), 1);
    bypass.terminate();
}

#[test]
fn what_cannot_be_captured_is_said_in_one_sentence() {
    let Some(place) = Place::new() else { return };
    let capture = ["bypass", "capture", "--pins", place.pins(), "-w"];
    let refused = |more: &[&str], words: &str| {
        let told = output(&mut command(&[&capture[..], more].concat()));
        let text = String::from_utf8(told.stderr).expect("a text");
        assert_eq!(told.status.code(), Some(1), "{more:?}: {text}");
        assert!(
            text.contains(words) && text.lines().count() == 1,
            "{more:?}: {text}"
        );
    };
    refused(&["-"], "no bypass has its pins in");
    let mut bypass = place.start(&[]);
    let ends = until_redirected(&place);
    refused(
        &["-", "--connection", "192.0.2.1:1"],
        "no connection of the bypass is 192.0.2.1:1",
    );
    refused(&["/nowhere/file"], "cannot write /nowhere/file");
    let mut first = place.capture(&["-w", "/dev/null"]);
    refused(&["-"], "another process captures the messages");

    // One that is killed leaves nothing in the way.
    ends.under_load(|| {
        first.signal(Signal::KILL);
        first.wait_end();
        until("another one can capture", || {
            let told = output(&mut command(
                &[&capture[..], &["/dev/null", "-c", "10"]].concat(),
            ));
            told.status.success()
        });
    });

    // It ends with the bypass.
    let mut last = place.capture(&["-w", "/dev/null"]);
    ends.under_load(|| bypass.terminate());
    assert_eq!(last.wait_end().code(), Some(0));
    assert_eq!(last.lines_logged("the bypass has ended"), 1);
}

#[test]
fn a_capture_of_a_bypass_that_is_killed_fails_in_words_and_its_file_is_whole() {
    let Some(place) = Place::new() else { return };
    let mut bypass = place.start(&[]);
    let ends = until_redirected(&place);
    let scratch = netlab::Scratch::new("capture").expect("a directory");
    let path = scratch.path().join("messages.pcapng");
    let shown = path.to_str().expect("ASCII");
    let mut capture = place.capture(&["-w", shown]);
    ends.converse(10);
    bypass.signal(Signal::KILL);
    bypass.wait_end();
    ends.converse(10);
    assert_eq!(capture.wait_end().code(), Some(1));
    assert_eq!(
        capture.lines_logged("the process of the bypass was killed"),
        1
    );
    let [received, dropped] = statistics(&std::fs::read(&path).expect("a file"));
    assert!(received >= 20 && dropped == 0, "{received} {dropped}");

    // There is nothing to begin with.
    let late = ["bypass", "capture", "--pins", place.pins(), "-w", "-"];
    let told = output(&mut command(&late));
    let text = String::from_utf8(told.stderr).expect("a text");
    assert_eq!(told.status.code(), Some(1), "{text}");
    assert!(text.contains("was killed or stands still") && text.lines().count() == 1);
    assert!(told.stdout.is_empty());
    assert!(place.off().contains("is off"));

    // Somebody clears up before it is known for dead.
    let mut bypass = place.start(&[]);
    let ends = until_redirected(&place);
    let mut capture = place.capture(&["-w", "/dev/null"]);
    bypass.signal(Signal::KILL);
    bypass.wait_end();
    until("its lease has lapsed", || {
        place.status()["is_alive"] == false
    });
    ends.under_load(|| assert!(place.off().contains("is off")));
    assert_eq!(capture.wait_end().code(), Some(1));
    assert_eq!(
        capture.lines_logged("the process of the bypass was killed"),
        1
    );
}
