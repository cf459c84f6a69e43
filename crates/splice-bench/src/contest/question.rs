//! The questions of a comparison: which workload, what it yields, and how long it runs.

use std::time::Duration;

use anyhow::Result;

use super::quantity::{self, Told};
use crate::contestant::{Company, Contestant};
use crate::entrant::Entrant;
use crate::results::Kind;
use crate::site::Site;
use crate::statistics::Latencies;
use crate::workload::request_response::Load;
use crate::workload::transfer::Ways;
use crate::workload::{
    Window, idle, ping_pong, ports, request_response, short_connections, slow_reader, stalled,
    transfer, young,
};

/// Requests that fall due in a second of the open load, unless a person says otherwise.
pub(crate) const OPEN_PER_SECOND: u32 = 10_000;

/// Connections of the open load: enough that one which waits does not hold up the others.
pub(super) const OPEN_CONNECTIONS: u32 = 100;

/// Small enough for one segment, large enough for a request.
pub(super) const SNI_MESSAGE_BYTES: usize = 64;

/// An open load leaves the CPU idle time. It runs for so many windows to yield as many values.
const OPEN_WINDOWS: u32 = 4;

/// By then a relay that moves pairs in mid-stream has done so: `auto` begins with a pair that has
/// lived for 50 ms (`Options::segment_after`), and goes on with another each 100 µs. Twice as long.
const SETTLING: Duration = Duration::from_millis(100);
const SETTLING_PER_CONNECTION: Duration = Duration::from_micros(200);

/// For each of many connections, so that every one is answered several times: an answer takes some
/// 10 to 50 µs of CPU time, all ends and the relay together.
const WINDOW_PER_CONNECTION: Duration = Duration::from_micros(200);

/// Sizes and durations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extents {
    /// How long one measurement counts.
    pub(crate) window: Duration,
    /// The warm-up; `None`: until every contestant has settled.
    pub(crate) warm_up: Option<Duration>,
    pub(crate) idle_pairs: u32,
    pub(crate) idle_times: u32,
    pub(crate) slow_reader: Duration,
    /// Requests that fall due in a second of the open load.
    pub(crate) per_second: u32,
}

impl Extents {
    /// Those of a full comparison, or of a `quick` one.
    pub(crate) fn of(quick: bool) -> Self {
        Self {
            warm_up: None,
            // Ten and more of the scheduler's slices, and thousands of messages.
            window: Duration::from_millis(if quick { 40 } else { 200 }),
            idle_pairs: if quick { 500 } else { 3_000 },
            // The kernel's memory is that of the whole machine: the median of three leaves out what
            // else the machine did during one of them.
            idle_times: if quick { 1 } else { 3 },
            slow_reader: Duration::from_secs(if quick { 1 } else { 5 }),
            per_second: OPEN_PER_SECOND,
        }
    }
}

/// One workload with its parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    PingPong {
        bytes: usize,
    },
    Bulk(Ways),
    RequestResponse {
        connections: u32,
    },
    OpenLoad,
    ShortConnections {
        in_flight: usize,
    },
    /// The same one at a time, all from one port of the client.
    SamePort,
    /// Connections that are opened while many are open.
    Young,
    /// As many connections as a relay has ports.
    Ports,
    /// Messages on a connection that was routed by SNI.
    SniLatency,
    /// From a client's hello to the first byte of the server.
    SniFirstByte,
    /// Short connections that are routed by SNI.
    SniShort {
        in_flight: usize,
    },
    Idle,
    SlowReader,
    StalledReaders,
}

/// The result of one measurement.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// One for each of [`Question::quantities`], where it applies.
    pub(crate) values: Vec<Option<f64>>,
    /// Durations of all messages or requests.
    pub(crate) latencies: Option<Latencies>,
    /// Pairs of seconds and value.
    pub(crate) points: Vec<(f64, f64)>,
}

