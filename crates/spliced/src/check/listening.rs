//! Whether this host has the addresses that a plan listens on. None is bound with its port: a relay that runs may hold it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::{Error, anyhow};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use splice::{Address, SocketName};

use crate::check::rights::{CAP_NET_BIND_SERVICE, has_right};
use crate::listener::why_not;
use crate::plan::{DatagramListenerPlan, ListenerPlan, datagram_address};
use crate::socket_address::SocketAddress;

/// The first port that needs no right, unless the host says otherwise.
const FIRST_UNPRIVILEGED_PORT: u16 = 1024;

/// The addresses of a plan, and what stands in their way.
#[derive(Debug)]
pub(super) struct Listening {
    /// What another user may be allowed to, and what concerns a part of the addresses of a name.
    pub(super) warnings: Vec<String>,
    pub(super) obstacles: Vec<String>,
    /// Who listens at a port of TCP or, if that is true, of UDP.
    taken: HashMap<(bool, u16), Vec<(SocketAddr, String)>>,
    /// Many listeners may have one address, at different ports.
    known: HashMap<SocketAddr, Option<Errno>>,
    first_unprivileged_port: u16,
}

/// Why an address cannot be used.
enum Why {
    Never(Error),
    /// It is one of another host, or of a family that this one does not have.
    NotHere(Error),
    /// By this user.
    NotAllowed(Error),
}

impl Listening {
    pub(super) fn new() -> Self {
        let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start");
        let first = first.ok().and_then(|text| text.trim().parse().ok());
        Self {
            warnings: Vec::new(),
            obstacles: Vec::new(),
            taken: HashMap::new(),
            known: HashMap::new(),
            first_unprivileged_port: match has_right(CAP_NET_BIND_SERVICE) {
                true => 0,
                false => first.unwrap_or(FIRST_UNPRIVILEGED_PORT),
            },
        }
    }

    /// The addresses of a listener.
    pub(super) fn listener(&mut self, listener: &ListenerPlan) -> Vec<SocketAddress> {
        let address = SocketName::Connected(listener.address.clone());
        self.add(&format!("listener {:?}", listener.name), &address)
    }

    /// The addresses of a listener of datagrams.
    pub(super) fn datagrams(&mut self, listener: &DatagramListenerPlan) -> Vec<SocketAddress> {
        self.add(&format!("listener {:?}", listener.name), &listener.listen)
    }

    /// The address for metrics, after those of the listeners.
    pub(super) fn metrics(&mut self, address: &Address) {
        self.add("metrics", &SocketName::Connected(address.clone()));
    }

    fn add(&mut self, who: &str, typed: &SocketName) -> Vec<SocketAddress> {
        let is_datagram = typed.is_datagram();
        let address = match typed {
            SocketName::Connected(address) => address,
            other => match datagram_address(other) {
                Some(address) => address,
                None => return Vec::new(),
            },
        };
        let mut addresses = match SocketAddress::to_listen(address) {
            Ok(addresses) => addresses,
            Err(error) => {
                self.obstacles.push(format!("{who}: {error:#}"));
                return Vec::new();
            }
        };
        addresses.dedup();
        let mut not_here = Vec::new();
        for address in &addresses {
            let told = |error| format!("{who}: cannot listen on {typed}: {error:#}");
            match self.why_not(address, is_datagram, who) {
                Some(Why::Never(error)) => self.obstacles.push(told(error)),
                Some(Why::NotHere(error)) => not_here.push(told(error)),
                Some(Why::NotAllowed(error)) => self.warnings.push(told(error)),
                None => {}
            }
        }
        match not_here.len() == addresses.len() {
            true => self.obstacles.extend(not_here),
            // The others of the name are enough.
            false => self.warnings.extend(not_here),
        }
        addresses
    }

