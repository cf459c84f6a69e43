//! QUIC: a protocol that notices what a relay does to its datagrams.

use std::sync::Arc;

use quinn::{ClientConfig, Endpoint, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use tokio::runtime::Builder;

use super::inet;
use crate::payload::Payload;
use crate::relay::Relay;

const TRANSFER_BYTES: usize = 20 << 20;

#[test]
fn a_quic_connection_transfers_20_mib_both_ways() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let (sent, answer) = (
        Payload::new(60).bytes(TRANSFER_BYTES),
        Payload::new(61).bytes(TRANSFER_BYTES),
    );
    let (received, answered) = runtime.block_on(through_a_relay(sent.clone(), answer.clone()));
    assert!(received == sent, "{} bytes differ", received.len());
    assert!(answered == answer, "{} bytes differ", answered.len());
}

/// What the server and the client receive.
async fn through_a_relay(sent: Vec<u8>, answer: Vec<u8>) -> (Vec<u8>, Vec<u8>) {
    let own = "127.0.0.1:0".parse().expect("an address");
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let certified = certified.expect("a certificate");
    let certificate = certified.cert.der().clone();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).expect("a key");
    let config = ServerConfig::with_single_cert(vec![certificate.clone()], key);
    let server = Endpoint::server(config.expect("a configuration"), own).expect("a server");
    let target = server.local_addr().expect("its address");
    let serving = tokio::spawn(async move {
        let incoming = server.accept().await.expect("a client");
        let connection = incoming.await.expect("a connection");
        let (mut sending, mut receiving) = connection.accept_bi().await.expect("a stream");
        let received = receiving.read_to_end(TRANSFER_BYTES).await;
        sending.write_all(&answer).await.expect("it is answered");
        sending.finish().expect("the end");
        connection.closed().await;
        received.expect("all bytes")
    });
    let relay = Relay::between("udp:127.0.0.1:0", &format!("udp:{target}"), &[]);
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
    let (mut sending, mut receiving) = connection.open_bi().await.expect("a stream");
    sending.write_all(&sent).await.expect("it is sent");
    sending.finish().expect("the end");
    let answered = receiving.read_to_end(TRANSFER_BYTES).await;
    connection.close(0u32.into(), b"done");
    let received = serving.await.expect("no panic");
    (received, answered.expect("all bytes"))
}
