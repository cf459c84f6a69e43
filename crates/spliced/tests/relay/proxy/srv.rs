//! Servers that SRV records name.

use std::fs::{self, File, Permissions};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use netlab::{Namespace, Need, Process, Scratch, available};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};

use super::Proxy;
use super::routes::Site;
use crate::doctor::for_anybody;
use crate::patience::until;
use crate::relay::{BINARY, Relay};

/// Priority, weight, port; the target is always localhost.
type Record = [u16; 3];

/// A name server that knows the SRV records of one name.
struct NameServer {
    records: Arc<Mutex<Option<Vec<Record>>>>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    fn new(records: Vec<Record>) -> Self {
        Self::with_time_to_live(1, records)
    }

    fn with_time_to_live(seconds: u8, records: Vec<Record>) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:53").expect("a name server's port");
        let at_most = Some(Duration::from_millis(10));
        socket.set_read_timeout(at_most).expect("a timeout");
        let records = Arc::new(Mutex::new(Some(records)));
        let ended = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let (records, ended) = (Arc::clone(&records), Arc::clone(&ended));
            move || {
                let mut question = [0; 512];
                while !ended.load(Ordering::Relaxed) {
                    let Ok((length, from)) = socket.recv_from(&mut question) else {
                        continue;
                    };
                    let known = records.lock().expect("no panic").clone();
                    if let Some(known) = known {
                        let answer = answer(&question[..length], seconds, &known);
                        socket.send_to(&answer, from).expect("an answer");
                    }
                }
            }
        });
        Self {
            records,
            ended,
            thread: Some(thread),
        }
    }

    /// Answers with these from now on; `None`: not at all.
    fn answer_with(&self, records: Option<Vec<Record>>) {
        *self.records.lock().expect("no panic") = records;
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))) || thread::panicking());
    }
}

/// A response (RFC 1035, RFC 2782) with a time to live.
fn answer(question: &[u8], seconds: u8, records: &[Record]) -> Vec<u8> {
    const HEADER_BYTES: usize = 12;
    let name = question[HEADER_BYTES..].iter().position(|byte| *byte == 0);
    let end = HEADER_BYTES + name.expect("a name") + 5;
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, records.len() as u8, 0, 0, 0, 0]);
    answer.extend(&question[HEADER_BYTES..end]);
    for record in records {
        answer.extend([
            0xc0,
            HEADER_BYTES as u8,
            0,
            33,
            0,
            1,
            0,
            0,
            0,
            seconds,
            0,
            17,
        ]);
        answer.extend(record.iter().flat_map(|number| number.to_be_bytes()));
        answer.extend(b"\x09localhost\0");
    }
    answer
}

