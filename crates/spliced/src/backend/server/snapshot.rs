//! What is told of a server.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use serde_json::{Value, json};

use super::{Server, lock};
use crate::backend::health::State;
use crate::backend::history::wall_clock;

impl Server {
    /// What is told of it.
    pub(in crate::backend) fn snapshot(&self) -> Value {
        let now = Instant::now();
        let clocks = (now, SystemTime::now());
        let (state, has_checks, since) = {
            let health = lock(&self.health);
            let has_checks = health.thresholds().has_checks;
            (health.state(now), has_checks, health.since(now))
        };
        let addresses = self.target.last_known();
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let open = self.open();
        let (away, is_drained, is_leaving) = {
            let drain = lock(&self.drain);
            (
                drain.away(open == 0),
                drain.is_drained(),
                drain.is_leaving(),
            )
        };
        let history = lock(&self.history);
        let mut since = since.unwrap_or(history.made);
        let (mut word, out_seconds, mut why) = match state {
            State::Up if addresses.is_empty() => ("unresolved", 0, Some(self.target.why_nowhere())),
            State::Up => match self.weight.zero() {
                Some((when, why)) => {
                    since = when;
                    ("weight 0", 0, Some(why))
                }
                None if has_checks => ("up", 0, None),
                None => ("not checked", 0, None),
            },
            State::Down => {
                since = history.down_since;
                ("down", 0, Some(history.why_down.clone()))
            }
            State::Out(left) => {
                let seconds = left.as_millis().div_ceil(1000);
                ("out", seconds, Some(history.why_out.clone()))
            }
        };
        if let Some(away) = away {
            // What is wrong with it, too: it may be about to serve again.
            why = Some(match why {
                Some(why) => format!("{}; {word}: {why}", away.why),
                None => away.why,
            });
            since = away.since;
            word = match open {
                0 if away.is_disabled => "disabled",
                0 => "drained",
                _ => "draining",
            };
        }
        let last_error = history.last_error.as_ref().map(|(at, why)| {
            json!({
                "time": wall_clock(*at, clocks),
                "error": why,
            })
        });
        let [checks, connections, resets] = [
            &self.failed_checks,
            &self.failed_connections,
            &self.early_resets,
        ]
        .map(|count| count.load(Ordering::Relaxed));
        json!({
            "server": self.name(),
            "addresses": addresses,
            "usable": state == State::Up,
            "state": word,
            "why": why,
            "since": wall_clock(since, clocks),
            "last_error": last_error,
            "out_seconds": out_seconds,
            "backup": self.is_backup(),
            "weight": self.weight(),
            "drained": is_drained,
            "removed": is_leaving,
            "added": self.is_added(),
            "connections": open,
            "total": self.total.load(Ordering::Relaxed),
            "failures": checks + connections + resets,
            "failed_checks": checks,
            "failed_connections": connections,
            "early_resets": resets,
        })
    }
}
