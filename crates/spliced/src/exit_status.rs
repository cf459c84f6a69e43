//! The exit statuses of the program.

/// A command failed while it ran.
pub(crate) const FAILED: u8 = 1;
/// The command line is wrong, or asks for something that this host cannot do.
pub(crate) const WRONG_USAGE: u8 = 2;
/// A relay reset connections at the end of draining.
pub(crate) const CUT_SHORT: u8 = 3;

/// How a command ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    /// Something was cut off: connections were reset at the end of draining, for example.
    CutShort,
}
