//! `spliced top` on a terminal, beside real processes.

mod servers;
mod terminal;

use std::os::unix::process::ExitStatusExt as _;

use netlab::Scratch;
use rustix::process::Signal;

use self::terminal::Terminal;
use crate::payload::Payload;
use crate::peer::Peer;
use crate::relay::{Relay, command};
use crate::server::Server;
use crate::usage::failure;

const USUAL: terminal::Size = (80, 24);
const F1: &str = "\x1bOP";
const F3: &str = "\x1bOR";
const F4: &str = "\x1bOS";
const F6: &str = "\x1b[17~";
const F9: &str = "\x1b[20~";
const F10: &str = "\x1b[21~";
const DOWN: &str = "\x1b[B";
const END: &str = "\x1b[F";

/// A relay with sessions.
struct Scene {
    relay: Relay,
    server: Server,
    sessions: Vec<(Peer, Peer)>,
    socket: String,
    _scratch: Scratch,
}

impl Scene {
    fn with_sessions(count: usize) -> Self {
        let scratch = Scratch::new("top").expect("a directory");
        let socket = scratch.path().join("sock").display().to_string();
        let server = Server::new();
        let options = ["--engine", "copy", "--control", &socket];
        let relay = Relay::to(&server.address, &options);
        let mut scene = Self {
            relay,
            server,
            sessions: Vec::new(),
            socket,
            _scratch: scratch,
        };
        for _ in 0..count {
            scene.join();
        }
        scene
    }

    /// A client, and what it has at the server.
    fn join(&mut self) {
        let near = Peer::connect(&self.relay.address);
        let far = self.server.accept();
        near.write_number(1);
        assert_eq!(far.read_number(), 1);
        self.sessions.push((near, far));
    }

    fn top(&self, size: terminal::Size) -> Terminal {
        Terminal::top(size, &["--control", &self.socket])
    }

