//! Since which kernel maps of sockets can do what, and what of it works here.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{TcpTlsTx, TcpUlp, TlsCryptoInfo};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use splice_base::error::Result;
use splice_bpf::{load, objects};

use crate::map::explained;
use crate::matrix::{Cell, try_cell};
use crate::member::Pair;
use crate::protocol;
use crate::{MapType, Redirect, Redirections, SockHash, SockMap, SocketKind};

/// A step in the history of maps of sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Step {
    /// The first release of Linux that has it.
    pub since: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Whether it works here; `None` if it could not be tried.
    pub works: Option<bool>,
    /// What was tried and seen.
    pub reason: String,
}

/// What a trial has shown, with its reason.
type Shown = (Option<bool>, String);

/// Since which kernel maps of sockets can do what, and what of it works here: the steps, the earliest first. The releases are those of the kernel's history, as the talk on SOCKMAP at NDC TechTown
/// 2024 lists them.
pub fn time_line() -> Vec<Step> {
    let step = |since, what, (works, reason): Shown| Step {
        since,
        what,
        works,
        reason,
    };
    let to_egress = |kind| cell(Redirect::IngressToEgress, kind);
    vec![
        step("4.6", "KCM", kcm()),
        step("4.14", "SOCKMAP", inserted(MapType::Map, SocketKind::Tcp)),
        step("4.14", "ingress to egress", to_egress(SocketKind::Tcp)),
        // SK_MSG, and BPF_F_INGRESS for both types of programs.
        step(
            "4.17",
            "send to egress",
            cell(Redirect::SendToEgress, SocketKind::Tcp),
        ),
        step(
            "4.17",
            "send to local",
            cell(Redirect::SendToLocal, SocketKind::Tcp),
        ),
        step(
            "4.17",
            "ingress to local",
            cell(Redirect::IngressToLocal, SocketKind::Tcp),
        ),
        step("4.18", "SOCKHASH", inserted(MapType::Hash, SocketKind::Tcp)),
        step(
            "4.20",
            "SK_MSG with kTLS",
            untried("it was removed again in 7.2, and no engine uses it"),
        ),
        step(
            "5.7",
            "UDP in maps",
            inserted(MapType::Hash, SocketKind::Udp),
        ),
        step("5.7", "TCP listeners in maps", listener()),
        step("5.10", "iterators", untried("no program here uses them")),
        step("5.10", "programs change maps", changed_by_program()),
        step("5.13", "UDP redirects", to_egress(SocketKind::Udp)),
        step("5.15", "UNIX streams", to_egress(SocketKind::UnixStream)),
        step(
            "5.15",
            "UNIX datagrams",
            to_egress(SocketKind::UnixDatagram),
        ),
        step("5.18", "maps tell their program", told()),
        step("6.4", "VSOCK streams", to_egress(SocketKind::VsockStream)),
        step(
            "6.4",
            "VSOCK seqpackets",
            to_egress(SocketKind::VsockSeqpacket),
        ),
        step("7.2", "members get no TLS keys", without_keys()),
    ]
}

fn untried(why: &str) -> Shown {
    (None, format!("not tried: {why}"))
}

/// `AF_KCM` of `linux/socket.h`.
const KCM: u16 = 41;

fn kcm() -> Shown {
    // `kcm_proto` and the module's name (net/kcm).
    if let Err(why) = protocol::require("KCM", "kcm") {
        return untried(&why);
    }
    let family = AddressFamily::from_raw(KCM);
    match socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None) {
        Ok(_) => (Some(true), "a socket of that family can be made".into()),
        Err(errno) => (
            Some(false),
            format!("no socket of that family can be made: {errno}"),
        ),
    }
}

/// Whether a map takes a socket of the kind.
fn inserted(map_type: MapType, kind: SocketKind) -> Shown {
    match Pair::of(kind) {
        Ok(pair) => taken(map_type, pair.member.as_fd(), &format!("a {kind} socket")),
        Err(why) => untried(&why),
    }
}

fn listener() -> Shown {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)) {
        Ok(listener) => taken(MapType::Map, listener.as_fd(), "a listening TCP socket"),
        Err(error) => untried(&error.to_string()),
    }
}

fn taken(map_type: MapType, socket: BorrowedFd<'_>, what: &str) -> Shown {
    let inserted: Result<()> = match map_type {
        MapType::Map => SockMap::create(1).and_then(|map| map.insert(0, socket)),
        MapType::Hash => SockHash::<u32>::create(1).and_then(|map| map.insert(0, socket)),
    };
    match inserted {
        Ok(()) => (Some(true), format!("a {} takes {what}", map_type.name())),
        Err(error) => refused(&error),
    }
}

