//! What the questions of a comparison ask for.

use crate::results::{Better, Unit};

/// One value of an answer.
pub(crate) struct Told {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: Unit,
    pub(crate) better: Better,
}

/// Less is better of all but rates.
const fn told(id: &'static str, unit: Unit, title: &'static str) -> Told {
    let better = match unit {
        Unit::GigabitsPerSecond | Unit::ConnectionsPerSecond | Unit::RequestsPerSecond => {
            Better::Higher
        }
        _ => Better::Lower,
    };
    Told {
        id,
        title,
        unit,
        better,
    }
}

const fn latency(id: &'static str, title: &'static str) -> Told {
    told(id, Unit::Microseconds, title)
}

const fn cpu(id: &'static str, title: &'static str) -> Told {
    told(id, Unit::CpuSecondsPerGigabyte, title)
}

const fn memory(id: &'static str, title: &'static str) -> Told {
    told(id, Unit::Bytes, title)
}

pub(super) const PING_PONG: [Told; 2] = [
    latency("latency-p50", "One-way latency, median"),
    latency("latency-p99", "One-way latency, 99th percentile"),
];
const THROUGHPUT: &str = "Throughput, all directions together";
pub(super) const BULK: [Told; 3] = [
    told("throughput", Unit::GigabitsPerSecond, THROUGHPUT),
    cpu("cpu", "CPU time of the whole machine"),
    cpu("cpu-process", "CPU time of the relay's own processes"),
];
const P50: Told = latency("latency-p50", "Latency, median");
const P99: Told = latency("latency-p99", "Latency, 99th percentile");
const P99_9: Told = latency("latency-p99-9", "Latency, 99.9th percentile");
const ANSWERED: &str = "Answered requests per second";
pub(super) const REQUEST_RESPONSE: [Told; 3] =
    [told("rate", Unit::RequestsPerSecond, ANSWERED), P50, P99];
const COMPLETE: &str = "Complete connections per second";
pub(super) const SHORT_CONNECTIONS: [Told; 1] =
    [told("rate", Unit::ConnectionsPerSecond, COMPLETE)];
pub(super) const SNI_FIRST_BYTE: [Told; 2] = [
    latency("latency-p50", "From the hello to the first byte, median"),
    latency(
        "latency-p99",
        "From the hello to the first byte, 99th percentile",
    ),
];
pub(super) const SNI_SHORT: [Told; 4] = [
    latency(
        "cpu",
        "CPU time of client, relay and server for a connection",
    ),
    latency(
        "cpu-machine",
        "CPU time of the whole machine for a connection",
    ),
    latency(
        "cpu-process",
        "CPU time of the relay's own processes for a connection",
    ),
    told("rate", Unit::ConnectionsPerSecond, COMPLETE),
];
pub(super) const IDLE: [Told; 2] = [
    memory("memory-process", "Memory of the process per pair"),
    memory("memory-kernel", "Memory of the kernel per pair"),
];
pub(super) const HELD: [Told; 1] = [memory("memory-most", "Largest amount of memory held")];
pub(super) const OPEN_LOAD: [Told; 3] = [P50, P99, P99_9];
pub(super) const YOUNG: [Told; 2] = [
    latency("latency-p50", "From the SYN to the answer, median"),
    latency("latency-p99", "From the SYN to the answer, 99th percentile"),
];
pub(super) const PORTS: [Told; 4] = [
    opened("rate-first", "Connections per second, the first 1000"),
    opened("rate-last", "Connections per second, the last 1000 ports"),
    opened("rate-beyond", "Connections per second when no port is left"),
    opened("rate-again", "Connections per second when all were closed"),
];

const fn opened(id: &'static str, title: &'static str) -> Told {
    told(id, Unit::ConnectionsPerSecond, title)
}
