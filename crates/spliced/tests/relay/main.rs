//! The program as a person or a service manager meets it: run as a process, on real sockets.
//!
//! What a test stands on comes first (peers, servers, the running relay), then what is tested, by
//! the part of the promise that it is about.

mod patience;
mod payload;
mod peer;
mod relay;
mod server;

mod access_log;
mod doctor;
mod echo;
mod flow;
mod listening;
mod load;
mod log;
mod options;
mod programs;
mod reset;
mod resolver;
mod segment;
mod shutdown;
mod target;
mod usage;
