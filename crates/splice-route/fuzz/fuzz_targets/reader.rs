//! Feeds the reader that the environment variable READER names.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use readers::{READERS, check};

#[path = "../../tests/replay/readers.rs"]
mod readers;

static CHOSEN: OnceLock<usize> = OnceLock::new();

fuzz_target!(|input: &[u8]| {
    let chosen = CHOSEN.get_or_init(|| {
        let name = std::env::var("READER").unwrap_or_default();
        let known = READERS.iter().position(|(known, _)| *known == name);
        known.unwrap_or_else(|| panic!("READER is {name:?}, which is no reader"))
    });
    check(READERS[*chosen].1, input);
});
