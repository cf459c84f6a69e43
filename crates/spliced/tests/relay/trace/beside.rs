//! What a trace of one connection costs the others.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{ChildStderr, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Need, Process, Scratch, available};
use rustix::thread::gettid;

use super::{Ends, PATIENT};
use crate::relay::{BINARY, Relay};

const CONNECTIONS: usize = 200;
const MESSAGE: [u8; 14] = *b"fourteen bytes";

/// Pairs of a round with a trace and one without, and how long a round is.
const PAIRS: usize = 21;
const ROUND: Duration = Duration::from_millis(300);

/// The most that p99 may be worse, as the median of the pairs.
const RATIO_MOST: f64 = 1.2;

/// Connections through a relay to a server that answers.
struct Many {
    clients: Vec<TcpStream>,
    _relay: Relay,
}

impl Many {
    fn new(engine: &str, control: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a listener");
        let address = listener.local_addr().expect("an address").to_string();
        let relay = Relay::to(&address, &["--engine", engine, "--control", control]);
        run_first(relay.id());
        thread::spawn(move || {
            // Until the relay has ended, and nobody connects any more.
            for mut stream in listener.incoming().take(CONNECTIONS).flatten() {
                thread::spawn(move || {
                    stream.set_nodelay(true).expect("TCP_NODELAY");
                    let mut buffer = [0; MESSAGE.len()];
                    while stream.read_exact(&mut buffer).is_ok() {
                        if stream.write_all(&buffer).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let connect = |_| {
            let client = TcpStream::connect(&relay.address).expect("connected");
            client.set_nodelay(true).expect("TCP_NODELAY");
            let patience = Some(netlab::PATIENCE);
            client.set_read_timeout(patience).expect("a timeout");
            client
        };
        let mut clients: Vec<_> = (0..CONNECTIONS).map(connect).collect();
        for client in &mut clients {
            exchange(client);
        }
        Self {
            clients,
            _relay: relay,
        }
    }
}

/// Has a process or thread run before all that is not of this test (SCHED_FIFO), as its later threads do: p99 of a busy
/// machine says nothing. Where nobody may do that, it is as it is.
fn run_first(id: u32) {
    let mut chrt = Process::command("chrt");
    let chrt = chrt.args(["--all-tasks", "--fifo", "--pid", "1", &id.to_string()]);
    let ended = chrt.output().expect("chrt (util-linux)");
    if !ended.status.success() {
        println!("chrt: {}", String::from_utf8_lossy(&ended.stderr).trim());
    }
}

/// There and back; fails if the answer does not come.
fn exchange(client: &mut TcpStream) {
    client.write_all(&MESSAGE).expect("sent");
    let mut answer = [0; MESSAGE.len()];
    client.read_exact(&mut answer).expect("no timeout");
    assert_eq!(answer, MESSAGE);
}

/// The 99th percentile of round trips on one connection after the other.
fn p99(clients: &mut [TcpStream]) -> Duration {
    let begun = Instant::now();
    let mut took = Vec::new();
    for index in (0..clients.len()).cycle() {
        let sent = Instant::now();
        exchange(&mut clients[index]);
        took.push(sent.elapsed());
        if begun.elapsed() >= ROUND {
            break;
        }
    }
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

/// Traces message after message on the connection of a client, once its programs are attached.
fn tracer(control: &str, client: &str) -> (Process, BufReader<ChildStderr>) {
    let filter = format!("client={client}");
    let arguments = [
        "trace",
        "--messages",
        "100",
        "--filter",
        &filter,
        "--control",
        control,
    ];
    // As others run, and not before them.
    let mut tracer = Process::command("chrt");
    tracer
        .args(["--other", "0", BINARY])
        .args(arguments)
        .args(PATIENT)
        .env_remove("SPLICED_LOG");
    let tracer = tracer.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut tracer = Process::spawn(tracer).expect("started");
    let stderr = tracer.child_mut().stderr.take().expect("a pipe");
    let mut said = String::new();
    let mut stderr = BufReader::new(stderr);
    stderr.read_line(&mut said).expect("read");
    assert!(said.contains("attached to "), "{said}");
    (tracer, stderr)
}

#[test]
fn others_pay_little() {
    if !available(Need::Bpf) {
        return;
    }
    run_first(gettid().as_raw_nonzero().get().unsigned_abs());
    for engine in ["copy", "segment"] {
        let scratch = Scratch::new("trace").expect("a directory");
        let control = scratch.path().join("control.sock");
        let control = control.to_str().expect("UTF-8");
        let mut many = Many::new(engine, control);
        let (traced, others) = many.clients.split_first_mut().expect("two hundred");
        let address = traced.local_addr().expect("an address").to_string();
        let is_over = AtomicBool::new(false);
        let mut ratios = Vec::new();
        thread::scope(|scope| {
            let _ends = Ends(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    exchange(traced);
                    thread::sleep(Duration::from_millis(50));
                }
            });
            for pair in 0..PAIRS {
                let mut quiet = None;
                if pair % 2 == 0 {
                    quiet = Some(p99(others));
                }
                let (mut tracer, _stderr) = tracer(control, &address);
                let beside = p99(others);
                assert!(tracer.try_wait().expect("waited").is_none(), "it has ended");
                drop(tracer);
                let quiet = quiet.unwrap_or_else(|| p99(others));
                ratios.push(beside.as_secs_f64() / quiet.as_secs_f64());
            }
        });
        ratios.sort_by(f64::total_cmp);
        let median = ratios[PAIRS / 2];
        println!("{engine}: {median:.2} of {ratios:.2?}");
        assert!(median <= RATIO_MOST, "{engine}: {median:.2}, {ratios:.2?}");
    }
}
