//! A client of rustls that only says hello. Usage: rustls PORT

use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;

use rustls::{ClientConfig, ClientConnection, RootCertStore};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).ok_or("which port?")?.parse()?;
    let mut config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".into(), b"http/1.1".into(), b"acme-tls/1".into()];
    let mut client = ClientConnection::new(Arc::new(config), "www.example.org".try_into()?)?;
    client.complete_io(&mut TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)?;
    Ok(())
}
