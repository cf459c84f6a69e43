//! The relay that forwards, for the bench, as a process of its own.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use netlab::{Lab, Need, Process, available, until_found};

/// Where the measured server listens, and where clients get to it.
const SERVER_PORT: u16 = 9_000;
const PORT: u16 = 9_001;

/// `FIRST_CROWD_PORT` of the bench, and how many follow it here.
const FIRST_CROWD_PORT: u16 = 9_500;
const CROWD: u16 = 3;

/// Long for the handshake of a client, short for a relay that is about to listen.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

#[test]
fn whoever_is_forwarded_to_the_measured_server_finds_the_listeners_of_a_crowd() {
    if !available(Need::Netns) || !available(Need::Bpf) {
        return;
    }
    let lab = Lab::new().expect("root may");
    let listens = |port: u16| {
        let bound = lab.server().enter(|| {
            let listener = TcpListener::bind((Lab::SERVER_V4, port))?;
            listener.set_nonblocking(true)?;
            Ok::<_, io::Error>(listener)
        });
        let bound = bound.expect("it can be entered");
        bound.expect("the namespace is empty")
    };
    let _measured = listens(SERVER_PORT);
    let last = FIRST_CROWD_PORT + CROWD - 1;
    let crowd = listens(last);

    let listen = SocketAddr::from((Lab::RELAY_V4, PORT));
    let target = SocketAddr::from((Lab::SERVER_V4, SERVER_PORT));
    let program = env!("CARGO_BIN_EXE_splice-bench");
    let mut command = lab.relay().command(program);
    command.args(["forward", &listen.to_string(), &target.to_string()]);
    command.args(["--crowd", &CROWD.to_string()]);
    command.args(["--crowd-at", &Lab::SERVER_V4.to_string()]);
    command.stdin(Stdio::null());
    let _relay = Process::spawn(&mut command).expect("the bench has been built");

    let entered = lab.client().enter(|| {
        let connect =
            |port| TcpStream::connect_timeout(&(Lab::RELAY_V4, port).into(), CONNECT_WITHIN);
        let _first = until_found("a relay listens", || connect(PORT).ok());
        let _other = connect(last).expect("it listens before");
        // Nobody accepts at the relay: only what is forwarded arrives.
        until_found("the last of the crowd is forwarded", || crowd.accept().ok());
    });
    entered.expect("it can be entered");
}
