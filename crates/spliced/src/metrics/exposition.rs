//! Families as the text of OpenMetrics 1.0, which Prometheus reads.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::family::{Family, Sample, Value};

/// The type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug)]
struct Families(Vec<Family>);

/// The text of these families.
pub(super) fn text(families: Vec<Family>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = encode(&mut text, &registry);
    text
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let mut metric = encoder.encode_descriptor(
                family.name,
                family.help,
                family.unit.as_ref(),
                family.kind,
            )?;
            for sample in &family.samples {
                write(&mut metric, family.kind, sample)?;
            }
        }
        Ok(())
    }
}

fn write(metric: &mut MetricEncoder<'_>, kind: MetricType, sample: &Sample) -> fmt::Result {
    if let MetricType::Info = kind {
        return metric.encode_info(&sample.labels);
    }
    let mut labelled = metric.encode_family(&sample.labels)?;
    match (kind, &sample.value) {
        (MetricType::Counter, Value::Whole(value)) => {
            labelled.encode_counter::<NoLabelSet, _, u64>(value, None)
        }
        (MetricType::Counter, Value::Real(value)) => {
            labelled.encode_counter::<NoLabelSet, _, u64>(value, None)
        }
        (_, Value::Whole(value)) => labelled.encode_gauge(value),
        (_, Value::Real(value)) => labelled.encode_gauge(value),
        (_, Value::Distributed(all)) => {
            let count = all.buckets.iter().map(|(_, count)| count).sum();
            labelled.encode_histogram::<NoLabelSet>(all.sum_seconds, count, &all.buckets, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Unit;

    use super::*;
    use crate::tally::Distribution;

    #[test]
    fn a_family_has_help_type_unit_and_escaped_labels() {
        let hostile = "a\"b\\c\nd} 1\n# EOF\nü";
        let text = text(vec![
            Family::info("x_build", "What it is.").with(vec![("version", "1.2".into())], true),
            Family::counter("x_moved", "What has moved.")
                .in_unit(Unit::Bytes)
                .with(vec![("listener", hostile.into())], u64::MAX)
                .with(vec![("listener", String::new())], 0),
            Family::gauge("x_active", "How many are.").with(vec![], 7),
            Family::gauge("x_start_time", "When it was.")
                .in_unit(Unit::Seconds)
                .with(vec![], 1_764_339_525.25),
            Family::histogram("x_taken", "How long it took.").with(
                vec![("a", "b".into())],
                Distribution {
                    buckets: vec![(0.5, 2), (f64::INFINITY, 1)],
                    sum_seconds: 3.25,
                },
            ),
            Family::counter("x_nothing", "None yet."),
        ]);
        assert_eq!(
            text,
            "# HELP x_build What it is.\n\
             # TYPE x_build info\n\
             x_build_info{version=\"1.2\"} 1\n\
             # HELP x_moved_bytes What has moved.\n\
             # TYPE x_moved_bytes counter\n\
             # UNIT x_moved_bytes bytes\n\
             x_moved_bytes_total{listener=\"a\\\"b\\\\c\\nd} 1\\n# EOF\\nü\"} 18446744073709551615\n\
             x_moved_bytes_total{listener=\"\"} 0\n\
             # HELP x_active How many are.\n\
             # TYPE x_active gauge\n\
             x_active 7\n\
             # HELP x_start_time_seconds When it was.\n\
             # TYPE x_start_time_seconds gauge\n\
             # UNIT x_start_time_seconds seconds\n\
             x_start_time_seconds 1764339525.25\n\
             # HELP x_taken_seconds How long it took.\n\
             # TYPE x_taken_seconds histogram\n\
             # UNIT x_taken_seconds seconds\n\
             x_taken_seconds_sum{a=\"b\"} 3.25\n\
             x_taken_seconds_count{a=\"b\"} 3\n\
             x_taken_seconds_bucket{le=\"0.5\",a=\"b\"} 2\n\
             x_taken_seconds_bucket{le=\"+Inf\",a=\"b\"} 3\n\
             # HELP x_nothing None yet.\n\
             # TYPE x_nothing counter\n\
             # EOF\n"
        );
    }
}