impl Question {
    /// The questions of a comparison; `quick` leaves out the middle of each range.
    pub(crate) fn all(quick: bool) -> Vec<Self> {
        let (bytes, connections): (&[usize], &[u32]) = if quick {
            (&[1, 1 << 10, 64 << 10], &[1, 100, 1_000])
        } else {
            (
                &[1, 64, 1 << 10, 4 << 10, 16 << 10, 64 << 10],
                &[1, 10, 100, 1_000],
            )
        };
        let ping_pong = bytes.iter().map(|&bytes| Self::PingPong { bytes });
        let requests = connections.iter();
        ping_pong
            .chain([Ways::Up, Ways::Down, Ways::Both].map(Self::Bulk))
            .chain(requests.map(|&connections| Self::RequestResponse { connections }))
            .chain([Self::OpenLoad])
            .chain([1, 8, 64].map(|in_flight| Self::ShortConnections { in_flight }))
            .chain([Self::SamePort, Self::Young])
            .chain([Self::SniLatency, Self::SniFirstByte])
            .chain([1, 8].map(|in_flight| Self::SniShort { in_flight }))
            .chain([Self::Idle, Self::SlowReader, Self::Ports])
            .collect()
    }

    /// Whether it is asked of `contestant`. Those that route by SNI are held against one another; the
    /// references take part in everything.
    pub(crate) fn is_for(self, contestant: Contestant) -> bool {
        match (self, contestant) {
            // A crowd only makes the table large, for messages.
            (Self::PingPong { .. }, Contestant::Forward(_)) => return true,
            (_, Contestant::Forward(Company::Crowded)) => return false,
            // No relay that forwards holds anything.
            (Self::SlowReader | Self::StalledReaders, Contestant::Forward(_)) => return false,
            // The others take ports of the kernel.
            (Self::Ports, _) => {
                return contestant.is_reference() || matches!(contestant, Contestant::Forward(_));
            }
            _ => {}
        }
        let by_sni = matches!(
            self,
            Self::SniLatency | Self::SniFirstByte | Self::SniShort { .. }
        );
        contestant.is_reference() || by_sni == matches!(contestant, Contestant::BySni(_))
    }

