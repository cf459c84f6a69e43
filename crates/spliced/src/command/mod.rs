//! Commands that ask running processes.

mod backends;
mod drain;
mod kill;
mod processes;
mod rated;
mod reload;
mod servers;
mod sessions;
mod status;
mod table;
mod top;

pub(crate) use self::backends::run as backends;
pub(crate) use self::drain::{drain, undrain, weigh};
pub(crate) use self::kill::run as kill;
pub(crate) use self::reload::run as reload;
pub(crate) use self::sessions::{live as live_sessions, run as sessions};
pub(crate) use self::status::run as status;
pub(crate) use self::top::run as top;
