//! How large segments may be.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::sockopt;

use splice_base::error::{Context, Result};
use splice_base::socket_option;

/// IP and TCP headers without options, in bytes.
pub(crate) const HEADERS_V4_BYTES: u32 = 40;
pub(crate) const HEADERS_V6_BYTES: u32 = 60;

/// What timestamps take away from a segment's payload, in bytes (`TCPOLEN_TSTAMP_ALIGNED`).
pub(crate) const TIMESTAMP_BYTES: u32 = 12;

/// Sizes from here on count as no bound, in bytes. They exist on lo only, where a connection tells
/// half of its window instead (`tcp_bound_to_half_wnd`), and `TCP_MAXSEG` takes at most 32767.
const UNBOUNDED_BYTES: u32 = 16 << 10;

/// How large the segments are that somebody takes, as TCP announces it: without IP and TCP
/// headers, with TCP options.
///
/// The engine `segment` makes a segment of one connection into one of another and cannot cut it,
/// so what comes in must fit where it goes. What a peer sends is bounded by what it was told when
/// the connection was made, which is too late to change once the two are joined. Hence a program
/// that wants its pairs spliced has its sockets announce what fits, before:
///
/// - its listener what fits on the way to the target ([`on_the_way_to`](Self::on_the_way_to));
/// - its connection to the target what the client takes ([`taken_by_peer`](Self::taken_by_peer)),
///   as a server on 127.0.0.1 would send 64 KiB otherwise.
///
/// ```
/// # use std::net::{TcpListener, TcpStream};
/// # use splice::SegmentSize;
/// # let target = TcpListener::bind("127.0.0.1:0")?;
/// # let target = target.local_addr()?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// SegmentSize::on_the_way_to(target)?.announce_on(&listener)?;
/// # let client = TcpStream::connect(listener.local_addr()?)?;
/// let (client, _) = listener.accept()?;
/// let fits = SegmentSize::taken_by_peer(&client)?;
/// # let socket = client;
/// // on a socket that is not yet connected to the target
/// fits.announce_on(&socket)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentSize(u32);

impl SegmentSize {
    /// What the peer of a connected TCP socket takes, on the path that is known by now.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when it is not a TCP socket.
    pub fn taken_by_peer(connected: impl AsFd) -> Result<Self> {
        let (payload_bytes, stamped) =
            socket_option::segment(&connected).context("cannot read the socket's TCP_INFO")?;
        Ok(Self(
            payload_bytes + if stamped { TIMESTAMP_BYTES } else { 0 },
        ))
    }

    /// What fits on this host's route to `address`.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when there is no route.
    pub fn on_the_way_to(address: SocketAddr) -> Result<Self> {
        // A datagram socket that is connected sends nothing and knows its route.
        let mtu = || -> std::io::Result<u32> {
            let socket = if address.is_ipv4() {
                UdpSocket::bind("0.0.0.0:0")?
            } else {
                UdpSocket::bind("[::]:0")?
            };
            socket.connect(address)?;
            Ok(if address.is_ipv4() {
                sockopt::ip_mtu(&socket)? - HEADERS_V4_BYTES
            } else {
                sockopt::ipv6_mtu(&socket)? - HEADERS_V6_BYTES
            })
        };
        mtu().map(Self).context("cannot ask for the path's MTU")
    }

    /// Has the peer of `socket`, which is not yet connected, or the peers of a listener, send no
    /// larger segments than this (`TCP_MAXSEG`).
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when it is not a TCP socket.
    pub fn announce_on(self, socket: impl AsFd) -> Result<()> {
        if self.0 >= UNBOUNDED_BYTES {
            return Ok(());
        }
        match socket_option::bound_segments(&socket, self.0) {
            // Below 88 bytes; a peer like that gets what the kernel announces (`TCP_MIN_MSS`).
            Err(Errno::INVAL) => Ok(()),
            set => set.context("cannot set TCP_MAXSEG"),
        }
    }
}
