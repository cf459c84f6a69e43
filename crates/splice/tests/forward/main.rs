//! Connections that are translated from their SYN on, in network namespaces of their own.

mod ending;
mod flood;
mod forged;
mod forgery;
mod hops;
mod icmp;
mod opening;
mod peers;
mod races;
mod stage;
