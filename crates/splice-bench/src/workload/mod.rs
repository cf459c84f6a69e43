//! What is asked of every contestant.

pub(crate) mod echo;
mod held;
pub(crate) mod idle;
pub(crate) mod ping_pong;
pub(crate) mod request_response;
pub(crate) mod short_connections;
pub(crate) mod slow_reader;
pub(crate) mod stalled;
pub(crate) mod transfer;

pub(crate) use held::Held;
