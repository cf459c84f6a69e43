//! The ends of a pair: two endpoints, or one that is spliced to itself.
//!
//! ```text
//! Apart   ends[A] ──▶ ends[B] and back        Echo   ends[A] ──▶ ends[A]
//! ```

use crate::endpoint::Endpoint;
use crate::flow::{CarrierChoice, Direction};
use crate::outcome::Side;

#[derive(Debug)]
pub(crate) enum Ends {
    Apart([Endpoint; 2]),
    /// What comes from it goes back to it.
    Echo(Endpoint),
}

impl Ends {
    /// Each endpoint once.
    pub(crate) fn each(&self) -> &[Endpoint] {
        match self {
            Self::Apart(both) => both,
            Self::Echo(one) => std::slice::from_ref(one),
        }
    }

    /// Both sides, which are the same endpoint in an echo.
    pub(crate) fn sides(&self) -> [&Endpoint; 2] {
        match self {
            Self::Apart([a, b]) => [a, b],
            Self::Echo(one) => [one, one],
        }
    }

    /// Whom a descriptor belongs to by the number under which it is watched. A ring tells of a
    /// destination by a number of its own, in an echo too.
    pub(crate) fn side(&self, source: u8) -> Side {
        match self {
            Self::Apart(_) => Side::BOTH[usize::from(source)],
            Self::Echo(_) => Side::A,
        }
    }

    /// Whose bytes go to `side`, and to whom the bytes of `side` go.
    pub(crate) fn across(&self, side: Side) -> Side {
        match self {
            Self::Apart(_) => side.other(),
            Self::Echo(_) => side,
        }
    }

    pub(crate) fn is_echo(&self) -> bool {
        matches!(self, Self::Echo(_))
    }

    /// What flows between them: an echo has the first direction only.
    pub(crate) fn directions(&self, carrier_choice: CarrierChoice) -> [Direction; 2] {
        let second = match self {
            Self::Apart(_) => Direction::new(carrier_choice),
            Self::Echo(_) => Direction::ended(),
        };
        [Direction::new(carrier_choice), second]
    }
}
