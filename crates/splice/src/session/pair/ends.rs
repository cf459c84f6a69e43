//! The ends of a pair: two endpoints, or one that is spliced to itself.
//!
//! ```text
//! Two   ends[A] ──▶ ends[B] and back        Echo   ends[A] ──▶ ends[A]
//! ```

use splice_base::error::Result;

use crate::carrier::message::Messages;
use crate::direction::{CarrierChoice, Direction};
use crate::endpoint::Endpoint;
use crate::options::Options;
use crate::outcome::Side;

#[derive(Debug)]
pub(crate) enum Ends {
    Two([Endpoint; 2]),
    /// What its peer sends goes back to it.
    Echo(Endpoint),
}

impl Ends {
    /// The endpoints, each once.
    pub(crate) fn each(&self) -> &[Endpoint] {
        match self {
            Self::Two(both) => both,
            Self::Echo(one) => std::slice::from_ref(one),
        }
    }

    /// Both sides; in an echo they are the same endpoint.
    pub(crate) fn sides(&self) -> [&Endpoint; 2] {
        match self {
            Self::Two([a, b]) => [a, b],
            Self::Echo(one) => [one, one],
        }
    }

    /// The side that a registration number belongs to. A ring has a number of its own for the
    /// destination, even in an echo.
    pub(crate) fn side(&self, source: u8) -> Side {
        match self {
            Self::Two(_) => Side::BOTH[usize::from(source)],
            Self::Echo(_) => Side::A,
        }
    }

    /// The side whose bytes go to `side`, and that gets the bytes of `side`.
    pub(crate) fn across(&self, side: Side) -> Side {
        match self {
            Self::Two(_) => side.other(),
            Self::Echo(_) => side,
        }
    }

    /// Whether a protocol is stacked on TCP in the kernel at one of them.
    pub(crate) fn have_upper_protocol(&self) -> bool {
        self.each().iter().any(Endpoint::has_upper_protocol)
    }

    /// Whether both keep messages apart. A pair of one that does and one that does not is refused.
    pub(crate) fn keep_messages(&self) -> bool {
        self.each()[0].kind().keeps_messages()
    }

    pub(crate) fn is_echo(&self) -> bool {
        matches!(self, Self::Echo(_))
    }

    /// Sets the options of sockets that a pair's options ask for.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if a socket does not take one.
    pub(crate) fn set_options(&self, options: &Options) -> Result<()> {
        let Options {
            keepalive,
            user_timeout,
            ..
        } = *options;
        let mut each = self.each().iter();
        each.try_for_each(|end| end.set_peer_timeouts(keepalive, user_timeout))
    }

    /// The directions between them; an echo has only the first. Messages have a carrier of their own.
    pub(crate) fn directions(&self, carrier_choice: CarrierChoice) -> [Direction; 2] {
        let between = |source: &Endpoint, destination: &Endpoint| {
            Direction::new(match source.kind().keeps_messages() {
                true => CarrierChoice::Messages(Messages {
                    tells_arrival: source.tells_arrival(),
                    can_tear: destination.kind().is_vsock(),
                }),
                false => carrier_choice,
            })
        };
        match self {
            Self::Two([one, other]) => [between(one, other), between(other, one)],
            Self::Echo(one) => [between(one, one), Direction::ended()],
        }
    }
}
