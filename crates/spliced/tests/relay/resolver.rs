//! Name resolution with a name server that does not always answer.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use netlab::{Namespace, Need, Process, Scratch, available};
use rustix::process::Signal;

use crate::datagrams;
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay};
use crate::server::{Server, ask};
use crate::target::ANSWER_TOO_OLD;

pub(crate) const NAME: &str = "target.test";
const CLIENTS: u64 = 10;

/// The interval at which the thread checks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The maximum of glibc (`RES_MAXRETRANS`, `RES_MAXRETRY` in `resolv.h`): the resolver gives up after two and
/// a half minutes, long after a test does.
pub(crate) const SETTINGS: &str = "nameserver 127.0.0.1\noptions timeout:30 attempts:5\n";

/// Names that begin with this have no answer.
pub(crate) const SLOW: &str = "slow";

/// Answers about names that begin with this come behind one to another question.
pub(crate) const FORGED: &str = "forged";

/// Answers about names that begin with this hold for an hour; others for a second.
pub(crate) const KEPT: &str = "kept";

/// Where the first label of a question begins: behind the header and its length (RFC 1035, 4.1).
const LABEL_AT: usize = 13;

/// A name server that answers every other name with one address, until it falls silent.
pub(crate) struct NameServer {
    asked: Arc<AtomicUsize>,
    /// The first labels of those that have no answer.
    slow: Arc<Mutex<BTreeSet<Vec<u8>>>>,
    silent: Arc<AtomicBool>,
    /// An IPv4 address; 0 for none.
    address: Arc<AtomicU32>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:53").expect("a name server's port");
        socket
            .set_read_timeout(Some(LOOK_EVERY))
            .expect("a timeout");
        let asked = Arc::new(AtomicUsize::new(0));
        let slow = Arc::new(Mutex::new(BTreeSet::new()));
        let address = Arc::new(AtomicU32::new(Ipv4Addr::LOCALHOST.to_bits()));
        let [silent, ended] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let thread = thread::spawn({
            let (asked, silent, ended) = (asked.clone(), silent.clone(), ended.clone());
            let slow = slow.clone();
            let address = address.clone();
            move || {
                let mut question = [0; 512];
                while !ended.load(Ordering::Relaxed) {
                    let Ok((length, from)) = socket.recv_from(&mut question) else {
                        continue;
                    };
                    // Counted first, since the test may read the counter as soon as the answer arrives.
                    asked.fetch_add(1, Ordering::Relaxed);
                    let label = &question[LABEL_AT..][..usize::from(question[LABEL_AT - 1])];
                    let is_slow = label.starts_with(SLOW.as_bytes());
                    if is_slow {
                        slow.lock().expect("no panic").insert(label.to_vec());
                    }
                    if !is_slow && !silent.load(Ordering::Relaxed) {
                        let answer = answer(&question[..length], address.load(Ordering::Relaxed));
                        if label.starts_with(FORGED.as_bytes()) {
                            let forged = [&[!answer[0]], &answer[1..]].concat();
                            socket.send_to(&forged, from).expect("an answer");
                        }
                        socket.send_to(&answer, from).expect("an answer");
                    }
                }
            }
        });
        Self {
            asked,
            slow,
            silent,
            address,
            ended,
            thread: Some(thread),
        }
    }

    fn fall_silent(&self) {
        self.silent.store(true, Ordering::Relaxed);
    }

    /// Answers with `address` from now on, or that the name does not exist.
    pub(crate) fn answer_with(&self, address: Option<Ipv4Addr>) {
        let bits = address.map_or(0, Ipv4Addr::to_bits);
        self.address.store(bits, Ordering::Relaxed);
    }

    /// How many different ones it has been asked for.
    pub(crate) fn slow_names(&self) -> usize {
        self.slow.lock().expect("no panic").len()
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn wait_asked_beyond(&self, before: usize) {
        until("the name server is asked", || {
            self.asked.load(Ordering::Relaxed) > before
        });
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || thread::panicking());
    }
}

/// A response (RFC 1035): the header, the question, and a record if the query is for an IPv4 address.
fn answer(question: &[u8], address: u32) -> Vec<u8> {
    const HEADER_BYTES: usize = 12;
    let name = question[HEADER_BYTES..].iter().position(|byte| *byte == 0);
    let type_at = HEADER_BYTES + name.expect("a name") + 1;
    let asks_for_ipv4 = question[type_at..type_at + 2] == [0, 1];
    let mut answer = question[..2].to_vec();
    let has_record = asks_for_ipv4 && address != 0;
    // A response, recursion available; no error or no such name (3); one question, the record, nothing
    // else.
    let code = if address == 0 { 0x83 } else { 0x80 };
    answer.extend([0x81, code, 0, 1, 0, u8::from(has_record), 0, 0, 0, 0]);
    answer.extend(&question[HEADER_BYTES..type_at + 4]);
    if has_record {
        let is_kept = question[LABEL_AT..].starts_with(KEPT.as_bytes());
        let seconds: u32 = if is_kept { 3600 } else { 1 };
        // A pointer to the question's name; type A, class IN, the time to live, four bytes.
        answer.extend([0xc0, HEADER_BYTES as u8, 0, 1, 0, 1]);
        answer.extend(seconds.to_be_bytes());
        answer.extend([0, 4]);
        answer.extend(address.to_be_bytes());
    }
    answer
}

