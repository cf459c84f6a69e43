//! The bypass: what goes from socket to socket, what does not, and how it ends.

mod beside;
mod bridge;
mod calls;
mod capture;
mod contract;
mod costs;
mod crowds;
mod delivery;
mod ending;
mod filters;
mod foreign;
mod limits;
mod meters;
mod pairs;
#[path = "../support/payload.rs"]
mod payload;
mod programs;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../support/random.rs"]
mod random;
mod stage;
mod unmodified;
mod web;
