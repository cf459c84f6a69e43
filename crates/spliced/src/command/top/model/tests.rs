use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use crate::admin::ControlSocket;
use crate::cli::{Cli, Command};
use crate::command::rated::tests::row;
use crate::command::top::asker::Told;
use crate::sessions::Row;

/// Of `spliced top` with `arguments`, in 80 columns and 24 lines.
pub(in crate::command::top) fn model_of(arguments: &[&str]) -> Model {
    let cli = Cli::try_parse_from([&["spliced", "top"], arguments].concat());
    let Command::Top(args) = cli.expect("arguments").command else {
        panic!("another command");
    };
    let mut model = Model::new(&args, UNIX_EPOCH);
    model.resize(Size::new(80, 24));
    model
}

/// The session `id` of a second ago, with so many bytes.
pub(in crate::command::top) fn session(id: u64, bytes: u64) -> Row {
    let (_, mut row) = row(id, 1000.0 + id as f64, bytes, 0);
    row.client = format!("192.0.2.{id}:4711");
    row
}

pub(in crate::command::top) fn process(pid: u64, sessions: Vec<Row>, backends: Value) -> News {
    let started = "2026-11-28T00:00:00.000Z";
    let status = json!({
        "process": { "pid": pid, "started": started, "state": "running", "new": [] },
        "backends": backends,
    });
    let told = Told {
        status: serde_json::from_value(status).expect("a status"),
        sessions: Ok(sessions),
    };
    News::Told(Arc::new(ControlSocket::named(&socket(pid))), told)
}

pub(in crate::command::top) fn socket(pid: u64) -> PathBuf {
    PathBuf::from(format!("/run/{pid}.sock"))
}

/// What a person types.
pub(in crate::command::top) fn press(model: &mut Model, keys: &str) -> Vec<Action> {
    let keys = keys.chars().map(|key| match key {
        '↑' => Key::Up,
        '↓' => Key::Down,
        '⏎' => Key::Enter,
        '⎋' => Key::Escape,
        '⇱' => Key::Home,
        '⇲' => Key::End,
        '⌫' => Key::Backspace,
        other => Key::Char(other),
    });
    keys.filter_map(|key| model.key(key)).collect()
}

fn three() -> Model {
    let mut model = model_of(&["--sort", "bytes"]);
    let sessions = vec![session(1, 10), session(2, 30), session(3, 20)];
    model.news(process(7, sessions, json!([])), UNIX_EPOCH);
    model
}

fn order(model: &Model) -> Vec<u64> {
    model.sessions().iter().map(|one| one.row.id).collect()
}

/// The session under the cursor.
fn selected(model: &Model) -> u64 {
    order(model)[model.rows().0]
}

#[test]
fn the_cursor_follows_its_session_and_that_one_is_ended() {
    let mut model = three();
    assert_eq!(order(&model), [2, 3, 1]);
    press(&mut model, "↓");
    assert_eq!(selected(&model), 3);
    let sessions = vec![
        session(1, 100),
        session(2, 90),
        session(3, 20),
        session(4, 80),
    ];
    model.news(process(7, sessions, json!([])), UNIX_EPOCH);
    assert_eq!((order(&model), selected(&model)), (vec![1, 2, 4, 3], 3));
    press(&mut model, "I");
    assert_eq!((order(&model), selected(&model)), (vec![3, 4, 2, 1], 3));
    // Others come to its place while the question is there.
    assert_eq!(press(&mut model, "k"), []);
    let sessions = vec![session(1, 100), session(3, 2000)];
    model.news(process(7, sessions, json!([])), UNIX_EPOCH);
    let [Action::Order(order)] = &press(&mut model, "y")[..] else {
        panic!("it is not ended");
    };
    assert_eq!((&order.what, order.of.process()), (&What::End(3), 7));
    assert_eq!(order.of.path(), Path::new("/run/7.sock"));
    assert_eq!(order.started, "2026-11-28T00:00:00.000Z");
    assert_eq!(model.orders, 1);
    model.news(News::Ordered(What::End(3), Ok(None)), UNIX_EPOCH);
    assert_eq!(model.orders, 0);
    assert_eq!(model.message.as_deref(), Some("session 3 is being ended"));
}

