//! A process that is killed in the middle of a change-over: both peers must see a reset, and nothing may stay
//! that swallows segments.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};
use netlab::Process;
use rustix::process::{Signal, getpid, kill_process};

use super::coexistence::{filters, index_of};
use super::halt::STEPS;
use super::*;

const STEP: &str = "SEGMENT_CRASH_STEP";
const TARGET: &str = "SEGMENT_CRASH_TARGET";
const CLSACT: &str = "SEGMENT_CRASH_CLSACT";
const DEVICE: &str = "SEGMENT_CRASH_DEVICE";

/// Relays two pairs; the second one kills it.
#[test]
#[ignore = "a process that another test starts"]
fn a_relay_that_dies() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let target: SocketAddr = target.parse().expect("an address");
    let datapath = Datapath::here().expect("a datapath");
    if std::env::var_os(CLSACT).is_some() {
        datapath.attach_by_clsact();
    }
    let splicer = Splicer::new(1).expect("a splicer");
    let (front, address) = listen((Lab::RELAY_V4, 0));
    println!("\nlistening on {address}");
    let join = || {
        let a = front.accept().expect("accept").0;
        let b = TcpStream::connect(target).expect("connect");
        let [a, b] = [a, b].map(|end| Endpoint::new(end).expect("an end"));
        splicer.join(a, b, &by_name()).expect("joined")
    };
    let first = join();
    // Steps of the first pair would kill it, too. None follows once its sockets are silent.
    netlab::until("the first sleeps", || {
        first.is_taken() && datapath.awake().load(Relaxed) == 0
    });
    let wanted = std::env::var(STEP).expect("a step");
    watch(&splicer, move |step| {
        if step == wanted {
            kill_process(getpid(), Signal::KILL).expect("killed");
            unreachable!("it was killed");
        }
    });
    // If nothing else kills it, its parent does.
    let _ = join().wait();
    thread::sleep(PATIENCE);
}

/// A running relay, and the address that it listens on.
fn relay_that_dies(
    lab: &Lab,
    step: &str,
    target: SocketAddr,
    clsact: bool,
) -> (Process, SocketAddr) {
    let mut command = this_program(lab, "");
    command
        .arg("kernel::segment::tests::crash::a_relay_that_dies")
        .env(STEP, step)
        .env(TARGET, target.to_string());
    if clsact {
        command.env(CLSACT, "");
    }
    let (process, address) = started(&mut command, "listening on ");
    (process, address.parse().expect("an address"))
}

