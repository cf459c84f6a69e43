//! The demo's verdict: one sentence, and nothing in it that the rounds do not support.

use crate::results::{Better, Verdict, number};
use crate::statistics::{FEWEST_ROUNDS, Sample};

/// What the columns are called in a sentence, and which way is good.
const COLUMNS: [(&str, Better); 4] = [
    ("throughput", Better::Higher),
    ("p50", Better::Lower),
    ("p99", Better::Lower),
    ("CPU time per GB", Better::Lower),
];

/// A row of the demo's table.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    /// Whether it may be the best of the other relays; the direct path is none.
    pub(crate) is_relay: bool,
    /// In the order of [`COLUMNS`].
    pub(crate) columns: [Sample; 4],
}

/// Holds the row of `own` against the best other relay in each column. `None` where that row or every
/// other is missing.
pub(crate) fn sentence(own: &str, rows: &[Row]) -> Option<String> {
    let row = rows.iter().find(|row| row.name == own)?;
    let others: Vec<&Row> = rows
        .iter()
        // Other engines of spliced are no rivals of its default.
        .filter(|row| row.is_relay && !row.name.starts_with("spliced "))
        .collect();
    let rounds = row.columns[0].values().len();
    if others.is_empty() {
        return None;
    }
    if rounds < FEWEST_ROUNDS {
        return Some(format!(
            "{rounds} rounds are too few for a verdict, which takes {FEWEST_ROUNDS}."
        ));
    }
    let (mut better, mut worse, mut open) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (column, which_way)) in COLUMNS.into_iter().enumerate() {
        let Some(rival) = best(&others, index, which_way) else {
            continue;
        };
        let ratios = row.columns[index].ratio_to(&rival.columns[index]);
        let (Some(median), Some(interval)) = (ratios.median(), ratios.interval()) else {
            continue;
        };
        let list = match Verdict::of(Some(interval), which_way) {
            Verdict::Better => &mut better,
            Verdict::Worse => &mut worse,
            Verdict::NoDifference => &mut open,
        };
        list.push(format!(
            "{column} ({} times that of {}, 95 % interval {} to {})",
            number(median),
            rival.name,
            number(interval.low),
            number(interval.high)
        ));
    }
    let mut clauses = Vec::new();
    if !better.is_empty() {
        clauses.push(format!("better in {}", listed(&better)));
    }
    if !worse.is_empty() {
        clauses.push(format!("worse in {}", listed(&worse)));
    }
    if !open.is_empty() {
        let open = listed(&open);
        clauses.push(format!("not told apart by these rounds in {open}"));
    }
    let beside = "Beside the best other relay of each column";
    (!clauses.is_empty()).then(|| format!("{beside}, {own} is {}.", clauses.join("; ")))
}

/// The relay with the best median in a column.
fn best<'a>(rows: &[&'a Row], column: usize, which_way: Better) -> Option<&'a Row> {
    let measured = rows
        .iter()
        .filter_map(|row| Some((row.columns[column].median()?, *row)));
    let least = |one: &(f64, &Row), other: &(f64, &Row)| one.0.total_cmp(&other.0);
    let found = match which_way {
        Better::Higher => measured.max_by(least),
        Better::Lower => measured.min_by(least),
    };
    found.map(|(_, row)| row)
}

/// `a`, `a and b`, `a, b and c`.
fn listed(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{Row, sentence};
    use crate::statistics::Sample;

    const OWN: &str = "spliced auto";

    /// A row whose rounds lie around these values, some percent up and down.
    fn row(name: &str, values: [f64; 4], percent: f64) -> Row {
        let around = |middle: f64| -> Sample {
            [0.0, 1.0, -1.0, 0.5, -0.5]
                .map(|part| middle * (1.0 + part * percent / 100.0))
                .into_iter()
                .collect()
        };
        Row {
            name: name.into(),
            is_relay: name != "direct",
            columns: values.map(around),
        }
    }

    #[test]
    fn a_clear_difference_is_called_against_the_best_of_each_column() {
        let rows = [
            row("direct", [90.0, 1.0, 1.0, 0.01], 1.0),
            row(OWN, [50.0, 4.0, 6.0, 0.3], 0.1),
            row("spliced pipe", [99.0, 1.0, 1.0, 0.01], 1.0),
            row("HAProxy", [40.0, 10.0, 12.0, 0.4], 0.1),
            row("nginx", [10.0, 8.0, 3.0, 0.2], 0.1),
        ];
        let said = sentence(OWN, &rows).expect("both are there");
        assert_eq!(
            said,
            "Beside the best other relay of each column, spliced auto is better in throughput (1.25 \
             times that of HAProxy, 95 % interval 1.25 to 1.25) and p50 (0.500 times that of nginx, \
             95 % interval 0.500 to 0.500); worse in p99 (2.00 times that of nginx, 95 % interval \
             2.00 to 2.00) and CPU time per GB (1.50 times that of nginx, 95 % interval 1.50 to 1.50)."
        );
    }

    #[test]
    fn intervals_that_hold_1_make_no_difference() {
        let mut own = row(OWN, [50.0, 4.0, 6.0, 0.3], 0.0);
        // Faster by a tenth in the median, but not in every round.
        own.columns[0] = [55.0, 45.0, 56.0, 48.0, 57.0].into_iter().collect();
        let rows = [own, row("HAProxy", [50.0, 4.0, 6.0, 0.3], 0.0)];
        let said = sentence(OWN, &rows).expect("both are there");
        assert!(
            !said.contains("better") && !said.contains("worse"),
            "{said}"
        );
        let expected = "is not told apart by these rounds in throughput (1.10 times that of HAProxy, 95 % \
                        interval 0.900 to 1.14), p50 (";
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn too_few_rounds_make_no_verdict_and_nobody_else_makes_none_at_all() {
        let mut rows = vec![
            row(OWN, [50.0, 4.0, 6.0, 0.3], 1.0),
            row("nginx", [10.0, 8.0, 3.0, 0.2], 1.0),
        ];
        for row in &mut rows {
            for column in &mut row.columns {
                *column = column.values()[..4].iter().copied().collect();
            }
        }
        let said = sentence(OWN, &rows).expect("both are there");
        assert_eq!(said, "4 rounds are too few for a verdict, which takes 5.");
        assert_eq!(sentence(OWN, &rows[..1]), None);
        assert_eq!(sentence(OWN, &rows[1..]), None);
    }
}
