//! The policies of IPsec: what the stack would encrypt, decrypt or block of a connection.

#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::netlink::{Attributes, DumpError, Socket};
use crate::segment::TCP;
use crate::setting::Setting;
use crate::way::{Ends, LOOPBACK};

/// The policies of one network namespace, as they were when they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    policies: Vec<Policy>,
    /// Packets that no policy matches are blocked (`ip xfrm policy setdefault`), by direction.
    blocks: [bool; 2],
}

/// What the policies do with a connection that may not bypass them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// They block its segments.
    Blocked,
    /// They let its segments pass only with IPsec.
    Required,
    /// Only the network stack can tell.
    Unclear,
}

/// Reads the policies of one network namespace. Without a socket the kernel has none.
#[derive(Debug)]
pub struct PolicyReader(Option<Socket>);

/// Is notified when policies change.
#[derive(Debug)]
pub struct PolicyChanges(Option<Socket>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    direction: Direction,
    selector: Selector,
    /// The lowest one counts.
    priority: u32,
    /// `None`: packets pass as they are.
    does: Option<Protection>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    In,
    Out,
}

/// Which packets a policy matches (`struct xfrm_selector`).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Selector {
    destination: Range,
    source: Range,
    /// 0: any.
    protocol: u8,
    /// 0: any. Otherwise the stack compares what is not known here: for packets to this host the loopback device, for those
    /// of IPv6 the one that their socket is bound to (`xfrm_decode_session`, `__xfrm6_selector_match`).
    device: u32,
}

/// One end of the packets that a policy matches.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Range {
    address: IpAddr,
    prefix_bits: u8,
    port: u16,
    port_mask: u16,
}

/// `XFRM_MSG_*` (linux/xfrm.h).
mod message {
    pub(super) const GET_POLICY: u16 = 0x15;
    pub(super) const GET_DEFAULT: u16 = 0x28;
}

/// `XFRMA_*` (linux/xfrm.h).
mod xfrma {
    pub(super) const TEMPLATES: u16 = 5;
    pub(super) const MARK: u16 = 21;
    pub(super) const INTERFACE: u16 = 31;
}

/// `struct xfrm_userpolicy_id`, the request.
const REQUEST: [u8; 64] = [0; 64];
/// `struct xfrm_userpolicy_info`, the answer, and where its fields are.
const INFO_BYTES: usize = 168;
const PRIORITY_AT: usize = 152;
const DIRECTION_AT: usize = 160;
const ACTION_AT: usize = 161;
/// `struct xfrm_userpolicy_default`, padded: what is done with packets in, forwarded and out.
const DEFAULT: [u8; 4] = [0; 4];
/// `XFRM_USERPOLICY_BLOCK`, and `XFRM_POLICY_BLOCK` of an action.
const BLOCK: u8 = 1;

/// How often to read what changes while it is read.
const TRIES: usize = 20;

/// No policy counts for what comes in. With IPv6 it is a setting of the device that has the address, which may be another
/// one, and each of its addresses has it from when it was set (`addrconf_disable_policy_idev`).
const NO_POLICY: &str = "disable_policy";
/// None counts for what leaves. What is done with packets that no policy matches still is, but on the loopback device
/// (`xfrm_lookup_with_ifid`). IPv6 has no such setting.
const NO_IPSEC: Setting = Setting {
    family: "ipv4",
    name: "disable_xfrm",
};

impl PolicyReader {
    /// For this thread's network namespace.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        if_there(Socket::for_ipsec()).map(Self)
    }

    /// Reads all policies.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, or if they change all the time.
    pub fn read(&mut self) -> io::Result<Policies> {
        let Some(socket) = &mut self.0 else {
            return Ok(Policies::default());
        };
        for _ in 0..TRIES {
            let mut policies = Vec::new();
            let read = socket.dump_ipsec(message::GET_POLICY, &REQUEST, |policy| {
                policies.extend(Policy::of(policy));
            });
            match read {
                Ok(()) => {
                    let blocks = defaults(socket)?;
                    return Ok(Policies { policies, blocks });
                }
                Err(DumpError::Changed) => {}
                Err(error) => return Err(system(error)),
            }
        }
        Err(system(DumpError::Changed))
    }
}

impl PolicyChanges {
    /// Notifications for this thread's network namespace, from now on.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        if_there(Socket::listening_for_ipsec()).map(Self)
    }

    /// Reads all pending notifications. Returns whether anything may have changed.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn any(&mut self) -> io::Result<bool> {
        self.0.as_mut().map_or(Ok(false), Socket::drain)
    }

    /// What becomes readable with a change.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }
}

impl Policies {
    /// What they do with the segments of a connection that come in on a device of this thread's network namespace, but
    /// let them pass.
    ///
    /// # Errors
    /// If something is short, so that the settings of the device cannot be read.
    pub fn on_incoming(&self, ends: &Ends, device: u32) -> io::Result<Option<Protection>> {
        let found = match self.one_way(Direction::In, ends) {
            Some(first) => first,
            None => self.by_default(Direction::In),
        };
        let Some(found) = found else {
            return Ok(None);
        };
        let family = match ends.local.is_ipv4() {
            true => "ipv4",
            false => "ipv6",
        };
        let name = NO_POLICY;
        let is_off = Setting { family, name }.is_on_for(device)?;
        Ok(match is_off {
            true if ends.local.is_ipv4() => None,
            true => Some(Protection::Unclear),
            false => Some(found),
        })
    }

    /// The same for those that leave by it.
    ///
    /// # Errors
    /// As [`on_incoming`](Self::on_incoming).
    pub fn on_outgoing(&self, ends: &Ends, device: u32) -> io::Result<Option<Protection>> {
        let first = self.one_way(Direction::Out, ends);
        let is_off = first.is_some() && ends.local.is_ipv4() && NO_IPSEC.is_on_for(device)?;
        Ok(match first {
            Some(first) if !is_off => first,
            _ if device == LOOPBACK => None,
            _ => self.by_default(Direction::Out),
        })
    }