    /// The name of this question and of those that differ only in the parameter.
    pub(crate) fn family(self) -> &'static str {
        match self {
            Self::PingPong { .. } => "ping-pong",
            Self::Bulk(_) => "bulk",
            Self::RequestResponse { .. } => "request-response",
            Self::OpenLoad => "open-load",
            Self::ShortConnections { .. } => "short-connections",
            Self::SamePort => "same-port",
            Self::Young => "young",
            Self::Ports => "ports",
            Self::SniLatency => "sni-latency",
            Self::SniFirstByte => "sni-first-byte",
            Self::SniShort { .. } => "sni-short",
            Self::Idle => "idle",
            Self::SlowReader => "slow-reader",
            Self::StalledReaders => "stalled-readers",
        }
    }

    /// Whether it belongs to the rounds. The others come afterwards, each with a relay that has just
    /// been started.
    pub(crate) fn in_rounds(self) -> bool {
        // Ports leaves sockets in TIME_WAIT, whose clients would not be forwarded in the rounds to come.
        !matches!(
            self,
            Self::Idle | Self::SlowReader | Self::StalledReaders | Self::Ports
        )
    }

    /// How often a run measures it.
    pub(crate) fn times(self, rounds: u32, extents: &Extents) -> u32 {
        match self {
            Self::Idle => extents.idle_times,
            Self::SlowReader | Self::StalledReaders => 1,
            _ => rounds,
        }
    }

    /// The connections that it opens at once.
    pub(crate) fn connections(self, extents: &Extents) -> u32 {
        match self {
            Self::RequestResponse { connections } => connections,
            Self::OpenLoad => OPEN_CONNECTIONS,
            Self::ShortConnections { in_flight } | Self::SniShort { in_flight } => in_flight as u32,
            Self::Idle => extents.idle_pairs,
            Self::Young => young::OPEN as u32,
            Self::Ports => ports::CONNECTIONS,
            Self::PingPong { .. }
            | Self::Bulk(_)
            | Self::SamePort
            | Self::SniLatency
            | Self::SniFirstByte
            | Self::SlowReader
            | Self::StalledReaders => 1,
        }
    }

    /// Whether it takes the process of a relay, which could hold something.
    pub(crate) fn needs_relay(self) -> bool {
        matches!(self, Self::SlowReader | Self::StalledReaders)
    }

    /// The values of an answer, in order.
    pub(crate) fn quantities(self) -> &'static [Told] {
        match self {
            Self::PingPong { .. } | Self::SniLatency => &quantity::PING_PONG,
            Self::Bulk(_) => &quantity::BULK,
            Self::RequestResponse { .. } => &quantity::REQUEST_RESPONSE,
            Self::OpenLoad => &quantity::OPEN_LOAD,
            Self::ShortConnections { .. } | Self::SamePort => &quantity::SHORT_CONNECTIONS,
            Self::Young => &quantity::YOUNG,
            Self::Ports => &quantity::PORTS,
            Self::SniFirstByte => &quantity::SNI_FIRST_BYTE,
            Self::SniShort { .. } => &quantity::SNI_SHORT,
            Self::Idle => &quantity::IDLE,
            Self::SlowReader | Self::StalledReaders => &quantity::HELD,
        }
    }

    /// The factor from measured to reported latencies: the one-way latency is half of a round trip.
    pub(crate) fn latency_scale(self) -> f64 {
        if matches!(self, Self::PingPong { .. } | Self::SniLatency) {
            0.5
        } else {
            1.0
        }
    }

    /// The title of the distribution of latencies.
    pub(crate) fn latency_title(self) -> &'static str {
        match self {
            Self::PingPong { .. } | Self::SniLatency => "One-way latency, half of the round trip",
            Self::SniFirstByte => "From a client's hello to the first byte of the server",
            Self::Young => "From the SYN to the answer to the first byte",
            Self::OpenLoad => "From when a request fell due to its answer",
            _ => "From a request to its answer",
        }
    }

    /// How long one measurement takes.
    pub(super) fn window(self, extents: &Extents) -> Window {
        let length = match self {
            Self::RequestResponse { connections } => {
                extents.window.max(WINDOW_PER_CONNECTION * connections)
            }
            Self::OpenLoad => extents.window * OPEN_WINDOWS,
            _ => extents.window,
        };
        let settling = SETTLING + SETTLING_PER_CONNECTION * self.connections(extents);
        Window {
            warm_up: extents.warm_up.unwrap_or(settling),
            length,
        }
    }

    /// Measures `entrant` once.
    pub(crate) fn ask(self, site: &Site, entrant: &Entrant, extents: &Extents) -> Result<Answer> {
        let (address, window) = (entrant.address(), self.window(extents));
        let has_process = entrant.contestant.kind() != Kind::Reference;
        let mut answer = Answer::default();
        match self {
            Self::PingPong { .. } | Self::SniLatency => {
                let bytes = match self {
                    Self::PingPong { bytes } => bytes,
                    _ => SNI_MESSAGE_BYTES,
                };
                let round_trips = ping_pong::play_on(entrant.connect(site)?, bytes, window)?;
                let quantiles = [0.5, 0.99].map(|at| round_trips.microseconds(at));
                answer.values = quantiles
                    .map(|value| Some(value * self.latency_scale()))
                    .into();
                answer.latencies = Some(round_trips);
            }
            Self::Bulk(ways) => {
                let relay = entrant.relay.as_ref();
                let flow = transfer::flow(site, address, ways, window.length, relay)?;
                answer.values = vec![
                    Some(flow.gigabits_per_second()),
                    Some(flow.cpu_seconds_per_gigabyte()),
                    // What has no process, as address translation, has no such time either.
                    has_process.then(|| flow.process_seconds_per_gigabyte()),
                ];
            }
            Self::RequestResponse { connections } => {
                let load = Load::Closed;
                let done = request_response::play(site, address, connections, load, window)?;
                let latencies = done.latencies;
                answer.values = vec![
                    Some(done.per_second),
                    Some(latencies.microseconds(0.5)),
                    Some(latencies.microseconds(0.99)),
                ];
                answer.latencies = Some(latencies);
            }
            Self::OpenLoad => {
                let per_second = extents.per_second;
                let load = Load::Open { per_second };
                let done = request_response::play(site, address, OPEN_CONNECTIONS, load, window)?;
                let latencies = done.latencies;
                answer.values = [0.5, 0.99, 0.999]
                    .map(|quantile| Some(latencies.microseconds(quantile)))
                    .into();
                answer.latencies = Some(latencies);
            }
            Self::ShortConnections { in_flight } => {
                let rate = short_connections::rate(site, address, in_flight, window.length)?;
                answer.values = vec![Some(rate)];
            }
            Self::SamePort => {
                let rate = short_connections::rate_from_one_port(site, address, window.length)?;
                answer.values = vec![Some(rate)];
            }
            Self::Young => {
                let times = young::play(site, address, window)?;
                let quantiles = [0.5, 0.99].map(|at| Some(times.microseconds(at)));
                answer.values = quantiles.into();
                answer.latencies = Some(times);
            }
            Self::Ports => {
                let rates = ports::play(site, address)?;
                let all = [rates.first, rates.last, rates.beyond, rates.again];
                answer.values = all.map(Some).into();
            }
            Self::SniFirstByte => {
                let times = short_connections::first_bytes(site, address, window.length)?;
                let quantiles = [0.5, 0.99].map(|at| Some(times.microseconds(at)));
                answer.values = quantiles.into();
                answer.latencies = Some(times);
            }
            Self::SniShort { in_flight } => {
                let relay = entrant.relay.as_ref();
                let short = short_connections::tls(site, address, in_flight, window.length, relay)?;
                answer.values = vec![
                    Some(short.cpu_microseconds()),
                    Some(short.machine_microseconds()),
                    has_process.then(|| short.process_microseconds()),
                    Some(short.per_second()),
                ];
            }
            Self::Idle => {
                let cost = idle::cost_per_pair(site, entrant, extents.idle_pairs)?;
                answer.values = vec![cost.process_bytes, Some(cost.kernel_bytes)];
            }
            Self::SlowReader => {
                if let Some(relay) = &entrant.relay {
                    let seen = slow_reader::watch(site, relay, extents.slow_reader)?;
                    let points = seen.iter().map(|(at, held)| {
                        let bytes = held.total_bytes() as f64;
                        (at.as_secs_f64(), bytes)
                    });
                    answer.points = points.collect();
                    let most = answer.points.iter().map(|&(_, bytes)| bytes);
                    answer.values = vec![most.reduce(f64::max)];
                }
            }
            Self::StalledReaders => {
                if let Some(relay) = &entrant.relay {
                    let held = stalled::hold(site, relay)?;
                    answer.values = vec![Some(held.total_bytes() as f64)];
                }
            }
        }
        Ok(answer)
    }

    /// Unique; files are named after it.
    pub(crate) fn id(self) -> String {
        let family = self.family();
        match self {
            Self::PingPong { bytes } => format!("{family}-{bytes}"),
            Self::Bulk(Ways::Up) => format!("{family}-up"),
            Self::Bulk(Ways::Down) => format!("{family}-down"),
            Self::Bulk(Ways::Both) => format!("{family}-both"),
            Self::RequestResponse { connections } => format!("{family}-{connections}"),
            Self::ShortConnections { in_flight } | Self::SniShort { in_flight } => {
                format!("{family}-{in_flight}")
            }
            Self::OpenLoad
            | Self::SamePort
            | Self::Young
            | Self::Ports
            | Self::SniLatency
            | Self::SniFirstByte
            | Self::Idle
            | Self::SlowReader
            | Self::StalledReaders => family.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Question;

    #[test]
    fn ids_are_unique_and_quick_asks_a_part_of_all() {
        let ids = |quick| Question::all(quick).into_iter().map(Question::id);
        let all: Vec<String> = ids(false).collect();
        for (index, id) in all.iter().enumerate() {
            assert!(!all[..index].contains(id), "{id} twice");
        }
        assert!(ids(true).all(|id| all.contains(&id)));
    }
}
