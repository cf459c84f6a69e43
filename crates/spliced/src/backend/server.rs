//! One server of a backend.

mod snapshot;
mod weight;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::Notify;

use self::weight::Weight;
use super::drain::{By, Drain};
use super::health::{Cause, Change, Health, State, Thresholds};
use super::history::History;
use crate::plan::{BackendPlan, ServerAddress, ServerPlan};
use crate::plural::counted;
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
    weight: Weight,
    is_backup: AtomicBool,
    open: AtomicU32,
    total: AtomicU64,
    failed_checks: AtomicU64,
    failed_connections: AtomicU64,
    early_resets: AtomicU64,
    health: Mutex<Health>,
    history: Mutex<History>,
    /// What this host lacked when it could not be connected to at last, until it can.
    shortage: Mutex<Option<String>>,
    pub(super) roster: Arc<Roster>,
    drain: Mutex<Drain>,
    /// As `drain` has it, for those who pick a server.
    is_drained: AtomicBool,
    /// It is told when it is empty.
    is_awaited: AtomicBool,
    removed: AtomicBool,
    /// An order has added it, and no configuration has it.
    is_added: AtomicBool,
    checks_changed: Arc<Notify>,
    /// A task checks it.
    watched: AtomicBool,
    /// A task finds out whether what its clients have seen is its fault.
    probed: AtomicBool,
}

impl Server {
    /// As `server` has it, but at `address`, which `srv` may have named.
    pub(super) fn new(
        address: splice::Address,
        srv: Option<&str>,
        server: &ServerPlan,
        plan: &BackendPlan,
        at_most: Option<Duration>,
    ) -> Result<Arc<Self>> {
        let (name, target) = match &server.address {
            ServerAddress::Datagrams(name) => {
                let target = Target::of_datagrams(address, at_most)?;
                (name.to_string(), target)
            }
            _ => (address.to_string(), Target::new(address, at_most)?),
        };
        let health = Health::new(Thresholds::of(plan.health.as_ref()));
        let drain = Drain::new(server.disabled, Instant::now());
        let weight = Weight::planned(server.weight.into());
        let srv = srv.map(Into::into);
        let server = Self::of(
            name.into(),
            srv,
            target,
            (weight, server.backup),
            health,
            drain,
        );
        Ok(Arc::new(server))
    }

