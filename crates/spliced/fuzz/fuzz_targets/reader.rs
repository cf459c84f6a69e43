//! Feeds the reader that the environment variable READER names.
//!
//! These are modules of the program, in their places, and nothing of what they do not need.
#![no_main]
#![allow(dead_code, reason = "the program uses more of them")]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

use crate::admin::hostile::READERS;

#[path = "../../src/admin"]
mod admin {
    mod given;
    pub(crate) mod hostile;
    mod path;
    mod refusal;
    mod request;
    mod routes;

    pub(crate) use self::request::Request;
}

#[path = "../../src/backend"]
mod backend {
    mod act;

    pub(crate) use self::act::{Act, Order};
}

#[path = "../../src/sessions"]
mod sessions {
    mod about;

    pub(crate) use self::about::About;
}

#[path = "../../src/log_level.rs"]
mod log_level;
#[path = "../../src/session_filter.rs"]
mod session_filter;
#[path = "../../src/weight.rs"]
mod weight;

static CHOSEN: OnceLock<usize> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("READER").unwrap_or_default();
        let known = READERS.iter().position(|(known, _)| *known == name);
        known.unwrap_or_else(|| panic!("READER is {name:?}, which is no reader"))
    });
    READERS[*chosen].1(input);
});
