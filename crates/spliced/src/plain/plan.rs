//! What such a relay is to do.

use std::time::Duration;

use splice::SocketName;

use crate::access_log_args::AccessLogArgs;
use crate::control_args::ControlArgs;

#[derive(Clone, Debug)]
pub(crate) struct PlainPlan {
    pub(crate) listen: SocketName,
    pub(crate) target: SocketName,
    pub(crate) connect_timeout: Duration,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) max_connections: Option<u32>,
    pub(crate) drain_timeout: Duration,
    pub(crate) access_log: AccessLogArgs,
    pub(crate) control: ControlArgs,
}

impl PlainPlan {
    /// Whether both sockets keep messages apart. Otherwise both are streams.
    pub(crate) fn is_messages(&self) -> bool {
        self.listen.is_seqpacket()
    }
}