    /// What those that match do; `None` if none matches.
    fn one_way(&self, direction: Direction, ends: &Ends) -> Option<Option<Protection>> {
        let matching = || {
            let mut all = self.policies.iter();
            std::iter::from_fn(move || all.find(|policy| policy.matches(direction, ends)))
        };
        let first = matching().map(|policy| policy.priority).min()?;
        let mut firsts = matching().filter(|policy| policy.priority == first);
        let does = firsts.next()?.does;
        // The kernel takes the older one, which the list does not tell.
        Some(match firsts.all(|policy| policy.does == does) {
            true => does,
            false => Some(Protection::Unclear),
        })
    }

    /// What is done with packets that no policy matches.
    fn by_default(&self, direction: Direction) -> Option<Protection> {
        self.blocks[direction as usize].then_some(Protection::Blocked)
    }
}

impl Policy {
    /// `None` for one that matches no segment of an ordinary connection.
    fn of(message: &[u8]) -> Option<Self> {
        let (info, attributes) = message.split_at_checked(INFO_BYTES)?;
        let attributes = Attributes::of(attributes);
        let direction = match info[DIRECTION_AT] {
            0 => Direction::In,
            1 => Direction::Out,
            // What is forwarded, and policies of single sockets.
            _ => return None,
        };
        let number = |at: usize| native_u32(info, at);
        // `struct xfrm_mark`: segments have the mark 0.
        let mark = attributes.bytes(xfrma::MARK);
        if mark.is_some_and(|mark| native_u32(mark, 0) != Some(0)) {
            return None;
        }
        // Of a virtual device.
        if attributes.native_u32(xfrma::INTERFACE).unwrap_or(0) != 0 {
            return None;
        }
        let does = if info[ACTION_AT] == BLOCK {
            Some(Protection::Blocked)
        } else {
            let templates = attributes.bytes(xfrma::TEMPLATES);
            templates
                .is_some_and(|templates| !templates.is_empty())
                .then_some(Protection::Required)
        };
        let selector = Selector::of(info)?;
        Some(Self {
            direction,
            does: match selector.device {
                0 => does,
                _ => Some(Protection::Unclear),
            },
            selector,
            priority: number(PRIORITY_AT)?,
        })
    }

    fn matches(&self, direction: Direction, ends: &Ends) -> bool {
        let Selector {
            destination,
            source,
            protocol,
            device: _,
        } = &self.selector;
        let [to, from] = match direction {
            Direction::In => [ends.local, ends.peer],
            Direction::Out => [ends.peer, ends.local],
        };
        self.direction == direction
            && matches!(*protocol, 0 | TCP)
            && destination.has(to.ip(), to.port())
            && source.has(from.ip(), from.port())
    }
}

impl Selector {
    /// From the beginning of a policy.
    fn of(info: &[u8]) -> Option<Self> {
        let is_v4 = match u16::from_ne_bytes(info.get(40..42)?.try_into().ok()?) {
            2 => true,
            10 => false,
            _ => return None,
        };
        let range = |address_at: usize, port_at: usize, prefix_at: usize| {
            let octets: [u8; 16] = info.get(address_at..address_at + 16)?.try_into().ok()?;
            let port = |at: usize| Some(u16::from_be_bytes(info.get(at..at + 2)?.try_into().ok()?));
            Some(Range {
                address: match is_v4 {
                    true => IpAddr::from([octets[0], octets[1], octets[2], octets[3]]),
                    false => IpAddr::from(octets),
                },
                prefix_bits: *info.get(prefix_at)?,
                port: port(port_at)?,
                port_mask: port(port_at + 2)?,
            })
        };
        Some(Self {
            destination: range(0, 32, 42)?,
            source: range(16, 36, 43)?,
            protocol: *info.get(44)?,
            device: native_u32(info, 48)?,
        })
    }
}

impl Range {
    fn has(&self, address: IpAddr, port: u16) -> bool {
        let is_within = match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let apart = u32::from(network) ^ u32::from(address);
                apart.leading_zeros() >= self.prefix_bits.min(32).into()
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let apart = u128::from(network) ^ u128::from(address);
                apart.leading_zeros() >= self.prefix_bits.min(128).into()
            }
            _ => false,
        };
        is_within && (self.port ^ port) & self.port_mask == 0
    }
}

/// Whether packets that no policy matches are blocked, by direction.
fn defaults(socket: &mut Socket) -> io::Result<[bool; 2]> {
    let mut blocks = [false; 2];
    let asked = socket.get_ipsec(message::GET_DEFAULT, &DEFAULT, |answer| {
        if let [incoming, _, outgoing, ..] = *answer {
            blocks = [incoming, outgoing].map(|action| action == BLOCK);
        }
    });
    match asked {
        // Before Linux 5.15 there are no defaults.
        Ok(()) | Err(DumpError::Answer(Errno::INVAL)) => Ok(blocks),
        Err(error) => Err(system(error)),
    }
}

/// Kernels without IPsec have no such socket.
fn if_there(socket: io::Result<Socket>) -> io::Result<Option<Socket>> {
    match socket {
        Err(error) if error.raw_os_error() == Some(Errno::PROTONOSUPPORT.raw_os_error()) => {
            Ok(None)
        }
        socket => socket.map(Some),
    }
}

fn native_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn system(error: DumpError) -> io::Error {
    match error {
        DumpError::Changed => io::Error::other("the policies change faster than they can be read"),
        DumpError::System(error) => error,
        DumpError::Answer(errno) => errno.into(),
    }
}
