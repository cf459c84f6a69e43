//! Names that clients ask for and that no server answers: others do not wait for them. Each question lasts longer than
//! a test has patience.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use netlab::{Process, Scratch, until_at_rest};
use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};

use super::Proxy;
use crate::patience::{PATIENCE, until};
use crate::peer::Peer;
use crate::relay::BINARY;
use crate::resolver::{FORGED, KEPT, NAME, NameServer, SETTINGS, SLOW, with_name_server};
use crate::server::{Server, ask};

/// More names than all clients may ask for at once.
const CROWD: usize = 300;

/// How long a name server is not asked when all that wait are known to wait.
const QUIET: Duration = Duration::from_millis(300);

/// A file of this age is not read again unless its time stamp changes, so that answers are kept.
const SETTLED: Duration = Duration::from_secs(4);

/// `spliced` for a command that runs it, with these files for names.
pub(crate) fn with_names(mut unshare: Command, scratch: &Scratch, hosts: &str) -> Command {
    let hosts = scratch.write("hosts", hosts);
    let settings = scratch.write("resolv.conf", SETTINGS).expect("a file");
    let written = fs::metadata(&settings).and_then(|file| file.modified());
    let written = written.expect("a time");
    until("the files are settled", || {
        written.elapsed().is_ok_and(|age| age > SETTLED)
    });
    let script = r#"mount --bind "$0" /etc/resolv.conf && mount --bind "$1" /etc/hosts && shift && exec "$@""#;
    unshare
        .args(["--mount", "sh", "-c", script])
        .args([settings, hosts.expect("a file")])
        .arg(BINARY)
        .env_remove("SPLICED_LOG");
    unshare
}

struct Stage<'a> {
    proxy: Proxy,
    names: &'a NameServer,
    listener: TcpListener,
}

impl<'a> Stage<'a> {
    fn new(names: &'a NameServer, scratch: &Scratch) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let unshare = Process::command("unshare");
        let mut command = with_names(unshare, scratch, "127.0.0.1 in-hosts\n");
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
        stream.write_all(b"\x05\x01\x00").expect("sent");
        stream.read_exact(&mut [0; 2]).expect("a method");
        let mut request = b"\x05\x01\x00\x03".to_vec();
        request.push(name.len() as u8);
        request.extend(name.as_bytes());
        let port = self.listener.local_addr().expect("its address").port();
        request.extend(port.to_be_bytes());
        stream.write_all(&request).expect("sent");
        stream
    }

    /// The client is connected with the listener.
    fn is_served(&self, mut client: TcpStream) {
        let mut reply = [0; 10];
        client.read_exact(&mut reply).expect("a reply");
        assert_eq!(reply[..2], *b"\x05\x00", "granted");
        self.listener.accept().expect("it has come");
    }

    /// Clients that each ask for a name without an answer. Returns how many of them are being looked up, while the
    /// others wait.
    fn crowd(&self, clients: impl Iterator<Item = u8>) -> (Vec<TcpStream>, usize) {
        let crowd = clients.enumerate().map(|(number, client)| {
            // Each another name, so that no cache has it.
            self.ask(client, &format!("{SLOW}{number}.test"))
        });
        let crowd: Vec<_> = crowd.collect();
        until("all have been read", || !self.proxy.has_unread_bytes());
        until("the name server is asked", || self.names.slow_names() > 0);
        let asked_for = until_at_rest(QUIET, || self.names.slow_names());
        assert!(asked_for < crowd.len(), "nobody waits");
        assert_eq!(self.proxy.status()["connections"], crowd.len());
        (crowd, asked_for)
    }
}

#[test]
fn one_clients_slow_names_stop_no_other_client_and_no_name_that_is_known() {
    with_name_server(|names, scratch| {
        let stage = Stage::new(names, scratch);
        let kept = format!("{KEPT}.test");
        stage.is_served(stage.ask(2, &kept));
        until("it is over", || stage.proxy.status()["connections"] == 0);
        let (_waiting, asked_for) = stage.crowd((0..CROWD).map(|_| 2));
        // Even the same client gets what need not be asked for.
        for client in [2, 3] {
            for name in ["in-hosts", "localhost", &kept] {
                stage.is_served(stage.ask(client, name));
            }
        }
        stage.is_served(stage.ask(3, NAME));
        assert_eq!(
            names.slow_names(),
            asked_for,
            "the first clients go on waiting"
        );
    });
}

/// As many as shared all questions when each client had a fixed share.
#[test]
fn eight_clients_slow_names_stop_no_ninth_client() {
    with_name_server(|names, scratch| {
        let stage = Stage::new(names, scratch);
        let eight = (0..CROWD).map(|number| 10 + (number % 8) as u8);
        let (_waiting, _) = stage.crowd(eight);
        for client in 2..10 {
            stage.is_served(stage.ask(client, NAME));
        }
    });
}

/// It could be resolved any time, but the fallback can serve the client at once.
#[test]
fn a_fallback_does_not_wait_for_the_name_of_a_server() {
    with_name_server(|_, scratch| {
        let server = Server::new().answering();
        let mut command = with_names(Process::command("unshare"), scratch, "");
        let configuration = format!(
            "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n\
             [[listener.route]]\nbackend = \"b\"\nfallback = \"other\"\n\
             [backend.b]\nservers = [\"{SLOW}.{NAME}:1\"]\nconnect_timeout = \"1500ms\"\n\
             [backend.other]\nservers = [\"{}\"]\n",
            server.address
        );
        let proxy = Proxy::start(&configuration, &mut command);
        let address = proxy.address("l");
        for number in 0..3 {
            ask(&Peer::connect(&address), number, 1000, 1000);
        }
        assert_eq!(server.finish(), [0, 1, 2]);
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
        let (waiting, _) = stage.crowd((0..CROWD).map(|number| (number % 200) as u8 + 4));
        for (number, client) in waiting.into_iter().enumerate() {
            // Half of them close their sockets, and half are reset.
            if number % 2 == 0 {
                sockopt::set_socket_linger(&client, Some(Duration::ZERO)).expect("set");
            }
        }
        stage.proxy.relay.wait_descriptors(before);
        stage.is_served(stage.ask(2, NAME));
    });
}

/// Whoever reaches the ports that the answers come to could fill the log otherwise.
#[test]
fn a_forged_answer_is_passed_over_in_silence() {
    with_name_server(|names, scratch| {
        let stage = Stage::new(names, scratch);
        stage.is_served(stage.ask(2, &format!("{FORGED}.test")));
        assert_eq!(stage.proxy.relay.lines_logged("WARN"), 0);
    });
}