#[test]
fn a_session_is_left_alone_unless_that_is_confirmed() {
    for keys in ["kn", "kq", "k⎋", "k ", "k3", "kk", "ky⎋"] {
        let mut model = three();
        let expected = usize::from(keys.starts_with("ky"));
        assert_eq!(press(&mut model, keys).len(), expected, "{keys}");
        assert!(model.dialog.is_none());
    }
    let mut model = three();
    press(&mut model, "2k");
    assert!(model.dialog.is_none(), "there is no session there");
    let mut empty = model_of(&[]);
    assert_eq!(press(&mut empty, "ky"), []);
}

/// Two servers of a backend; the relay of the second process has no weights.
fn with_servers() -> Model {
    let mut model = model_of(&[]);
    let servers = |weight: Value| {
        json!([{ "name": "b", "servers": [
            { "server": "x:1", "state": "up", "weight": weight },
            { "server": "y:1", "state": "up", "weight": weight },
        ]}])
    };
    model.news(process(7, Vec::new(), servers(json!(2))), UNIX_EPOCH);
    model.news(process(8, Vec::new(), servers(json!(null))), UNIX_EPOCH);
    press(&mut model, "2");
    model
}

fn change(server: &str, change: Change) -> What {
    let place = Place {
        backend: "b".into(),
        server: server.into(),
    };
    What::Change(place, change)
}

