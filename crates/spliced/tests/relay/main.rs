//! The program as a person or a service manager meets it: run as a process, on real sockets.
//!
//! What a test stands on comes first (peers, servers, the running relay), then what is tested, by
//! the part of the promise that it is about.

mod patience;
#[path = "../../../splice/tests/support/payload.rs"]
mod payload;
mod peer;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../splice/tests/support/random.rs"]
mod random;
mod relay;
mod server;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../splice/tests/support/system_calls.rs"]
mod system_calls;

mod access_log;
mod doctor;
mod echo;
mod firewall;
mod flow;
mod itself;
mod listening;
mod load;
mod log;
mod options;
mod programs;
mod reset;
mod resolver;
mod segment;
mod shutdown;
mod signals;
mod stalled_log;
mod target;
mod usage;
