//! What the first bytes of a connection say about where it wants to go.
//!
//! A proxy collects what a client sends, and asks this crate after each read whether it is enough.
//! Each protocol has a reader: it gets every byte that has come so far, remembers how far it has
//! read, and answers with a [`Progress`]. So a message that comes byte by byte costs linear time.
//!
//! Nothing here reads a socket or a clock, and nothing trusts a client: lengths are checked before
//! they are used, and what is kept of a message is bounded.

mod authority;
mod conditions;
pub mod connect;
mod destination;
mod destination_rule;
pub mod handshake;
mod inspection;
mod name;
mod postgres;
mod prefix;
mod progress;
pub mod proxy_protocol;
mod request_head;
mod signature;
pub mod socks;
mod special_address;
mod tls;

pub use conditions::{Arrival, Conditions, Prefixes, Protocol, ServerName, TlsVersion};
pub use destination::{Destination, Failure, Host};
pub use destination_rule::{Denied, DestinationHosts, DestinationRule, NotARule, permits};
pub use handshake::Handshake;
pub use inspection::{Decision, Inspection, Waiting};
pub use name::{NamePattern, NotAName};
pub use postgres::POSTGRES_SSL_REQUEST;
pub use prefix::{NotAPrefix, Prefix};
pub use progress::{Fault, Progress};
pub use request_head::{RequestHead, RequestHeadReader, is_method};
pub use tls::{ClientHello, ClientHelloReader};
