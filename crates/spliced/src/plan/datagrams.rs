//! Listeners of datagrams.

use splice::{Address, SocketName};

use super::{DatagramTerms, OnRemove, RoutePlan};
use crate::access_log_args::AccessLogArgs;
use crate::file_access::FileAccess;

/// A `[[listener]]` of datagrams. Its name is unique, and its address, too.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DatagramListenerPlan {
    pub(crate) name: String,
    pub(crate) listen: SocketName,
    /// Nothing unless it has a socket file.
    pub(crate) file_access: FileAccess,
    pub(crate) terms: DatagramTerms,
    pub(crate) access_log: AccessLogArgs,
    pub(crate) on_remove: OnRemove,
    /// They look at the addresses of clients only.
    pub(crate) routes: Vec<RoutePlan>,
}

/// The address of a datagram socket, without its kind; `None` for other sockets.
pub(crate) fn datagram_address(name: &SocketName) -> Option<&Address> {
    match name {
        SocketName::Udp(address) | SocketName::UnixDatagram(address) => Some(address),
        _ => None,
    }
}
