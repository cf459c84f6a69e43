//! Tables and values of a configuration as the types of a plan. What does not fit is noted, and reading
//! goes on.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::cli;
use crate::config::notes::Notes;

/// A table whose keys are asked for one by one. A key that nobody has asked for is a mistake.
#[derive(Debug)]
pub(super) struct Table<'a> {
    entries: &'a DeTable<'a>,
    pub(super) at: Range<usize>,
    /// What the table stands for, as in "a listener has no key ...".
    what: &'static str,
    asked: RefCell<Vec<&'static str>>,
    pub(super) notes: &'a Notes<'a>,
}

impl<'a> Table<'a> {
    pub(super) fn new(
        entries: &'a DeTable<'a>,
        at: Range<usize>,
        what: &'static str,
        notes: &'a Notes<'a>,
    ) -> Self {
        Self {
            entries,
            at,
            what,
            asked: RefCell::default(),
            notes,
        }
    }

    pub(super) fn get(&self, key: &'static str) -> Option<Value<'a>> {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
        self.entries.get(key).map(|value| Value {
            name: key,
            value: value.get_ref(),
            at: value.span(),
            notes: self.notes,
        })
    }

    /// Says of none of these that the table takes it, unless it is there.
    pub(super) fn does_not_take(&self, keys: &[&'static str]) {
        let is_missing = |key: &&'static str| !self.entries.contains_key(*key);
        self.asked
            .borrow_mut()
            .retain(|key| !(keys.contains(key) && is_missing(key)));
    }

    /// Sets `place` if the key is there and `read` can make something of it.
    pub(super) fn set<T>(
        &self,
        key: &'static str,
        place: &mut T,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) {
        if let Some(value) = self.get(key).as_ref().and_then(read) {
            *place = value;
        }
    }

    /// As [`Table::set`] for what may be missing.
    pub(super) fn set_some<T>(
        &self,
        key: &'static str,
        place: &mut Option<T>,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) {
        self.set(key, place, |value| read(value).map(Some));
    }

    /// Where the key is written, or else the table.
    pub(super) fn at(&self, key: &str) -> Range<usize> {
        self.entries
            .get_key_value(key)
            .map_or_else(|| self.at.clone(), |(key, _)| key.span())
    }

    /// Every key and value, in the order of the file.
    pub(super) fn all(&self) -> Vec<(&'a str, Range<usize>, Value<'a>)> {
        let mut all: Vec<_> = self
            .entries
            .iter()
            .map(|(key, value)| {
                let name: &str = key.get_ref();
                let value = Value {
                    name,
                    value: value.get_ref(),
                    at: value.span(),
                    notes: self.notes,
                };
                (name, key.span(), value)
            })
            .collect();
        all.sort_by_key(|(_, at, _)| at.start);
        all
    }

    /// Notes the keys that nobody has asked for.
    pub(super) fn finish(self) {
        let asked = self.asked.borrow();
        for (name, at, value) in self.all() {
            if asked.contains(&name) {
                continue;
            }
            if self.notes.has_enough() {
                break;
            }
            let takes = |key| asked.contains(&key);
            let remedy = match nearest(name, asked.iter().copied()) {
                // As other programs have it.
                _ if value.is_udp() && takes("address") => {
                    "write address = \"udp:HOST:PORT\"".into()
                }
                _ if value.is_udp() && takes("servers") => {
                    "write servers = [\"udp:HOST:PORT\"]".into()
                }
                Some(near) => format!("write {near}"),
                None => format!("it takes {}", listed(&asked)),
            };
            let what = self.what;
            self.notes
                .mistake(&at, format!("{what} has no key {name:?}; {remedy}"));
        }
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Value<'a> {
    /// The key.
    name: &'a str,
    value: &'a DeValue<'a>,
    pub(super) at: Range<usize>,
    pub(super) notes: &'a Notes<'a>,
}

impl<'a> Value<'a> {
    /// Notes that the value is wrong: `name` followed by `sentence`.
    pub(super) fn refuse<T>(&self, sentence: impl Display) -> Option<T> {
        self.notes
            .mistake(&self.at, format!("{} {sentence}", self.name));
        None
    }

    /// Notes why the library does not accept the value, in its own sentence.
    pub(super) fn accepted<T>(&self, result: splice::Result<T>) -> Option<T> {
        result
            .map_err(|error| self.notes.mistake(&self.at, error.to_string()))
            .ok()
    }

    pub(super) fn wrong_type<T>(&self, remedy: &str) -> Option<T> {
        let kind = match self.value {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a fraction",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.refuse(format!("cannot be {kind}; {remedy}"))
    }

    pub(super) fn is_text(&self) -> bool {
        matches!(self.value, DeValue::String(_))
    }

    /// Whether it names UDP, which is a part of an address here.
    pub(super) fn is_udp(&self) -> bool {
        matches!(self.value, DeValue::String(text) if text.eq_ignore_ascii_case("udp"))
    }

    pub(super) fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        match self.value {
            DeValue::String(text) if text.is_empty() => self.refuse("is empty; write a text"),
            DeValue::String(text) => Some(text),
            _ => self.wrong_type("write a string in quotes"),
        }
    }

    /// A text that stands for a `T`.
    pub(super) fn parse<T: FromStr>(&self) -> Option<T>
    where
        T::Err: Display,
    {
        let text = self.text()?;
        match text.parse() {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                let error = error.to_string();
                // Some name the text, and what it is.
                if error.contains(&format!("{text:?}")) {
                    self.notes.mistake(&self.at, error);
                    return None;
                }
                self.refuse(format!("{text:?} cannot be used: {error}"))
            }
        }
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match self.value {
            DeValue::Boolean(flag) => Some(*flag),
            _ => self.wrong_type("write true or false, without quotes"),
        }
    }

    /// What is either given as `true` or left out.
    pub(super) fn only_true(&self) -> Option<bool> {
        if self.flag()? {
            return Some(true);
        }
        self.refuse("can only be true; leave it out otherwise")
    }

    pub(super) fn is_flag(&self) -> bool {
        matches!(self.value, DeValue::Boolean(_))
    }

    pub(super) fn number<T: TryFrom<i128> + Copy + Into<i128>>(
        &self,
        range: RangeInclusive<T>,
    ) -> Option<T> {
        let (least, most): (i128, i128) = ((*range.start()).into(), (*range.end()).into());
        let number = match self.value {
            DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => return self.wrong_type(&format!("write a number from {least} to {most}")),
        };
        let fits = number.filter(|number| (least..=most).contains(number));
        match fits.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Some(number),
            None => {
                let written =
                    number.map_or_else(|| "out of range".into(), |number| number.to_string());
                self.refuse(format!(
                    "is {written}; write a number from {least} to {most}"
                ))
            }
        }
    }

    /// A time longer than zero.
    pub(super) fn time(&self) -> Option<Duration> {
        self.duration(cli::time)
    }

    /// A time that may be zero.
    pub(super) fn time_or_zero(&self) -> Option<Duration> {
        self.duration(cli::duration)
    }

    fn duration(&self, parse: fn(&str) -> Result<Duration, String>) -> Option<Duration> {
        if !self.is_text() {
            return self.wrong_type("write a time with its unit in quotes, such as \"3s\"");
        }
        let text = self.text()?;
        parse(text).map_or_else(
            |error| self.refuse(format!("{text:?} cannot be used: {error}")),
            Some,
        )
    }

    /// Bytes: a number, or a text such as "64KiB" or "10MB".
    pub(super) fn size(&self, range: RangeInclusive<u64>) -> Option<u64> {
        if !self.is_text() {
            return self.number(range);
        }
        let text = self.text()?;
        match size(text) {
            Some(bytes) if range.contains(&bytes) => Some(bytes),
            Some(_) => self.refuse(format!(
                "{text:?} is out of range; write {} to {} bytes",
                range.start(),
                range.end()
            )),
            None => self.refuse(format!(
                "{text:?} is not a size; write a number and its unit, such as 64KiB or 10MB"
            )),
        }
    }

    /// One of `choices`.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.text()?;
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*choice);
        }
        let names: Vec<_> = choices
            .iter()
            .map(|(name, _)| format!("{name:?}"))
            .collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        self.refuse(format!("cannot be {text:?}; write {}", listed(&names)))
    }

    /// The values of a list with at least one; a single value counts as a list of one.
    pub(super) fn list(&self) -> Option<Vec<Self>> {
        let DeValue::Array(values) = self.value else {
            return Some(vec![self.clone()]);
        };
        if values.is_empty() {
            return self.refuse("is an empty list; add a value or leave the key out");
        }
        Some(values.iter().map(|value| self.element(value)).collect())
    }

    /// Every element of a list that can be read.
    pub(super) fn each<T>(&self, read: impl FnMut(&Self) -> Option<T>) -> Option<Vec<T>> {
        Some(self.list()?.iter().filter_map(read).collect())
    }

    fn element(&self, value: &'a Spanned<DeValue<'a>>) -> Self {
        Self {
            name: self.name,
            value: value.get_ref(),
            at: value.span(),
            notes: self.notes,
        }
    }

    pub(super) fn table(&self, what: &'static str) -> Option<Table<'a>> {
        match self.value {
            DeValue::Table(entries) => Some(Table::new(entries, self.at.clone(), what, self.notes)),
            _ => self.wrong_type("write a table, { KEY = VALUE }"),
        }
    }

    /// The table under the heading `[heading]`.
    pub(super) fn section(&self, heading: &str, what: &'static str) -> Option<Table<'a>> {
        match self.is_table() {
            true => self.table(what),
            false => self.wrong_type(&format!("write [{heading}]")),
        }
    }

    /// The tables under the headings `[[heading]]`.
    pub(super) fn sections(&self, heading: &str, what: &'static str) -> Option<Vec<Table<'a>>> {
        let DeValue::Array(values) = self.value else {
            return self.wrong_type(&format!("write [[{heading}]]"));
        };
        let section = |value| self.element(value).section(&format!("[{heading}]"), what);
        Some(values.iter().filter_map(section).collect())
    }
}

/// Units of a size and their bytes.
const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

fn size(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)))?;
    let number = number.trim_end();
    let plain = number.bytes().all(|byte| byte.is_ascii_digit());
    number
        .parse::<u64>()
        .ok()
        .filter(|_| plain)?
        .checked_mul(unit)
}

/// The name that is most like `text`, if one can be meant.
pub(super) fn nearest<'n>(text: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    // One letter in three may be wrong, and one in a short word.
    let length = text.chars().count();
    let most = (length / 3).max(1);
    names
        // The distance is at least that, and takes time and memory for each pair of letters.
        .filter(|name| name.chars().count().abs_diff(length) <= most)
        .map(|name| (strsim::damerau_levenshtein(text, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}

/// `a, b or c`.
pub(super) fn listed(names: &[&str]) -> String {
    match names {
        [] => "nothing".into(),
        [only] => (*only).into(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_a_unit() {
        for (text, bytes) in [
            ("64KiB", Some(64 << 10)),
            ("10MB", Some(10_000_000)),
            ("1 GiB", Some(1 << 30)),
            ("512B", Some(512)),
            ("512", None),
            ("-1kB", None),
            ("+1kB", None),
            ("kB", None),
            ("99999999999GB", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