/// `spliced relay` to `target`, which uses only the name server of its own namespace.
fn relay(scratch: &Scratch, target: &str) -> Command {
    relay_between(scratch, "127.0.0.1:0", target)
}

pub(crate) fn relay_between(scratch: &Scratch, listen: &str, target: &str) -> Command {
    let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
    let settings = scratch.write("resolv.conf", SETTINGS).expect("a file");
    let mut command = Process::command("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(settings)
        .args([BINARY, "relay", listen, target])
        .env_remove("SPLICED_LOG");
    command
}

/// Runs `body` in a namespace in which port 53 is free.
pub(crate) fn with_name_server(body: impl FnOnce(&NameServer, &Scratch) + Send) {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("resolver").expect("a directory");
    let namespace = Namespace::new("resolver").expect("a namespace");
    namespace
        .enter(|| body(&NameServer::new(), &scratch))
        .expect("entered");
}

#[test]
fn a_name_server_that_falls_silent_delays_neither_clients_nor_shutdown() {
    with_name_server(|names, scratch| {
        let server = Server::new().answering();
        let port = server.address.rsplit_once(':').expect("a port").1;
        let mut relay = Relay::spawn(&mut relay(scratch, &format!("{NAME}:{port}")));
        ask(&Peer::connect(&relay.address), 0, 1000, 1000);
        names.fall_silent();
        let before = names.asked.load(Ordering::Relaxed);
        assert!(before > 0);
        thread::sleep(ANSWER_TOO_OLD);
        ask(&Peer::connect(&relay.address), 1, 1000, 1000);
        names.wait_asked_beyond(before);
        for number in 2..CLIENTS {
            ask(&Peer::connect(&relay.address), number, 1000, 1000);
        }
        assert_eq!(server.finish(), (0..CLIENTS).collect::<Vec<_>>());
        relay.terminate();
    });
}

#[test]
fn an_old_answer_is_used_before_a_short_time_is_over() {
    with_name_server(|names, scratch| {
        let server = Server::new().answering();
        let port = server.address.rsplit_once(':').expect("a port").1;
        let mut command = relay(scratch, &format!("{NAME}:{port}"));
        let mut relay = Relay::spawn(command.args(["--connect-timeout", "200ms"]));
        ask(&Peer::connect(&relay.address), 0, 1000, 1000);
        names.fall_silent();
        thread::sleep(ANSWER_TOO_OLD);
        ask(&Peer::connect(&relay.address), 1, 1000, 1000);
        assert_eq!(server.finish(), [0, 1]);
        relay.terminate();
    });
}

#[test]
fn a_name_is_resolved_again_without_losing_clients() {
    const CLIENTS: u64 = 50;
    with_name_server(|names, scratch| {
        let server = Server::new().answering();
        let port = server.address.rsplit_once(':').expect("a port").1;
        let mut command = relay(scratch, &format!("{NAME}:{port}"));
        let relay = Relay::spawn(command.args(["--threads", "2"]));
        let before = names.asked();
        thread::sleep(ANSWER_TOO_OLD);
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| Peer::connect(&relay.address))
            .collect();
        for (client, number) in clients.iter().zip(0..) {
            ask(client, number, 1000, 1000);
        }
        names.wait_asked_beyond(before);
        assert_eq!(server.finish(), (0..CLIENTS).collect::<Vec<_>>());
    });
}

/// Whoever has the old address now is not the server.
#[test]
fn a_target_that_has_moved_is_found_by_the_first_client() {
    with_name_server(|names, scratch| {
        let before = Server::new().answering();
        let port = before.address.rsplit_once(':').expect("a port").1;
        let after = Server::on(&format!("127.0.0.2:{port}")).answering();
        let mut relay = Relay::spawn(&mut relay(scratch, &format!("{NAME}:{port}")));
        ask(&Peer::connect(&relay.address), 0, 1000, 1000);
        names.answer_with(Some(Ipv4Addr::new(127, 0, 0, 2)));
        thread::sleep(ANSWER_TOO_OLD);
        for number in 1..CLIENTS {
            ask(&Peer::connect(&relay.address), number, 1000, 1000);
        }
        let told = format!("server {NAME}:{port} is 127.0.0.2 now instead of 127.0.0.1");
        assert_eq!(before.finish(), [0]);
        assert_eq!(after.finish(), (1..CLIENTS).collect::<Vec<_>>());
        let line = relay.wait_logged("now instead of");
        assert!(line.contains(" INFO ") && line.ends_with(&told), "{line}");
        relay.terminate();
        assert_eq!(relay.lines_logged("now instead of"), 1);
    });
}

