//! Commands that ask a running process.

mod kill;
mod sessions;
mod table;

pub(crate) use self::kill::run as kill;
pub(crate) use self::sessions::run as sessions;