/// Runs in the relay's namespace with the capabilities that `setpriv` is told. The caller adds the name of an
/// ignored test.
fn this_program(lab: &Lab, capabilities: &str) -> Command {
    let mut command = lab.relay().command("setpriv");
    command
        .args((!capabilities.is_empty()).then(|| format!("--bounding-set={capabilities}")))
        .arg("--")
        .arg(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--nocapture", "--exact"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// What the process prints after `word`, once it does.
fn started(command: &mut Command, word: &str) -> (Process, String) {
    let mut process = Process::spawn(command).expect("started");
    let stdout = process.child_mut().stdout.take().expect("its output");
    let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
    let said = lines.find_map(|line| Some(line.strip_prefix(word)?.to_owned()));
    (process, said.expect("it starts"))
}

/// Sends until an error.
fn send_for_ever(mut stream: &TcpStream, seed: u64) {
    let mut random = Random::seeded(seed);
    let mut piece = [0; 4096];
    loop {
        for chunk in piece.chunks_exact_mut(8) {
            chunk.copy_from_slice(&random.next().to_ne_bytes());
        }
        if let Err(error) = stream.write_all(&piece) {
            use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
            assert!(
                matches!(error.kind(), BrokenPipe | ConnectionReset),
                "{error}"
            );
            return;
        }
    }
}

/// Reads what [`send_for_ever`] sends; it must end with a reset.
fn read_until_reset(mut stream: &TcpStream, seed: u64) -> usize {
    let mut random = Random::seeded(seed);
    let mut word = [0; 8];
    let mut buffer = [0; 4096];
    let mut total = 0;
    loop {
        match netlab::uninterrupted(|| stream.read(&mut buffer)) {
            // The kernel reports a reset once, here to the writer; the connection is gone.
            Ok(0) if stream.peer_addr().is_err() => return total,
            Ok(0) => panic!("an end of stream after {total} bytes"),
            Ok(count) => {
                for byte in &buffer[..count] {
                    if total % 8 == 0 {
                        word = random.next().to_ne_bytes();
                    }
                    assert_eq!(*byte, word[total % 8], "the byte at {total}");
                    total += 1;
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{total}");
                return total;
            }
        }
    }
}

/// The programs that stand in the place of the relay's on the devices (bpf/caller.bpf.c).
fn stubs(lab: &Lab) -> HashSet<u32> {
    let places = [Lab::TO_CLIENT, Lab::TO_SERVER].map(|device| {
        ["ingress", "egress"].map(|place| {
            let listed = filters(lab, device, place);
            let mut lines = listed.lines().filter(|line| line.contains("name caller"));
            let id =
                lines.find_map(|line| line.split_once(" id ")?.1.split(' ').next()?.parse().ok());
            id.unwrap_or_else(|| panic!("no stub at {device} {place}: {listed}"))
        })
    });
    places.into_iter().flatten().collect()
}

/// A worker of the kernel empties the tables of the stubs of a process that is gone (`prog_array_map_clear`). Until
/// it has the CPU they call the program, which takes a new connection with the same ports for the old one: in OVERLAP
/// its SYN goes to the socket that listens, and the rest of the handshake to the server.
fn wait_for_empty_stubs(lab: &Lab) {
    let stubs = stubs(lab);
    let options = ProgInfoQueryOptions::default().include_map_ids(true);
    let tables: Vec<_> = ProgInfoIter::with_query_opts(options)
        .filter(|program| stubs.contains(&program.id))
        .flat_map(|program| program.map_ids)
        .map(|id| MapHandle::from_map_id(id).expect("a table"))
        .collect();
    assert_eq!(tables.len(), stubs.len());
    netlab::until("the tables are empty", || {
        let first = |table: &MapHandle| table.lookup(&0u32.to_ne_bytes(), MapFlags::ANY);
        tables
            .iter()
            .all(|table| first(table).expect("read").is_none())
    });
}

fn die_at(step: &str, clsact: bool) {
    let lab = Lab::new().expect("a lab");
    let (back, target) = listen_in(lab.server(), (Lab::SERVER_V4, 0));
    let (mut process, address) = relay_that_dies(&lab, step, target, clsact);
    let connect = || {
        let client = connect_in(lab.client(), address);
        let server = back.accept().expect("accept").0;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        }
        (client, server)
    };
    let first = connect();
    ping(&first.0, &first.1);
    let (client, server) = connect();
    let from = client.local_addr().expect("an address");
    let came = thread::scope(|scope| {
        scope.spawn(|| send_for_ever(&client, 1));
        scope.spawn(|| send_for_ever(&server, 2));
        let at_server = scope.spawn(|| read_until_reset(&server, 1));
        let at_client = scope.spawn(|| read_until_reset(&client, 2));
        [at_server, at_client].map(|reader| reader.join().expect("a reset"))
    });
    let ended = process.wait_at_most(PATIENCE).expect("wait");
    let ended = ended.expect("it has died");
    assert!(!ended.success(), "{step}: {ended}");
    eprintln!("{step}: {came:?} bytes");
    if clsact {
        wait_for_empty_stubs(&lab);
    }
    // A new connection with the same addresses and ports works.
    drop((client, server, first));
    let (front, _) = listen_in(lab.relay(), address);
    let client = lab.client().enter(|| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect(&address.into())?;
        Ok::<_, std::io::Error>(TcpStream::from(socket))
    });
    let client = client.expect("entered").expect("the same ports");
    let here = front.accept().expect("accept").0;
    ping(&client, &here);
}

#[test]
fn peers_of_a_relay_that_is_killed_see_a_reset() {
    if !available(Need::Root) {
        return;
    }
    // Each waits for TCP's timers, and has a lab to itself.
    thread::scope(|scope| {
        for step in STEPS {
            scope.spawn(|| die_at(step, false));
        }
    });
}

/// A filter on a clsact qdisc outlives its process.
#[test]
fn peers_see_a_reset_though_a_filter_stays() {
    if !available(Need::Root) {
        return;
    }
    for step in ["overlap", "asleep"] {
        die_at(step, true);
    }
}

/// Attaches the program to a device as on a kernel without tcx.
#[test]
#[ignore = "a process that another test starts"]
fn a_relay_with_a_filter() {
    let Ok(device) = std::env::var(DEVICE) else {
        return;
    };
    let datapath = Datapath::here().expect("a datapath");
    datapath.attach_by_clsact();
    datapath
        .ensure_attached(device.parse().expect("an index"))
        .expect("attached");
    println!("\nstands ");
    thread::sleep(PATIENCE);
}

/// With only the capabilities that the documentation asks for.
#[test]
fn a_filter_that_was_left_behind_is_replaced_without_more_rights() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let standing = || {
        ["ingress", "egress"].map(|place| {
            let listed = filters(&lab, Lab::TO_CLIENT, place);
            listed.matches("name caller").count()
        })
    };
    let start = || {
        let mut command = this_program(&lab, "-all,+bpf,+net_admin,+perfmon");
        command
            .arg("kernel::segment::tests::crash::a_relay_with_a_filter")
            .env(DEVICE, index_of(lab.relay(), Lab::TO_CLIENT).to_string());
        started(&mut command, "stands ").0
    };
    for round in 0..3 {
        let killed = start();
        assert_eq!(standing(), [1, 1], "round {round}");
        drop(killed);
        assert_eq!(standing(), [1, 1], "what is killed leaves its filters");
    }
    // A living process keeps its filters.
    let (_one, _other) = (start(), start());
    assert_eq!(standing(), [2, 2]);
}
