//! From the SYN to the first byte.

use std::io::{Read, Write};

use netlab::{Lab, Need, available};
use splice::ForwardEnd;

use crate::stage::{Stage, payload, pour};

#[test]
fn a_conversation_meets_no_socket_of_the_relay() {
    if !available(Need::Root) {
        return;
    }
    for stage in [Stage::new(), Stage::v6()] {
        assert_eq!(stage.forward.obstacle(), None);
        let (mut client, mut server) = stage.connect();
        let mut bytes = [0; 5];
        client.write_all(b"hello").expect("sent");
        server.read_exact(&mut bytes).expect("received");
        assert_eq!(&bytes, b"hello");
        let far = server.peer_addr().expect("an address");
        assert_ne!(far.ip(), client.local_addr().expect("an address").ip());

        let (up, down) = (payload(3 << 20, 1), payload(2 << 20, 2));
        pour(server.try_clone().expect("a clone"), &mut client, &down);
        pour(client.try_clone().expect("a clone"), &mut server, &up);
        let expected = client.local_addr().expect("an address");
        drop((client, server));
        let ended = stage.next_ended();
        assert_eq!(ended.end, ForwardEnd::EndOfStream, "{ended:?}");
        assert_eq!(ended.client, expected);
        assert_eq!(ended.listener, stage.listens_at);
        assert_eq!(ended.source, far);
        assert_eq!(ended.client_to_server_bytes, 5 + (3 << 20), "{ended:?}");
        assert_eq!(ended.server_to_client_bytes, 2 << 20, "{ended:?}");
        assert!(stage.is_unknown_to_the_socket());
    }
}

#[test]
fn a_refusal_of_the_server_reaches_the_client() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::with(|options| options.server.set_port(9));
    let to = stage.listens_at;
    let refused = stage
        .lab
        .client()
        .enter(|| std::net::TcpStream::connect(to))
        .expect("entered");
    let error = refused.expect_err("nobody listens there");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let ended = stage.next_ended();
    assert_eq!(ended.end, ForwardEnd::Refused, "{ended:?}");
    assert_eq!(ended.server, (Lab::SERVER_V4, 9).into());
}