    fn why_not(&mut self, address: &SocketAddress, is_datagram: bool, who: &str) -> Option<Why> {
        let SocketAddress::Inet(inet) = address else {
            return file_of(address).and_then(|path| why_no_socket_at(path, address));
        };
        if let Some(errno) = self.why_not_at_any_port(*inet) {
            let why = why_not(errno, address);
            return Some(match errno {
                Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT => Why::NotHere(why),
                _ => Why::Never(why),
            });
        }
        // The kernel picks a free port for 0.
        if inet.port() == 0 {
            return None;
        }
        let taken = self.taken.entry((is_datagram, inet.port())).or_default();
        let other = taken.iter().find(|(other, _)| overlap(*other, *inet));
        if let Some((other, whose)) = other {
            return Some(Why::Never(anyhow!(
                "{whose} has {}, and one socket only can listen there; choose another",
                SocketAddress::Inet(*other)
            )));
        }
        taken.push((*inet, who.to_owned()));
        (inet.port() < self.first_unprivileged_port)
            .then(|| Why::NotAllowed(why_not(Errno::ACCESS, address)))
    }

    /// The kernel is asked, since it may let sockets have addresses of others (`net.ipv4.ip_nonlocal_bind`, routes of type
    /// local).
    fn why_not_at_any_port(&mut self, mut address: SocketAddr) -> Option<Errno> {
        address.set_port(0);
        let ask = |address: SocketAddr| {
            let address = SocketAddress::Inet(address);
            address.socket().and_then(|socket| address.bind(&socket))
        };
        let judge = || match ask(address) {
            // A listener on every address needs no IPv6.
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL)
                if address.is_ipv6() && address.ip().is_unspecified() =>
            {
                ask((Ipv4Addr::UNSPECIFIED, 0).into()).err()
            }
            // Of this address no port is free, which says nothing of the one that is asked for.
            Err(Errno::ADDRINUSE) => None,
            asked => asked.err(),
        };
        *self.known.entry(address).or_insert_with(judge)
    }
}

/// Whether a socket that listens on the one keeps others from the other.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (one, other) = (one.ip().to_canonical(), other.ip().to_canonical());
    let is_every = |ip: IpAddr, of: IpAddr| match ip {
        // Such a listener is dual-stack.
        IpAddr::V6(ip) => ip.is_unspecified(),
        IpAddr::V4(ip) => ip.is_unspecified() && of.is_ipv4(),
    };
    one == other || is_every(one, other) || is_every(other, one)
}

fn file_of(address: &SocketAddress) -> Option<&Path> {
    let path = address.unix()?.path_bytes()?;
    Some(Path::new(OsStr::from_bytes(path)))
}

/// Why there can be no socket file at `path`.
fn why_no_socket_at(path: &Path, address: &SocketAddress) -> Option<Why> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) => Path::new("."),
        None => return Some(Why::Never(why_not(Errno::ISDIR, address))),
    };
    let errno = match fs::metadata(directory) {
        Ok(metadata) => (!metadata.is_dir()).then_some(Errno::NOTDIR),
        Err(error) => Errno::from_io_error(&error),
    };
    match errno {
        Some(errno @ Errno::ACCESS) => return Some(Why::NotAllowed(why_not(errno, address))),
        Some(errno) => return Some(Why::Never(why_not(errno, address))),
        None => {}
    }
    if let Ok(metadata) = fs::symlink_metadata(path)
        && !metadata.file_type().is_socket()
    {
        return Some(Why::Never(anyhow!(
            "the file exists and is not a socket; remove it or choose another"
        )));
    }
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    let errno = accessat(CWD, directory, wanted, AtFlags::EACCESS).err()?;
    match errno {
        // Before Linux 5.8 there is no faccessat2(2).
        Errno::NOSYS | Errno::INVAL => None,
        errno => Some(Why::NotAllowed(why_not(errno, address))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_overlap_if_a_socket_on_the_one_takes_the_clients_of_the_other() {
        for (one, other, do_overlap) in [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "127.0.0.2:1", false),
            ("0.0.0.0:1", "127.0.0.2:1", true),
            ("0.0.0.0:1", "[::1]:1", false),
            ("0.0.0.0:1", "[::]:1", true),
            ("[::]:1", "127.0.0.1:1", true),
            ("[::]:1", "[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", "127.0.0.1:1", true),
            ("[::2]:1", "[::1]:1", false),
        ] {
            let parsed = |text: &str| text.parse().expect("an address");
            for (one, other) in [(one, other), (other, one)] {
                let found = overlap(parsed(one), parsed(other));
                assert_eq!(found, do_overlap, "{one} and {other}");
            }
        }
    }
}
