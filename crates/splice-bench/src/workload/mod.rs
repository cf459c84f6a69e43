//! What is asked of every contestant.

pub(crate) mod echo;
pub(crate) mod idle;
pub(crate) mod ping_pong;
pub(crate) mod short_connections;
pub(crate) mod stalled;
pub(crate) mod transfer;
