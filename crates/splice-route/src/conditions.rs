//! What a route asks of a connection.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock};

use crate::name::NamePattern;
use crate::prefix::Prefix;

/// The conditions of one route. A connection has to meet all that are given; of the values of one, any.
/// Without conditions every connection matches.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conditions {
    /// The client's address is in one of these.
    pub clients: Option<Prefixes>,
    /// The address that the client has connected to is in one of these.
    pub local_addresses: Option<Vec<Prefix>>,
    /// The port that the client has connected to.
    pub local_ports: Option<Vec<u16>>,
    /// Nothing has come within the time to decide.
    pub silent: bool,
    /// A TLS hello with one of these names.
    pub sni: Option<Vec<ServerName>>,
    /// A TLS hello that offers one of these protocols.
    pub alpn: Option<Vec<Vec<u8>>>,
    /// A TLS hello whose newest version is one of these.
    pub tls_versions: Option<Vec<TlsVersion>>,
    /// An HTTP/1 request for one of these hosts, on any port.
    pub http_hosts: Option<Vec<NamePattern>>,
    /// An HTTP/1 request with one of these methods.
    pub http_methods: Option<Vec<String>>,
    /// An HTTP/1 request for a path that starts with one of these, byte by byte, as `path_beg` of HAProxy:
    /// `/api` matches `/apiary`, too; write `/api/` for what is below. The path is the one that was sent,
    /// with its percent-encoding, so `/%61pi` matches neither. Do not use it for access control.
    pub http_paths: Option<Vec<String>>,
    /// The first bytes are a protocol's.
    pub protocol: Option<Protocol>,
    /// The first bytes are one of these.
    pub starts_with: Option<Vec<Vec<u8>>>,
}

impl Conditions {
    /// Whether one of the conditions is about the address that the client has connected to.
    pub fn ask_for_local_address(&self) -> bool {
        self.needs().local
    }

    /// Whether one of the conditions is about a TLS hello.
    pub fn ask_for_hello(&self) -> bool {
        self.needs().hello
    }

    /// Whether one of the conditions is about an HTTP/1 request.
    pub fn ask_for_head(&self) -> bool {
        self.needs().head
    }

    /// Whether one of the conditions is about what the client sends.
    pub fn need_bytes(&self) -> bool {
        let needs = self.needs();
        needs.hello || needs.head || needs.start
    }

    /// Names every condition, so that the compiler asks what a new one needs. Without its need a route would be
    /// answered too early.
    fn needs(&self) -> Needs {
        let Self {
            clients: _,
            local_addresses,
            local_ports,
            silent: _,
            sni,
            alpn,
            tls_versions,
            http_hosts,
            http_methods,
            http_paths,
            protocol,
            starts_with,
        } = self;
        Needs {
            local: local_addresses.is_some() || local_ports.is_some(),
            hello: sni.is_some() || alpn.is_some() || tls_versions.is_some(),
            head: http_hosts.is_some()
                || http_methods.is_some()
                || http_paths.is_some()
                || *protocol == Some(Protocol::Http1),
            start: protocol.is_some() || starts_with.is_some(),
        }
    }
}

/// A protocol that shows in the first bytes of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Any TLS hello.
    Tls,
    /// Any HTTP/1 request.
    Http1,
    /// The preface of HTTP/2 without TLS.
    Http2,
    /// PostgreSQL, with TLS or without. With a condition on the hello the client's request for TLS is
    /// answered, and asked again of the server.
    Postgres,
    /// SSH, if the client speaks first.
    Ssh,
    /// The remote desktop protocol.
    Rdp,
    /// SOCKS4, 4a or 5: a client that asks for a destination.
    Socks,
    /// An HTTP/1 CONNECT: a client that asks for a destination.
    Connect,
}

/// What a rule says about the server name of a TLS hello.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerName {
    /// The hello has none.
    None,
    /// The hello has one that matches.
    Matching(NamePattern),
}

/// A version of TLS, in the order of their age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TlsVersion {
    /// SSL 3.0 or TLS 1.0.
    Tls10,
    /// TLS 1.1.
    Tls11,
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3, or a later one.
    Tls13,
}

/// Address prefixes, of which those from a file may change while they are in use.
#[derive(Clone, Debug, Default)]
pub struct Prefixes {
    /// Written in the rule itself.
    pub fixed: Vec<Prefix>,
    /// Read from files: the path, and what it holds now.
    pub files: Vec<(String, Arc<RwLock<Vec<Prefix>>>)>,
}

