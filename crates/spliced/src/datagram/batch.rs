//! The buffers that one call receives into.

use std::fmt;

use quinn_udp::EcnCodepoint;

use super::piece::Piece;
use super::sender::Sender;

/// Datagrams of one call, and their bytes.
pub(crate) struct Batch {
    pub(crate) buffers: Vec<Box<[u8]>>,
    pub(crate) messages: Vec<Message>,
}

/// What one buffer holds: a datagram, or several that the kernel has merged.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) sender: Sender,
    pub(crate) length: usize,
    /// The length of each datagram but the last.
    pub(crate) stride: usize,
    pub(crate) congestion: Option<EcnCodepoint>,
    /// The time to live that is left, if it is kept.
    pub(crate) ttl: Option<u8>,
    /// The datagram was longer than the buffer.
    pub(crate) is_cut: bool,
}

impl Message {
    /// Whether the kernel could have merged it with the next one (`udp_gro_receive_segment`: a shorter one is the last).
    pub(crate) fn goes_before(&self, next: &Self) -> bool {
        0 < next.length
            && next.length <= self.length
            && self.congestion == next.congestion
            && self.sender == next.sender
    }
}

impl Batch {
    /// How many datagrams a call receives at most: what the library asks the kernel for.
    pub(crate) const MESSAGES: usize = quinn_udp::BATCH_SIZE;

    /// The longest message: what the default send buffer of a UNIX socket takes (`net.core.wmem_default`),
    /// and more than any UDP datagram, merged ones included (64 KiB).
    const LONGEST_BYTES: usize = 208 << 10;

    /// Buffers that begin in different lines of the CPU's cache: at equal distances of a power of two they
    /// would displace one another.
    const STAGGER_BYTES: usize = 192;

    pub(crate) fn new() -> Self {
        let length = Self::LONGEST_BYTES + Self::STAGGER_BYTES;
        Self {
            buffers: (0..Self::MESSAGES)
                .map(|_| vec![0; length].into_boxed_slice())
                .collect(),
            messages: Vec::with_capacity(Self::MESSAGES),
        }
    }
}

impl Batch {
    /// A place holder, which receives nothing.
    pub(crate) fn empty() -> Self {
        Self {
            buffers: Vec::new(),
            messages: Vec::new(),
        }
    }

    /// What has been received: each message, and its bytes.
    pub(crate) fn received(&self) -> impl Iterator<Item = (&Message, Piece<'_>)> {
        self.messages
            .iter()
            .zip(&self.buffers)
            .map(|(message, buffer)| {
                let piece = Piece {
                    bytes: &buffer[..message.length],
                    stride: message.stride,
                    congestion: message.congestion,
                    ttl: message.ttl,
                };
                (message, piece)
            })
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}
