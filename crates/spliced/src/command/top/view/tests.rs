mod typed;

use std::time::{Duration, UNIX_EPOCH};

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::{Rect, Size};
use ratatui_core::style::{Color, Modifier};
use serde_json::json;

use super::draw;
use crate::command::top::asker::News;
use crate::command::top::key::Key;
use crate::command::top::model::Model;
use crate::command::top::model::tests::{model_of, press, process, session, socket};

/// What a person sees, without blanks at the end.
pub(super) fn lines(buffer: &Buffer) -> Vec<String> {
    let lines = buffer.area.rows().map(|row| {
        let cells = row
            .columns()
            .filter_map(|cell| buffer.cell((cell.x, cell.y)));
        let text: String = cells.map(|cell| cell.symbol()).collect();
        text.trim_end().to_owned()
    });
    lines.collect()
}

fn drawn(model: &mut Model, width: u16, height: u16) -> Buffer {
    model.resize(Size::new(width, height));
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    draw(model, &mut buffer);
    buffer
}

fn shown(model: &mut Model, width: u16, height: u16) -> Vec<String> {
    lines(&drawn(model, width, height))
}

fn two_processes() -> Model {
    let mut model = model_of(&[]);
    let mut one = session(1, 5000);
    one.server_name = Some("example.com".into());
    one.server = Some("10.0.0.7:80".into());
    let backends = json!([{ "name": "b", "queued": 3, "servers": [
        { "server": "10.0.0.7:80", "addresses": ["10.0.0.7:80"], "state": "up", "why": null, "weight": 2,
          "since": "1970-01-01T00:00:00.000Z", "connections": 5, "total": 17, "failures": 1,
          "last_error": { "time": "1970-01-01T00:00:01.000Z", "error": "refused" } },
        { "server": "srv.example", "addresses": [], "state": "unresolved", "why": "there is no such name",
          "since": null, "connections": 0, "total": 0, "failures": 0, "weight": 1 },
    ]}]);
    let now = UNIX_EPOCH + Duration::from_secs(3700);
    model.news(process(7, vec![one, session(2, 70)], backends), now);
    model.news(process(800, vec![session(1, 9)], json!([])), now);
    model
}

#[test]
fn sessions_of_several_processes_have_theirs() {
    let mut model = two_processes();
    assert_eq!(
        shown(&mut model, 80, 10),
        [
            "spliced top: 2 processes, 3 sessions, 4.95K/s                           every 1s",
            " 1 Sessions  2 Backends  3 Engines  by rate",
            "PROCESS ID LISTENER CLIENT         TARGET       ENGINE  RATE BYTES    AGE   IDLE",
            "      7  1 web      192.0.2.1:4711 192.0.2.1:80 copy   4.88K 4.88K   1.0s    0ms",
            "      7  2 web      192.0.2.2:4711 192.0.2.1:80 copy      69    70   1.0s    0ms",
            "    800  1 web      192.0.2.1:4711 192.0.2.1:80 copy       8     9   1.0s    0ms",
            "",
            "",
            "1: copy: asked for by name",
            "F1Help F3Search F4Filter F6Sort F9Kill F10Quit TabPage pPause",
        ]
    );
    let wide = shown(&mut model, 200, 20);
    assert!(wide[2].ends_with("IDLE TO TARGET/S TO CLIENT/S WHY THIS ENGINE"));
    assert!(wide[3].contains(" example.com "), "{}", wide[3]);
    assert!(wide[18].ends_with("backend b, server 10.0.0.7:80, name example.com"));
}

#[test]
fn servers_are_shown_with_what_is_wrong() {
    let mut model = two_processes();
    press(&mut model, "2⇲");
    let buffer = drawn(&mut model, 110, 20);
    let lines = lines(&buffer);
    assert_eq!(
        lines[2..5],
        [
            "PROCESS BACKEND SERVER      STATE         FOR SESSIONS WEIGHT TOTAL FAILED WHY, OR THE LAST ERROR",
            "      7 b       10.0.0.7:80 up           1h1m        5      2    17      1 refused",
            "      7 b       srv.example unresolved      -        0      1     0      0 there is no such name",
        ]
    );
    assert_eq!(lines[17], "srv.example: unresolved: there is no such name");
    assert_eq!(lines[18], "addresses: none; clients in the queue of b: 3");
    assert_eq!(buffer[(8, 3)].fg, Color::Reset);
    assert_eq!(buffer[(8, 4)].fg, Color::Red);
    // It is the one under the cursor, up to the edge.
    assert!(buffer[(109, 4)].modifier.contains(Modifier::REVERSED));
    assert!(!buffer[(109, 3)].modifier.contains(Modifier::REVERSED));
    press(&mut model, "↑");
    let lines = shown(&mut model, 110, 20);
    assert_eq!(
        lines[17],
        "10.0.0.7:80: the last error, at 1970-01-01T00:00:01.000Z: refused"
    );
}

