//! One server of a backend.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::health::{Change, FALL, Health, Thresholds};
use crate::plan::{BackendPlan, HealthPlan};
use crate::roster::Roster;
use crate::target::Target;

pub(crate) struct Server {
    /// The address as it was typed, or as a SRV record names it.
    name: String,
    /// The SRV name whose records name it; `None` if it has an address of its own.
    srv: Option<String>,
    pub(super) target: Arc<Target>,
    weight: AtomicU32,
    is_backup: AtomicBool,
    pub(super) open: AtomicU32,
    pub(super) total: AtomicU64,
    pub(super) failures: AtomicU64,
    thresholds: Mutex<Thresholds>,
    health: Mutex<Health>,
    pub(super) roster: Arc<Roster>,
    removed: AtomicBool,
    /// A task checks it.
    watched: AtomicBool,
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
        Ok(Arc::new(Self {
            name: address.to_string(),
            srv: srv.map(Into::into),
            target: Target::new(address, at_most)?,
            weight: AtomicU32::new(weight.into()),
            is_backup: AtomicBool::new(is_backup),
            open: AtomicU32::new(0),
            total: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            thresholds: Mutex::new(thresholds(plan.health.as_ref())),
            health: Mutex::new(Health::NEW),
            roster: Arc::default(),
            removed: AtomicBool::new(false),
            watched: AtomicBool::new(false),
        }))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
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

    /// A reload has changed the plan.
    pub(super) fn change(&self, weight: u16, is_backup: bool, plan: &BackendPlan) {
        self.weight.store(weight.into(), Ordering::Relaxed);
        self.is_backup.store(is_backup, Ordering::Relaxed);
        let thresholds = thresholds(plan.health.as_ref());
        let before = std::mem::replace(&mut *lock(&self.thresholds), thresholds);
        if before.has_checks && !thresholds.has_checks {
            // Nothing would bring it back.
            *lock(&self.health) = Health::NEW;
        }
    }

    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }

    /// Whether a task checks it. Says how it was before.
    pub(super) fn set_watched(&self, watched: bool) -> bool {
        self.watched.swap(watched, Ordering::AcqRel)
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    pub(super) fn is_up(&self, now: Instant) -> bool {
        lock(&self.health).is_up(&lock(&self.thresholds), now)
    }

    /// Its weight in hundredths, less while it starts slowly.
    pub(super) fn share(&self, slow_start: Option<Duration>, now: Instant) -> u32 {
        self.weight() * lock(&self.health).share_percent(slow_start, now)
    }

    /// Returns whether it came up.
    pub(super) fn passed(&self, backend: &str) -> bool {
        let change = lock(&self.health).passed(&lock(&self.thresholds), Instant::now());
        let came_up = change == Some(Change::CameUp);
        if came_up {
            tracing::info!("backend {backend}: server {} is up again", self.name);
        }
        came_up
    }

    pub(super) fn failed(&self, backend: &str, why: &str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let thresholds = *lock(&self.thresholds);
        let change = lock(&self.health).failed(&thresholds, Instant::now());
        if change == Some(Change::WentDown) {
            tracing::warn!(
                "backend {backend}: server {} is down: {why}, {} times in a row",
                self.name,
                thresholds.fall
            );
        }
    }

    pub(super) fn snapshot(&self) -> Value {
        json!({
            "server": self.name,
            "up": self.is_up(Instant::now()),
            "backup": self.is_backup(),
            "weight": self.weight(),
            "connections": self.open(),
            "total": self.total.load(Ordering::Relaxed),
            "failures": self.failures.load(Ordering::Relaxed),
        })
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