#[test]
fn servers_follow_the_records() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("srv").expect("a namespace");
    let scratch = Scratch::new("srv").expect("a directory");
    let settings = scratch
        .write("resolv.conf", "nameserver 127.0.0.1\n")
        .expect("written");
    let inside = || {
        let sites = [Site::new(), Site::new(), Site::new()];
        let ports = sites.each_ref().map(|site| {
            let address = site.address();
            address
                .rsplit_once(':')
                .and_then(|it| it.1.parse::<u16>().ok())
                .expect("a port")
        });
        let names = NameServer::new(vec![[10, 3, ports[0]], [20, 5, ports[1]]]);
        let configuration = format!(
            "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
             [backend.b]\nservers = [\"srv:_x._tcp.example.test\", \"localhost:{}\"]\n",
            ports[2]
        );
        let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
        let mut command = Process::command("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .arg(&settings)
            .arg(BINARY)
            .env_remove("SPLICED_LOG");
        let proxy = Proxy::start(&configuration, &mut command);
        let servers = || {
            let backend = proxy.of("backends", "b");
            let servers = backend["servers"].as_array().expect("servers").clone();
            let mut servers: Vec<_> = servers
                .iter()
                .map(|server| {
                    let name = server["server"].as_str().expect("a name").to_owned();
                    (name, server["weight"].as_u64(), server["backup"].as_bool())
                })
                .collect();
            servers.sort();
            servers
        };
        let server =
            |port: u16, weight, backup| (format!("localhost:{port}"), Some(weight), Some(backup));
        let sorted = |mut servers: Vec<_>| {
            servers.sort();
            servers
        };
        let fixed = server(ports[2], 1, false);
        let both = sorted(vec![
            server(ports[0], 3, false),
            server(ports[1], 5, true),
            fixed.clone(),
        ]);
        until("both are known", || servers() == both);
        // One goes, and the other is no longer a backup.
        names.answer_with(Some(vec![[20, 7, ports[1]]]));
        let one = sorted(vec![server(ports[1], 7, false), fixed]);
        until("one is left", || servers() == one);
        // Without an answer the last one counts.
        names.answer_with(None);
        proxy.relay.wait_logged("going on with the last answer");
        assert_eq!(servers(), one);
        let told = proxy.reload(&configuration.replace("\"srv:_x._tcp.example.test\", ", ""));
        assert!(told.status.success());
        until("only the fixed one is left", || servers().len() == 1);
    };
    namespace.enter(inside).expect("entered");
}

/// Until the first answer, nobody knows.
#[test]
fn a_name_without_records_leaves_no_server() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("srv").expect("a namespace");
    let scratch = Scratch::new("srv").expect("a directory");
    let settings = scratch.write("resolv.conf", "nameserver 127.0.0.1\n");
    let settings = settings.expect("written");
    let inside = || {
        let site = Site::new();
        let port = site.address().rsplit_once(':').expect("a port").1.parse();
        let names = NameServer::new(Vec::new());
        let configuration = "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\n\
                             backend = \"b\"\n[backend.b]\nservers = [\"srv:_x._tcp.example.test\"]\n";
        let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
        let mut command = Process::command("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .arg(&settings)
            .arg(BINARY)
            .env_remove("SPLICED_LOG");
        let proxy = Proxy::start(configuration, &mut command);
        let words = "no server is left for new clients: ";
        let line = proxy.relay.wait_logged(words);
        assert!(line.ends_with("its servers are not known yet"), "{line}");
        names.answer_with(Some(vec![[10, 3, port.expect("a number")]]));
        let line = proxy.relay.wait_logged("new clients get a server again: ");
        assert!(line.contains("again: localhost:"), "{line}");
        assert_eq!(proxy.relay.lines_logged(words), 1);
    };
    namespace.enter(inside).expect("entered");
}

/// It prepares a backend, whose records are kept for long.
#[test]
fn a_refused_reload_leaves_no_checks() {
    if !available(Need::Netns) {
        return;
    }
    let namespace = Namespace::new("srv").expect("a namespace");
    let scratch = Scratch::new("srv").expect("a directory");
    let settings = scratch
        .write("resolv.conf", "nameserver 127.0.0.1\n")
        .expect("written");
    // No socket can be there. The start waits for the lock before it finds that out, and meanwhile the checks begin.
    let path = scratch.write("file", "").expect("written");
    let directory = File::open(scratch.path()).expect("opened");
    flock(&directory, FlockOperation::NonBlockingLockExclusive).expect("free");
    let inside = || {
        let server = TcpListener::bind("127.0.0.1:0").expect("bound");
        let port = server.local_addr().expect("an address").port();
        let _names = NameServer::with_time_to_live(u8::MAX, vec![[10, 1, port]]);
        let configuration = "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
                             [backend.b]\nservers = [\"127.0.0.1:1\"]\n";
        let script = r#"mount --bind "$0" /etc/resolv.conf && exec "$@""#;
        let mut command = Process::command("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .arg(&settings)
            .arg(BINARY)
            .env_remove("SPLICED_LOG");
        let proxy = Proxy::start(configuration, &mut command);
        let refused = format!(
            "{configuration}[[listener]]\naddress = \"unix:{}\"\n[[listener.route]]\nbackend = \"n\"\n\
             [backend.n]\nservers = [\"srv:_x._tcp.example.test\"]\nhealth = {{ tcp = true, every = \"100ms\" }}\n",
            path.display()
        );
        let is_checked_within = |time: Duration| {
            let mut sockets = [PollFd::new(&server, PollFlags::IN)];
            let time = Timespec::try_from(time).expect("short");
            let is_checked = poll(&mut sockets, Some(&time)).expect("polled") > 0;
            if is_checked {
                drop(server.accept().expect("a check"));
            }
            is_checked
        };
        until("a reload has had its checks begin", || {
            let told = proxy.reload(&refused);
            assert!(!told.status.success());
            is_checked_within(Duration::ZERO)
        });
        until("there are no checks any more", || {
            !is_checked_within(Duration::from_secs(1))
        });
    };
    namespace.enter(inside).expect("entered");
}

/// The thread that takes the records cannot be started at first.
#[test]
fn records_are_taken_after_a_shortage_of_threads() {
    if !available(Need::Netns) || !available(Need::Root) {
        return;
    }
    let namespace = Namespace::new("srv").expect("a namespace");
    let scratch = Scratch::new("srv").expect("a directory");
    let spliced = for_anybody(&scratch);
    // The default would be 10 s.
    let settings = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
    let settings = scratch.write("resolv.conf", settings).expect("written");
    let path = scratch
        .write(
            "proxy.toml",
            "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
             [backend.b]\nservers = [\"srv:_x._tcp.example.test\"]\n",
        )
        .expect("written");
    for file in [&settings, &path] {
        fs::set_permissions(file, Permissions::from_mode(0o644)).expect("its mode");
    }
    // RLIMIT_NPROC counts the threads of a user, but for root. This user is of this test alone.
    let user = (1_000_000 + process::id()).to_string();
    let inside = || {
        let site = Site::new();
        let address = site.address();
        let port = address.rsplit_once(':').map(|it| it.1.parse());
        let port = port.expect("a port").expect("a number");
        let names = NameServer::new(vec![[10, 1, port]]);
        names.answer_with(None);
        let script = r#"mount --bind "$0" /etc/resolv.conf && exec setpriv --clear-groups "$@""#;
        let mut command = Process::command("unshare");
        command
            .args(["--mount", "sh", "-c", script])
            .arg(&settings)
            .args(["--reuid", &user, "--regid", &user, "--"])
            .arg(&spliced)
            .args(["run", "--config"])
            .arg(&path)
            .env_remove("SPLICED_LOG");
        let relay = Relay::spawn(&mut command);
        let limit_threads = |most: &str| {
            let status = Process::command("setpriv")
                .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"])
                .arg("prlimit")
                .args([
                    "--pid",
                    &relay.id().to_string(),
                    &format!("--nproc={most}:"),
                ])
                .status();
            assert!(status.expect("prlimit of util-linux").success());
        };
        limit_threads("1");
        names.answer_with(Some(vec![[10, 1, port]]));
        let line = relay.wait_logged("cannot start the thread that takes the SRV records");
        assert!(line.contains("it is tried again in 5s"), "{line}");
        limit_threads("1000");
        until("its server is used", || {
            drop(TcpStream::connect(&relay.address));
            site.is_called()
        });
    };
    namespace.enter(inside).expect("entered");
}