/// A terminal has 80 columns, and names may be long.
#[test]
fn state_sessions_and_weight_are_in_sight_in_80_columns() {
    let mut model = model_of(&["--delay", "5"]);
    let servers = json!([{ "name": "a-backend-with-a-name", "servers": [
        { "server": "server-1.internal.example.com:8443", "state": "not checked", "weight": 256,
          "connections": 12_345_678, "total": 17, "failures": 1, "why": "x".repeat(100),
          "since": "1970-01-01T00:00:00.000Z" },
        { "server": "[2001:db8:1234:5678:9abc:def0:1234:5678]:65535", "state": "unresolved", "weight": 0,
          "connections": 0, "total": 0, "failures": 0 },
    ]}]);
    let now = UNIX_EPOCH + Duration::from_secs(3700);
    model.news(process(4_194_304, Vec::new(), servers.clone()), now);
    press(&mut model, "2");
    assert_eq!(
        shown(&mut model, 80, 24)[2..5],
        [
            "BACKEND     SERVER                 STATE       SESSIONS WEIGHT WHY, OR THE LAST~",
            "a-back~name server-1.inte~com:8443 not checked 12345678    256 xxxxxxxxxxxxxxxx~",
            "a-back~name [2001:db8:123~8]:65535 unresolved         0      0 -",
        ]
    );
    // With the processes, and one that drains.
    model.news(process(7, Vec::new(), servers), now);
    let News::Told(socket, mut told) = process(4_194_304, Vec::new(), json!([])) else {
        panic!("another answer");
    };
    told.status.process.state = "draining".into();
    told.status.backends = model
        .known
        .servers()
        .next()
        .map(|of| of.backend.clone())
        .into_iter()
        .collect();
    model.news(News::Told(socket, told), now);
    let buffer = drawn(&mut model, 80, 24);
    let lines = lines(&buffer);
    let title = "spliced top: 2 processes (1 draining), 0 sessions, 0/s";
    assert!(lines[0].starts_with(title), "{}", lines[0]);
    assert_eq!(
        lines[2..7],
        [
            "  PROCESS BACKEND         SERVER                     STATE       SESSIONS WEIGHT",
            "D 4194304 a-backend~-name server-1.intern~e.com:8443 not checked 12345678    256",
            "D 4194304 a-backend~-name [2001:db8:1234:~678]:65535 unresolved         0      0",
            "        7 a-backend~-name server-1.intern~e.com:8443 not checked 12345678    256",
            "        7 a-backend~-name [2001:db8:1234:~678]:65535 unresolved         0      0",
        ]
    );
    assert_eq!(buffer[(12, 3)].fg, Color::Yellow, "it drains");
    assert_eq!(buffer[(12, 4)].fg, Color::Red, "it is down, which is worse");
    assert_eq!(buffer[(12, 5)].fg, Color::Reset);
    // All of it has room in a wide terminal.
    let wide = shown(&mut model, 200, 60);
    assert!(
        wide[2].contains("FOR SESSIONS WEIGHT TOTAL FAILED WHY"),
        "{}",
        wide[2]
    );
    assert!(wide[4].contains(" [2001:db8:1234:5678:9abc:def0:1234:5678]:65535 "));
}

#[test]
fn a_process_that_drains_is_marked_also_if_it_is_alone() {
    let mut model = model_of(&[]);
    let News::Told(socket, mut told) = process(7, vec![session(1, 1)], json!([])) else {
        panic!("another answer");
    };
    told.status.process.state = "draining".into();
    model.news(News::Told(socket, told), UNIX_EPOCH);
    let buffer = drawn(&mut model, 80, 24);
    let lines = lines(&buffer);
    assert!(lines[0].starts_with("spliced top: 1 process (1 draining), 1 session, "));
    assert!(lines[2].starts_with("PROCESS ID LISTENER"), "{}", lines[2]);
    assert!(lines[3].starts_with("    D 7  1 web "), "{}", lines[3]);
    assert_eq!(buffer[(0, 3)].fg, Color::Yellow);
    press(&mut model, "h");
    let help = shown(&mut model, 80, 24);
    assert!(help.iter().any(|line| line.contains("D in PROCESS")));
}

