//! Results that nobody measured, with everything in them that there can be.

use hdrhistogram::Histogram;

use crate::results::{
    Better, Candlestick, Candlesticks, Check, Contestant, Distribution, Interval, Kind, Latencies,
    Line, Machine, Measured, Missing, Mitigation, Outcome, Parameter, Placement, Program, Quantity,
    Ratio, Results, Run, Schema, Series, Spread, Stalled, Stalls, Sysctl, Unit, Verdict, Workload,
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

/// A run of `compare` and of `reproduce echo` in one.
pub(crate) fn full() -> Results {
    let mut workloads = Vec::new();
    for (bytes, title) in [(1, "1 B"), (1 << 10, "1 KiB"), (64 << 10, "64 KiB")] {
        workloads.push(ping_pong(bytes, title));
    }
    workloads.extend([bulk(), idle(), slow_reader(), echo()]);
    Results {
        workloads,
        ..empty()
    }
}

/// A head without figures.
pub(crate) fn empty() -> Results {
    let contestant = |(name, kind, _): (&str, Kind, f64)| Contestant {
        name: name.into(),
        kind,
        how: format!("{name}, one thread, as its manual advises"),
    };
    Results {
        schema: Schema::current(),
        run: Run {
            title: "splice-bench compare".into(),
            command: "splice-bench compare --spliced target/release/spliced --rounds 9 --output \
                      docs/results/2026-11-20-6.18.44"
                .into(),
            started: "2026-11-20T12:38:00Z".into(),
            duration_seconds: 1834.2,
            complete: true,
            placement: Placement::OneCpu { cpu: 0 },
            spinner: true,
            rounds: 9,
            warm_up: "a tenth of each measurement".into(),
            confidence: 0.95,
            resamples: 10_000,
        },
        machine: Machine {
            cpu_model: "Imagined(R) Processor 9000 CPU @ 2.00GHz".into(),
            cpus: 2,
            memory_bytes: 24 << 30,
            virtualisation: Some("KVM".into()),
            mitigations: vec![Mitigation {
                defect: "spectre_v2".into(),
                state: "Mitigation: Retpolines; STIBP: disabled; RSB filling".into(),
            }],
            kernel_release: "6.18.44".into(),
            kernel_version: "#1 SMP PREEMPT_DYNAMIC".into(),
            kernel_parameters: vec!["mitigations=auto".into()],
            cpu_governor: None,
            clock_source: Some("tsc".into()),
            distribution: Some("Debian GNU/Linux 12 (bookworm)".into()),
        },
        sysctls: vec![Sysctl {
            scope: "client, relay, server".into(),
            name: "net.ipv4.tcp_congestion_control".into(),
            value: "reno".into(),
        }],
        programs: vec![Program {
            name: "spliced".into(),
            version: "0.1.0".into(),
            commit: Some("a394bc1".into()),
        }],
        contestants: CONTESTANTS.into_iter().map(contestant).collect(),
        missing: vec![Missing {
            what: "HAProxy splice-request".into(),
            why: "not installed: apt install haproxy".into(),
        }],
        workloads: Vec::new(),
        checks: vec![
            check(
                "direct against itself, Gb/s",
                "1 within the interval",
                "1.00",
                Outcome::Met,
            ),
            check(
                "spliced pipe: Gb/s over HAProxy splice",
                ">= 1.4",
                "1.34",
                Outcome::Missed,
            ),
            check(
                "sockperf against ping-pong",
                "within 5 %",
                "-",
                Outcome::NotMeasured,
            ),
        ],
        notes: vec!["Values here are invented | and <b>escaped</b>.".into()],
    }
}

fn check(title: &str, asked: &str, reached: &str, outcome: Outcome) -> Check {
    Check {
        title: title.into(),
        asked: asked.into(),
        reached: reached.into(),
        outcome,
    }
}

/// Nine rounds around `base` times each one's factor.
pub(crate) fn quantity(id: &str, title: &str, unit: Unit, better: Better, base: f64) -> Quantity {
    let measured = CONTESTANTS.iter().map(|&(name, kind, factor)| {
        let factor = match better {
            Better::Lower => factor,
            Better::Higher => 1.0 / factor,
        };
        let spread = [0.0, 0.01, -0.012, 0.004, 0.02, -0.006, 0.001, -0.015, 0.03];
        let rounds: Vec<f64> = spread
            .iter()
            .map(|part| base * factor * (1.0 + part))
            .collect();
        let around = |value: f64| Interval {
            low: value * 0.99,
            high: value * 1.02,
        };
        let interval = around(factor);
        Measured {
            contestant: name.into(),
            median: base * factor * 1.001,
            interval: Some(around(base * factor)),
            ratio: (kind != Kind::Reference || factor != 1.0).then(|| Ratio {
                median: factor,
                interval: Some(interval),
                verdict: Verdict::of(Some(interval), better),
            }),
            rounds,
        }
    });
    Quantity {
        id: id.into(),
        title: title.into(),
        unit,
        better,
        reference: Some("direct".into()),
        measured: measured.collect(),
    }
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
    let mut workload = Workload::new(
        &format!("ping-pong-{bytes}"),
        &format!("Ping-pong, {title}"),
        "A message goes to the server and comes back, again and again, on one connection.",
    );
    workload.parameters = vec![
        parameter("message", title),
        parameter("round trips a round", "20 000"),
    ];
    workload.quantities = vec![quantity(
        "p50",
        "One-way latency, median",
        Unit::Microseconds,
        Better::Lower,
        base,
    )];
    let distributions = CONTESTANTS
        .iter()
        .map(|&(name, _, factor)| {
            let file = format!("histograms/ping-pong-{bytes}-{name}.hlog");
            Distribution::of(
                name,
                &histogram(2.0 * base * factor, 150_000),
                0.5,
                Some(file),
            )
        })
        .collect();
    workload.latencies = Some(Latencies {
        title: "One-way latency".into(),
        unit: Unit::Microseconds,
        distributions,
    });
    workload
}

fn bulk() -> Workload {
    let mut workload = Workload::new(
        "bulk-both",
        "Bulk, both ways",
        "One connection, 128 MiB each way at once.",
    );
    workload.quantities = vec![
        quantity(
            "throughput",
            "Throughput",
            Unit::GigabitsPerSecond,
            Better::Higher,
            51.1,
        ),
        quantity(
            "cpu",
            "CPU time",
            Unit::CpuSecondsPerGigabyte,
            Better::Lower,
            0.156,
        ),
    ];
    workload.missing = vec![Missing {
        what: "pen".into(),
        why: "the flow did not resume".into(),
    }];
    workload
}

fn idle() -> Workload {
    let mut workload = Workload::new("idle", "Idle pairs", "5000 pairs that have nothing to do.");
    let mut memory = quantity(
        "memory",
        "Process memory of a pair",
        Unit::Bytes,
        Better::Lower,
        995.0,
    );
    memory.reference = None;
    for one in &mut memory.measured {
        one.ratio = None;
        one.interval = None;
        one.rounds.truncate(1);
    }
    memory.measured[0].median = 0.0;
    workload.quantities = vec![memory];
    workload
}

fn slow_reader() -> Workload {
    let mut workload = Workload::new(
        "slow-reader",
        "Slow reader",
        "The server reads 1 MiB in a second while the client sends what it may.",
    );
    let line = |&(name, _, factor): &(&str, Kind, f64)| Line {
        contestant: name.into(),
        points: (0..=60)
            .map(|tick| {
                let seconds = f64::from(tick) / 2.0;
                (seconds, factor * 4e6 * (1.0 - (-seconds / factor).exp()))
            })
            .collect(),
    };
    workload.series = Some(Series {
        title: "Memory held".into(),
        unit: Unit::Bytes,
        better: Better::Lower,
        lines: CONTESTANTS.iter().map(line).collect(),
    });
    workload
}

fn echo() -> Workload {
    let mut workload = Workload::new(
        "echo-16k",
        "Echo, blocks of 16 KiB",
        "A block is sent and read back through a socket that is spliced to itself.",
    );
    let stick = |name: &str, series: &str, median: f64| {
        let spread = |max: f64| Spread {
            min: median * 0.7,
            mean: Some(median * 1.2),
            median,
            max,
            deviation: median * 0.8,
            count: Some(100_000),
        };
        Candlestick {
            contestant: name.into(),
            series: series.into(),
            whole: (series != "2019, kernel 4.14").then(|| spread(65_000.0)),
            trimmed: Some(spread(median * 6.0)),
            buckets: vec![
                (32.0, 0),
                (64.0, 10),
                (128.0, 90_000),
                (256.0, 9_980),
                (512.0, 0),
                (65_536.0, 10),
                (131_072.0, 0),
            ],
        }
    };
    let sticks = CONTESTANTS
        .iter()
        .filter(|one| one.1 == Kind::Ours)
        .flat_map(|&(name, _, factor)| {
            [
                ("normal", 40.0),
                ("busy poll", 36.0),
                ("2019, kernel 4.14", 110.0),
            ]
            .map(|(series, base)| stick(name, series, base * factor))
        })
        .collect();
    workload.candlesticks = Some(Candlesticks {
        title: "Time until the block is back".into(),
        unit: Unit::Microseconds,
        trimmed_percent: 1.0,
        sticks,
    });
    workload.stalls = Some(Stalls {
        over_milliseconds: 50.0,
        counted: vec![Stalled {
            contestant: "spliced sockmap".into(),
            series: Some("normal".into()),
            stalls: 10,
            of: 100_000,
            longest_milliseconds: 65.0,
        }],
    });
    workload
}

fn parameter(name: &str, value: &str) -> Parameter {
    Parameter {
        name: name.into(),
        value: value.into(),
    }
}

/// Everything that a chart could stumble over.
pub(crate) fn awkward() -> Results {
    let long = "a very long name that nobody would give to a contestant ".repeat(3);
    let mut results = Results {
        run: Run {
            complete: false,
            ..empty().run
        },
        contestants: vec![Contestant {
            name: long.clone(),
            kind: Kind::Peer,
            how: "x".repeat(400),
        }],
        missing: Vec::new(),
        checks: Vec::new(),
        notes: Vec::new(),
        ..empty()
    };
    let alone = |id: &str, rounds: Vec<f64>, median: f64| {
        let mut workload = Workload::new(id, &format!("{id} {long}"), &long);
        let measured = Measured {
            contestant: long.clone(),
            rounds,
            median,
            interval: None,
            ratio: None,
        };
        workload.quantities = vec![Quantity {
            id: "value".into(),
            title: "Value".into(),
            unit: Unit::Count,
            better: Better::Higher,
            reference: Some("direct".into()),
            measured: vec![measured],
        }];
        workload
    };
    let mut nobody = Workload::new("nobody", "Nobody", "");
    nobody.quantities = vec![Quantity {
        measured: Vec::new(),
        ..quantity("none", "None", Unit::Bytes, Better::Lower, 1.0)
    }];
    nobody.latencies = Some(Latencies {
        title: "None".into(),
        unit: Unit::Microseconds,
        distributions: vec![Distribution::of(&long, &histogram(1.0, 0), 1.0, None)],
    });
    nobody.series = Some(Series {
        title: "None".into(),
        unit: Unit::Bytes,
        better: Better::Lower,
        lines: vec![Line {
            contestant: long.clone(),
            points: Vec::new(),
        }],
    });
    nobody.candlesticks = Some(Candlesticks {
        title: "None".into(),
        unit: Unit::Microseconds,
        trimmed_percent: 1.0,
        sticks: Vec::new(),
    });
    let mut flat = alone("flat", vec![5.0; 3], 5.0);
    flat.series = Some(Series {
        title: "Nothing, all the time".into(),
        unit: Unit::Bytes,
        better: Better::Lower,
        lines: vec![Line {
            contestant: long.clone(),
            points: vec![(0.0, 0.0)],
        }],
    });
    flat.latencies = Some(Latencies {
        title: "All the same".into(),
        unit: Unit::Microseconds,
        distributions: vec![Distribution::of(&long, &histogram(10.0, 30), 1.0, None)],
    });
    flat.candlesticks = Some(Candlesticks {
        title: "No time at all".into(),
        unit: Unit::Microseconds,
        trimmed_percent: 1.0,
        sticks: vec![Candlestick {
            contestant: "unlisted".into(),
            series: long.clone(),
            whole: Some(Spread {
                min: 0.0,
                mean: None,
                median: 0.0,
                max: 0.0,
                deviation: 0.0,
                count: None,
            }),
            trimmed: None,
            buckets: Vec::new(),
        }],
    });
    results.workloads = vec![
        alone("zero", vec![0.0; 3], 0.0),
        alone("huge", vec![1e300], 1e300),
        alone("tiny", vec![1e-300], 1e-300),
        alone("unmeasured-rounds", Vec::new(), 1.0),
        flat,
        nobody,
    ];
    results
}
