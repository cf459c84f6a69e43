//! The results of a run: `results.json`.
//!
//! Everything that a person reads (`summary.md`, `report.html`, the charts) is made from a
//! [`Results`] and from nothing else, so that it can be made again from the file. The schema is
//! [`SCHEMA`] at [`VERSION`]; docs/measuring.md describes it for readers of the file. A change to
//! anything below that an old file does not fit takes the next version.
//!
//! All values are in the unit that stands beside them, times in seconds unless a name says
//! otherwise. Contestants are referred to by name.

mod distribution;
mod json;
mod run;
mod unit;
mod workload;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

pub(crate) use self::distribution::*;
pub(crate) use self::run::*;
pub(crate) use self::unit::*;
pub(crate) use self::workload::*;
pub(crate) use crate::statistics::Interval;

/// The name of the schema, so that some other JSON file is not taken for results.
pub(crate) const SCHEMA: &str = "splice-bench results";

/// The version that this program writes, and the only one that it reads.
pub(crate) const VERSION: u32 = 1;

/// A run and all that was measured in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Results {
    pub(crate) schema: Schema,
    pub(crate) run: Run,
    pub(crate) machine: Machine,
    /// Settings of the kernel that bear on the figures.
    pub(crate) sysctls: Vec<Sysctl>,
    /// Every program that took part.
    pub(crate) programs: Vec<Program>,
    /// Who was measured, in the order of all tables and charts.
    pub(crate) contestants: Vec<Contestant>,
    /// What is not in here although somebody could look for it, and why.
    pub(crate) missing: Vec<Missing>,
    pub(crate) workloads: Vec<Workload>,
    /// What was asked of the figures, or of the bench itself, and what came out.
    pub(crate) checks: Vec<Check>,
    /// Free remarks, a paragraph each.
    pub(crate) notes: Vec<String>,
}

/// Says which schema a file follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Schema {
    pub(crate) name: String,
    pub(crate) version: u32,
}

impl Schema {
    /// The one that this program writes.
    pub(crate) fn current() -> Self {
        Self {
            name: SCHEMA.into(),
            version: VERSION,
        }
    }
}

impl Results {
    /// Reads what [`Results::to_json`] wrote. Another schema or version is refused by name.
    pub(crate) fn from_json(text: &str) -> Result<Self> {
        /// What a file of any version has.
        #[derive(Deserialize)]
        struct Head {
            schema: Schema,
        }
        let head: serde_json::Value = serde_json::from_str(text).context("it is not JSON")?;
        let Ok(Head { schema }) = Head::deserialize(&head) else {
            bail!("it does not say which schema it follows, so it is not results of this bench");
        };
        ensure!(
            schema.name == SCHEMA,
            "its schema is {:?}, not {SCHEMA:?}",
            schema.name
        );
        ensure!(
            schema.version == VERSION,
            "its schema has version {}, and this program reads version {VERSION} only",
            schema.version
        );
        // From the text once more: errors then say the line.
        serde_json::from_str(text).context("it does not follow its schema")
    }

    /// The text of `results.json`. Fails when a value is not a finite number, which JSON cannot say.
    pub(crate) fn to_json(&self) -> Result<String> {
        let text = String::from_utf8(json::text(self)?)?;
        // A number that is not finite becomes null, which is read as none.
        Self::from_json(&text).context("a value is not a finite number")?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::{Results, Schema, Unit};
    use crate::report::specimen;

    #[test]
    fn what_is_not_results_is_refused_in_a_sentence() {
        for (text, said) in [
            ("{", "it is not JSON"),
            ("[]", "it does not say which schema it follows"),
            (
                r#"{"schema": {"name": "other", "version": 1}}"#,
                r#"its schema is "other""#,
            ),
            (
                r#"{"schema": {"name": "splice-bench results", "version": 0}}"#,
                "its schema has version 0, and this program reads version 1 only",
            ),
            (
                r#"{"schema": {"name": "splice-bench results", "version": 2}, "more": {}}"#,
                "its schema has version 2",
            ),
            (
                r#"{"schema": {"name": "splice-bench results", "version": 1}}"#,
                "it does not follow its schema",
            ),
        ] {
            let error = Results::from_json(text).expect_err(text).to_string();
            assert!(error.starts_with(said), "{text}: {error}");
            assert!(!error.contains('\n'), "{text}: {error}");
        }
        assert_eq!(Schema::current().version, super::VERSION);
    }

    #[test]
    fn what_was_written_is_read_the_same() {
        for results in [specimen::full(), specimen::awkward(), specimen::empty()] {
            let text = results.to_json().expect("all values are finite");
            assert_eq!(Results::from_json(&text).expect(&text), results);
        }
    }

    /// Every name in `json`, and every word that stands for a choice.
    fn names(json: &serde_json::Value, all: &mut Vec<String>) {
        match json {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    all.push(name.clone());
                    if ["unit", "better", "verdict", "outcome", "kind"].contains(&name.as_str()) {
                        all.extend(value.as_str().map(str::to_owned));
                    }
                    names(value, all);
                }
            }
            serde_json::Value::Array(values) => {
                values.iter().for_each(|value| names(value, all));
            }
            _ => {}
        }
    }

    #[test]
    fn the_schema_is_documented() {
        let text = include_str!("../../../docs/measuring.md");
        let json = serde_json::to_value(specimen::full()).expect("it is JSON");
        let mut all = Vec::new();
        names(&json, &mut all);
        let units = [
            Unit::Seconds,
            Unit::ConnectionsPerSecond,
            Unit::RequestsPerSecond,
            Unit::Percent,
        ];
        for unit in units {
            let unit = serde_json::to_value(unit).expect("it is JSON");
            all.extend(unit.as_str().map(str::to_owned));
        }
        assert!(all.len() > 100);
        for name in all {
            assert!(
                text.contains(&format!("`{name}`")),
                "{name} is not in docs/measuring.md"
            );
        }
        assert!(text.contains(&format!(
            "`{}` and the version {}",
            super::SCHEMA,
            super::VERSION
        )));
    }

    #[test]
    fn fields_that_the_schema_does_not_know_are_refused() {
        let text = specimen::empty().to_json().expect("all values are finite");
        let more = text.replacen("\"notes\":", "\"guesses\": 1, \"notes\":", 1);
        let error = format!("{:#}", Results::from_json(&more).expect_err("one too many"));
        assert!(
            error.contains("guesses") && error.contains("line"),
            "{error}"
        );
    }

    #[test]
    fn values_that_json_cannot_say_are_refused() {
        for value in [f64::NAN, f64::INFINITY] {
            let mut results = specimen::full();
            results.workloads[0].quantities[0].measured[0].median = value;
            let error = results.to_json().expect_err("it is not finite").to_string();
            assert_eq!(error, "a value is not a finite number");
        }
    }
}