#[test]
#[ignore = "soak: an answer becomes a minute old"]
fn an_answer_of_a_minute_ago_is_not_used() {
    const A_MINUTE: Duration = Duration::from_secs(60);
    with_name_server(|names, scratch| {
        let server = Server::new().answering();
        let port = server.address.rsplit_once(':').expect("a port").1;
        let mut command = relay(scratch, &format!("{NAME}:{port}"));
        let mut relay = Relay::spawn(command.args(["--connect-timeout", "1s"]));
        ask(&Peer::connect(&relay.address), 0, 1000, 1000);
        names.fall_silent();
        thread::sleep(A_MINUTE);
        Peer::is_reset_by(&relay.address);
        relay.wait_logged("its name was not resolved within the connect timeout of 1s");
        assert_eq!(server.finish(), [0]);
        relay.terminate();
    });
}

#[test]
fn a_signal_ends_a_relay_whose_target_has_never_resolved() {
    with_name_server(|names, scratch| {
        names.fall_silent();
        let mut command = relay(scratch, &format!("{NAME}:1"));
        // The relay waits for an answer as long as the connect timeout.
        let mut relay = Relay::spawn_silent(command.args(["--connect-timeout", "1h"]));
        names.wait_asked_beyond(0);
        relay.signal(Signal::TERM);
        assert_eq!(relay.wait_end().code(), Some(0));
        relay.wait_logged("stopped by SIGTERM before it accepted any connection");
        assert_eq!(relay.lines_logged("listening on"), 0);
    });
}

#[test]
fn a_signal_ends_a_relay_that_still_resolves_its_listen_address() {
    with_name_server(|names, scratch| {
        names.fall_silent();
        let mut command = relay_between(scratch, &format!("{NAME}:0"), "127.0.0.1:1");
        let mut relay = Relay::spawn_silent(&mut command);
        names.wait_asked_beyond(0);
        relay.signal(Signal::TERM);
        relay.wait_end();
        assert_eq!(relay.lines_logged("listening on"), 0);
    });
}

#[test]
fn an_unresolved_target_is_logged_once_and_retried() {
    with_name_server(|names, scratch| {
        let server = Server::new().answering();
        let port = server.address.rsplit_once(':').expect("a port").1;
        names.answer_with(None);
        let mut relay = Relay::spawn(&mut relay(scratch, &format!("{NAME}:{port}")));
        let told = relay.wait_logged("cannot be resolved");
        for part in [NAME, " WARN ", "check it", "clients are reset until it can"] {
            assert!(told.contains(part), "no {part:?} in {told:?}");
        }
        Peer::is_reset_by(&relay.address);
        relay.wait_logged("no target: its name does not resolve");
        // It retries without any client.
        names.wait_asked_beyond(names.asked() + 2);
        assert_eq!(relay.lines_logged("cannot be resolved"), 1);
        names.answer_with(Some(Ipv4Addr::LOCALHOST));
        let told = relay.wait_logged("resolves now");
        assert!(told.contains(&format!("127.0.0.1:{port}")), "{told}");
        ask(&Peer::connect(&relay.address), 0, 1000, 1000);
        relay.terminate();
        assert_eq!(relay.lines_logged("resolves now"), 1);
        for words in [
            "no server is left for new clients: its name does not resolve",
            "new clients get a server again: target.test",
        ] {
            assert_eq!(relay.lines_logged(words), 1, "{words}");
        }
        assert_eq!(relay.lines_logged("now instead of"), 0);
        assert_eq!(server.finish(), [0]);
    });
}

/// Nobody is reset, and nobody waits for the answer.
#[test]
fn datagrams_to_a_name_without_an_answer_are_dropped() {
    with_name_server(|names, scratch| {
        names.answer_with(None);
        let target = datagrams::socket("127.0.0.1:0");
        let port = target.local_addr().expect("its address").port();
        let mut command = relay_between(scratch, "udp:127.0.0.1:0", &format!("udp:{NAME}:{port}"));
        let relay = Relay::spawn(&mut command);
        let told = relay.wait_logged("cannot be resolved");
        let what = "datagrams of new clients are dropped until it can";
        assert!(told.contains(what), "{told}");
        let client = datagrams::client(&relay);
        client.send(b"lost").expect("it is sent");
        let dropped = relay.wait_logged("a client's datagram was dropped: ");
        assert!(dropped.contains("its name does not resolve"), "{dropped}");
        names.answer_with(Some(Ipv4Addr::LOCALHOST));
        relay.wait_logged("resolves now");
        client.send(b"question").expect("it is sent");
        assert_eq!(datagrams::receive(&target).0, b"question");
    });
}

#[test]
fn a_silent_name_server_does_not_delay_listening() {
    with_name_server(|names, scratch| {
        names.fall_silent();
        let mut command = relay(scratch, &format!("{NAME}:1"));
        let mut relay = Relay::spawn(command.args(["--connect-timeout", "10ms"]));
        relay.wait_logged("has no answer yet; clients are reset until it has");
        Peer::is_reset_by(&relay.address);
        relay.terminate();
    });
}
