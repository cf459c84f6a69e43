//! The words for each question in the results.

use super::question::{Extents, OPEN_CONNECTIONS, Question, SNI_MESSAGE_BYTES};
use crate::client_hello::CLIENT_HELLO;
use crate::results::{Parameter, Workload};
use crate::server::{REQUEST_BYTES, RESPONSE_BYTES};
use crate::site::OWN_PORTS;
use crate::workload::transfer::Ways;
use crate::workload::young;

impl Question {
    /// Its workload in the results, still without figures.
    pub(crate) fn workload(self, extents: &Extents) -> Workload {
        let window = format!("{} ms", self.window(extents).length.as_millis());
        let (parameter, value, title, description) = match self {
            Self::PingPong { bytes } => (
                "message",
                size(bytes),
                format!("Ping-pong, {}", size(bytes)),
                "One message at a time goes to the server and back on one connection, through \
                 blocking sockets. The one-way latency is half of the round trip."
                    .to_owned(),
            ),
            Self::Bulk(ways) => {
                let way = match ways {
                    Ways::Up => "up",
                    Ways::Down => "down",
                    Ways::Both => "both ways",
                };
                (
                    "direction",
                    way.into(),
                    format!("Bulk, {way}"),
                    "One connection carries as many bytes as it can, with 256 KiB per system call at \
                     the ends. Up is from the client to the server; both ways is the sum. The CPU \
                     time of the machine is that of the ends, the relay and the kernel with its \
                     workers and softirqs. What the kernel does by itself, such as address \
                     translation, is in no process."
                        .to_owned(),
                )
            }
            Self::RequestResponse { connections } => (
                "connections",
                connections.to_string(),
                format!("Request-response, connections: {connections}"),
                format!(
                    "A request has {REQUEST_BYTES} bytes, its answer {RESPONSE_BYTES}. Each connection \
                     sends the next request when it has its answer (closed load: requests that a \
                     stall keeps from being sent are not in the latencies)."
                ),
            ),
            Self::OpenLoad => (
                "requests due",
                format!("{}/s", extents.per_second),
                format!("Request-response at {}/s", extents.per_second),
                format!(
                    "Requests of {REQUEST_BYTES} bytes fall due at a fixed rate on {OPEN_CONNECTIONS} \
                     connections; an answer has {RESPONSE_BYTES} bytes. Latency counts from when a \
                     request fell due, so a stall is in the latencies of all requests that it \
                     delayed."
                ),
            ),
            Self::ShortConnections { in_flight } => (
                "at once",
                in_flight.to_string(),
                format!("Short connections, at once: {in_flight}"),
                "Each connection is opened, carries a byte each way and is closed by the server."
                    .to_owned(),
            ),
            Self::SamePort => (
                "at once",
                "1".into(),
                "Short connections from one port".to_owned(),
                "As short connections, one at a time. All have the same port of the client, and each \
                 begins as soon as the one before is closed."
                    .to_owned(),
            ),
            Self::Young => (
                "open",
                young::OPEN.to_string(),
                "Young connections".to_owned(),
                "One connection after the other is opened, sends a byte and gets one back, while so many \
                 others are open. The oldest is closed for each. The time counts from connect to the \
                 answer."
                    .to_owned(),
            ),
            Self::Ports => (
                "ports",
                OWN_PORTS.len().to_string(),
                "All ports in use".to_owned(),
                format!(
                    "Connections are opened one after the other and stay open, each with a request of \
                     {REQUEST_BYTES} bytes and its answer of {RESPONSE_BYTES}, until a relay that forwards \
                     has no port left towards the server. Then 200 more come, which go through its socket \
                     and are copied by the bench. Then the server closes all, and 1000 come at once."
                ),
            ),
            Self::SniLatency => (
                "message",
                size(SNI_MESSAGE_BYTES),
                "Routed by SNI: ping-pong".to_owned(),
                "The connection begins with a TLS client's hello, on which the relay chooses the \
                 server. Then messages go there and back, as in ping-pong. The direct path needs no \
                 hello."
                    .to_owned(),
            ),
            Self::SniFirstByte => (
                "at once",
                "1".into(),
                "Routed by SNI: first byte".to_owned(),
                format!(
                    "Each connection is opened and sends a TLS client's hello of {} bytes at once. The \
                     server answers as soon as it has all of it. The next connection follows when this \
                     one is closed, after a pause.",
                    CLIENT_HELLO.len()
                ),
            ),
            Self::SniShort { in_flight } => (
                "at once",
                in_flight.to_string(),
                format!("Routed by SNI: short connections, at once: {in_flight}"),
                "Each connection is opened, sends a TLS client's hello, which a byte answers, carries \
                 a byte each way and is closed by the server. The CPU time of client, relay and server \
                 is that of their processes with the softirqs that they run. That of the machine has \
                 the kernel's workers, and whatever else runs there."
                    .to_owned(),
            ),
            Self::Idle => (
                "pairs",
                extents.idle_pairs.to_string(),
                "Idle connections".to_owned(),
                "Each pair carries a byte each way and is then idle. The process's memory is the \
                 proportional set size of all its processes. The kernel's memory is what slab caches, \
                 kernel stacks and page tables use beyond what the direct path uses for the two \
                 ends. Measured too few times for an interval."
                    .to_owned(),
            ),
            Self::SlowReader => (
                "time",
                format!("{} s", extents.slow_reader.as_secs_f64()),
                "Slow reader".to_owned(),
                "The client sends as fast as it can, and the server reads 64 KiB every 10 ms. The \
                 relay holds bytes in its two sockets (as the kernel accounts for them), in its \
                 pipes, and in the growth of its own memory. Measured once."
                    .to_owned(),
            ),
            Self::StalledReaders => (
                "chunk",
                "256 KiB".to_owned(),
                "Stalled readers".to_owned(),
                "Both ends send until they block, and neither reads. The relay holds bytes in its \
                 two sockets, in its pipes, and in the growth of its own memory. Measured once."
                    .to_owned(),
            ),
        };
        let mut workload = Workload::new(&self.id(), &title, &description);
        let mut parameter_of = |name: &str, value: String| {
            workload.parameters.push(Parameter {
                name: name.into(),
                value,
            });
        };
        parameter_of(parameter, value);
        if self.in_rounds() {
            parameter_of("window", window);
        }
        workload
    }
}

/// `512 B` or `64 KiB`.
fn size(bytes: usize) -> String {
    if bytes >= 1 << 10 {
        format!("{} KiB", bytes >> 10)
    } else {
        format!("{bytes} B")
    }
}
