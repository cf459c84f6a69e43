//! Commands that ask running processes.

mod kill;
mod processes;
mod reload;
mod sessions;
mod status;
mod table;

pub(crate) use self::kill::run as kill;
pub(crate) use self::reload::run as reload;
pub(crate) use self::sessions::run as sessions;
pub(crate) use self::status::run as status;
