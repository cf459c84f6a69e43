//! QUIC: a protocol that notices what a relay does to its datagrams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use quinn::{ClientConfig, Endpoint, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use tokio::runtime::Builder;

use super::crowd::Crowd;
use super::inet;
use crate::payload::Payload;
use crate::relay::Relay;

#[test]
fn a_quic_connection_transfers_20_mib_both_ways() {
    transfers(20 << 20, 2000);
}

#[test]
#[ignore = "soak: takes minutes"]
fn a_quic_connection_transfers_100_mib_both_ways_while_sessions_come_and_go() {
    transfers(100 << 20, 100_000);
}

/// Transfers as many bytes in each direction, while as many other clients send a datagram each.
fn transfers(length: usize, others: u32) {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let (sent, answer) = (
        Payload::new(60).bytes(length),
        Payload::new(61).bytes(length),
    );
    let exchange = through_a_relay(sent.clone(), answer.clone(), others);
    let (received, answered) = runtime.block_on(exchange);
    assert!(received == sent, "{} bytes differ", received.len());
    assert!(answered == answer, "{} bytes differ", answered.len());
}

/// What the server and the client receive.
async fn through_a_relay(sent: Vec<u8>, answer: Vec<u8>, others: u32) -> (Vec<u8>, Vec<u8>) {
    let own = "127.0.0.1:0".parse().expect("an address");
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let certified = certified.expect("a certificate");
    let certificate = certified.cert.der().clone();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::with_single_cert(vec![certificate.clone()], key);
    let server = Endpoint::server(config.expect("a configuration"), own).expect("a server");
    let target = server.local_addr().expect("its address");
    let length = sent.len();
    let serving = tokio::spawn(async move {
        let incoming = server.accept().await.expect("a client");
        let connection = incoming.await.expect("a connection");
        let (mut sending, mut receiving) = connection.accept_bi().await.expect("a stream");
        let received = receiving.read_to_end(length).await;
        sending.write_all(&answer).await.expect("it is answered");
        sending.finish().expect("the end");
        connection.closed().await;
        received.expect("all bytes")
    });
    let options = ["--max-sessions", "400"];
    let relay = Relay::between("udp:127.0.0.1:0", &format!("udp:{target}"), &options);
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("a root");
    let config = ClientConfig::with_root_certificates(Arc::new(roots));
    let mut client = Endpoint::client(own).expect("a client");
    client.set_default_client_config(config.expect("a configuration"));
    let connecting = client.connect(inet(&relay.address), "localhost");
    let connection = connecting
        .expect("it can connect")
        .await
        .expect("it connects");
    let crowd = tokio::task::spawn_blocking({
        let address = inet(&relay.address);
        move || come_and_go(address, others)
    });
    let (mut sending, mut receiving) = connection.open_bi().await.expect("a stream");
    sending.write_all(&sent).await.expect("it is sent");
    sending.finish().expect("the end");
    let answered = receiving.read_to_end(length).await;
    connection.close(0u32.into(), b"done");
    let received = serving.await.expect("no panic");
    crowd.await.expect("no panic");
    (received, answered.expect("all bytes"))
}

/// Sends one datagram from each of so many addresses, so that sessions displace each other. The server takes none for
/// QUIC.
fn come_and_go(relay: SocketAddr, clients: u32) {
    let crowd = Crowd::of(relay);
    for client in 0..clients {
        crowd.send(client, b"no QUIC");
        if client % 50 == 0 {
            thread::yield_now();
        }
    }
}