#[test]
fn the_server_under_the_cursor_is_changed_once_that_is_confirmed() {
    for (keys, expected) in [
        ("↓dy", Some(Change::Drain)),
        ("↓u⏎", Some(Change::Undrain)),
        ("↓w0⏎y", Some(Change::Weigh(0))),
        ("↓w 256⏎Y", Some(Change::Weigh(256))),
        // The wrong number is corrected.
        ("↓w257⏎⌫⌫⏎y", Some(Change::Weigh(2))),
        ("↓dn", None),
        ("↓d⎋", None),
        ("↓du", None),
        ("↓w5⏎n", None),
        ("↓w5⎋y", None),
        ("↓w257⏎y", None),
        ("↓w⏎y", None),
        ("↓w-1⏎y", None),
        ("↓w1.5⏎y", None),
    ] {
        let mut model = with_servers();
        let orders = press(&mut model, keys);
        let expected = expected.map(|expected| change("y:1", expected));
        let given = orders.iter().map(|action| match action {
            Action::Order(order) => {
                assert_eq!(order.of.process(), 7);
                assert_eq!(order.started, "2026-11-28T00:00:00.000Z");
                order.what.clone()
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(
            given.collect::<Vec<_>>(),
            Vec::from_iter(expected),
            "{keys}"
        );
    }
}

#[test]
fn a_change_of_a_server_is_only_asked_for_where_it_can_be() {
    for keys in ["1dy", "3uy", "1w5⏎y"] {
        let mut model = with_servers();
        assert_eq!(press(&mut model, keys), [], "{keys}");
    }
    let mut model = with_servers();
    press(&mut model, "1w");
    let why = "a server is drained, undrained or weighed on page 2";
    assert_eq!(model.message.as_deref(), Some(why));
    press(&mut model, "2⇲w");
    assert_eq!(model.message.as_deref(), Some("server y:1 has no weight"));
    let mut empty = model_of(&[]);
    assert_eq!(press(&mut empty, "2dyuyw1⏎y"), []);
}

#[test]
fn what_came_of_a_change_is_told() {
    for (what, done) in [
        (
            Change::Drain,
            "server x:1 gets no new clients; those that it has go on",
        ),
        (Change::Undrain, "server x:1 is no longer drained"),
        (Change::Weigh(7), "server x:1 has the weight 7 now"),
    ] {
        let mut model = with_servers();
        model.orders = 2;
        let what = change("x:1", what);
        model.news(News::Ordered(what.clone(), Ok(None)), UNIX_EPOCH);
        assert_eq!(model.message.as_deref(), Some(done));
        model.news(News::Ordered(what, Err("refused".into())), UNIX_EPOCH);
        assert_eq!(model.message.as_deref(), Some("refused"));
        assert_eq!(model.orders, 0);
    }
}

#[test]
fn an_order_is_chosen_from_the_list_of_all() {
    let mut model = three();
    press(&mut model, ">↓⏎");
    assert_eq!(model.order, SessionOrder::Age);
    press(&mut model, ">⇲⏎");
    assert_eq!(model.order, SessionOrder::Engine);
    press(&mut model, ">⇱⎋");
    assert_eq!(model.order, SessionOrder::Engine);
    press(&mut model, "I>⇱↑⏎");
    assert_eq!(
        (model.order, model.is_reversed),
        (SessionOrder::Rate, false)
    );
}

#[test]
fn filters_are_those_of_the_command_line() {
    let mut model = three();
    press(&mut model, "\\client=192.0.2.1 engine=copy⏎");
    assert_eq!(order(&model), [1]);
    // They are there to be changed.
    press(&mut model, "\\⌫⌫⌫⌫pipe⏎");
    assert_eq!(order(&model).len(), 0);
    press(&mut model, "\\ colour=red⏎");
    let Some(Dialog::Filter(prompt)) = &model.dialog else {
        panic!("it is not corrected");
    };
    let wrong = prompt.wrong.as_deref().unwrap_or_default();
    assert!(wrong.contains("no field colour"), "{wrong}");
    press(&mut model, "⎋");
    let shown: Vec<_> = model.filters.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["client=192.0.2.1", "engine=pipe"]);
}

#[test]
fn a_search_goes_round() {
    let mut model = three();
    press(&mut model, "/192.0.2.3");
    assert_eq!(selected(&model), 3);
    press(&mut model, "⌫");
    assert_eq!(selected(&model), 3, "it has that, too");
    model.key(Key::Function(3));
    assert_eq!(selected(&model), 1);
    press(&mut model, "⏎n");
    assert_eq!(selected(&model), 2);
    press(&mut model, "/nowhere");
    let Some(Dialog::Search(prompt)) = &model.dialog else {
        panic!("the line is closed");
    };
    assert!(prompt.wrong.is_some());
    assert_eq!(selected(&model), 2);
    press(&mut model, "⎋3/COPY⏎");
    assert_eq!(model.rows().0, 0);
}

#[test]
fn a_pause_keeps_everything_but_the_fate_of_orders() {
    let mut model = three();
    press(&mut model, "p");
    model.news(process(7, vec![session(9, 1)], json!([])), UNIX_EPOCH);
    model.news(News::Gone(socket(7)), UNIX_EPOCH);
    assert_eq!(order(&model), [2, 3, 1]);
    press(&mut model, "k");
    press(&mut model, "y");
    model.news(
        News::Ordered(What::End(2), Err("it is gone".into())),
        UNIX_EPOCH,
    );
    assert_eq!(model.message.as_deref(), Some("it is gone"));
    press(&mut model, " ");
    assert_eq!(model.message, None);
    model.news(News::Gone(socket(7)), UNIX_EPOCH);
    assert_eq!(order(&model).len(), 0);
}

#[test]
fn processes_come_and_go() {
    let mut model = three();
    model.news(process(8, vec![session(1, 5)], json!([])), UNIX_EPOCH);
    assert_eq!((model.known.count(), order(&model).len()), (2, 4));
    model.news(News::Silent(socket(7), "it is stopped".into()), UNIX_EPOCH);
    assert_eq!(model.known.notices(), ["it is stopped"]);
    assert_eq!(
        order(&model).len(),
        4,
        "what it has told last is still shown"
    );
    model.news(News::Gone(socket(7)), UNIX_EPOCH);
    assert_eq!((model.known.notices().len(), order(&model)), (0, vec![1]));
    // One with two sockets.
    let News::Told(_, told) = process(8, vec![session(1, 5)], json!([])) else {
        panic!("another answer");
    };
    let reading = Arc::new(ControlSocket::named(Path::new("/run/read")));
    model.news(News::Told(reading, told), UNIX_EPOCH);
    assert_eq!((model.known.count(), order(&model).len()), (1, 1));
}

#[test]
fn a_process_that_lists_no_sessions_is_named() {
    let mut model = three();
    let News::Told(socket, mut told) = process(8, Vec::new(), json!([])) else {
        panic!("another answer");
    };
    told.sessions = Err("it does not list its sessions".into());
    model.news(News::Told(socket, told), UNIX_EPOCH);
    let notice = "process 8: it does not list its sessions";
    assert_eq!(model.known.notices(), [notice]);
}

#[test]
fn keys_that_only_the_terminal_acts_on_are_passed_on_from_everywhere() {
    for before in ["", "h", ">", "/x", "\\x", "k"] {
        for (key, action) in [
            ('c', Action::Quit),
            ('l', Action::Redraw),
            ('z', Action::Suspend),
        ] {
            let mut model = three();
            press(&mut model, before);
            assert_eq!(model.key(Key::Control(key)), Some(action), "{before}");
        }
    }
    assert_eq!(press(&mut three(), "q"), [Action::Quit]);
    assert_eq!(three().key(Key::Function(10)), Some(Action::Quit));
}
