//! The rules for arrows.
//!
//! Files may form an import cycle only if one of them is a module and all others are its submodules. Between
//! layers, arrows go down only.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::arrows::Arrow;
use crate::declaration::Layers;

type File = Vec<String>;

/// The arrows of one crate that break a rule, a sentence each.
pub(crate) fn broken(arrows: &[Arrow], layers: &[Layers]) -> Vec<String> {
    let mut sentences: Vec<String> = arrows
        .iter()
        .filter_map(|arrow| up(arrow, layers))
        .collect();
    // Nothing but the root's own file may be above the root, so a cycle through it is reported as an
    // arrow up.
    let inner: Vec<&Arrow> = arrows
        .iter()
        .filter(|it| !it.from.is_empty() && !it.to.is_empty())
        .collect();
    let files = inner
        .iter()
        .flat_map(|it| [it.from.clone(), it.to.clone()])
        .collect();
    for knot in knots(&inner, files) {
        let within = inside(&inner, &knot);
        for arrow in &within {
            let cycle: Vec<String> = cycle(&within, arrow)
                .iter()
                .map(|it| it.join("::"))
                .collect();
            sentences.push(format!(
                "{}: part of the import cycle {}; move what they share below them",
                place(arrow),
                cycle.join(" -> "),
            ));
        }
    }
    sentences
}

fn up(arrow: &Arrow, layers: &[Layers]) -> Option<String> {
    if arrow.to.is_empty() {
        return Some(format!(
            "{}: an arrow up to the crate's root; move it into a module of its own",
            place(arrow)
        ));
    }
    layers.iter().find_map(|layers| {
        let from = layers.child_of(&arrow.from)?;
        let to = layers.child_of(&arrow.to)?;
        let (source, target) = (layers.rank(from)?, layers.rank(to)?);
        if from == to || source < target {
            return None;
        }
        let direction = if source == target { "sideways" } else { "up" };
        Some(format!(
            "{}: an arrow {direction} from layer {from} to layer {to}; move what it needs to a layer \
             below {from}, or invert the dependency",
            place(arrow)
        ))
    })
}

fn place(arrow: &Arrow) -> String {
    format!(
        "{}:{} uses `{}`",
        arrow.file.display(),
        arrow.line,
        arrow.uses
    )
}

/// The shortest cycle that contains `arrow`.
fn cycle(arrows: &[&Arrow], arrow: &Arrow) -> Vec<File> {
    let mut ways = VecDeque::from([vec![arrow.from.clone(), arrow.to.clone()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in arrows.iter().filter(|it| way.last() == Some(&it.from)) {
            if seen.insert(&next.to) {
                let longer = [&*way, std::slice::from_ref(&next.to)].concat();
                if next.to == arrow.from {
                    return longer;
                }
                ways.push_back(longer);
            }
        }
    }
    Vec::new()
}

fn inside<'a>(arrows: &[&'a Arrow], files: &BTreeSet<File>) -> Vec<&'a Arrow> {
    let both = |arrow: &&&Arrow| files.contains(&arrow.from) && files.contains(&arrow.to);
    arrows.iter().filter(both).copied().collect()
}

/// The cycles among `files` that are larger than a file and its own submodules.
fn knots(arrows: &[&Arrow], files: BTreeSet<File>) -> Vec<BTreeSet<File>> {
    let mut knots = Vec::new();
    for mut circle in circles(arrows, files) {
        let head = circle
            .iter()
            .find(|&head| circle.iter().all(|it| it.starts_with(head)))
            .cloned();
        match head {
            // The rest must obey the rule without the head: two submodules in a cycle of their own are a
            // knot, whatever they share with their parent.
            Some(head) => {
                circle.remove(&head);
                knots.extend(self::knots(&inside(arrows, &circle), circle));
            }
            None => knots.push(circle),
        }
    }
    knots
}

/// The strongly connected components of two or more files.
fn circles(arrows: &[&Arrow], files: BTreeSet<File>) -> Vec<BTreeSet<File>> {
    let mut reached: BTreeMap<&File, BTreeSet<&File>> = BTreeMap::new();
    for file in &files {
        let mut seen = BTreeSet::new();
        let mut open = vec![file];
        while let Some(next) = open.pop() {
            let onwards = arrows
                .iter()
                .filter(|it| it.from == *next && files.contains(&it.to));
            open.extend(onwards.map(|it| &it.to).filter(|to| seen.insert(*to)));
        }
        reached.insert(file, seen);
    }
    let mut circles: Vec<BTreeSet<File>> = Vec::new();
    for file in &files {
        if circles.iter().any(|circle| circle.contains(file)) {
            continue;
        }
        let circle: BTreeSet<File> = reached[file]
            .iter()
            .filter(|it| reached[**it].contains(file))
            .map(|it| (*it).clone())
            .collect();
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}
