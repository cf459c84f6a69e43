//! SOCKMAP as an interface: maps, links, and every way in and out.

mod attaching;
mod bounding;
mod catching;
mod closing;
mod conversation;
mod detaching;
mod flow;
mod guarding;
mod handing_over;
mod hostile;
mod lease;
mod leaving;
mod linking;
mod losing;
mod maps;
mod passing;
#[path = "../../../splice/tests/support/payload.rs"]
mod payload;
mod pins;
#[allow(dead_code, reason = "the rules of every engine ask for more")]
#[path = "../../../splice/tests/support/random.rs"]
mod random;
mod sockets;
#[path = "../../../splice/tests/support/tls.rs"]
mod tls;
mod vsock;
