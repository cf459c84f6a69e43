//! Sets and maps of nftables.

use std::collections::HashMap;

use crate::action::Action;
use crate::known::{Answer, Known};

/// A set, or a map: a set whose elements have data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) key_bytes: usize,
    /// The lengths of the key's fields in bytes: several for a concatenation, each padded to whole
    /// registers.
    pub(crate) fields: Vec<usize>,
    /// Rules may add and delete elements (`flags dynamic`, or there is such a rule). There is no notification
    /// of that.
    pub(crate) is_dynamic: bool,
    elements: Elements,
    catch_all: Option<Element>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) from: Vec<u8>,
    /// The last key of its range.
    pub(crate) to: Vec<u8>,
    pub(crate) data: Option<Data>,
    /// It has a timeout.
    pub(crate) expires: bool,
    /// The side effect of a hit: it counts against a quota or a limit.
    pub(crate) effect: Option<String>,
}

/// The data of a map's element or of an immediate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Value(Vec<u8>),
    Verdict(Action),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Elements {
    /// By key.
    Exact(HashMap<Vec<u8>, Element>),
    /// Sorted and disjoint.
    Ranges(Vec<Element>),
    /// A range for each of several fields.
    Concatenated(Vec<Element>),
}

/// An element of a dump: the end of an interval is an element of its own.
#[derive(Clone, Debug)]
pub(crate) struct DumpedElement {
    pub(crate) key: Vec<u8>,
    pub(crate) key_end: Option<Vec<u8>>,
    /// It marks the exclusive end of an interval.
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
        dumped: Vec<DumpedElement>,
    ) -> Self {
        let (catch_all, dumped): (Vec<_>, Vec<_>) =
            dumped.into_iter().partition(|dumped| dumped.is_catch_all);
        let elements = if fields.len() > 1 && is_interval {
            Elements::Concatenated(
                dumped
                    .into_iter()
                    .map(DumpedElement::with_key_end)
                    .collect(),
            )
        } else if is_interval {
            Elements::Ranges(ranges(dumped, key_bytes))
        } else {
            let with_key = |dumped: DumpedElement| (dumped.key.clone(), dumped.with_key_end());
            Elements::Exact(dumped.into_iter().map(with_key).collect())
        };
        Self {
            name,
            key_bytes,
            fields,
            is_dynamic,
            elements,
            catch_all: catch_all.into_iter().next().map(|dumped| dumped.element),
        }
    }

    /// The elements that a key may hit, each with its answer, and whether it hits any.
    pub(crate) fn look_up(&self, key: &Known) -> (Vec<(Answer, &Element)>, Answer) {
        let mut found = Vec::new();
        let mut hit = Answer::No;
        let mut consider = |answer: Answer, element| {
            // The element may be gone by now, without a notification.
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

    /// The chains to which the verdicts of a map go.
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

impl DumpedElement {
    fn with_key_end(self) -> Element {
        Element {
            to: self.key_end.unwrap_or_else(|| self.key.clone()),
            from: self.key,
            ..self.element
        }
    }
}

/// Joins the starts and ends of intervals, which may come in any order (`nft_rbtree` dumps them in
/// reverse).
fn ranges(mut dumped: Vec<DumpedElement>, key_bytes: usize) -> Vec<Element> {
    // An interval may start where another ends: the end sorts first.
    dumped.sort_by(|a, b| a.key.cmp(&b.key).then(b.is_end.cmp(&a.is_end)));
    let mut ranges: Vec<Element> = Vec::new();
    let mut is_open = false;
    for one in dumped {
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

/// The previous key.
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
