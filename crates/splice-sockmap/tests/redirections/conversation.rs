//! Connected sockets of a kind, and pseudo-random messages through them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{SockFlag, SockType, VsockAddr, bind, connect, getsockname, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, SocketFlags, recv, send};
use splice_sockmap::SocketKind;

use crate::random::Random;

/// The kinds that every host can make. Those of VSOCK need a loopback (`vsock.rs`).
pub(crate) const KINDS: [SocketKind; 4] = [
    SocketKind::Tcp,
    SocketKind::Udp,
    SocketKind::UnixStream,
    SocketKind::UnixDatagram,
];

/// Far more than a message takes on a busy machine.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// A socket for a map, and its peer.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) member: OwnedFd,
    pub(crate) peer: OwnedFd,
}

impl Pair {
    pub(crate) fn of(kind: SocketKind) -> Self {
        Self::over(kind, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// The same over IPv6, if the kind has addresses.
    pub(crate) fn of6(kind: SocketKind) -> Self {
        Self::over(kind, SocketAddr::from((Ipv6Addr::LOCALHOST, 0)))
    }

    fn over(kind: SocketKind, address: SocketAddr) -> Self {
        let (member, peer): (OwnedFd, OwnedFd) = match kind {
            SocketKind::Tcp => {
                let listener = TcpListener::bind(address).expect("a listener");
                let peer = TcpStream::connect(listener.local_addr().expect("bound"));
                let peer = peer.expect("connected");
                let (member, _) = listener.accept().expect("accepted");
                (member.into(), peer.into())
            }
            SocketKind::Udp => {
                let [one, other] = [address, address].map(|at| UdpSocket::bind(at).expect("bound"));
                one.connect(other.local_addr().expect("bound"))
                    .expect("connected");
                other
                    .connect(one.local_addr().expect("bound"))
                    .expect("connected");
                (one.into(), other.into())
            }
            SocketKind::UnixStream => {
                let (one, other) = UnixStream::pair().expect("a pair");
                (one.into(), other.into())
            }
            SocketKind::UnixDatagram => {
                let (one, other) = UnixDatagram::pair().expect("a pair");
                (one.into(), other.into())
            }
            SocketKind::VsockStream => vsock(SockType::Stream),
            SocketKind::VsockSeqpacket => vsock(SockType::SeqPacket),
        };
        Self { member, peer }
    }
}

/// A connection over the loopback of VSOCK.
fn vsock(of: SockType) -> (OwnedFd, OwnedFd) {
    let fresh = || {
        let made = socket(
            nix::sys::socket::AddressFamily::Vsock,
            of,
            SockFlag::SOCK_CLOEXEC,
            None,
        );
        made.expect("a VSOCK socket")
    };
    let (listener, peer) = (fresh(), fresh());
    let any = VsockAddr::new(libc::VMADDR_CID_ANY, libc::VMADDR_PORT_ANY);
    bind(listener.as_raw_fd(), &any).expect("bound");
    rustix::net::listen(&listener, 1).expect("it listens");
    let bound: VsockAddr = getsockname(listener.as_raw_fd()).expect("bound");
    let address = VsockAddr::new(libc::VMADDR_CID_LOCAL, bound.port());
    connect(peer.as_raw_fd(), &address).expect("connected");
    let member = rustix::net::accept_with(&listener, SocketFlags::CLOEXEC).expect("accepted");
    (member, peer)
}

/// As many messages of up to `most` bytes.
pub(crate) fn messages(count: usize, most: usize, salt: u64) -> Vec<Vec<u8>> {
    let mut random = Random::of_run(salt);
    let message = |_| {
        let mut bytes = vec![0; random.size(most)];
        bytes
            .iter_mut()
            .for_each(|byte| *byte = random.next() as u8);
        bytes
    };
    (0..count).map(message).collect()
}

pub(crate) fn put(socket: impl AsFd, message: &[u8]) {
    let sent = send(&socket, message, SendFlags::NOSIGNAL).expect("sent");
    assert_eq!(sent, message.len());
}

/// The next bytes, or the next message.
pub(crate) fn take(socket: impl AsFd) -> Vec<u8> {
    let mut ready = [PollFd::new(&socket, PollFlags::IN)];
    let found = poll(&mut ready, Some(&PATIENCE)).expect("polled");
    assert_eq!(
        found,
        1,
        "nothing came within {:?}",
        Duration::from_secs(30)
    );
    let mut buffer = vec![0; 128 << 10];
    let (_, length) = recv(&socket, &mut buffer, RecvFlags::DONTWAIT).expect("received");
    buffer.truncate(length);
    buffer
}

/// Whether nothing can be read now.
pub(crate) fn is_empty(socket: impl AsFd) -> bool {
    let mut byte = [0; 1];
    matches!(
        recv(socket, &mut byte, RecvFlags::DONTWAIT | RecvFlags::PEEK),
        Err(rustix::io::Errno::AGAIN)
    )
}
