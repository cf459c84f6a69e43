//! Results that nobody measured, with everything in them that there can be.

use hdrhistogram::Histogram;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::results::{
    Better, Distribution, Interval, Kind, Results, Schema, Unit, Verdict, Workload,
};

/// Names as in `contestant.rs`, each with a factor of its own on all values.
const CONTESTANTS: [(&str, Kind, f64); 16] = [
    ("direct", Kind::Reference, 1.0),
    ("direct again", Kind::Reference, 1.004),
    ("spliced auto", Kind::Ours, 1.98),
    ("spliced copy", Kind::Ours, 2.06),
    ("spliced pipe", Kind::Ours, 2.26),
    ("spliced uring", Kind::Ours, 1.9),
    ("spliced aio", Kind::Ours, 2.6),
    ("spliced sockmap", Kind::Ours, 1.67),
    ("spliced segment", Kind::Ours, 1.02),
    ("HAProxy", Kind::Peer, 2.5),
    ("HAProxy splice-auto", Kind::Peer, 2.51),
    ("HAProxy splice", Kind::Peer, 2.79),
    ("HAProxy splice tuned", Kind::Peer, 2.77),
    ("nginx stream", Kind::Peer, 2.21),
    ("socat", Kind::Peer, 3.4),
    ("pen", Kind::Peer, 4.2),
];

/// What a file with this text would hold.
fn read<T: DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).expect("it follows the schema")
}

/// One value for each of [`CONTESTANTS`].
fn each(value: impl FnMut(&(&str, Kind, f64)) -> Value) -> Vec<Value> {
    CONTESTANTS.iter().map(value).collect()
}

/// A run of `compare` and of `reproduce echo` in one.
pub(crate) fn full() -> Results {
    let sizes = [(1, "1 B"), (1 << 10, "1 KiB"), (64 << 10, "64 KiB")];
    let ping_pongs = sizes.map(|(bytes, title)| ping_pong(bytes, title));
    let others = [bulk(), idle(), slow_reader(), echo()];
    Results {
        workloads: ping_pongs.into_iter().chain(others).collect(),
        ..empty()
    }
}

/// A head without figures.
pub(crate) fn empty() -> Results {
    let check = |title: &str, asked: &str, reached: &str, outcome: &str| json!({"title": title, "asked": asked, "reached": reached, "outcome": outcome});
    read(json!({
        "schema": Schema::current(),
        "run": {
            "title": "splice-bench compare",
            "command": "splice-bench compare --spliced target/release/spliced --rounds 9 --output \
                        docs/results/2026-11-20-6.18.44",
            "started": "2026-11-20T12:38:00Z", "duration_seconds": 1834.2, "complete": true,
            "placement": {"kind": "one_cpu", "cpu": 0}, "spinner": true, "rounds": 9,
            "warm_up": "a tenth of each measurement", "confidence": 0.95, "resamples": 10_000,
        },
        "machine": {
            "cpu_model": "Imagined(R) Processor 9000 CPU @ 2.00GHz", "cpus": 2,
            "memory_bytes": 24_u64 << 30, "virtualisation": "KVM",
            "mitigations": [{
                "defect": "spectre_v2",
                "state": "Mitigation: Retpolines; STIBP: disabled; RSB filling",
            }],
            "kernel_release": "6.18.44", "kernel_version": "#1 SMP PREEMPT_DYNAMIC",
            "kernel_parameters": ["mitigations=auto"], "cpu_governor": null, "clock_source": "tsc",
            "distribution": "Debian GNU/Linux 12 (bookworm)",
        },
        "sysctls": [{
            "scope": "client, relay, server", "name": "net.ipv4.tcp_congestion_control", "value": "reno",
        }],
        "programs": [{"name": "spliced", "version": "0.1.0", "commit": "a394bc1"}],
        "contestants": each(|(name, kind, _)| {
            json!({"name": name, "kind": kind, "how": format!("{name}, one thread, as its manual advises")})
        }),
        "missing": [{"what": "HAProxy splice-request", "why": "not installed: apt install haproxy"}],
        "workloads": [],
        "checks": [
            check("direct against itself, Gb/s", "1 within the interval", "1.00", "met"),
            check("spliced pipe: Gb/s over HAProxy splice", ">= 1.4", "1.34", "missed"),
            check("sockperf against ping-pong", "within 5 %", "-", "not_measured"),
        ],
        "notes": ["Values here are invented | and <b>escaped</b>."],
    }))
}

