//! Sockets to servers: from which address, with which mark, through which interface.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::io::Errno;
use rustix::net::bind;
use splice_base::socket_option::set_vsock_connect_timeout;

use crate::plan::{BackendPlan, Source};
use crate::socket_address::SocketAddress;

/// Makes the sockets of one backend.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// Counts sockets, so that the addresses of a pool take turns.
    made: AtomicUsize,
}

impl Outgoing {
    /// A socket that can be connected to `server`, for this client.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_ADMIN for a mark, an interface or the client's address;
    /// `EADDRNOTAVAIL` if no address of the pool has the server's family; else as socket(2), bind(2).
    pub(crate) fn socket(
        &self,
        plan: &BackendPlan,
        server: &SocketAddress,
        client: Option<IpAddr>,
    ) -> Result<OwnedFd, Errno> {
        let socket = server.socket()?;
        self.prepare(&socket, plan, server, client)?;
        Ok(socket)
    }

    /// Gives a new socket of any kind what `plan` says, before it is connected to `server` for this client.
    ///
    /// # Errors
    /// As [`socket`](Self::socket).
    pub(crate) fn prepare(
        &self,
        socket: &OwnedFd,
        plan: &BackendPlan,
        server: &SocketAddress,
        client: Option<IpAddr>,
    ) -> Result<(), Errno> {
        if server.vsock().is_some() {
            // The kernel gives up after 2 s otherwise. Whoever connects knows when that is too long.
            let of_checks = plan.health.as_ref().map(|health| health.timeout);
            let longest = plan.connect_timeout.max(of_checks.unwrap_or_default());
            set_vsock_connect_timeout(socket, longest)?;
        }
        let SocketAddress::Inet(server) = server else {
            return Ok(());
        };
        if let Some(mark) = plan.mark {
            setsockopt(socket, sockopt::Mark, &mark).map_err(from_nix)?;
        }
        if let Some(interface) = &plan.interface {
            setsockopt(socket, sockopt::BindToDevice, &interface.into()).map_err(from_nix)?;
        }
        let source = match &plan.source {
            Source::Host => return Ok(()),
            // A UNIX socket's client has no address.
            Source::Client => match client {
                None => return Ok(()),
                Some(client) => {
                    setsockopt(socket, sockopt::IpTransparent, &true).map_err(from_nix)?;
                    of_family(client, server).ok_or(Errno::AFNOSUPPORT)?
                }
            },
            Source::Addresses(pool) => {
                let fitting = || {
                    pool.iter()
                        .filter_map(|address| of_family(*address, server))
                };
                let count = fitting().count();
                let turn = self.made.fetch_add(1, Ordering::Relaxed);
                fitting()
                    .nth(turn.checked_rem(count).unwrap_or(0))
                    .ok_or(Errno::ADDRNOTAVAIL)?
            }
        };
        // The port is picked by connect(2), when the whole tuple is known: so each address of the pool
        // has all ports for each server (`inet_hash_connect`), and none is used up by bind(2) alone.
        setsockopt(socket, sockopt::IpBindAddressNoPort, &true).map_err(from_nix)?;
        bind(socket, &SocketAddr::new(source, 0))
    }
}

/// `source` as an address of the server's family.
fn of_family(source: IpAddr, server: &SocketAddr) -> Option<IpAddr> {
    let source = source.to_canonical();
    match (source, server.ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) => Some(source),
        (IpAddr::V6(_), IpAddr::V6(ip)) => ip.to_ipv4_mapped().is_none().then_some(source),
        (IpAddr::V4(ip), IpAddr::V6(to)) if to.to_ipv4_mapped().is_some() => {
            Some(ip.to_ipv6_mapped().into())
        }
        _ => None,
    }
}

fn from_nix(errno: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use std::time::Duration;

    use rustix::net::getsockname;
    use splice::{Address, VsockAddress};
    use splice_base::socket_option::vsock_connect_timeout;

    use super::*;
    use crate::plan::{Check, HealthPlan};

    fn plan(source: Source) -> BackendPlan {
        let address: Address = "127.0.0.1:80".parse().expect("an address");
        BackendPlan {
            source,
            ..BackendPlan::of_one(
                "test",
                crate::plan::ServerAddress::Address(address),
                crate::plan::CONNECT_TIMEOUT,
            )
        }
    }

    #[test]
    fn the_addresses_of_a_pool_take_turns() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let server = SocketAddress::Inet(listener.local_addr().expect("its address"));
        let pool = ["127.0.0.8", "::1", "127.0.0.9"];
        let pool = pool.map(|text| text.parse().expect("an address"));
        let plan = plan(Source::Addresses(pool.to_vec()));
        let outgoing = Outgoing::default();
        let sources: Vec<_> = (0..4)
            .map(|_| {
                let socket = outgoing.socket(&plan, &server, None).expect("a socket");
                let name = SocketAddress::from_kernel(getsockname(&socket).ok());
                name.and_then(|name| name.inet())
                    .map(|name| name.ip().to_string())
            })
            .collect();
        let [first, second] = ["127.0.0.8", "127.0.0.9"].map(|text| Some(text.to_owned()));
        assert_eq!(sources, [first.clone(), second.clone(), first, second]);
    }

    #[test]
    fn a_vsock_server_has_the_time_of_whoever_connects_for_longest() {
        let vsock = VsockAddress { cid: 2, port: 1 };
        let probe = SocketAddress::Vsock(vsock).socket();
        let why = probe.err().map(|errno| format!("no VSOCK: {errno}"));
        if !netlab::present("vsock", why) {
            return;
        }
        let mut plan = plan(Source::Host);
        for (of_clients, of_checks, longest) in [(9, None, 9), (9, Some(7), 9), (9, Some(11), 11)] {
            plan.connect_timeout = Duration::from_secs(of_clients);
            plan.health = of_checks.map(|seconds| HealthPlan {
                check: Check::Tcp,
                every: Duration::from_secs(60),
                timeout: Duration::from_secs(seconds),
                rise: 1,
                fall: 1,
            });
            for server in [
                SocketAddress::Vsock(vsock),
                SocketAddress::VsockSeqpacket(vsock),
            ] {
                let socket = Outgoing::default().socket(&plan, &server, None);
                let socket = socket.expect("a socket");
                assert_eq!(
                    vsock_connect_timeout(&socket),
                    Ok(Duration::from_secs(longest)),
                    "{server}"
                );
            }
        }
    }

    #[test]
    fn a_pool_without_an_address_of_the_servers_family_is_refused() {
        let plan = plan(Source::Addresses(vec!["::1".parse().expect("an address")]));
        let server = SocketAddress::Inet("127.0.0.1:80".parse().expect("an address"));
        let socket = Outgoing::default().socket(&plan, &server, None);
        assert_eq!(socket.err(), Some(Errno::ADDRNOTAVAIL));
    }
}
