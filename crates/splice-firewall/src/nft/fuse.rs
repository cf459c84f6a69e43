//! Joins a load and the comparison of the loaded value into one step.

use crate::expression::{Comparison, Expression, Short};
use crate::rule::Step;

/// Joins each load with the comparison after it, if no later step reads the loaded value.
pub(super) fn fused(steps: Vec<Step>) -> Vec<Step> {
    let mut fused: Vec<Step> = Vec::with_capacity(steps.len());
    let mut rest = steps.into_iter().peekable();
    while let Some(step) = rest.next() {
        let Step::Nft(Expression::Load { to, what }) = &step else {
            fused.push(step);
            continue;
        };
        let asked = match rest.peek() {
            Some(Step::Nft(Expression::Compare { from, how, value })) if from == to => match how {
                // The kernel pads a register with zeros.
                _ if !what.has(value.len()) => None,
                Comparison::Equal => Short::of(value).map(|value| (true, value)),
                Comparison::NotEqual => Short::of(value).map(|value| (false, value)),
                _ => None,
            },
            _ => None,
        };
        // Up to the next load into the register.
        let is_read_again = |length: usize| {
            let mut later = rest.clone().skip(1).filter_map(|step| match step {
                Step::Nft(later) => Some(later),
                _ => None,
            });
            later.find_map(|later| {
                let (from, read) = match later {
                    Expression::Load { to: again, .. } if again == *to => return Some(false),
                    later => later.reads()?,
                };
                let (from, to) = (usize::from(from), usize::from(*to));
                (from < to + length && to < from + read).then_some(true)
            }) == Some(true)
        };
        match asked {
            Some((is_equal, value)) if !is_read_again(value.bytes().len()) => {
                fused.push(Step::Nft(Expression::Ask {
                    what: what.clone(),
                    is_equal,
                    value,
                }));
                rest.next();
            }
            _ => fused.push(step),
        }
    }
    fused
}