/// A quantity with nine rounds around `base` times each one's factor.
fn quantity(id: &str, title: &str, unit: Unit, better: Better, base: f64) -> Value {
    let spread = [0.0, 0.01, -0.012, 0.004, 0.02, -0.006, 0.001, -0.015, 0.03];
    let measured = each(|&(name, kind, factor)| {
        let factor = match better {
            Better::Lower => factor,
            Better::Higher => 1.0 / factor,
        };
        let around = |value: f64| Interval {
            low: value * 0.99,
            high: value * 1.02,
        };
        let (interval, verdict) = (around(factor), Verdict::of(Some(around(factor)), better));
        let ratio = json!({"median": factor, "interval": interval, "verdict": verdict});
        json!({
            "contestant": name, "rounds": spread.map(|part| base * factor * (1.0 + part)),
            "median": base * factor * 1.001, "interval": around(base * factor),
            "ratio": (kind != Kind::Reference || factor != 1.0).then_some(ratio),
        })
    });
    json!({
        "id": id, "title": title, "unit": unit, "better": better, "reference": "direct",
        "measured": measured,
    })
}

/// Latencies with a long tail, in ns.
fn histogram(base: f64, count: u32) -> Histogram<u64> {
    let mut histogram = Histogram::new_with_max(1_000_000_000, 3).expect("it is a sound range");
    for number in 0..count {
        let part = (f64::from(number) + 0.5) / f64::from(count);
        let tail = 0.03 * -(1.0 - part).ln() + 2e-5 / (1.0 - part);
        histogram.saturating_record((base * 1e3 * (1.0 + tail)) as u64);
    }
    histogram
}

fn ping_pong(bytes: u32, title: &str) -> Workload {
    let base = 3.7 + f64::from(bytes) / 4e3;
    let (unit, better) = (Unit::Microseconds, Better::Lower);
    let distributions = each(|(name, _, factor)| {
        let file = format!("histograms/ping-pong-{bytes}-{name}.hlog");
        let histogram = histogram(2.0 * base * factor, 150_000);
        json!(Distribution::of(name, &histogram, 0.5, Some(file)))
    });
    let description =
        "A message goes to the server and comes back, again and again, on one connection.";
    Workload {
        parameters: read(json!([
            {"name": "message", "value": title},
            {"name": "round trips a round", "value": "20 000"},
        ])),
        quantities: read(json!([quantity(
            "p50",
            "One-way latency, median",
            unit,
            better,
            base
        )])),
        latencies: read(json!({
            "title": "One-way latency", "unit": unit, "distributions": distributions,
        })),
        ..Workload::new(
            &format!("ping-pong-{bytes}"),
            &format!("Ping-pong, {title}"),
            description,
        )
    }
}

fn bulk() -> Workload {
    let (gigabits, seconds) = (Unit::GigabitsPerSecond, Unit::CpuSecondsPerGigabyte);
    let description = "One connection, 128 MiB each way at once.";
    Workload {
        quantities: read(json!([
            quantity("throughput", "Throughput", gigabits, Better::Higher, 51.1),
            quantity("cpu", "CPU time", seconds, Better::Lower, 0.156),
        ])),
        missing: read(json!([{"what": "pen", "why": "the flow did not resume"}])),
        ..Workload::new("bulk-both", "Bulk, both ways", description)
    }
}

fn idle() -> Workload {
    let mut workload = Workload::new("idle", "Idle pairs", "5000 pairs that have nothing to do.");
    let (title, better) = ("Process memory of a pair", Better::Lower);
    workload.quantities = read(json!([quantity(
        "memory",
        title,
        Unit::Bytes,
        better,
        995.0
    )]));
    let memory = &mut workload.quantities[0];
    memory.reference = None;
    for one in &mut memory.measured {
        (one.ratio, one.interval) = (None, None);
        one.rounds.truncate(1);
    }
    memory.measured[0].median = 0.0;
    workload
}

fn slow_reader() -> Workload {
    let lines = each(|&(name, _, factor)| {
        let moments = (0..=60).map(|tick| f64::from(tick) / 2.0);
        let held = |at: f64| (at, factor * 4e6 * (1.0 - (-at / factor).exp()));
        json!({"contestant": name, "points": moments.map(held).collect::<Vec<_>>()})
    });
    let description = "The server reads 1 MiB in a second while the client sends what it may.";
    Workload {
        series: read(json!({
            "title": "Memory held", "unit": "bytes", "better": "lower", "lines": lines,
        })),
        ..Workload::new("slow-reader", "Slow reader", description)
    }
}

