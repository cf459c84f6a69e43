//! iptables-legacy: its tables as the kernel tells them by getsockopt(2).

use crate::known::Answer;
use crate::segment::Segment;

/// The fixed part of a rule (`struct ipt_ip`, `struct ip6t_ip6`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {}

impl Header {
    pub(crate) fn holds(&self, _segment: &Segment<'_>) -> Answer {
        Answer::Maybe
    }
}
