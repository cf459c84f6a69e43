//! The files in `examples/monitoring` are what Prometheus takes, and know the metrics that there are.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use netlab::{Process, Scratch};
use serde_json::Value;

use super::DOCUMENTATION;
use crate::relay::output;

const OPERATIONS: &str = include_str!("../../../../../docs/operations.md");
const ALERTS: &str = include_str!("../../../../../examples/monitoring/alerts.yml");
const DASHBOARD: &str = include_str!("../../../../../examples/monitoring/dashboard.json");

fn promtool(arguments: &[&str]) {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/monitoring");
    let mut promtool = Process::command("promtool");
    promtool.args(arguments).current_dir(directory);
    let output = output(&mut promtool);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// The queries of the dashboard, with values for its variables.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let queries = targets.map(|target| target["expr"].as_str().expect("a query"));
    queries
        .map(|query| {
            query
                .replace("$instance", ".*")
                .replace("$__rate_interval", "5m")
        })
        .collect()
}

fn is_part_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

/// The names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter| !is_part_of_name(letter));
    words
        .filter(|word| word.starts_with("spliced_") || word.starts_with("process_"))
        .map(|word| word.strip_suffix("_bucket").unwrap_or(word))
        .collect()
}

#[test]
fn prometheus_takes_the_configuration_and_each_alert_is_raised() {
    promtool(&["check", "config", "prometheus.yml"]);
    promtool(&["check", "rules", "alerts.yml"]);
    promtool(&["test", "rules", "alerts.test.yml"]);
    let raised = include_str!("../../../../../examples/monitoring/alerts.test.yml");
    let alerts = ALERTS
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let alerts: Vec<_> = alerts.collect();
    assert!(alerts.len() > 8);
    for alert in alerts {
        assert!(OPERATIONS.contains(&format!("\n| `{alert}` | ")), "{alert}");
        let raises = format!("alertname: {alert}\n        exp_alerts:");
        assert!(raised.contains(&raises), "{alert}");
    }
}

#[test]
fn the_dashboard_asks_what_prometheus_understands() {
    let queries = queries();
    assert!(queries.len() > 10);
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for (number, query) in queries.iter().enumerate() {
        let query = Value::from(&**query);
        // JSON is YAML.
        write!(
            rules,
            "      - record: query:{number}\n        expr: {query}\n"
        )
        .expect("written");
    }
    let scratch = Scratch::new("metrics").expect("a directory");
    let rules = scratch.write("rules.yml", &rules).expect("written");
    promtool(&["check", "rules", path(&rules)]);
}

#[test]
fn alerts_and_dashboard_know_the_metrics_that_there_are() {
    let queries = queries().join("\n");
    let known = &metrics(ALERTS) | &metrics(&queries);
    assert!(known.len() > 12, "{known:?}");
    for name in known {
        let row = format!("\n| `{name}` | ");
        assert!(DOCUMENTATION.contains(&row), "docs/metrics.md lacks {name}");
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