    /// `line` with what differs between runs in words.
    fn words(&self, line: &str) -> String {
        let mut line = line.replace(&self.server.address, "SERVER");
        for (number, (near, _)) in self.sessions.iter().enumerate() {
            line = line.replace(&near.local_address(), &format!("CLIENT{}", number + 1));
        }
        let words = line.split_whitespace().map(|word| {
            // 1.50K, 59.9s, 1m2s
            let is_figure = !word.contains(':')
                && word.starts_with(|first: char| first.is_ascii_digit())
                && word
                    .chars()
                    .any(|one| one == '.' || one.is_ascii_alphabetic());
            if is_figure { "#" } else { word }
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Whether a page with so many sessions is there, up to its last line.
fn has_rows(count: usize) -> impl Fn(&[String]) -> bool {
    let title = format!("{count} session");
    move |lines| {
        let is_whole = lines.last().is_some_and(|line| line.starts_with("F1Help"));
        is_whole && lines[0].contains(&title) && lines.iter().any(|line| line.contains("copy"))
    }
}

#[test]
fn the_page_of_sessions_in_80_columns() {
    let scene = Scene::with_sessions(2);
    let mut top = scene.top(USUAL);
    let lines = top.until("both are there", |lines| {
        // Nothing has passed since the last answer.
        has_rows(2)(lines) && lines[0].contains(", 0/s")
    });
    let words: Vec<_> = lines.iter().map(|line| scene.words(line)).collect();
    let mut expected = vec![
        "spliced top: 1 process, 2 sessions, # every #",
        "1 Sessions 2 Backends 3 Engines by rate",
        "ID LISTENER CLIENT TARGET ENGINE RATE BYTES AGE IDLE",
        "1 127.0.0.1:0 CLIENT1 SERVER copy 0 8 # #",
        "2 127.0.0.1:0 CLIENT2 SERVER copy 0 8 # #",
    ];
    expected.resize(21, "");
    expected.push("1: copy: asked for by name");
    assert_eq!(words[..22], expected);
    let more = "relaying, 8 to the target (0/s), 0 to the client (0/s), listener 127.0.0.1:0";
    assert!(words[22].starts_with(more), "{}", words[22]);
    assert_eq!(
        words[23],
        "F1Help F3Search F4Filter F6Sort F9Kill F10Quit TabPage pPause"
    );
    assert!(top.is_taken());
}

#[test]
fn the_page_of_sessions_in_200_columns() {
    let scene = Scene::with_sessions(1);
    let mut top = scene.top((200, 60));
    let lines = top.until("it is there", |lines| {
        has_rows(1)(lines) && lines[0].contains(", 0/s")
    });
    let words: Vec<_> = lines.iter().map(|line| scene.words(line)).collect();
    assert_eq!(lines.len(), 60);
    assert_eq!(
        words[2],
        "ID LISTENER CLIENT BACKEND TARGET NAME PHASE ENGINE RATE BYTES AGE IDLE TO TARGET/S TO CLIENT/S WHY THIS ENGINE"
    );
    assert_eq!(
        words[3],
        "1 127.0.0.1:0 CLIENT1 SERVER SERVER - relaying copy 0 8 # # 0 0 asked for by name"
    );
    assert_eq!(
        words[58],
        "relaying, 8 to the target (0/s), 0 to the client (0/s), listener 127.0.0.1:0, backend SERVER, server SERVER"
    );
    assert!(words[59].starts_with("F1Help"), "{}", words[59]);
    // What passes has a rate.
    let (near, far) = &scene.sessions[0];
    for number in 0..200 {
        near.send(Payload::new(1), number * 1000, 1000);
        far.expect(Payload::new(1), number * 1000, 1000);
    }
    top.until("it is counted", |lines| lines[3].contains(" 195K "));
}

#[test]
fn the_page_of_engines_counts_sessions_by_reason() {
    let scene = Scene::with_sessions(3);
    let mut top = scene.top(USUAL);
    top.until("they are there", has_rows(3));
    top.press("\x1b[Z");
    let lines = top.until("nothing passes", |lines| {
        lines[2].contains("NO FASTER ONE")
            && lines[0].contains(", 0/s")
            && lines[21].contains("copy:")
    });
    let words: Vec<_> = lines.iter().map(|line| scene.words(line)).collect();
    assert_eq!(
        words[2],
        "ENGINE SESSIONS RATE BYTES WHY THIS ENGINE, AND NO FASTER ONE"
    );
    assert_eq!(words[3], "copy 3 0 24");
    assert_eq!(words[4], "3 0 24 asked for by name");
    top.press("\t");
    top.until_shown("CLIENT");
}

#[test]
fn it_follows_the_size_of_the_terminal_down_to_one_cell() {
    let scene = Scene::with_sessions(2);
    let mut top = scene.top(USUAL);
    top.until("they are there", has_rows(2));
    let (client, _) = &scene.sessions[0];
    let client = client.local_address();
    for size in [(20, 5), (1, 1), (3, 2), (200, 60), (7, 40), (100, 4), USUAL] {
        top.resize(size);
        let begin: String = client
            .chars()
            .take(usize::from(size.0).saturating_sub(4))
            .collect();
        top.until(&format!("it fits {size:?}"), |lines| {
            lines
                .iter()
                .any(|line| line.contains(['1', '2']) && (size.0 < 21 || line.contains(&begin)))
                && (size.1 < 6 || lines[0].starts_with(&"spliced"[..7.min(size.0.into())]))
        });
        // Every key is taken, whatever there is room for.
        for keys in [
            F1, "x", F6, "\x1b", F3, "1\r", F4, "\x1b", F9, "n", "2", "3", "1", END,
        ] {
            top.press(keys);
        }
    }
    top.until("all is there again", has_rows(2));
    top.press(F10);
    assert!(top.wait_end().success());
    top.expect_as_before();
}

#[test]
fn a_signal_ends_it_and_leaves_the_terminal_as_it_was() {
    let scene = Scene::with_sessions(1);
    for signal in [Signal::TERM, Signal::HUP, Signal::QUIT, Signal::INT] {
        let mut top = scene.top(USUAL);
        top.until("it is there", has_rows(1));
        assert!(top.is_taken());
        top.signal(signal);
        assert_eq!(top.wait_end().signal(), Some(signal.as_raw()));
        top.expect_as_before();
    }
}

#[test]
fn a_terminal_that_nobody_reads_does_not_keep_it() {
    let scene = Scene::with_sessions(1);
    let mut top = scene.top((500, 100));
    top.until("it is there", has_rows(1));
    top.until_full();
    top.signal(Signal::TERM);
    assert_eq!(top.wait_end_unread().signal(), Some(Signal::TERM.as_raw()));
    top.expect_modes_as_before();
}

#[test]
fn keys_end_it_and_leave_the_terminal_as_it_was() {
    let scene = Scene::with_sessions(1);
    for keys in ["q", F10, "\x03"] {
        let mut top = scene.top(USUAL);
        top.until("it is there", has_rows(1));
        top.press(keys);
        assert_eq!(top.wait_end().code(), Some(0));
        top.expect_as_before();
    }
}

#[test]
fn it_ends_with_its_terminal() {
    let scene = Scene::with_sessions(1);
    let arguments = ["--control", &*scene.socket];
    let mut told = scene.top(USUAL);
    let mut not_told = Terminal::top_without_control(USUAL, &arguments);
    for top in [&mut told, &mut not_told] {
        top.until("it is there", has_rows(1));
        top.hang_up();
    }
    // By the signal, or by what it reads.
    assert!(!told.wait_end().success());
    let ended = not_told.wait_end();
    assert_eq!(ended.code(), Some(1), "{ended}");
}

#[test]
fn it_stops_and_goes_on() {
    let mut scene = Scene::with_sessions(1);
    let mut top = scene.top(USUAL);
    top.until("it is there", has_rows(1));
    for number in 2..4 {
        // By the key, and by somebody else.
        match number {
            2 => top.press("\x1a"),
            _ => top.signal(Signal::TSTP),
        }
        top.until_stopped();
        top.expect_as_before();
        scene.join();
        top.signal(Signal::CONT);
        top.until("it shows the new one", has_rows(number));
        assert!(top.is_taken());
    }
    top.press("q");
    assert!(top.wait_end().success());
    top.expect_as_before();
}

#[test]
fn the_session_under_the_cursor_is_ended_once_it_is_confirmed() {
    let scene = Scene::with_sessions(3);
    let mut top = Terminal::top(USUAL, &["--control", &scene.socket, "--sort", "age"]);
    top.until("they are there", has_rows(3));
    top.press(DOWN);
    top.press(F9);
    let client = scene.sessions[1].0.local_address();
    let process = scene.relay.id();
    let question = format!("End session 2 of process {process}, {client} to ");
    top.until_shown(&question);
    top.press("n");
    top.until_gone(&question);
    // The other way round, and still the same one.
    top.press("I");
    top.until_shown("reversed");
    top.press("k");
    top.until_shown(&question);
    top.press("y");
    top.until_shown("session 2 is being ended");
    scene.sessions[1].0.expect_reset();
    scene.sessions[1].1.expect_reset();
    let lines = top.until("it is gone", has_rows(2));
    assert!(
        lines.iter().all(|line| !line.contains(&client)),
        "{lines:?}"
    );
    for number in [0, 2] {
        let (near, far) = &scene.sessions[number];
        far.write_number(7);
        assert_eq!(near.read_number(), 7);
    }
    // The order is sent, although it ends at once.
    top.press("\x1b[H");
    top.press(F9);
    top.press("yq");
    assert!(top.wait_end().success());
    scene.sessions[2].0.expect_reset();
}

#[test]
fn sessions_are_filtered_sorted_and_searched_for_by_keys() {
    let scene = Scene::with_sessions(3);
    let (near, far) = &scene.sessions[1];
    near.write_number(3);
    assert_eq!(far.read_number(), 3);
    let mut top = scene.top(USUAL);
    let clients = [0, 1, 2].map(|number: usize| scene.sessions[number].0.local_address());
    top.until("they are there", has_rows(3));
    let order = |lines: &[String]| {
        let place = |client: &String| {
            let is_row = |line: &String| line.contains(client) && line.contains(" copy ");
            lines.iter().position(is_row)
        };
        clients.each_ref().map(place)
    };
    // From the order of rates, which is the first one, to the next one: bytes.
    top.press(F6);
    top.until_shown("Sort by");
    top.press(DOWN);
    top.press("\r");
    top.until_shown("by bytes");
    top.until("the one with most bytes is first", |lines| {
        order(lines) == [Some(4), Some(3), Some(5)]
    });
    top.press("/");
    top.press(&clients[2]);
    top.until_shown(&format!("Search: {}", clients[2]));
    top.press("\r");
    top.until_shown("3: copy: asked for by name");
    top.press(F4);
    top.press("colour=red\r");
    top.until("what is wrong can be read", |lines| {
        lines[21..]
            == [
                "there is no field colour; the fields are listener, client, server_name, backend,",
                "server, target, phase, engine",
                "Filter: colour=red",
            ]
    });
    top.press("\x15");
    top.press(&format!("client={}\r", clients[0]));
    top.until("it is alone", |lines| order(lines) == [Some(3), None, None]);
    top.until_shown("1 of 3 sessions");
    top.until_shown(&format!("by bytes, only client={}", clients[0]));
    top.press(F4);
    top.press("\x15phase=queued\r");
    top.until_shown("no session that the filters take");
    top.press("\\\x15\r");
    top.until("all are there", |lines| {
        order(lines).iter().all(Option::is_some)
    });
    let arguments = ["--control", &*scene.socket, "--filter", "engine=pipe"];
    Terminal::top(USUAL, &arguments).until_shown("0 of 3 sessions");
}

#[test]
fn a_page_stays_as_it_is_while_it_pauses() {
    let mut scene = Scene::with_sessions(1);
    let mut top = Terminal::top(USUAL, &["--control", &scene.socket, "--delay", "0.1"]);
    top.until("it is there", has_rows(1));
    top.press("p");
    top.until_shown("PAUSED");
    scene.join();
    // An answer is known to have come: the order was asked in the same way.
    top.press(F9);
    top.press("y");
    top.until_shown("session 1 is being ended");
    scene.sessions[0].0.expect_reset();
    let lines = top.lines();
    assert!(has_rows(1)(&lines), "{lines:?}");
    top.press(" ");
    top.until_gone("PAUSED");
    let client = scene.sessions[1].0.local_address();
    top.until("only the new one is there", |lines| {
        has_rows(1)(lines) && lines[3].contains(&client)
    });
}

#[test]
fn a_process_that_does_not_answer_is_named_and_keys_go_on() {
    let mut scene = Scene::with_sessions(1);
    let mut top = scene.top(USUAL);
    top.until("it is there", has_rows(1));
    scene.relay.hold_still();
    let process = scene.relay.id();
    top.until_shown(&format!("process {process} is stopped and cannot answer"));
    top.press("3");
    top.until_shown("NO FASTER ONE");
    top.press("1");
    top.until_shown(&scene.sessions[0].0.local_address());
    top.press(F9);
    top.press("y");
    top.until("the order fails", |lines| {
        lines[21].contains("is stopped and cannot answer")
    });
    scene.relay.go_on();
    // The message is there until the next key.
    top.press(DOWN);
    top.until_gone("is stopped");
    scene.relay.signal_until_it_ends(Signal::TERM);
    top.until_shown(&format!(
        "no process has the control socket {}",
        &scene.socket[..20]
    ));
    top.press("q");
    assert!(top.wait_end().success());
}

#[test]
fn a_process_that_drains_is_marked() {
    let scene = Scene::with_sessions(1);
    let mut tops = [USUAL, (200, 60)].map(|size| scene.top(size));
    for top in &mut tops {
        let lines = top.until("it is there", has_rows(1));
        assert!(!lines[0].contains("draining") && !lines[2].contains("PROCESS"));
    }
    scene.relay.signal(Signal::TERM);
    let (near, far) = &scene.sessions[0];
    let row = format!("D {} 1 ", scene.relay.id());
    for top in &mut tops {
        top.until_shown("spliced top: 1 process (1 draining), 1 session, ");
        let lines = top.until_shown("PROCESS ID ");
        let words: Vec<_> = lines[3].split_whitespace().collect();
        assert!(words.join(" ").starts_with(&row), "{}", lines[3]);
        assert!(lines[3].contains(&near.local_address()), "{}", lines[3]);
    }
    // It serves what it has.
    far.write_number(7);
    assert_eq!(near.read_number(), 7);
}

#[test]
fn without_a_terminal_one_sentence_says_what_to_use() {
    let told = failure(&mut command(&["top"]), 2);
    assert!(
        told.contains("have to be a terminal; use 'spliced sessions'"),
        "{told}"
    );
    for (arguments, part) in [
        (["--delay", "0"], "from 0.1 to 3600"),
        (["--delay", "x"], "from 0.1 to 3600"),
        (["--sort", "colour"], "--sort"),
        (["--filter", "colour=red"], "there is no field colour"),
    ] {
        let told = failure(command(&["top"]).args(arguments), 2);
        assert!(told.contains(part), "{told}");
    }
}
