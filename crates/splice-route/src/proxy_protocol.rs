//! The PROXY protocol: a header in front of a connection that names the client for which a proxy has made
//! it. The specification is `doc/proxy-protocol.txt` of HAProxy.

mod claim;
mod reader;
mod tlv;
mod version1;
mod version2;
mod writer;

#[cfg(test)]
mod chain_tests;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

pub use reader::HeaderReader;
pub use tlv::Tlvs;
pub use writer::{OutTlvs, header_v1, header_v2};

/// What a header says, before anybody has believed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    length_bytes: usize,
    /// `None` if the header names none of a TCP connection: LOCAL, UNKNOWN, UNIX sockets and datagrams.
    endpoints: Option<Endpoints>,
    tlvs: Tlvs,
}

impl Header {
    /// How many bytes of the connection the header takes. What comes behind is the client's.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// The further properties of the connection that the sender has told. Empty for version 1 and LOCAL.
    pub fn tlvs(&self) -> &Tlvs {
        &self.tlvs
    }
}

/// Both ends of the client's connection to the first proxy. IPv4-mapped addresses have become IPv4: proxies
/// send those of clients that have come to a socket for both families. So the families may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The client.
    pub source: SocketAddr,
    /// The address that the client has connected to.
    pub destination: SocketAddr,
}

impl Endpoints {
    fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        Self {
            source: canonical(source),
            destination: canonical(destination),
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// What every header of version 2 starts with.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
