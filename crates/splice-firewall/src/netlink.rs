//! Netlink sockets of netfilter and of rtnetlink(7), and their attributes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NetlinkBuffer,
    NlasIterator,
};
use rustix::io::Errno;
use rustix::net::Protocol;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// `NFNL_SUBSYS_NFTABLES`, the upper byte of a message's type.
const SUBSYSTEM: u16 = 10 << 8;
/// The group of nf_tables' notifications (`NFNLGRP_NFTABLES`), as a bit.
const NOTIFICATIONS: u32 = 1 << (7 - 1);
/// `NFNL_SUBSYS_CTNETLINK` and `IPCTNL_MSG_CT_GET`.
const GET_TRACKED: u16 = 1 << 8 | 1;
/// The same and `IPCTNL_MSG_CT_NEW`.
const CHANGE_TRACKED: u16 = 1 << 8;
/// The groups of changes of devices and of traffic control (`RTNLGRP_LINK`, `RTNLGRP_TC`), as bits.
const DEVICES: u32 = 1 | 1 << (4 - 1);
/// The groups of changes of devices, addresses, routes, rules and settings (`RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`,
/// `..._ROUTE`, `..._RULE`, `..._NETCONF`, the same of IPv6, `RTNLGRP_NEXTHOP`), as bits.
const WAYS: u32 =
    1 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 18 | 1 << 23 | 1 << 24 | 1 << 31;
/// The group of changes of IPsec policies (`XFRMNLGRP_POLICY`), as a bit.
const POLICIES: u32 = 1 << (4 - 1);
/// `NFNETLINK_V0`.
const VERSION: u8 = 0;
/// `struct nfgenmsg`.
const FAMILY_HEADER_BYTES: usize = 4;
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// The kernel fills the reader's buffer, up to 32 KiB a message (`netlink_recvmsg`, `netlink_dump`).
const BUFFER_BYTES: usize = 64 << 10;

/// One message of a dump.
pub(crate) struct Message<'a> {
    /// `NFPROTO_*`.
    pub(crate) family: u8,
    pub(crate) attributes: Attributes<'a>,
}

/// A netlink socket of this thread's network namespace.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

/// Why a dump failed.
#[derive(Debug)]
pub(crate) enum DumpError {
    /// The rules changed during the dump: try again.
    Changed,
    /// The request or its answer did not get through.
    System(io::Error),
    /// What the kernel answers: it says something about what was asked.
    Answer(Errno),
}

impl From<Errno> for DumpError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::INTR => Self::Changed,
            errno => Self::System(errno.into()),
        }
    }
}

impl DumpError {
    /// The error in a message of the kernel.
    fn answer(errno: i32) -> Self {
        match Errno::from_raw_os_error(-errno) {
            Errno::INTR => Self::Changed,
            errno => Self::Answer(errno),
        }
    }
}

impl Socket {
    pub(crate) fn new() -> io::Result<Self> {
        Self::with(Some(netlink::NETFILTER), 0)
    }

    /// A socket that is notified of every change of the rules; see [`Self::drain`].
    pub(crate) fn listening() -> io::Result<Self> {
        Self::with(Some(netlink::NETFILTER), NOTIFICATIONS)
    }

    /// A socket for devices and what belongs to them.
    pub(crate) fn for_devices() -> io::Result<Self> {
        Self::with(None, 0)
    }

    /// A socket that is notified of changes of devices and of their traffic control.
    pub(crate) fn listening_for_devices() -> io::Result<Self> {
        Self::with(None, DEVICES)
    }

    /// A socket that is notified of whatever changes the way of packets.
    pub(crate) fn listening_for_ways() -> io::Result<Self> {
        Self::with(None, WAYS)
    }

    /// A socket for the policies of IPsec.
    pub(crate) fn for_ipsec() -> io::Result<Self> {
        Self::with(Some(netlink::XFRM), 0)
    }

    /// A socket that is notified when they change.
    pub(crate) fn listening_for_ipsec() -> io::Result<Self> {
        Self::with(Some(netlink::XFRM), POLICIES)
    }

