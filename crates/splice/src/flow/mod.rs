//! One direction of a session, while user space moves its bytes.

mod carrier_choice;
mod conduit;
mod direction;
mod in_flight;
mod progress;

pub(crate) use self::carrier_choice::{CarrierChoice, CarriersUsed};
pub(crate) use self::conduit::{Conduit, TURN_READS};
pub(crate) use self::direction::Direction;
pub(crate) use self::progress::{Progress, SocketError};
