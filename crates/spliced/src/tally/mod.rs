//! What is counted of the sessions between a listener and a backend.
//!
//! Any thread adds, any thread reads. A session touches its tally a few times in its life, and never per byte: what it has
//! moved is added when somebody reads the counters, and at its end
//! ([`Session::account`](crate::sessions::Session::account)). So a count never goes back, and none is taken twice.

mod datagrams;
mod durations;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use splice::{Attempt, EngineName, ForwardEnd, Reason, Side};

pub(crate) use self::datagrams::{DatagramTally, Dropped};
pub(crate) use self::durations::Distribution;
use self::durations::Durations;

/// The engines, and none, for sessions that have ended without a pair.
const ENGINES: usize = EngineName::ALL.len() + 1;

/// What is counted of the sessions of one listener with one backend, or with none.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// As the configuration names it.
    pub(crate) listener: Box<str>,
    /// As the configuration names it; empty: the sessions have none, or none yet.
    pub(crate) backend: Box<str>,
    opened: AtomicU64,
    /// To the target, and to the client.
    bytes: [AtomicU64; 2],
    ended: [[AtomicU64; Ending::ALL.len()]; ENGINES],
    not_accepted: [AtomicU64; NotAccepted::ALL.len()],
    promotions: [AtomicU64; Promotion::ALL.len()],
    /// What is counted of datagrams besides; `None`: the listener is one of streams.
    datagrams: OnceLock<DatagramTally>,
    /// From the accept to the backend.
    pub(crate) deciding: Durations,
    /// From there to the connection to a server.
    pub(crate) connecting: Durations,
    /// From there to the first byte of the server.
    pub(crate) answering: Durations,
}

/// The tallies of one listener.
#[derive(Clone, Debug, Default)]
pub(crate) struct OfListener {
    without_backend: Arc<Tally>,
    /// By the names of the backends.
    others: Vec<Arc<Tally>>,
}

/// The tallies of the process.
#[derive(Debug, Default)]
pub(crate) struct Tallies(Mutex<ByNames>);

/// By the names of listener and backend.
type ByNames = BTreeMap<(Box<str>, Box<str>), Arc<Tally>>;

impl Tally {
    /// A client has come.
    pub(crate) fn opened(&self, count: u64) {
        self.opened.fetch_add(count, Ordering::Relaxed);
    }

