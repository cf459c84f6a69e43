//! What a relay of datagrams is to do.

use std::thread;
use std::time::Duration;

use splice::{Address, SocketName};

use crate::access_log_args::AccessLogArgs;
use crate::control_args::ControlArgs;
use crate::file_access::FileAccess;
use crate::plan::{DatagramTerms, datagram_address};
use crate::socket_address::SocketAddress;

#[derive(Clone, Debug)]
pub(crate) struct DatagramPlan {
    pub(crate) listen: SocketName,
    pub(crate) target: SocketName,
    /// That of the target without its kind.
    pub(crate) target_address: Address,
    /// `None`: one per CPU.
    pub(crate) wanted_threads: Option<u16>,
    /// Nothing unless it has a socket file.
    pub(crate) file_access: FileAccess,
    pub(crate) terms: DatagramTerms,
    pub(crate) drain_timeout: Duration,
    pub(crate) access_log: AccessLogArgs,
    pub(crate) control: ControlArgs,
}

impl DatagramPlan {
    /// The plan with all defaults; `None` if one of the two is no datagram socket.
    pub(crate) fn between(listen: SocketName, target: SocketName) -> Option<Self> {
        Some(Self {
            listen: listen.is_datagram().then_some(listen)?,
            target_address: datagram_address(&target)?.clone(),
            target,
            wanted_threads: None,
            file_access: FileAccess::default(),
            terms: DatagramTerms::default(),
            drain_timeout: crate::plan::DRAIN_TIMEOUT,
            access_log: AccessLogArgs::default(),
            control: ControlArgs::default(),
        })
    }

    /// The number of threads.
    pub(crate) fn threads(&self) -> usize {
        threads_of(&self.listen, || match self.wanted_threads {
            Some(threads) => threads.into(),
            None => thread::available_parallelism().map_or(1, usize::from),
        })
    }

    /// Whether both sockets have the same kind, so that the target could be the listener.
    pub(crate) fn is_one_kind(&self) -> bool {
        matches!(self.listen, SocketName::Udp(_)) == matches!(self.target, SocketName::Udp(_))
    }
}

/// The number of threads of a listener, of which there are `all`. The kernel spreads clients over UDP sockets that share
/// a port; a UNIX socket has one queue, whose order more threads would lose.
pub(crate) fn threads_of(listen: &SocketName, all: impl FnOnce() -> usize) -> usize {
    match listen {
        SocketName::Udp(_) => all(),
        _ => 1,
    }
}

/// `address` with the kind of its socket.
pub(crate) fn shown(address: &SocketAddress) -> String {
    match address {
        SocketAddress::Inet(_) => format!("udp:{address}"),
        _ => address.to_string().replacen("unix:", "unixgram:", 1),
    }
}
