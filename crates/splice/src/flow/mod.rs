//! One direction of a pair, while user space moves its bytes.

mod direction;
mod in_flight;

pub(crate) use self::direction::{CarrierChoice, Conduit, Direction, Progress, SocketError};