    /// So many bytes more have moved to the target, and to the client.
    pub(crate) fn moved(&self, bytes: [u64; 2]) {
        for (count, more) in self.bytes.iter().zip(bytes) {
            // Most sessions have nothing new for a reader.
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// A session has ended, which had this engine.
    pub(crate) fn ended(&self, engine: Option<EngineName>, ending: Ending) {
        let count = &self.ended[place_of(engine)][ending as usize];
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// An engine in the kernel was tried with a session, or never is.
    pub(crate) fn promoted(&self, promotion: Promotion) {
        self.promotions[promotion as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// What is counted of its datagrams, from now on.
    pub(crate) fn of_datagrams(&self) -> &DatagramTally {
        self.datagrams.get_or_init(DatagramTally::default)
    }

    /// As [`of_datagrams`](Self::of_datagrams), if there are some.
    pub(crate) fn datagrams(&self) -> Option<&DatagramTally> {
        self.datagrams.get()
    }

    /// A client could not be accepted.
    pub(crate) fn not_accepted(&self, why: NotAccepted) {
        self.not_accepted[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How many clients have come.
    pub(crate) fn count_opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// The bytes to the target, and to the client.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        self.bytes.each_ref().map(|it| it.load(Ordering::Relaxed))
    }

    /// How many sessions have ended so: of those that have, and of failures. A failure is told before the first one, too:
    /// `rate()` of Prometheus does not see what a series begins with.
    pub(crate) fn endings(&self) -> impl Iterator<Item = (Option<EngineName>, Ending, u64)> {
        engines().zip(&self.ended).flat_map(|(engine, ended)| {
            let counts = Ending::ALL.iter().zip(ended);
            let counts =
                counts.map(move |(ending, it)| (engine, *ending, it.load(Ordering::Relaxed)));
            counts.filter(|(engine, ending, count)| *count > 0 || ending.is_failure_of(*engine))
        })
    }

    /// With how many sessions an engine in the kernel was tried, by what has come of it.
    pub(crate) fn all_promotions(&self) -> impl Iterator<Item = (Promotion, u64)> {
        let counts = Promotion::ALL.iter().zip(&self.promotions);
        counts.map(|(promotion, count)| (*promotion, count.load(Ordering::Relaxed)))
    }

    /// How many clients could not be accepted, by the reason.
    pub(crate) fn all_not_accepted(&self) -> impl Iterator<Item = (NotAccepted, u64)> {
        let counts = NotAccepted::ALL.iter().zip(&self.not_accepted);
        counts.map(|(why, count)| (*why, count.load(Ordering::Relaxed)))
    }
}

/// The engines in the order of the counts; `None`: no engine.
fn engines() -> impl Iterator<Item = Option<EngineName>> {
    EngineName::ALL.map(Some).into_iter().chain([None])
}

fn place_of(engine: Option<EngineName>) -> usize {
    let place = engines().position(|other| other == engine);
    // `ALL` has every engine.
    place.unwrap_or(ENGINES - 1)
}

impl OfListener {
    /// The tally of the sessions with this backend.
    pub(crate) fn with(&self, backend: &str) -> &Arc<Tally> {
        let found = self
            .others
            .binary_search_by(|tally| (*tally.backend).cmp(backend));
        found.map_or(&self.without_backend, |place| &self.others[place])
    }

    /// Calls `act` with each of them.
    pub(crate) fn each(&self, act: impl Fn(&Tally)) {
        act(&self.without_backend);
        self.others.iter().for_each(|tally| act(tally));
    }

    /// The tally of the sessions that have no backend.
    pub(crate) fn without_backend(&self) -> &Arc<Tally> {
        &self.without_backend
    }
}

impl Tallies {
    /// Those of a listener with these backends. They go on with what was counted under these names before.
    pub(crate) fn of_listener<'a>(
        &self,
        listener: &str,
        backends: impl Iterator<Item = &'a str>,
    ) -> OfListener {
        let mut all = self.lock();
        let mut tally = |backend: &str| {
            let names: (Box<str>, Box<str>) = (listener.into(), backend.into());
            let new = || {
                Arc::new(Tally {
                    listener: listener.into(),
                    backend: backend.into(),
                    ..Tally::default()
                })
            };
            Arc::clone(all.entry(names).or_insert_with(new))
        };
        let mut others: Vec<_> = backends.map(&mut tally).collect();
        others.sort_by(|one, other| one.backend.cmp(&other.backend));
        others.dedup_by(|one, other| one.backend == other.backend);
        OfListener {
            without_backend: tally(""),
            others,
        }
    }

    /// Forgets those that no listener and no session has any more: names that a configuration once had.
    pub(crate) fn forget_unused(&self) {
        self.lock().retain(|_, tally| Arc::strong_count(tally) > 1);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Tally>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, ByNames> {
        // Each change is a single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Declares an enumeration whose variants have a word each, for a label.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$of_variant:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name {
            $($(#[$of_variant])* $variant,)*
        }

        impl $name {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),*];

            /// The value of a label.
            pub(crate) fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

pub(crate) use words;

words! {
    /// How a session has ended.
    Ending {
        EndOfStream = "end_of_stream",
        ResetByClient = "reset_by_client",
        ResetByTarget = "reset_by_target",
        ClientFailed = "client_failed",
        TargetFailed = "target_failed",
        Idle = "idle",
        HalfClosed = "half_closed",
        /// The engine that was asked for by name does not take it.
        RefusedByEngine = "refused_by_engine",
        /// Of datagrams: the target has answered as often as it does.
        Answered = "answered",
        /// By a new session, at the limit of its listener.
        Displaced = "displaced",
        /// Of datagrams: without any for a moment, when its listener takes no more clients.
        Quiet = "quiet",
        /// By an operator.
        Killed = "killed",
        ListenerRemoved = "listener_removed",
        ServerRemoved = "server_removed",
        ServerDown = "server_down",
        /// By the end of the process.
        CutShort = "cut_short",
        /// The client has gone before it was joined.
        ClientGone = "client_gone",
        NoRoute = "no_route",
        NoServer = "no_server",
        QueueFull = "queue_full",
        QueueTimeout = "queue_timeout",
        Denied = "denied",
        ClientConnections = "client_connections",
        ClientRate = "client_rate",
        /// Packet filters of this host would stop it.
        Filtered = "filtered",
        Other = "other",
    }
}

impl Ending {
    /// Whether sessions with this engine, if any, end so when no server takes them.
    fn is_failure_of(self, engine: Option<EngineName>) -> bool {
        match engine {
            None => matches!(self, Self::NoServer | Self::QueueFull | Self::QueueTimeout),
            // From the SYN on.
            Some(EngineName::Segment) => self == Self::NoServer,
            Some(_) => false,
        }
    }
}

words! {
    /// Why a client could not be accepted.
    NotAccepted {
        /// Neither the process nor the system may have another one.
        Descriptors = "descriptors",
        Memory = "memory",
        /// It has gone while it waited.
        Gone = "gone",
        Other = "other",
    }
}

words! {
    /// What has come of giving a session to an engine in the kernel.
    Promotion {
        Taken = "taken",
        /// The engine had it, and could not keep it: the network or a peer got in the way.
        GivenBackByNetwork = "given_back_network",
        /// Packet filters of this host got in the way, or BPF programs of others.
        GivenBackByFilters = "given_back_filters",
        GivenBack = "given_back_other",
        /// Not in the state that it was in: a stream had ended, for one.
        Declined = "declined",
        /// The network or a peer is in the way.
        Network = "network",
        /// The sockets of the relay are.
        Sockets = "sockets",
        /// The packet filters of this host are, or BPF programs of others.
        Filters = "filters",
        /// The engine cannot be used, by this process or for the moment.
        Unavailable = "unavailable",
        /// `auto` never tries it: it has a rate, a mark, a device or a UNIX socket.
        NeverTried = "never_tried",
        Other = "other",
    }
}

impl From<Attempt> for Promotion {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Taken => Self::Taken,
            Attempt::GivenBackByNetwork => Self::GivenBackByNetwork,
            Attempt::GivenBackByFilters => Self::GivenBackByFilters,
            Attempt::GivenBack => Self::GivenBack,
            Attempt::Declined => Self::Declined,
            Attempt::Network => Self::Network,
            Attempt::Sockets => Self::Sockets,
            Attempt::Filters => Self::Filters,
            Attempt::Unavailable => Self::Unavailable,
            _ => Self::Other,
        }
    }
}

impl From<Reason> for Ending {
    /// Why a pair has ended; a [`Reason::Shutdown`] by the end of the process.
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::EndOfStream | Reason::ByteLimit => Self::EndOfStream,
            Reason::Reset(Side::A) => Self::ResetByClient,
            Reason::Reset(Side::B) => Self::ResetByTarget,
            Reason::Failed { side: Side::A, .. } | Reason::MessageTooLong(Side::A) => {
                Self::ClientFailed
            }
            Reason::Failed { side: Side::B, .. } | Reason::MessageTooLong(Side::B) => {
                Self::TargetFailed
            }
            Reason::Idle => Self::Idle,
            Reason::HalfClosed => Self::HalfClosed,
            Reason::Refused => Self::RefusedByEngine,
            Reason::Shutdown => Self::CutShort,
            _ => Self::Other,
        }
    }
}

impl From<ForwardEnd> for Ending {
    fn from(end: ForwardEnd) -> Self {
        match end {
            ForwardEnd::EndOfStream => Self::EndOfStream,
            ForwardEnd::Reset(Side::A) => Self::ResetByClient,
            ForwardEnd::Reset(Side::B) => Self::ResetByTarget,
            ForwardEnd::Refused | ForwardEnd::TimedOut => Self::NoServer,
            ForwardEnd::Abandoned => Self::ClientGone,
            ForwardEnd::Idle | ForwardEnd::Silent => Self::Idle,
            ForwardEnd::HalfClosed => Self::HalfClosed,
            ForwardEnd::Filtered => Self::Filtered,
            ForwardEnd::Dropped => Self::CutShort,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_under_a_name_goes_on_after_a_reload() {
        let tallies = Tallies::default();
        let before = tallies.of_listener("l", ["c", "b", "c"].into_iter());
        before.with("b").moved([1, 2]);
        before.with("gone").opened(1);
        let after = tallies.of_listener("l", ["b"].into_iter());
        drop(before);
        assert_eq!(after.with("b").bytes(), [1, 2]);
        assert_eq!(after.without_backend().count_opened(), 1);
        tallies.forget_unused();
        let names: Vec<_> = tallies.all().iter().map(|it| it.backend.clone()).collect();
        assert_eq!(names, ["".into(), "b".into()]);
    }

    #[test]
    fn what_alerts_ask_for_is_told_before_it_has_happened() {
        let told: Vec<_> = Tally::default().endings().collect();
        assert_eq!(
            told,
            [
                (Some(EngineName::Segment), Ending::NoServer, 0),
                (None, Ending::NoServer, 0),
                (None, Ending::QueueFull, 0),
                (None, Ending::QueueTimeout, 0),
            ]
        );
    }

    #[test]
    fn each_engine_and_each_ending_has_a_count_of_its_own() {
        let tally = Tally::default();
        for (number, engine) in engines().enumerate() {
            for (other, ending) in Ending::ALL.iter().enumerate() {
                (0..=number * 100 + other).for_each(|_| tally.ended(engine, *ending));
            }
        }
        let mut counts: Vec<_> = tally.endings().map(|(_, _, count)| count).collect();
        assert_eq!(counts.len(), ENGINES * Ending::ALL.len());
        counts.dedup();
        assert_eq!(counts.len(), ENGINES * Ending::ALL.len());
        let words: std::collections::BTreeSet<_> = Ending::ALL.iter().map(|it| it.word()).collect();
        assert_eq!(words.len(), Ending::ALL.len());
    }
}
