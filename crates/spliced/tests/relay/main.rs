//! Tests of the program as a process, on real sockets.
//!
//! First the infrastructure (peers, servers, the running relay), then the tests by subject.

#[allow(dead_code, reason = "the tests of the engine ask for more")]
#[path = "../../../splice/tests/support/bad_path.rs"]
mod bad_path;
mod patience;
#[path = "../../../splice/tests/support/payload.rs"]
mod payload;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "the tests of spliced adopt ask for more")
)]
mod peer;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../splice/tests/support/random.rs"]
mod random;
mod relay;
mod retraction;
mod server;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../splice/tests/support/system_calls.rs"]
mod system_calls;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../splice/tests/support/tls.rs"]
mod tls;

mod access_log;
#[cfg(target_arch = "x86_64")]
mod adopt;
mod bypass;
mod bypass_capture;
mod bypass_demo;
mod bypass_killed;
mod bypass_reload;
mod bypass_status;
mod config;
mod control;
mod datagram_health;
mod datagram_proxy;
mod datagrams;
mod doctor;
mod documented;
mod echo;
mod few_descriptors;
mod file_access;
mod firewall;
mod flow;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "the tests of spliced adopt ask for more")
)]
mod forbidden_call;
mod from_syn;
mod hostile;
mod listening;
mod load;
mod log;
mod log_lines;
mod matrix;
mod mesh;
mod message_proxy;
mod metrics;
mod options;
mod programs;
mod proxy;
mod race;
mod reset;
mod resolver;
mod segment;
mod self_target;
mod seqpacket;
mod shutdown;
mod signals;
mod stalled_log;
mod target;
mod top;
mod trace;
mod usage;
mod vsock_namespace;
mod vsock_proxy;
