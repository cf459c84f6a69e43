//! One reading of the metrics, by a parser that is not ours.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use prometheus_parse::{Sample, Scrape, Value};

use crate::patience::{PATIENCE, until};

pub(crate) struct Reading(Scrape);

impl Reading {
    pub(crate) fn of(text: &str) -> Self {
        let lines = text.lines().map(|line| Ok(line.to_owned()));
        let reading = Self(Scrape::parse(lines).expect("it is read"));
        // Nothing was left out. The buckets of a histogram are one sample.
        let is_sample = |line: &&str| {
            let is_bucket = line.contains("_bucket{") && !line.contains("le=\"+Inf\"");
            !line.starts_with('#') && !is_bucket
        };
        let samples = text.lines().filter(is_sample);
        assert_eq!(reading.0.samples.len(), samples.count());
        reading
    }

    /// At a control socket.
    pub(crate) fn at(socket: &str) -> Self {
        let (head, text) = get(socket, "/metrics");
        assert!(head.starts_with("HTTP/1.0 200 "), "{head}");
        Self::of(&text)
    }

    pub(crate) fn by_tcp(address: &str) -> Self {
        let (head, text) = ask_by_tcp(address, "GET /metrics HTTP/1.0\r\n\r\n");
        assert!(head.starts_with("HTTP/1.0 200 "), "{head}");
        Self::of(&text)
    }

    /// The names of all samples.
    pub(crate) fn samples(&self) -> BTreeSet<&str> {
        let names = self.0.samples.iter().map(|sample| sample.metric.as_str());
        names.collect()
    }

    /// What a family says of itself.
    pub(crate) fn about(&self, family: &str) -> &str {
        let about = self.0.docs.get(family);
        about.unwrap_or_else(|| panic!("{family} does not say what it is"))
    }

    /// The sum of all samples that have these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.total(name, labels) as u64
    }

    /// The same with its fraction.
    pub(crate) fn total(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let is_one = |sample: &&Sample| {
            let has = |(name, value): &(&str, &str)| sample.labels.get(name) == Some(value);
            sample.metric == name && labels.iter().all(has)
        };
        let samples = self.0.samples.iter().filter(is_one);
        samples.map(number).sum()
    }

    /// Every counter with its labels.
    pub(crate) fn counters(&self) -> BTreeMap<String, f64> {
        let ends = ["_total", "_sum", "_count"];
        let is_counter = |sample: &&Sample| ends.iter().any(|end| sample.metric.ends_with(end));
        let counters = self.0.samples.iter().filter(is_counter);
        counters
            .map(|sample| {
                (
                    format!("{}{}", sample.metric, sample.labels),
                    number(sample),
                )
            })
            .collect()
    }

    /// No counter is lower than `before`, or has gone.
    pub(crate) fn expect_no_less(&self, before: &Self) {
        let now = self.counters();
        for (counter, before) in before.counters() {
            let now = now.get(&counter);
            assert!(
                now.is_some_and(|now| *now >= before),
                "{counter}: {before}, then {now:?}"
            );
        }
    }
}

fn number(sample: &Sample) -> f64 {
    match sample.value {
        Value::Counter(number) | Value::Gauge(number) | Value::Untyped(number) => number,
        // Of all buckets.
        Value::Histogram(ref buckets) => buckets.last().expect("a bucket").count,
        ref other => panic!("{other:?}"),
    }
}

/// Waits for a control socket.
pub(crate) fn wait_for(socket: &str) {
    until("it answers", || UnixStream::connect(socket).is_ok());
}

/// The head and the body of an answer at a control socket.
pub(crate) fn get(socket: &str, path: &str) -> (String, String) {
    let client = UnixStream::connect(socket).expect("connected");
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    answer(client, &format!("GET {path} HTTP/1.0\r\n\r\n"))
}

/// The same by TCP, for any request.
pub(crate) fn ask_by_tcp(address: &str, request: &str) -> (String, String) {
    let client = TcpStream::connect(address).expect("connected");
    client.set_read_timeout(Some(PATIENCE)).expect("set");
    answer(client, request)
}

fn answer(mut client: impl Read + Write, request: &str) -> (String, String) {
    client.write_all(request.as_bytes()).expect("asked");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.into(), body.into())
}