    /// Without a protocol: `NETLINK_ROUTE` is 0.
    fn with(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let fd = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self {
            fd,
            buffer: vec![0; BUFFER_BYTES],
            sequence: 0,
        })
    }

    /// Dumps all objects of a kind (`NFT_MSG_GET*`) and calls `take` with each.
    pub(crate) fn dump(
        &mut self,
        kind: u8,
        family: u8,
        attributes: &[u8],
        take: impl FnMut(&Message<'_>),
    ) -> Result<(), DumpError> {
        let kind = SUBSYSTEM | u16::from(kind);
        self.ask_netfilter(kind, family, NLM_F_DUMP, attributes, take)
    }

    /// Requests one object.
    pub(crate) fn get(
        &mut self,
        kind: u8,
        take: impl FnMut(&Message<'_>),
    ) -> Result<(), DumpError> {
        self.ask_netfilter(SUBSYSTEM | u16::from(kind), 0, 0, &[], take)
    }

    /// Requests one entry of connection tracking.
    pub(crate) fn get_tracked(
        &mut self,
        family: u8,
        attributes: &[u8],
        take: impl FnMut(&Message<'_>),
    ) -> Result<(), DumpError> {
        self.ask_netfilter(GET_TRACKED, family, 0, attributes, take)
    }

    /// Changes one entry of connection tracking, if it is there.
    pub(crate) fn change_tracked(
        &mut self,
        family: u8,
        attributes: &[u8],
    ) -> Result<(), DumpError> {
        self.ask_netfilter(CHANGE_TRACKED, family, NLM_F_ACK, attributes, |_| ())
    }

    fn ask_netfilter(
        &mut self,
        kind: u16,
        family: u8,
        flags: u16,
        attributes: &[u8],
        mut take: impl FnMut(&Message<'_>),
    ) -> Result<(), DumpError> {
        let header = [family, VERSION, 0, 0];
        self.ask(kind, flags, &[&header, attributes], |payload| {
            if let Some((header, attributes)) = payload.split_at_checked(FAMILY_HEADER_BYTES) {
                take(&Message {
                    family: header[0],
                    attributes: Attributes(attributes),
                });
            }
        })
    }

    /// Dumps all objects of a kind (`RTM_GET*`), with the header of its messages as the request, and calls
    /// `take` with each header and its attributes.
    pub(crate) fn dump_route(
        &mut self,
        kind: u16,
        header: &[u8],
        mut take: impl FnMut(&[u8], Attributes<'_>),
    ) -> Result<(), DumpError> {
        self.ask(kind, NLM_F_DUMP, &[header], |payload| {
            if let Some((header, attributes)) = payload.split_at_checked(header.len()) {
                take(header, Attributes(attributes));
            }
        })
    }

    /// Requests one object of rtnetlink, and calls `take` with its header and attributes.
    pub(crate) fn get_route(
        &mut self,
        kind: u16,
        header: &[u8],
        attributes: &[u8],
        mut take: impl FnMut(&[u8], Attributes<'_>),
    ) -> Result<(), DumpError> {
        self.ask(kind, 0, &[header, attributes], |payload| {
            if let Some((header, attributes)) = payload.split_at_checked(header.len()) {
                take(header, Attributes(attributes));
            }
        })
    }

    /// Dumps all objects of IPsec of a kind (`XFRM_MSG_GET*`), and calls `take` with each.
    pub(crate) fn dump_ipsec(
        &mut self,
        kind: u16,
        request: &[u8],
        take: impl FnMut(&[u8]),
    ) -> Result<(), DumpError> {
        self.ask(kind, NLM_F_DUMP, &[request], take)
    }

    /// Requests one object of IPsec.
    pub(crate) fn get_ipsec(
        &mut self,
        kind: u16,
        request: &[u8],
        take: impl FnMut(&[u8]),
    ) -> Result<(), DumpError> {
        self.ask(kind, 0, &[request], take)
    }

    /// Sends a request and calls `take` with the payload of each message of the answer.
    fn ask(
        &mut self,
        kind: u16,
        flags: u16,
        parts: &[&[u8]],
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), DumpError> {
        self.sequence += 1;
        let length = HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut request = vec![0; HEADER_BYTES];
        {
            let mut header = NetlinkBuffer::new(&mut request);
            header.set_length(length as u32);
            header.set_message_type(kind);
            header.set_flags(NLM_F_REQUEST | flags);
            header.set_sequence_number(self.sequence);
        }
        parts.iter().for_each(|part| request.extend(*part));
        send(&self.fd, &request, SendFlags::empty())?;
        let mut interrupted = false;
        loop {
            let (length, whole) = recv(&self.fd, &mut self.buffer, RecvFlags::TRUNC)?;
            if whole > self.buffer.len() {
                return Err(DumpError::System(io::Error::other("a message was cut off")));
            }
            let mut rest = &self.buffer[..length];
            while let Ok(message) = NetlinkBuffer::new_checked(rest) {
                let message_length = message.length() as usize;
                let next = message_length.next_multiple_of(4).min(rest.len());
                let payload = &rest[HEADER_BYTES..message_length];
                rest = &rest[next..];
                if message.sequence_number() != self.sequence {
                    continue;
                }
                interrupted |= message.flags() & NLM_F_DUMP_INTR != 0;
                match message.message_type() {
                    NLMSG_DONE if interrupted => return Err(DumpError::Changed),
                    // A dump that ended early reports the error here.
                    NLMSG_DONE => match i32_at(payload, 0) {
                        Some(errno) if errno < 0 => {
                            return Err(DumpError::answer(errno));
                        }
                        _ => return Ok(()),
                    },
                    NLMSG_ERROR => {
                        return match i32_at(payload, 0) {
                            Some(0) => Ok(()),
                            Some(errno) => Err(DumpError::answer(errno)),
                            None => Err(DumpError::System(io::ErrorKind::InvalidData.into())),
                        };
                    }
                    _ => {
                        take(payload);
                        if flags == 0 {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }

    /// Reads all pending notifications. Returns whether there were any, lost ones included.
    pub(crate) fn drain(&mut self) -> io::Result<bool> {
        let mut any = false;
        loop {
            match recv(&self.fd, &mut self.buffer, RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(any),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
impl Socket {
    /// A socket whose requests go to `fd` in place of the kernel.
    pub(crate) fn of(fd: OwnedFd) -> Self {
        Self {
            fd,
            buffer: vec![0; BUFFER_BYTES],
            sequence: 0,
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A run of attributes (`struct nlattr`).
#[derive(Clone, Copy)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// All attributes with their types.
    pub(crate) fn each(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        NlasIterator::new(self.0).filter_map(|attribute| {
            let attribute = attribute.ok()?;
            let (kind, length) = (attribute.kind(), attribute.length() as usize);
            Some((kind, &attribute.into_inner()[HEADER..length]))
        })
    }

    pub(crate) fn bytes(self, kind: u16) -> Option<&'a [u8]> {
        self.each()
            .find_map(|(found, bytes)| (found == kind).then_some(bytes))
    }

    pub(crate) fn nested(self, kind: u16) -> Option<Self> {
        self.bytes(kind).map(Self)
    }

    /// A number in network order, as in all of nf_tables.
    pub(crate) fn u32(self, kind: u16) -> Option<u32> {
        let bytes = self.bytes(kind)?;
        Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
    }

    pub(crate) fn u64(self, kind: u16) -> Option<u64> {
        let bytes = self.bytes(kind)?;
        Some(u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?))
    }

    /// A number in the byte order of this machine, as in rtnetlink.
    pub(crate) fn native_u32(self, kind: u16) -> Option<u32> {
        let bytes = self.bytes(kind)?;
        Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
    }

    pub(crate) fn u8(self, kind: u16) -> Option<u8> {
        self.bytes(kind)?.first().copied()
    }

    pub(crate) fn text(self, kind: u16) -> Option<String> {
        self.bytes(kind).map(text)
    }
}

/// `struct nlattr`.
const HEADER: usize = 4;

/// A string up to its NUL.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// One attribute with a string, padded.
pub(crate) fn string_attribute(kind: u16, text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    attribute(kind, &bytes)
}

/// One attribute, padded.
pub(crate) fn attribute(kind: u16, bytes: &[u8]) -> Vec<u8> {
    let length = HEADER + bytes.len();
    let mut attribute = Vec::with_capacity(length.next_multiple_of(4));
    attribute.extend((length as u16).to_ne_bytes());
    attribute.extend(kind.to_ne_bytes());
    attribute.extend(bytes);
    attribute.resize(length.next_multiple_of(4), 0);
    attribute
}

/// `NLA_F_NESTED`.
pub(crate) const NESTED: u16 = 1 << 15;

fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}
