//! A tunnel through the relay: OpenVPN, with TCP inside of it.

use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use netlab::{Lab, Namespace, Need, Process, Scratch, available};

use crate::patience::{PATIENCE, until_found};
use crate::payload::Payload;
use crate::programs::installed;
use crate::relay::{BINARY, Relay, output};

const PORT: u16 = 1194;

/// The ends of the tunnel.
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(198, 18, 9, 2);

const TRANSFER_BYTES: usize = 4 << 20;

#[test]
fn a_tunnel_of_openvpn_carries_tcp() {
    let programs = ["openvpn", "openssl"].map(|program| installed(program, program));
    let [Some(_), Some(openssl)] = programs else {
        return;
    };
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("vpn").expect("a directory");
    let (certificate, key) = (
        scratch.path().join("certificate"),
        scratch.path().join("key"),
    );
    let mut making = Command::new(openssl);
    making
        .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes".split(' '))
        .args(["-subj", "/CN=vpn", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    assert!(output(&mut making).status.success(), "{making:?}");

    let lab = Lab::new().expect("namespaces");
    let listen = format!("udp:{}:{PORT}", Lab::RELAY_V4);
    let target = format!("udp:{}:{PORT}", Lab::SERVER_V4);
    let mut inside = lab.relay().command(BINARY);
    inside.args(["relay", &listen, &target]);
    let _relay = Relay::spawn(inside.env_remove("SPLICED_LOG"));

    let end = |namespace: &Namespace, own: Ipv4Addr, peer: Ipv4Addr, more: &[&dyn Display]| {
        let mut openvpn = namespace.command("openvpn");
        openvpn
            .args([
                "--dev", "tun", "--proto", "udp", "--verb", "0", "--dh", "none",
            ])
            .args(["--ifconfig", &own.to_string(), &peer.to_string()])
            .args(more.iter().map(|part| part.to_string()));
        // Each end knows the other one by the certificate that they share.
        for (option, file) in [
            ("--ca", &certificate),
            ("--cert", &certificate),
            ("--key", &key),
        ] {
            openvpn.arg(option).arg(file);
        }
        openvpn.stdin(Stdio::null()).stdout(Stdio::null());
        Process::spawn(&mut openvpn).expect("openvpn")
    };
    let served = ["--tls-server", "--local"];
    let _server = end(
        lab.server(),
        SERVER,
        CLIENT,
        &[&served[0], &served[1], &Lab::SERVER_V4, &"--port", &PORT],
    );
    let _client = end(
        lab.client(),
        CLIENT,
        SERVER,
        &[
            &"--tls-client",
            &"--nobind",
            &"--remote",
            &Lab::RELAY_V4,
            &PORT,
        ],
    );

    let echo = until_found("the server's end of the tunnel is there", || {
        let bound = lab.server().enter(|| TcpListener::bind((SERVER, 0)));
        bound.expect("entered").ok()
    });
    let address = echo.local_addr().expect("its address");
    let mut client = until_found("the tunnel is there", || {
        let connected = lab.client().enter(|| TcpStream::connect(address));
        connected.expect("entered").ok()
    });
    let (mut served, _) = echo.accept().expect("a client");
    for socket in [&client, &served] {
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    }
    let sent = Payload::new(62).bytes(TRANSFER_BYTES);
    let mut received = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            std::io::copy(&mut served.try_clone().expect("a duplicate"), &mut served)
                .expect("it is echoed");
            served.shutdown(Shutdown::Write).expect("the end");
        });
        let mut sending = client.try_clone().expect("a duplicate");
        scope.spawn({
            let sent = &sent;
            move || {
                sending.write_all(sent).expect("it is sent");
                sending.shutdown(Shutdown::Write).expect("the end");
            }
        });
        client.read_to_end(&mut received).expect("all of it");
    });
    assert!(received == sent, "{} bytes differ", received.len());
}