#[test]
fn what_is_wrong_with_a_filter_can_be_read_in_80_columns() {
    let mut model = two_processes();
    press(&mut model, "\\colour=red⏎");
    let lines = shown(&mut model, 80, 24);
    assert_eq!(
        lines[21..],
        [
            "there is no field colour; the fields are listener, client, server_name, backend,",
            "server, target, phase, engine",
            "Filter: colour=red",
        ]
    );
    // Where there is one line for details, and none.
    for (width, height) in [(80, 10), (80, 5), (30, 24), (30, 7)] {
        let lines = shown(&mut model, width, height);
        let text = lines[..lines.len() - 1].join(" ");
        assert!(text.ends_with("server, target, phase, engine"), "{lines:?}");
        assert!(text.contains("there is no field colour;"), "{lines:?}");
    }
}

#[test]
fn a_server_is_changed_on_its_page() {
    let mut model = two_processes();
    press(&mut model, "2");
    let lines = shown(&mut model, 80, 24);
    assert_eq!(
        lines[23],
        "F1Help F3Search dDrain uUndrain wWeigh F10Quit TabPage pPause"
    );
    press(&mut model, "d");
    let lines = shown(&mut model, 80, 24);
    assert_eq!(
        lines[21],
        "Drain server 10.0.0.7:80 of backend b in process 7? y/n"
    );
    assert_eq!(lines[23], "y drains it; any other key leaves it");
    press(&mut model, "nw");
    let lines = shown(&mut model, 80, 24);
    assert_eq!(
        lines[21],
        "The weight of server 10.0.0.7:80 of backend b in process 7, from 0 to 256"
    );
    assert_eq!(lines[23], "Weight:");
    press(&mut model, "257⏎");
    let lines = shown(&mut model, 80, 24);
    assert_eq!(lines[21], "it is not a number from 0 to 256");
    assert_eq!(lines[23], "Weight: 257");
    press(&mut model, "⌫⏎");
    let lines = shown(&mut model, 80, 24);
    assert_eq!(
        lines[21..],
        [
            "Change the weight of server 10.0.0.7:80 of backend b in process 7 from 2 to 25?",
            "y/n",
            "y weighs it; any other key leaves it",
        ]
    );
}

#[test]
fn engines_are_shown_with_their_reasons() {
    let mut model = two_processes();
    press(&mut model, "3↓");
    let lines = shown(&mut model, 60, 12);
    assert_eq!(
        lines[2..5],
        [
            "ENGINE SESSIONS  RATE BYTES WHY THIS ENGINE, AND NO FASTER ~",
            "copy          3 4.95K 4.96K",
            "              3 4.95K 4.96K asked for by name",
        ]
    );
    assert_eq!(lines[10], "copy: asked for by name");
}

#[test]
fn what_is_missing_and_what_happened_is_said() {
    let mut model = model_of(&[]);
    assert!(shown(&mut model, 80, 24).contains(&"looking for processes".into()));
    model.news(News::Searched, UNIX_EPOCH);
    let lines = shown(&mut model, 80, 24);
    assert!(
        lines[3].starts_with("no process that was asked for"),
        "{lines:?}"
    );
    model.news(
        News::Silent(socket(7), "process 7 is stopped".into()),
        UNIX_EPOCH,
    );
    let lines = shown(&mut model, 80, 24);
    assert_eq!(lines[3], "no process has answered");
    assert_eq!(lines[20], "process 7 is stopped");
    model.news(process(7, vec![session(1, 1)], json!([])), UNIX_EPOCH);
    model.news(
        News::Silent(socket(7), "process 7 is stopped".into()),
        UNIX_EPOCH,
    );
    let buffer = drawn(&mut model, 80, 24);
    assert!(buffer[(0, 3)].modifier.contains(Modifier::DIM), "it is old");
    press(&mut model, "k");
    let lines = shown(&mut model, 80, 24);
    let question = "End session 1 of process 7, 192.0.2.1:4711 to 192.0.2.1:80? y/n";
    assert_eq!(lines[21], question);
    assert_eq!(lines[23], "y ends it; any other key leaves it");
    // Where there is little room.
    assert_eq!(shown(&mut model, 80, 5)[3], question);
    assert_eq!(shown(&mut model, 80, 1)[0], question);
}