    fn of(
        name: Arc<str>,
        srv: Option<String>,
        target: Arc<Target>,
        (weight, is_backup): (Weight, bool),
        health: Health,
        drain: Drain,
    ) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name,
            srv,
            target,
            weight,
            is_backup: AtomicBool::new(is_backup),
            open: AtomicU32::new(0),
            total: AtomicU64::new(0),
            failed_checks: AtomicU64::new(0),
            failed_connections: AtomicU64::new(0),
            early_resets: AtomicU64::new(0),
            health: Mutex::new(health),
            history: Mutex::new(History::new()),
            shortage: Mutex::default(),
            roster: Arc::default(),
            is_drained: AtomicBool::new(drain.is_drained()),
            is_awaited: AtomicBool::new(drain.is_drained()),
            drain: Mutex::new(drain),
            removed: AtomicBool::new(false),
            is_added: AtomicBool::new(false),
            checks_changed: Arc::default(),
            watched: AtomicBool::new(false),
            probed: AtomicBool::new(false),
        }
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
        self.weight.value()
    }

    pub(super) fn open(&self) -> u32 {
        // Pairs with `is_awaited`: whoever drains it sees the last connection, or the last connection that it is awaited.
        self.open.load(Ordering::SeqCst)
    }

    /// Whether new clients may come, as far as orders and the configuration go.
    pub(super) fn takes_clients(&self) -> bool {
        !self.is_drained() && self.weight() > 0
    }

    pub(super) fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    pub(super) fn is_disabled(&self) -> bool {
        lock(&self.drain).is_disabled()
    }

    pub(super) fn is_drained_by_order(&self) -> bool {
        self.is_drained() && !self.is_disabled()
    }

    /// `open` connections more, and `begun` that have begun.
    pub(super) fn enter(&self, open: u32, begun: u64) {
        self.open.fetch_add(open, Ordering::SeqCst);
        self.total.fetch_add(begun, Ordering::Relaxed);
    }

    /// One that has begun was none.
    pub(super) fn uncount(&self) {
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    /// `count` connections fewer.
    pub(super) fn leave(&self, backend: &str, count: u32) {
        let before = self.open.fetch_sub(count, Ordering::SeqCst);
        if before == count && self.is_awaited.load(Ordering::SeqCst) {
            self.tell_if_empty(backend);
        }
    }

    /// What a reload or a SRV record says of it. Orders stand until that changes. Returns its weight before, if it has
    /// another one now.
    pub(super) fn change(&self, weight: u16, is_backup: bool) -> Option<u32> {
        self.is_backup.store(is_backup, Ordering::Relaxed);
        self.weighed(self.weight.plan(weight.into()))
    }

    /// Returns its weight before, if it has another one now.
    pub(super) fn weigh(&self, weight: u32, by: &str) -> Option<u32> {
        self.weighed(self.weight.order(weight, By::Order(by.into())))
    }

    fn weighed(&self, before: Option<u32>) -> Option<u32> {
        if before == Some(0) {
            lock(&self.health).starts_again(Instant::now());
        }
        before
    }

    /// Returns whether it served before. Whoever calls this looks whether it is empty afterwards.
    pub(super) fn drain(&self, by: By) -> bool {
        let mut drain = lock(&self.drain);
        let has_served = drain.drain(by, Instant::now());
        self.show(&drain);
        has_served
    }

    /// Returns whether it was drained.
    pub(super) fn undrain(&self) -> bool {
        let mut drain = lock(&self.drain);
        let was_drained = drain.undrain();
        if was_drained {
            lock(&self.health).starts_again(Instant::now());
        }
        self.show(&drain);
        was_drained
    }

    /// As [`Drain::configure`].
    pub(super) fn configure(&self, is_disabled: bool) -> Option<bool> {
        lock(&self.drain).configure(is_disabled)
    }

    /// What others read without the lock.
    fn show(&self, drain: &Drain) {
        let is_drained = drain.is_drained();
        self.is_drained.store(is_drained, Ordering::Relaxed);
        let is_awaited = is_drained || drain.is_leaving();
        self.is_awaited.store(is_awaited, Ordering::SeqCst);
    }

    /// Says so if its last connection has ended.
    pub(super) fn tell_if_empty(&self, backend: &str) {
        let mut drain = lock(&self.drain);
        if self.open() == 0
            && let Some(emptied) = drain.emptied(Instant::now())
        {
            tracing::info!("backend {backend}: server {} {emptied}", self.name);
        }
    }

    /// The process ends, and cuts what it still has.
    pub(super) fn end(&self, backend: &str) {
        // From now on, its last connection has not ended by itself.
        let was_awaited = self.is_awaited.swap(false, Ordering::SeqCst);
        let count = self.open();
        if was_awaited && count > 0 {
            tracing::info!(
                "backend {backend}: server {} is not empty: the process ends and cuts {}",
                self.name,
                self.in_words(count)
            );
        }
    }

    /// A reload has changed the plan.
    pub(super) fn change_checks(&self, plan: &BackendPlan) {
        lock(&self.health).set_thresholds(Thresholds::of(plan.health.as_ref()));
        self.checks_changed.notify_one();
    }

    /// Notified of a change of its checks.
    pub(super) fn checks_changed(&self) -> Arc<Notify> {
        Arc::clone(&self.checks_changed)
    }

    /// Its connections, for the log.
    pub(super) fn left(&self) -> String {
        match self.open() {
            0 => String::new(),
            1 => format!("; {} goes on", self.in_words(1_u32)),
            count => format!("; {} go on", self.in_words(count)),
        }
    }

    /// So many of its connections, or of its sessions.
    pub(super) fn in_words(&self, count: impl TryInto<u64>) -> String {
        let one = match self.target.is_of_datagrams() {
            true => "session",
            false => "connection",
        };
        counted(count, one)
    }

    /// Whether only an order has added it.
    pub(super) fn is_added(&self) -> bool {
        self.is_added.load(Ordering::Relaxed)
    }

    pub(super) fn set_added(&self, is_added: bool) {
        self.is_added.store(is_added, Ordering::Relaxed);
    }

    /// It begins to get clients, little by little with `slow_start`.
    pub(super) fn starts(&self) {
        lock(&self.health).starts_again(Instant::now());
    }

    /// Nobody checks it any more.
    pub(super) fn remove(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }

    /// It is no longer in the configuration, its backend is not, or an order has removed it. Returns what
    /// [`cut`](Self::cut) is called with.
    pub(super) fn begin_to_leave(&self, by: &By) -> Instant {
        let mut drain = lock(&self.drain);
        let since = drain.leave(by.clone(), Instant::now());
        self.show(&drain);
        since
    }

    pub(super) fn is_leaving(&self) -> bool {
        lock(&self.drain).is_leaving()
    }

    /// Cuts its connections, if it still leaves since `then`. Returns how many there were.
    pub(super) fn cut(&self, then: Instant) -> usize {
        let drain = lock(&self.drain);
        match drain.is_over(then) {
            true => self.roster.cut(),
            false => 0,
        }
    }

    pub(super) fn is_cut(&self) -> bool {
        self.roster.is_cut()
    }

    /// A reload brings it back: the same server, or if its connections have been cut, one that begins anew in its
    /// place.
    pub(super) fn come_back(self: &Arc<Self>) -> Arc<Self> {
        let mut drain = lock(&self.drain);
        if self.roster.is_cut() {
            let mut drain = drain.clone();
            drain.come_back();
            return Arc::new(Self::of(
                self.shared_name(),
                self.srv.clone(),
                Arc::clone(&self.target),
                (self.weight.clone(), self.is_backup()),
                lock(&self.health).clone(),
                drain,
            ));
        }
        drain.come_back();
        self.show(&drain);
        self.removed.store(false, Ordering::Relaxed);
        Arc::clone(self)
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

    /// Its checks fail.
    pub(super) fn is_down(&self, now: Instant) -> bool {
        self.state(now) == State::Down
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
}

/// How often something has happened, in words.
pub(super) fn in_a_row(count: u16) -> String {
    match count {
        1 => String::new(),
        count => format!(", {count} times in a row"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Changes are plain assignments, so a panic cannot leave one half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