/// Whether the kernel tells which program is attached to a map.
fn told() -> Shown {
    let attached = SockMap::create(1).and_then(|map| map.attach(Redirect::IngressToEgress));
    let told = attached.map(|attachment| attachment.is_told());
    match told {
        Ok(Ok(true)) => (
            Some(true),
            "insert and remove refuse a map with a program (BPF_PROG_QUERY)".into(),
        ),
        Ok(Ok(false)) => (
            Some(false),
            "insert and remove do not see a program that is attached to the map".into(),
        ),
        Ok(Err(errno)) => untried(&errno.to_string()),
        Err(error) => refused(&error),
    }
}

/// Whether the kernel loads a program that links caught connections.
fn changed_by_program() -> Shown {
    let loaded = load("admit", objects::ADMIT, |_| Ok(()));
    match loaded.map_err(|error| explained(&error)) {
        Ok(_) => (
            Some(true),
            "a tc program may put sockets into a map; Linux 7.3 took that back, and with it the engine sockmap, links of \
             caught connections and spliced bypass"
                .into(),
        ),
        Err(error) if error.to_string().contains("does not let") => {
            (Some(false), error.to_string())
        }
        Err(error) => untried(&error.to_string()),
    }
}

/// The protocols that can be stacked on TCP: those that are built in or whose modules are loaded (`tcp_ulp.c`).
const UPPER_PROTOCOLS: &str = "/proc/sys/net/ipv4/tcp_available_ulp";

/// Whether the kernel refuses keys to a member of a map. Stable releases had that ported back.
fn without_keys() -> Shown {
    let available = fs::read_to_string(UPPER_PROTOCOLS).unwrap_or_default();
    if !available.split_whitespace().any(|name| name == "tls") {
        return untried("the module tls is not loaded");
    }
    let keyed = SockMap::create(1).and_then(|map| {
        let pair = Pair::of(SocketKind::Tcp)
            .map_err(|why| splice_base::Error::new(splice_base::ErrorKind::System, why))?;
        map.insert(0, &pair.member)?;
        let stacked = setsockopt(&pair.member, TcpUlp::default(), b"tls");
        Ok(stacked.and_then(|()| setsockopt(&pair.member, TcpTlsTx, &no_secret())))
    });
    match keyed {
        Ok(Err(Errno::EINVAL)) => (
            Some(true),
            "setsockopt(TLS_TX) fails with EINVAL for a member of a map".into(),
        ),
        Ok(Ok(())) => (
            Some(false),
            "a member of a map gets TLS keys, and its program would see what is encrypted".into(),
        ),
        Ok(Err(errno)) => untried(&errno.to_string()),
        Err(error) => refused(&error),
    }
}

/// Keys of zeros: nothing is sent with them.
fn no_secret() -> TlsCryptoInfo {
    TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info {
            version: libc::TLS_1_2_VERSION,
            cipher_type: libc::TLS_CIPHER_AES_GCM_128,
        },
        iv: [0; 8],
        key: [0; 16],
        salt: [0; 4],
        rec_seq: [0; 8],
    })
}

/// Whether a redirect works from a kind to itself.
fn cell(redirect: Redirect, kind: SocketKind) -> Shown {
    let loaded = Redirections::raw(redirect, MapType::Hash, 1);
    let tried = loaded.and_then(|redirections| try_cell(&redirections, kind, kind));
    match tried {
        Ok(Cell::Yes) => (Some(true), format!("{kind} to {kind}: a message arrives")),
        Ok(Cell::Untried(why)) => untried(&why),
        Ok(other) => (Some(false), format!("{kind} to {kind}: {other}")),
        Err(error) => refused(&error),
    }
}

/// Without the rights nothing is known of the kernel.
fn refused(error: &splice_base::Error) -> Shown {
    use splice_base::ErrorKind;
    match error.kind() {
        ErrorKind::BpfRefused => untried(&error.to_string()),
        _ => (Some(false), error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel would load its module, which stays.
    #[test]
    fn kcm_is_not_tried_without_its_module() {
        if let Err(why) = protocol::require("KCM", "kcm") {
            assert_eq!(kcm(), (None, format!("not tried: {why}")));
        }
    }
}