#[test]
fn text_of_others_cannot_act_on_the_terminal() {
    let mut model = model_of(&[]);
    let evil = "\x1b[2J\x07\r\n\u{9b}31m\u{202e}x";
    let mut row = session(1, 1);
    for field in [
        &mut row.client,
        &mut row.target,
        &mut row.listener,
        &mut row.why_engine,
    ] {
        *field = evil.into();
    }
    for field in [
        &mut row.server_name,
        &mut row.backend,
        &mut row.server,
        &mut row.unique_id,
        &mut row.engine,
    ] {
        *field = Some(evil.into());
    }
    let backends = json!([{ "name": evil, "servers": [
        { "server": evil, "addresses": [evil], "state": evil, "why": evil,
          "last_error": { "time": evil, "error": evil } },
    ]}]);
    model.news(process(7, vec![row], backends), UNIX_EPOCH);
    model.news(News::Silent(socket(8), evil.into()), UNIX_EPOCH);
    for keys in ["1", "2", "3", "1k", "n\\", "⎋/"] {
        press(&mut model, keys);
        for letter in evil.chars() {
            model.key(Key::Char(letter));
        }
        let buffer = drawn(&mut model, 300, 24);
        for cell in buffer.content() {
            let is_safe = |one: char| !one.is_control() && one != '\u{202e}';
            assert!(cell.symbol().chars().all(is_safe), "{:?}", cell.symbol());
        }
        let lines = lines(&buffer);
        assert!(
            lines.iter().any(|line| line.contains("\\u{1b}[2J")),
            "{lines:?}"
        );
    }
}

#[test]
fn no_size_is_too_small_and_every_key_is_taken() {
    let mut model = two_processes();
    let keys = "1234↓↑⇲⇱>↓↓⎋/x⏎\\y⏎⎋hhknIpp?q2dnun w999⏎⌫⏎n1";
    for (width, height) in [
        (1, 1),
        (1, 24),
        (80, 1),
        (2, 2),
        (20, 5),
        (80, 24),
        (500, 200),
    ] {
        for silent in [false, true] {
            let why = "process 7 is stopped and cannot answer".into();
            match silent {
                true => model.news(News::Silent(socket(7), why), UNIX_EPOCH),
                false => model.news(News::Gone(socket(9)), UNIX_EPOCH),
            }
            for key in keys.chars() {
                press(&mut model, &key.to_string());
                drawn(&mut model, width, height);
            }
        }
    }
    for width in 0..100 {
        for height in 0..30 {
            drawn(&mut model, width, height);
        }
    }
}

#[test]
fn what_is_typed_is_in_sight() {
    let mut model = two_processes();
    press(
        &mut model,
        "\\listener=a_name_that_is_longer_than_the_terminal_is_wide",
    );
    let lines = shown(&mut model, 40, 24);
    assert_eq!(lines[23], "Filter: onger_than_the_terminal_is_wide");
    press(&mut model, "⎋>");
    let lines = shown(&mut model, 40, 24);
    let sort = lines.iter().position(|line| line.starts_with(" Sort by"));
    let sort = sort.expect("the list of orders");
    assert!(lines[sort + 1].starts_with(" rate"), "{lines:?}");
    press(&mut model, "⎋h");
    let lines = shown(&mut model, 80, 24);
    assert!(lines[0].contains("Keys of spliced top"));
    assert!(lines[23].starts_with("F1Help"), "all of it fits");
    let keys = &lines[1..22];
    let is_whole = |line: &String| !line.contains('~') && !line.contains("0ms");
    assert!(keys.iter().all(is_whole), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("RATE, BYTES")));
}

#[test]
fn the_cursor_stays_in_sight() {
    let mut model = model_of(&["--sort", "age"]);
    let sessions = (1..=100).map(|id| session(id, id)).collect();
    model.news(process(7, sessions, json!([])), UNIX_EPOCH);
    press(&mut model, "⇲");
    let buffer = drawn(&mut model, 80, 24);
    let last = &lines(&buffer)[20];
    // The oldest comes first.
    assert!(last.starts_with(" 1 "), "{last}");
    assert!(buffer[(0, 20)].modifier.contains(Modifier::REVERSED));
    let buffer = drawn(&mut model, 80, 10);
    assert!(buffer[(0, 7)].modifier.contains(Modifier::REVERSED));
    model.key(Key::PageUp);
    let buffer = drawn(&mut model, 80, 10);
    assert!(buffer[(0, 3)].modifier.contains(Modifier::REVERSED));
}
