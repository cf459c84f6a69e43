//! What becomes of the connections of a server that goes down.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use netlab::{Lab, Need, Scratch, available, until_found};

use super::Proxy;
use super::evidence::{configuration, is_up};
use super::fickle::Fickle;
use super::routes::{connect, expect_reset};
use crate::log::Log;
use crate::patience::until;
use crate::segment::translated_bytes;

/// Enough for `auto` to splice a connection, whatever the time.
const BULK_BYTES: usize = 1 << 20;

/// A proxy and its client, each in its namespace, and a server whose checks can fail.
struct Stage {
    proxy: Proxy,
    configuration: String,
    client: TcpStream,
    server: Fickle,
    log: Log,
    _scratch: Scratch,
    lab: Lab,
}

impl Stage {
    fn new(engine: &str, on_down: &str) -> Self {
        let lab = Lab::new().expect("a lab");
        let scratch = Scratch::new("down").expect("a directory");
        let log = Log::below(&scratch);
        let listener = lab
            .server()
            .enter(|| TcpListener::bind((Lab::SERVER_V4, 90)));
        let server = Fickle::on(listener.expect("entered").expect("it listens"));
        let configuration = configuration(
            &server.quoted(),
            &format!("{on_down}\nhealth = {{ http = \"/health\", every = \"500ms\" }}"),
        );
        let listener = format!(
            "name = \"l\"\nengine = \"{engine}\"\naccess_log = \"{}\"",
            log.path
        );
        let configuration = configuration
            .replace("name = \"l\"", &listener)
            .replace(&Ipv4Addr::LOCALHOST.to_string(), &Lab::RELAY_V4.to_string());
        let proxy = Proxy::run_in(lab.relay(), &configuration);
        let address = proxy.address("l");
        let client = lab.client().enter(|| connect(&address)).expect("entered");
        Self {
            proxy,
            configuration,
            client,
            server,
            log,
            _scratch: scratch,
            lab,
        }
    }

    /// Has the server echo so many bytes.
    fn echo(&mut self, count: usize) {
        let sent: Vec<u8> = b"stay".iter().copied().cycle().take(count).collect();
        for piece in sent.chunks(16 << 10) {
            self.client.write_all(piece).expect("sent");
            let mut echo = vec![0; piece.len()];
            self.client.read_exact(&mut echo).expect("an echo");
            assert!(echo == piece, "other bytes");
        }
    }

    fn go_down(&self) {
        self.server.set(|it| &it.sick);
        until("it is down", || !is_up(&self.proxy, 0));
    }
}

#[test]
fn its_connections_are_reset_if_that_is_wanted_spliced_ones_too() {
    if !(available(Need::Netns) && available(Need::Bpf)) {
        return;
    }
    for (asked, engine) in [("copy", "copy"), ("auto", "segment")] {
        let mut stage = Stage::new(asked, "on_down = \"reset\"");
        stage.echo(BULK_BYTES);
        if engine == "segment" {
            until("it is spliced", || {
                stage.echo(4);
                translated_bytes(&stage.proxy.relay) > 0
            });
        }
        stage.go_down();
        expect_reset(&mut stage.client);
        let entry = until_found("it is in the log", || stage.log.entries().pop());
        assert_eq!(entry["outcome"], "its server went down");
        assert_eq!(entry["engine"], engine, "{entry}");
        // One that comes up again is used as before.
        stage.server.unset(|it| &it.sick);
        until("it is up", || is_up(&stage.proxy, 0));
        let address = stage.proxy.address("l");
        let client = stage.lab.client().enter(|| connect(&address));
        stage.client = client.expect("entered");
        stage.echo(4);
    }
}

#[test]
fn its_connections_go_on_otherwise() {
    if !available(Need::Netns) {
        return;
    }
    let mut stage = Stage::new("copy", "");
    stage.echo(4);
    stage.go_down();
    stage.echo(BULK_BYTES);
    // Until a reload wants another end of them.
    let wanted = stage
        .configuration
        .replace("\nhealth =", "\non_down = \"reset\"\nhealth =");
    assert!(stage.proxy.reload(&wanted).status.success());
    expect_reset(&mut stage.client);
    let entry = until_found("it is in the log", || stage.log.entries().pop());
    assert_eq!(entry["outcome"], "its server went down");
}
