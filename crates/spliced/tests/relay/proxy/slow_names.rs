//! Names that clients ask for and that no server answers: others do not wait for them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use netlab::{Process, Scratch};
use socket2::{Domain, Socket, Type};

use super::Proxy;
use crate::patience::{PATIENCE, until};
use crate::relay::BINARY;
use crate::resolver::{NAME, NameServer, SLOW, with_name_server};

/// More than one client may have at once, and than all may.
const CROWD: usize = 300;

struct Stage<'a> {
    proxy: Proxy,
    names: &'a NameServer,
    listener: TcpListener,
}

impl<'a> Stage<'a> {
    fn new(names: &'a NameServer, scratch: &Scratch) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let settings = scratch.write("resolv.conf", "nameserver 127.0.0.1\n");
        let hosts = scratch.write("hosts", "127.0.0.1 in-hosts\n");
        let script = r#"mount --bind "$0" /etc/resolv.conf && mount --bind "$1" /etc/hosts && shift && exec "$@""#;
        let mut command = Process::command("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .args([settings.expect("a file"), hosts.expect("a file")])
            .arg(BINARY)
            .env_remove("SPLICED_LOG");
        let configuration = "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n\
                             connect_timeout = \"10m\"\n[[listener.route]]\n\
                             socks = { allow = [\"127.0.0.0/8:*\"] }";
        Self {
            proxy: Proxy::start(configuration, &mut command),
            names,
            listener,
        }
    }

    /// The client 127.0.0.`client` asks for `name`.
    fn ask(&self, client: u8, name: &str) -> TcpStream {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let from = SocketAddr::from((Ipv4Addr::new(127, 0, 0, client), 0));
        socket.bind(&from.into()).expect("bound");
        let to: SocketAddr = self.proxy.address("l").parse().expect("an address");
        socket.connect(&to.into()).expect("connected");
        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut request = b"\x05\x01\x00\x05\x01\x00\x03".to_vec();
        request.push(name.len() as u8);
        request.extend(name.as_bytes());
        let port = self.listener.local_addr().expect("its address").port();
        request.extend(port.to_be_bytes());
        stream.write_all(&request).expect("sent");
        stream
    }

    /// The client is connected with the listener.
    fn is_served(&self, mut client: TcpStream) {
        let mut reply = [0; 12];
        client.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[..4], *b"\x05\x00\x05\x00", "granted");
        self.listener.accept().expect("it has come");
    }

    fn crowd(&self, clients: impl Iterator<Item = u8>) -> Vec<TcpStream> {
        let before = self.names.asked();
        let crowd = clients.enumerate().map(|(number, client)| {
            // Each another name, so that no cache has it.
            self.ask(client, &format!("{SLOW}{number}.test"))
        });
        let crowd = crowd.collect();
        until("they wait", || self.names.asked() > before + 32);
        crowd
    }
}

#[test]
fn one_clients_slow_names_stop_no_other_client_and_no_name_in_hosts() {
    with_name_server(|names, scratch| {
        let stage = Stage::new(names, scratch);
        let _waiting = stage.crowd((0..CROWD).map(|_| 2));
        // Even the same client gets what need not be asked for.
        for client in [2, 3] {
            for name in ["in-hosts", "localhost"] {
                stage.is_served(stage.ask(client, name));
            }
        }
        stage.is_served(stage.ask(3, NAME));
    });
}

#[test]
fn a_question_ends_with_its_client() {
    with_name_server(|names, scratch| {
        let stage = Stage::new(names, scratch);
        // The resolver's own descriptors stay.
        stage.is_served(stage.ask(2, NAME));
        until("it is over", || stage.proxy.status()["connections"] == 0);
        let before = stage.proxy.relay.descriptors();
        let clients = (0..CROWD).map(|number| number as u8);
        let waiting = stage.crowd(clients.map(|client| client.clamp(4, 250)));
        drop(waiting);
        stage.proxy.relay.wait_descriptors(before);
        stage.is_served(stage.ask(2, NAME));
    });
}
