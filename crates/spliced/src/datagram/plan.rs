//! What a relay of datagrams is to do.

use std::thread;
use std::time::Duration;

use splice::{Address, SocketName};

use super::terms::DatagramTerms;
use crate::access_log_args::AccessLogArgs;
use crate::control_args::ControlArgs;
use crate::socket_address::SocketAddress;

#[derive(Clone, Debug)]
pub(crate) struct DatagramPlan {
    pub(crate) listen: SocketName,
    pub(crate) target: SocketName,
    /// Those of the two without their kinds.
    pub(crate) listen_address: Address,
    pub(crate) target_address: Address,
    /// `None`: one per CPU.
    pub(crate) wanted_threads: Option<u16>,
    pub(crate) terms: DatagramTerms,
    pub(crate) drain_timeout: Duration,
    pub(crate) access_log: AccessLogArgs,
    pub(crate) control: ControlArgs,
}

impl DatagramPlan {
    /// The plan with all defaults; `None` if one of the two is no datagram socket.
    pub(crate) fn between(listen: SocketName, target: SocketName) -> Option<Self> {
        Some(Self {
            listen_address: address_of(&listen)?,
            target_address: address_of(&target)?,
            listen,
            target,
            wanted_threads: None,
            terms: DatagramTerms::default(),
            drain_timeout: crate::plan::DRAIN_TIMEOUT,
            access_log: AccessLogArgs::default(),
            control: ControlArgs::default(),
        })
    }

    /// The number of threads. The kernel spreads clients over UDP sockets that share a port; a UNIX socket
    /// has one queue, whose order more threads would lose.
    pub(crate) fn threads(&self) -> usize {
        match (&self.listen, self.wanted_threads) {
            (SocketName::Udp(_), Some(threads)) => threads.into(),
            (SocketName::Udp(_), None) => thread::available_parallelism().map_or(1, usize::from),
            _ => 1,
        }
    }

    /// Whether both sockets have the same kind, so that the target could be the listener.
    pub(crate) fn is_one_kind(&self) -> bool {
        matches!(self.listen, SocketName::Udp(_)) == matches!(self.target, SocketName::Udp(_))
    }

    /// `address` with the kind of its socket.
    pub(crate) fn shown(&self, address: &SocketAddress) -> String {
        match address {
            SocketAddress::Inet(_) => format!("udp:{address}"),
            SocketAddress::Unix(_) => address.to_string().replacen("unix:", "unixgram:", 1),
        }
    }
}

fn address_of(name: &SocketName) -> Option<Address> {
    match name {
        SocketName::Udp(address) | SocketName::UnixDatagram(address) => Some(address.clone()),
        _ => None,
    }
}
