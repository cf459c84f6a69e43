//! One server of a backend.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::health::{Cause, Change, FALL, Health, State, Thresholds};
use crate::plan::{BackendPlan, HealthPlan};
use crate::roster::Roster;
use crate::target::Target;

pub(crate) struct Server {
    /// Unique in the process.
    id: u64,
    /// The address as it was typed, or as a SRV record names it.
    name: Arc<str>,
    /// The SRV name whose records name it; `None` if it has an address of its own.
    srv: Option<String>,
    pub(super) target: Arc<Target>,
    weight: AtomicU32,
    is_backup: AtomicBool,
    pub(super) open: AtomicU32,
    pub(super) total: AtomicU64,
    failed_checks: AtomicU64,
    failed_connections: AtomicU64,
    early_resets: AtomicU64,
    health: Mutex<Health>,
    history: Mutex<History>,
    /// What this host lacked when it could not be connected to at last, until it can.
    shortage: Mutex<Option<String>>,
    pub(super) roster: Arc<Roster>,
    removed: AtomicBool,
    checks_changed: Arc<Notify>,
    /// A task checks it.
    watched: AtomicBool,
    /// A task finds out whether what its clients have seen is its fault.
    probed: AtomicBool,
}

impl Server {
    pub(super) fn new(
        address: splice::Address,
        srv: Option<&str>,
        weight: u16,
        is_backup: bool,
        plan: &BackendPlan,
        at_most: Duration,
    ) -> Result<Arc<Self>> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Ok(Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: address.to_string().into(),
            srv: srv.map(Into::into),
            target: Target::new(address, at_most)?,
            weight: AtomicU32::new(weight.into()),
            is_backup: AtomicBool::new(is_backup),
            open: AtomicU32::new(0),
            total: AtomicU64::new(0),
            failed_checks: AtomicU64::new(0),
            failed_connections: AtomicU64::new(0),
            early_resets: AtomicU64::new(0),
            health: Mutex::new(Health::new(thresholds(plan.health.as_ref()))),
            history: Mutex::new(History::new()),
            shortage: Mutex::default(),
            roster: Arc::default(),
            removed: AtomicBool::new(false),
            checks_changed: Arc::default(),
            watched: AtomicBool::new(false),
            probed: AtomicBool::new(false),
        }))
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(super) fn srv(&self) -> Option<&str> {
        self.srv.as_deref()
    }

    pub(super) fn is_backup(&self) -> bool {
        self.is_backup.load(Ordering::Relaxed)
    }

    pub(super) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    pub(super) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }

    /// A reload or a SRV record has changed what is said of it.
    pub(super) fn change(&self, weight: u16, is_backup: bool) {
        self.weight.store(weight.into(), Ordering::Relaxed);
        self.is_backup.store(is_backup, Ordering::Relaxed);
    }

    /// A reload has changed the plan.
    pub(super) fn change_checks(&self, plan: &BackendPlan) {
        lock(&self.health).set_thresholds(thresholds(plan.health.as_ref()));
        self.checks_changed.notify_one();
    }

    /// Notified of a change of its checks.
    pub(super) fn checks_changed(&self) -> Arc<Notify> {
        Arc::clone(&self.checks_changed)
    }

    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }

    /// Whether a task checks it. Says how it was before.
    pub(super) fn set_watched(&self, watched: bool) -> bool {
        self.watched.swap(watched, Ordering::AcqRel)
    }

    /// As [`set_watched`](Self::set_watched), for probes.
    pub(super) fn set_probed(&self, probed: bool) -> bool {
        self.probed.swap(probed, Ordering::AcqRel)
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    pub(super) fn is_up(&self, now: Instant) -> bool {
        self.state(now) == State::Up
    }

    pub(super) fn state(&self, now: Instant) -> State {
        lock(&self.health).state(now)
    }

    /// Its weight in hundredths, less while it starts slowly.
    pub(super) fn share(&self, slow_start: Option<Duration>, now: Instant) -> u32 {
        self.weight() * lock(&self.health).share_percent(slow_start, now)
    }

    /// Returns whether it came up.
    pub(super) fn check_passed(&self, backend: &str) -> bool {
        let change = lock(&self.health).check_passed(Instant::now());
        self.tell(backend, change)
    }

    /// Returns whether it went down.
    pub(super) fn check_failed(&self, backend: &str, why: &str) -> bool {
        self.failed_checks.fetch_add(1, Ordering::Relaxed);
        let (change, fall) = {
            let mut health = lock(&self.health);
            (health.check_failed(), health.thresholds().fall)
        };
        let went_down = change == Some(Change::WentDown);
        {
            let mut history = lock(&self.history);
            history.failed(why);
            if went_down {
                history.down_since = Instant::now();
            }
            // As long as it is down, the last check says why.
            history.why_down = why.into();
        }
        if went_down {
            let row = in_a_row(fall);
            tracing::warn!(
                "backend {backend}: server {} is down: {why}{row}",
                self.name
            );
        }
        went_down
    }

    /// Returns whether it came up.
    pub(super) fn connected(&self, backend: &str) -> bool {
        let change = lock(&self.health).connected(Instant::now());
        self.tell(backend, change)
    }

    /// Returns whether it is to be taken out.
    pub(super) fn connection_failed(&self, why: &str) -> bool {
        lock(&self.history).failed(why);
        self.failed_connections.fetch_add(1, Ordering::Relaxed);
        lock(&self.health).connection_failed(Instant::now())
    }

    /// It has sent something on a connection that was made at `began`.
    pub(super) fn answered(&self, began: Instant) {
        lock(&self.health).answered(began);
    }

    /// Returns whether it is suspect.
    pub(super) fn early_reset(&self) -> bool {
        lock(&self.history).failed("it reset a connection before its first byte");
        self.early_resets.fetch_add(1, Ordering::Relaxed);
        lock(&self.health).early_reset(Instant::now())
    }

    /// How many failures in a row count.
    pub(super) fn fall(&self) -> u16 {
        lock(&self.health).thresholds().fall
    }

    /// Returns for how long, if it was up.
    pub(super) fn take_out(&self, cause: Cause, why: &str, now: Instant) -> Option<Duration> {
        let time = lock(&self.health).take_out(cause, now)?;
        lock(&self.history).why_out = why.into();
        Some(time)
    }

    /// It can be connected to, as far as this host goes.
    pub(super) fn forget_shortage(&self) {
        lock(&self.shortage).take();
    }

    /// Whether this host has not lacked just that the last time.
    pub(super) fn is_new_shortage(&self, why: &str) -> bool {
        let mut told = lock(&self.shortage);
        let is_new = told.as_deref() != Some(why);
        if is_new {
            *told = Some(why.into());
        }
        is_new
    }

    fn tell(&self, backend: &str, change: Option<Change>) -> bool {
        let came_up = change == Some(Change::CameUp);
        if came_up {
            tracing::info!("backend {backend}: server {} is up again", self.name);
        }
        came_up
    }

    pub(super) fn snapshot(&self) -> Value {
        let now = Instant::now();
        let clocks = (now, SystemTime::now());
        let (state, has_checks, since) = {
            let health = lock(&self.health);
            let has_checks = health.thresholds().has_checks;
            (health.state(now), has_checks, health.since(now))
        };
        let addresses = self.target.last_known();
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let history = lock(&self.history);
        let mut since = since.unwrap_or(history.made);
        let (word, out_seconds, why) = match state {
            State::Up if addresses.is_empty() => ("unresolved", 0, Some(self.target.why_nowhere())),
            State::Up if has_checks => ("up", 0, None),
            State::Up => ("not checked", 0, None),
            State::Down => {
                since = history.down_since;
                ("down", 0, Some(history.why_down.clone()))
            }
            State::Out(left) => {
                let seconds = left.as_millis().div_ceil(1000);
                ("out", seconds, Some(history.why_out.clone()))
            }
        };
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
            "connections": self.open(),
            "total": self.total.load(Ordering::Relaxed),
            "failures": checks + connections + resets,
            "failed_checks": checks,
            "failed_connections": connections,
            "early_resets": resets,
        })
    }
}

