//! What a demonstration has measured, for people and programs.

use std::fmt::Write as _;

use serde::Serialize;

use super::{MESSAGE_BYTES, Measured, ROUND, ROUNDS};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    message_bytes: usize,
    cpu: usize,
    rounds: u32,
    round_seconds: f64,
    ways: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    way: &'static str,
    redirect: Option<&'static str>,
    has_proxy: bool,
    round_trips: usize,
    p50_us: f64,
    p99_us: f64,
    /// Of the p50 of the same way by TCP alone.
    p50_of_tcp: f64,
    /// Of all messages.
    redirected: f64,
}

impl Report {
    pub(super) fn of(cpu: usize, all: &mut [Measured]) -> Self {
        for of in &mut *all {
            of.one_way_ns.sort_unstable();
        }
        let p50 = |of: &Measured| percentile(&of.one_way_ns, 50);
        let line = |of: &Measured| {
            let by_tcp = all.iter().find(|one| one.way == of.way.by_tcp());
            let messages = 2 * of.one_way_ns.len();
            Line {
                way: of.way.as_str(),
                redirect: of.way.redirect(),
                has_proxy: of.way.has_proxy(),
                round_trips: of.one_way_ns.len(),
                p50_us: p50(of),
                p99_us: percentile(&of.one_way_ns, 99),
                p50_of_tcp: by_tcp.map_or(0.0, |one| p50(of) / p50(one)),
                redirected: of.redirected as f64 / messages.max(1) as f64,
            }
        };
        let ways = all.iter().map(line).collect();
        Self {
            message_bytes: MESSAGE_BYTES,
            cpu,
            rounds: ROUNDS,
            round_seconds: ROUND.as_secs_f64(),
            ways,
        }
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "Messages of {} bytes to and fro on CPU {}, half of a round trip in µs; {} interleaved rounds of {} s.\n\n\
             {:<28} {:>8} {:>8} {:>8} {:>11}\n",
            self.message_bytes,
            self.cpu,
            self.rounds,
            self.round_seconds,
            "",
            "p50",
            "p99",
            "of TCP",
            "redirected"
        );
        for (has_proxy, title) in [
            (false, "Two network namespaces"),
            (true, "With a proxy in a third one"),
        ] {
            // Writing to a text does not fail.
            let _ = writeln!(text, "{title}");
            for line in self.ways.iter().filter(|line| line.has_proxy == has_proxy) {
                let _ = writeln!(
                    text,
                    "  {:<26} {:>8.2} {:>8.2} {:>8.2} {:>11.3}",
                    line.way, line.p50_us, line.p99_us, line.p50_of_tcp, line.redirected
                );
            }
        }
        text
    }
}

/// In microseconds, of values in nanoseconds and in order.
fn percentile(sorted: &[u64], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (sorted.len() * percent / 100).min(last);
    sorted.get(at).map_or(0.0, |ns| *ns as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::super::Way;
    use super::*;

    #[test]
    fn ratios_are_those_to_the_same_way_by_tcp() {
        let mut all = Way::ALL.map(|way| Measured {
            way,
            one_way_ns: vec![if way.has_proxy() { 8000 } else { 4000 }; 100],
            redirected: 150,
        });
        all[1].one_way_ns = (0..100).rev().map(|i| 1000 + 20 * i).collect();
        let report = Report::of(3, &mut all);
        let of: Vec<_> = report.ways.iter().map(|line| line.p50_of_tcp).collect();
        assert_eq!(of, [1.0, 0.5, 1.0, 1.0, 1.0]);
        assert_eq!(report.ways[1].p99_us, 2.98);
        assert_eq!(report.ways[1].redirected, 0.75);
        let table = report.table();
        assert_eq!(table.lines().count(), 10, "{table}");
    }
}
