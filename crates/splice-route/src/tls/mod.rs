//! The first message of a TLS client.

mod fields;
mod hello;
mod offer;
mod reader;
#[cfg(test)]
mod tests;

pub use hello::ClientHello;
pub use reader::ClientHelloReader;