/// What an operator wants to know of a server that is not up.
struct History {
    made: Instant,
    down_since: Instant,
    why_down: String,
    why_out: String,
    last_error: Option<(Instant, String)>,
}

impl History {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            made: now,
            down_since: now,
            why_down: String::new(),
            why_out: String::new(),
            last_error: None,
        }
    }

    fn failed(&mut self, why: &str) {
        self.last_error = Some((Instant::now(), why.into()));
    }
}

/// The time of day at `then`, as it is shown; `now` is by both clocks.
fn wall_clock(then: Instant, now: (Instant, SystemTime)) -> String {
    let ago = now.0.saturating_duration_since(then);
    let at = now.1.checked_sub(ago);
    humantime::format_rfc3339_millis(at.unwrap_or(SystemTime::UNIX_EPOCH)).to_string()
}

/// How often something has happened, in words.
pub(super) fn in_a_row(count: u16) -> String {
    match count {
        1 => String::new(),
        count => format!(", {count} times in a row"),
    }
}

fn thresholds(plan: Option<&HealthPlan>) -> Thresholds {
    Thresholds {
        rise: plan.map_or(1, |plan| plan.rise),
        fall: plan.map_or(FALL, |plan| plan.fall),
        has_checks: plan.is_some(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Changes are plain assignments, so a panic cannot leave one half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
