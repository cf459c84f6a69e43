//! Sets and maps of nftables.

use std::collections::HashMap;

use crate::action::Action;
use crate::known::{Answer, Known};

/// A set, or a map, whose elements have data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) key_bytes: usize,
    /// The fields of a concatenated key, in bytes, each padded to whole registers; else one.
    pub(crate) fields: Vec<usize>,
    /// Rules may add and delete elements (`flags dynamic`, or there is such a rule), of which nobody is told.
    pub(crate) is_dynamic: bool,
    elements: Elements,
    catch_all: Option<Element>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) from: Vec<u8>,
    /// The last key that it stands for.
    pub(crate) to: Vec<u8>,
    pub(crate) data: Option<Data>,
    /// It goes by itself at some time.
    pub(crate) expires: bool,
    /// A hit does something else as well: it is counted against a quota or a limit.
    pub(crate) effect: Option<String>,
}

/// What an element of a map or an immediate has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Value(Vec<u8>),
    Verdict(Action),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Elements {
    /// By key.
    Exact(HashMap<Vec<u8>, Element>),
    /// In order, apart from each other.
    Ranges(Vec<Element>),
    /// Of several fields, each a range.
    Concatenated(Vec<Element>),
}

/// An element as the kernel tells it, before the ends of intervals are put to their beginnings.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) key: Vec<u8>,
    pub(crate) key_end: Option<Vec<u8>>,
    /// It only says where an interval ends, which does not have it any more.
    pub(crate) is_end: bool,
    pub(crate) is_catch_all: bool,
    pub(crate) element: Element,
}

impl Set {
    pub(crate) fn new(
        name: String,
        key_bytes: usize,
        fields: Vec<usize>,
        is_interval: bool,
        is_dynamic: bool,
        told: Vec<Told>,
    ) -> Self {
        let (catch_all, told): (Vec<_>, Vec<_>) =
            told.into_iter().partition(|told| told.is_catch_all);
        let elements = if fields.len() > 1 && is_interval {
            Elements::Concatenated(told.into_iter().map(Told::with_key_end).collect())
        } else if is_interval {
            Elements::Ranges(ranges(told, key_bytes))
        } else {
            let with_key = |told: Told| (told.key.clone(), told.with_key_end());
            Elements::Exact(told.into_iter().map(with_key).collect())
        };
        Self {
            name,
            key_bytes,
            fields,
            is_dynamic,
            elements,
            catch_all: catch_all.into_iter().next().map(|told| told.element),
        }
    }

    /// The elements that a key may hit, each with whether it does for certain; and whether none may be
    /// hit.
    pub(crate) fn look_up(&self, key: &Known) -> (Vec<(Answer, &Element)>, Answer) {
        let mut found = Vec::new();
        let mut hit = Answer::No;
        let mut consider = |answer: Answer, element| {
            // One that rules add or delete may be gone by now, of which nobody is told.
            let answer = if element_expires(element) || self.is_dynamic {
                answer.and(Answer::Maybe)
            } else {
                answer
            };
            if answer != Answer::No {
                hit = hit.or(answer);
                found.push((answer, element));
            }
        };
        match &self.elements {
            Elements::Exact(elements) if key.is_known() => {
                if let Some(element) = elements.get(key.value()) {
                    consider(Answer::Yes, element);
                }
            }
            Elements::Exact(elements) => {
                for element in elements.values() {
                    consider(key.equals(&element.from), element);
                }
            }
            Elements::Ranges(elements) if key.is_known() => {
                let behind =
                    elements.partition_point(|element| element.from.as_slice() <= key.value());
                if let Some(element) = behind.checked_sub(1).and_then(|at| elements.get(at)) {
                    consider(key.lies_within(&element.from, &element.to), element);
                }
            }
            Elements::Ranges(elements) => {
                for element in elements {
                    consider(key.lies_within(&element.from, &element.to), element);
                }
            }
            Elements::Concatenated(elements) => {
                for element in elements {
                    consider(self.fields_lie_within(key, element), element);
                }
            }
        }
        if hit != Answer::Yes
            && let Some(element) = &self.catch_all
        {
            let answer = if found.is_empty() && !self.is_dynamic && !element_expires(element) {
                Answer::Yes
            } else {
                Answer::Maybe
            };
            hit = hit.or(answer);
            found.push((answer, element));
        }
        if self.is_dynamic && hit == Answer::No {
            hit = Answer::Maybe;
        }
        (found, hit)
    }

    /// The chains that verdicts of a map go to.
    pub(crate) fn leads_to(&self) -> Vec<usize> {
        let elements: Vec<&Element> = match &self.elements {
            Elements::Exact(elements) => elements.values().collect(),
            Elements::Ranges(elements) | Elements::Concatenated(elements) => {
                elements.iter().collect()
            }
        };
        let all = elements.into_iter().chain(&self.catch_all);
        all.filter_map(|element| match &element.data {
            Some(Data::Verdict(Action::Jump(to) | Action::Goto(to))) => Some(*to),
            _ => None,
        })
        .collect()
    }

    fn fields_lie_within(&self, key: &Known, element: &Element) -> Answer {
        let mut answer = Answer::Yes;
        let mut at = 0;
        for bytes in &self.fields {
            let part = |whole: &[u8]| whole.get(at..at + bytes).unwrap_or_default().to_vec();
            let field = key.part(at, *bytes);
            answer = answer.and(field.lies_within(&part(&element.from), &part(&element.to)));
            at += bytes.next_multiple_of(4);
        }
        answer
    }
}

fn element_expires(element: &Element) -> bool {
    element.expires
}

impl Told {
    fn with_key_end(self) -> Element {
        Element {
            to: self.key_end.unwrap_or_else(|| self.key.clone()),
            from: self.key,
            ..self.element
        }
    }
}

/// Puts beginnings and ends of intervals together. They may come in any order (`nft_rbtree` tells them
/// backwards).
fn ranges(mut told: Vec<Told>, key_bytes: usize) -> Vec<Element> {
    // Where one interval ends another may begin: the end goes first.
    told.sort_by(|a, b| a.key.cmp(&b.key).then(b.is_end.cmp(&a.is_end)));
    let mut ranges: Vec<Element> = Vec::new();
    let mut is_open = false;
    for one in told {
        if is_open && let Some(open) = ranges.last_mut() {
            open.to = before(&one.key);
        }
        is_open = !one.is_end;
        if one.is_end {
            continue;
        }
        if let Some(end) = one.key_end.clone() {
            is_open = false;
            ranges.push(Element {
                from: one.key,
                to: end,
                ..one.element
            });
            continue;
        }
        ranges.push(Element {
            from: one.key,
            to: vec![0xff; key_bytes],
            ..one.element
        });
    }
    ranges
}

/// The key before this one.
fn before(key: &[u8]) -> Vec<u8> {
    let mut key = key.to_vec();
    for byte in key.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            break;
        }
    }
    key
}
