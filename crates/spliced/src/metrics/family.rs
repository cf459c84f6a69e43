//! A family of metrics: one name with its samples, as data.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::tally::Distribution;

/// All samples of one name.
#[derive(Debug)]
pub(crate) struct Family {
    /// Without the unit and without `_total`.
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) kind: MetricType,
    pub(super) help: &'static str,
    pub(super) samples: Vec<Sample>,
}

#[derive(Debug)]
pub(super) struct Sample {
    pub(super) labels: Labels,
    pub(super) value: Value,
}

/// Names and values. The values come from the configuration or from fixed words, never from a client.
pub(super) type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Whole(u64),
    Real(f64),
    Distributed(Distribution),
}

impl Family {
    /// What only grows.
    pub(super) fn counter(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Counter, help)
    }

    /// What goes up and down.
    pub(super) fn gauge(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Gauge, help)
    }

    /// How often something took how long.
    pub(super) fn histogram(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Histogram, help).in_unit(Unit::Seconds)
    }

    /// What the labels say; the value is always 1.
    pub(super) fn info(name: &'static str, help: &'static str) -> Self {
        Self::new(name, MetricType::Info, help)
    }

    fn new(name: &'static str, kind: MetricType, help: &'static str) -> Self {
        Self {
            name,
            unit: None,
            kind,
            help,
            samples: Vec::new(),
        }
    }

    /// In this unit, which becomes a part of the name.
    pub(super) fn in_unit(self, unit: Unit) -> Self {
        Self {
            unit: Some(unit),
            ..self
        }
    }

    /// With one sample more.
    pub(super) fn with(mut self, labels: Labels, value: impl Into<Value>) -> Self {
        self.add(labels, value);
        self
    }

    /// Adds a sample.
    pub(super) fn add(&mut self, labels: Labels, value: impl Into<Value>) {
        let value = value.into();
        self.samples.push(Sample { labels, value });
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<Distribution> for Value {
    fn from(value: Distribution) -> Self {
        Self::Distributed(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}
