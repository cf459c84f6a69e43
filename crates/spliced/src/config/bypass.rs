//! `[[bypass]]`.

use std::path::{Path, PathBuf};

use splice::bypass::{DEFAULT_PINS, Options, Rule};

use crate::bypass::check_group;
use crate::config::at_most;
use crate::config::value::{Table, Value};

/// The most bypasses: each has a thread, and descriptors of programs and maps, of which a process may have 1024 in all
/// where nobody has allowed more (`INR_OPEN_CUR` of linux/resource.h).
const MOST_BYPASSES: usize = 100;

/// All of them, each with pins of its own. `None` if they are not even read.
pub(super) fn read_all(table: &Table<'_>) -> Option<Vec<Options>> {
    let tables = match table.get("bypass") {
        Some(value) => value.sections("bypass", "a bypass")?,
        None => Vec::new(),
    };
    let tables = at_most(tables, MOST_BYPASSES, "bypasses")?;
    let mut all = Vec::<Options>::new();
    for table in tables {
        let options = read(&table);
        if all.iter().any(|other| other.pins == options.pins) {
            let pins = options.pins.display();
            table.notes.mistake(
                &table.at("pins"),
                format!(
                    "another bypass has its pins in {pins}, too; give each a directory of its own"
                ),
            );
        }
        all.push(options);
        table.finish();
    }
    Some(all)
}

fn read(table: &Table<'_>) -> Options {
    let mut all = false;
    table.set("all", &mut all, Value::flag);
    let group = |value: &Value<'_>| {
        let path = value.text()?;
        match check_group(Path::new(path), all) {
            Ok(path) => Some(path),
            Err(why) => value.refuse(why),
        }
    };
    let groups = match table.get("cgroups") {
        Some(value) => value.each(group).unwrap_or_default(),
        None => {
            let sentence = "a bypass needs the control groups whose processes it covers; add cgroups = [\"PATH\"]";
            table.notes.missing(&table.at, sentence);
            Vec::new()
        }
    };
    let mut options = Options::of(groups);
    let rules = |value: &Value<'_>| value.each(Value::parse::<Rule>);
    table.set("allow", &mut options.rules.allow, rules);
    table.set("deny", &mut options.rules.deny, rules);
    table.set_some("bulk_bytes", &mut options.bulk_bytes, |value| {
        value.size(1..=1 << 20).map(|bytes| bytes as u32)
    });
    table.set(
        "despite_fionread",
        &mut options.despite_fionread,
        Value::flag,
    );
    table.set("bypass_firewall", &mut options.bypass_firewall, Value::flag);
    options.pins = PathBuf::from(DEFAULT_PINS);
    table.set("pins", &mut options.pins, |value| {
        value.text().map(PathBuf::from)
    });
    options
}