impl Prefixes {
    /// Whether one of the prefixes contains `address`.
    pub fn contain(&self, address: IpAddr) -> bool {
        let any = |prefixes: &[Prefix]| prefixes.iter().any(|prefix| prefix.contains(address));
        any(&self.fixed)
            || self.files.iter().any(|(_, prefixes)| {
                any(&prefixes
                    .read()
                    .unwrap_or_else(std::sync::PoisonError::into_inner))
            })
    }
}

impl PartialEq for Prefixes {
    /// Compares the paths of files, not what they hold.
    fn eq(&self, other: &Self) -> bool {
        let paths = |list: &Self| {
            list.files
                .iter()
                .map(|file| file.0.clone())
                .collect::<Vec<_>>()
        };
        self.fixed == other.fixed && paths(self) == paths(other)
    }
}

/// What is known about a connection before its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The client; `None` for a UNIX socket.
    pub client: Option<SocketAddr>,
    /// The address that the client has connected to; `None` for a UNIX socket.
    pub local: Option<SocketAddr>,
}

/// What has to be known of a connection before its conditions can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    /// The address that the client has connected to.
    local: bool,
    /// A TLS hello.
    hello: bool,
    /// The head of an HTTP/1 request.
    head: bool,
    /// The first bytes, whatever they are part of.
    start: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every condition, and what it needs.
    #[test]
    fn each_condition_needs_what_it_is_about() {
        let any = Conditions::default;
        let nothing = Needs {
            local: false,
            hello: false,
            head: false,
            start: false,
        };
        let local = Needs {
            local: true,
            ..nothing
        };
        let hello = Needs {
            hello: true,
            ..nothing
        };
        let head = Needs {
            head: true,
            ..nothing
        };
        let start = Needs {
            start: true,
            ..nothing
        };
        let protocol = |protocol| Conditions {
            protocol: Some(protocol),
            ..any()
        };
        for (conditions, expected) in [
            (any(), nothing),
            (
                Conditions {
                    clients: Some(Prefixes::default()),
                    ..any()
                },
                nothing,
            ),
            (
                Conditions {
                    local_addresses: Some(Vec::new()),
                    ..any()
                },
                local,
            ),
            (
                Conditions {
                    local_ports: Some(vec![443]),
                    ..any()
                },
                local,
            ),
            // It is answered by the time, without a byte.
            (
                Conditions {
                    silent: true,
                    ..any()
                },
                nothing,
            ),
            (
                Conditions {
                    sni: Some(vec![ServerName::None]),
                    ..any()
                },
                hello,
            ),
            (
                Conditions {
                    alpn: Some(Vec::new()),
                    ..any()
                },
                hello,
            ),
            (
                Conditions {
                    tls_versions: Some(vec![TlsVersion::Tls13]),
                    ..any()
                },
                hello,
            ),
            (
                Conditions {
                    http_hosts: Some(Vec::new()),
                    ..any()
                },
                head,
            ),
            (
                Conditions {
                    http_methods: Some(Vec::new()),
                    ..any()
                },
                head,
            ),
            (
                Conditions {
                    http_paths: Some(Vec::new()),
                    ..any()
                },
                head,
            ),
            (
                Conditions {
                    starts_with: Some(Vec::new()),
                    ..any()
                },
                start,
            ),
            (protocol(Protocol::Ssh), start),
            // The protocol alone is no condition on the hello.
            (protocol(Protocol::Tls), start),
            (
                protocol(Protocol::Http1),
                Needs {
                    head: true,
                    ..start
                },
            ),
        ] {
            assert_eq!(conditions.needs(), expected, "{conditions:?}");
            assert_eq!(
                [
                    conditions.ask_for_local_address(),
                    conditions.ask_for_hello(),
                    conditions.ask_for_head(),
                    conditions.need_bytes(),
                ],
                [
                    expected.local,
                    expected.hello,
                    expected.head,
                    expected.hello || expected.head || expected.start,
                ],
                "{conditions:?}"
            );
        }
        let both = Conditions {
            local_ports: Some(vec![443]),
            sni: Some(vec![ServerName::None]),
            ..any()
        };
        assert!(both.ask_for_local_address() && both.ask_for_hello() && both.need_bytes());
        assert!(!both.ask_for_head());
    }
}