fn echo() -> Workload {
    let stick = |name: &str, series: &str, median: f64| {
        let spread = |max: f64| {
            json!({
                "min": median * 0.7, "mean": median * 1.2, "median": median, "max": max,
                "deviation": median * 0.8, "count": 100_000,
            })
        };
        json!({
            "contestant": name, "series": series, "trimmed": spread(median * 6.0),
            "whole": (series != "2019, kernel 4.14").then(|| spread(65_000.0)),
            "buckets": [
                [32, 0], [64, 10], [128, 90_000], [256, 9_980], [512, 0], [65_536, 10], [131_072, 0],
            ],
        })
    };
    let ours = CONTESTANTS.iter().filter(|one| one.1 == Kind::Ours);
    let sticks = ours.flat_map(|&(name, _, factor)| {
        let series = [
            ("normal", 40.0),
            ("busy poll", 36.0),
            ("2019, kernel 4.14", 110.0),
        ];
        series.map(|(series, base)| stick(name, series, base * factor))
    });
    let description = "A block is sent and read back through a socket that is spliced to itself.";
    Workload {
        candlesticks: read(json!({
            "title": "Time until the block is back", "unit": "microseconds", "trimmed_percent": 1.0,
            "sticks": sticks.collect::<Vec<_>>(),
        })),
        stalls: read(json!({
            "over_milliseconds": 50.0,
            "counted": [{
                "contestant": "spliced sockmap", "series": "normal", "stalls": 10, "of": 100_000,
                "longest_milliseconds": 65.0,
            }],
        })),
        ..Workload::new("echo-16k", "Echo, blocks of 16 KiB", description)
    }
}

/// Everything that a chart could stumble over.
pub(crate) fn awkward() -> Results {
    let long = "a very long name that nobody would give to a contestant ".repeat(3);
    let one = |title: &str, measured: Value| {
        json!([{
            "id": "value", "title": title, "unit": "count", "better": "higher", "reference": "direct",
            "measured": measured,
        }])
    };
    let alone = |id: &str, rounds: Vec<f64>, median: f64| Workload {
        quantities: read(one(
            "Value",
            json!([{"contestant": long, "rounds": rounds, "median": median}]),
        )),
        ..Workload::new(id, &format!("{id} {long}"), &long)
    };
    let latencies = |title: &str, histogram: &Histogram<u64>| {
        let all = [Distribution::of(&long, histogram, 1.0, None)];
        read(json!({"title": title, "unit": "microseconds", "distributions": all}))
    };
    let series = |title: &str, points: Value| {
        let lines = json!([{"contestant": long, "points": points}]);
        read(json!({"title": title, "unit": "bytes", "better": "lower", "lines": lines}))
    };
    let candlesticks = |title: &str, sticks: Value| {
        let unit = Unit::Microseconds;
        read(json!({"title": title, "unit": unit, "trimmed_percent": 1.0, "sticks": sticks}))
    };
    let nobody = Workload {
        quantities: read(one("None", json!([]))),
        latencies: latencies("None", &histogram(1.0, 0)),
        series: series("None", json!([])),
        candlesticks: candlesticks("None", json!([])),
        ..Workload::new("nobody", "Nobody", "")
    };
    let no_time = json!([{
        "contestant": "unlisted", "series": long, "buckets": [],
        "whole": {"min": 0.0, "median": 0.0, "max": 0.0, "deviation": 0.0},
    }]);
    let flat = Workload {
        latencies: latencies("All the same", &histogram(10.0, 30)),
        series: series("Nothing, all the time", json!([[0.0, 0.0]])),
        candlesticks: candlesticks("No time at all", no_time),
        ..alone("flat", vec![5.0; 3], 5.0)
    };
    let mut results = Results {
        contestants: read(json!([{"name": long, "kind": "peer", "how": "x".repeat(400)}])),
        missing: Vec::new(),
        checks: Vec::new(),
        notes: Vec::new(),
        workloads: vec![
            alone("zero", vec![0.0; 3], 0.0),
            alone("huge", vec![1e300], 1e300),
            alone("tiny", vec![1e-300], 1e-300),
            alone("unmeasured-rounds", Vec::new(), 1.0),
            flat,
            nobody,
        ],
        ..empty()
    };
    results.run.complete = false;
    results
}
