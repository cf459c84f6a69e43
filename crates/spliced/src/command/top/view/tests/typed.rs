//! Whatever somebody types, or pastes, or a terminal answers.

use proptest::prelude::*;
use proptest::sample::select;

use super::{drawn, two_processes};
use crate::command::top::dialog::{Dialog, TEXT_MOST_CHARACTERS};
use crate::command::top::key::Decoder;
use crate::command::top::model::{Action, Model};
use crate::session_filter::SessionFilter;

/// Keys of pages and dialogs, and what is typed there.
const PIECES: [&str; 36] = [
    "1",
    "2",
    "3",
    "\t",
    "\x1b[Z",
    "\x1b[A",
    "\x1b[B",
    "\x1b[H",
    "\x1b[F",
    "\x1b[5~",
    "\x1b[6~",
    "/",
    "n",
    "\\",
    ">",
    "I",
    "h",
    "k",
    "d",
    "u",
    "w",
    "y",
    "p",
    "\r",
    "\x1b",
    "\x7f",
    "\x15",
    "engine=copy",
    "client=192.0.2.1 ",
    "colour=red",
    "=",
    " ",
    "257",
    "ä日\u{301}",
    "\x1b[1;5",
    "\x1b[<0;1;1M",
];

fn typed() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        40 => select(&PIECES[..]).prop_map(|piece| piece.as_bytes().to_vec()),
        3 => any::<Vec<u8>>(),
        1 => (any::<char>(), 0..1500usize).prop_map(|(one, times)| one.to_string().repeat(times).into_bytes()),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// What has been typed of a line.
fn text(model: &Model) -> &str {
    match &model.dialog {
        Some(Dialog::Search(prompt) | Dialog::Filter(prompt) | Dialog::Weigh(_, prompt)) => {
            &prompt.text
        }
        _ => "",
    }
}

/// A filter of the command line, or nearly one.
fn filter() -> impl Strategy<Value = String> {
    let field = prop_oneof![
        select(vec!["client", "engine", "server_name"]).prop_map(String::from),
        "[a-z_]{0,8}"
    ];
    let equals = prop_oneof![4 => Just("="), 1 => Just("")];
    (field, equals, "\\PC{0,8}")
        .prop_map(|(field, equals, value)| format!("{field}{equals}{value}"))
}

proptest! {
    #[test]
    fn any_bytes_leave_a_page_that_can_be_shown(
        bytes in typed(),
        (width, height) in (0..120u16, 0..40u16),
    ) {
        let mut model = two_processes();
        let mut decoder = Decoder::default();
        let mut keys = decoder.keys(&bytes);
        keys.extend(decoder.give_up());
        for key in keys {
            let is_asked = matches!(model.dialog, Some(Dialog::Confirm(..)));
            let action = model.key(key);
            prop_assert!(is_asked || !matches!(action, Some(Action::Order(_))), "it was not asked for");
            prop_assert!(text(&model).chars().count() <= TEXT_MOST_CHARACTERS);
        }
        for filter in &model.filters {
            prop_assert_eq!(SessionFilter::parse(&filter.to_string()), Ok(filter.clone()));
        }
        drawn(&mut model, width, height);
    }

    #[test]
    fn filters_that_are_typed_are_those_of_the_command_line(
        words in prop::collection::vec(filter(), 0..4),
    ) {
        let mut model = two_processes();
        let line = words.join(" ");
        let mut decoder = Decoder::default();
        for key in decoder.keys(format!("\\{line}\r").as_bytes()) {
            model.key(key);
        }
        let expected: Result<Vec<_>, _> = line.split_whitespace().map(SessionFilter::parse).collect();
        match expected {
            Ok(filters) => {
                prop_assert!(model.dialog.is_none());
                prop_assert_eq!(model.filters, filters);
            }
            Err(why) => {
                let Some(Dialog::Filter(prompt)) = &model.dialog else {
                    panic!("it is not corrected");
                };
                prop_assert_eq!(prompt.wrong.as_ref(), Some(&why));
                prop_assert!(model.filters.is_empty());
            }
        }
    }
}
