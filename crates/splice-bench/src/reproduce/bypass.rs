//! `reproduce bypass`: two namespaces, and a connection between them that SK_MSG takes past TCP, by a bare program and by
//! `splice::bypass`.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netlab::{BpfFileSystem, ControlGroup, Lab};
use splice::bypass::{Bypass, Options, TURN_EVERY};

use super::arguments;
use super::latency::{About as Ping, MESSAGE_BYTES, Path, Paths};
use super::record::{About, Record, output};
use super::turns;
use crate::bpf_object::BpfObject;
use crate::cpus::Placement;
use crate::results::{self, Kind};
use crate::site::{Connection, PATIENCE, Site};
use crate::statistics::Sample;
use crate::usage::require_root;
use crate::workload::{Window, ping_pong};

const PROGRAM: &[u8] = include_bytes!("../../bpf/prebuilt/bypass.bpf.o");

/// Where the server listens; any port that nothing else has.
const PORT: u16 = 9_999;

const PLAIN: &str = "plain TCP";
const BYPASSED: &str = "send to local";
const LIBRARY: &str = "spliced bypass";

/// How long both ends have to read what was redirected to them, once a round is over.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

pub(crate) fn run(arguments: &arguments::Bypass) -> Result<ExitCode> {
    require_root("reproduce bypass")?;
    let output = output(&arguments.shared)?;
    let extent = arguments.extent.sized(arguments.shared.quick);
    let record = Record::begin()?;
    let site = Site::build(Placement::Pinned(arguments.shared.cpu))?;
    let address = SocketAddr::from((Lab::RELAY_V4, PORT));
    let group = ControlGroup::new("bypass")?;
    // Accepted sockets belong to the group of the listening one.
    let listener = group
        .enter(|| site.lab.relay().enter(|| TcpListener::bind(address)))??
        .with_context(|| format!("the server cannot listen on {address}"))?;
    let mut per_round_trip = [(); 3].map(|()| Sample::default());
    let mut paths = Paths::new(&[PLAIN, BYPASSED, LIBRARY]);
    site.enter(|| {
        for index in turns(extent.rounds, paths.all.len()) {
            let path = &mut paths.all[index];
            let outcome = one_round(&site, &group, (&listener, address), path, &extent);
            path.note(outcome.map(|packets| per_round_trip[index].push(packets)));
        }
        Ok(())
    })?;
    println!(
        "Client and server in two namespaces joined by a veth share CPU {}, kept awake; messages of \
         {} bytes; {} interleaved rounds.\nOne way, half of the round trip, in µs; the talk (2024, two \
         CPUs, 30 s each): {PLAIN} 5.748 ± 2.010, {BYPASSED} 4.686 ± 2.862.\n",
        arguments.shared.cpu, MESSAGE_BYTES, extent.rounds,
    );
    paths.print(PLAIN);
    let packets = format!(
        "Packets over the veth per counted round trip, to which the warm-up adds a tenth: {PLAIN} {}, \
         {BYPASSED} {}, {LIBRARY} {}.",
        median(&per_round_trip[0]),
        median(&per_round_trip[1]),
        median(&per_round_trip[2])
    );
    println!("\n{packets}");
    let ping = Ping {
        id: "bypass",
        title: "Ping-pong past TCP",
        description: "A message there and back between two namespaces, with and without an SK_MSG \
                      program that puts it into the receiver's queue.",
        reference: PLAIN,
    };
    let workload = paths.workload(&ping, output.as_ref())?;
    let contestant = |(name, how): (&str, &str), kind| results::Contestant {
        name: name.into(),
        how: how.into(),
        kind,
    };
    let about = About {
        site: &site,
        title: "splice-bench reproduce bypass",
        cpu: arguments.shared.cpu,
        rounds: extent.rounds,
        warm_up: "a tenth of each measurement",
        spliced: None,
        contestants: vec![
            contestant((PLAIN, "over a veth, no program"), Kind::Reference),
            contestant(
                (BYPASSED, "SK_MSG, bpf_msg_redirect_hash with BPF_F_INGRESS"),
                Kind::Ours,
            ),
            contestant(
                (
                    LIBRARY,
                    "as spliced bypass does it, after the first 16 reads",
                ),
                Kind::Ours,
            ),
        ],
        absent: Vec::new(),
        notes: vec![packets],
    };
    record.finish(output.as_ref(), about, vec![workload], paths.is_sound())
}

fn median(sample: &Sample) -> String {
    let median = sample.median();
    median.map_or_else(|| "-".into(), |median| format!("{median:.2}"))
}

/// Measures one path once. Returns how many packets went over the veth for a round trip.
fn one_round(
    site: &Site,
    group: &ControlGroup,
    (listener, address): (&TcpListener, SocketAddr),
    path: &mut Path,
    extent: &arguments::Extent,
) -> Result<f64> {
    let library = match path.name == LIBRARY {
        true => Some(Running::start(group)?),
        false => None,
    };
    let client = group
        .enter(|| TcpStream::connect_timeout(&address, PATIENCE))?
        .with_context(|| format!("cannot connect to {address}"))?;
    let (server, _) = listener.accept().context("the server cannot accept")?;
    let connection = Connection::of(client, server)?;
    let program = if path.name == BYPASSED {
        Some(bypass(&connection)?)
    } else {
        None
    };
    let before = site.lab.relay().packets(Lab::TO_CLIENT)?;
    let round_trips = ping_pong::play_on(connection, MESSAGE_BYTES, Window::of(extent.window()))?;
    if let Some(program) = program {
        let went = program.number("bypassed")?;
        let messages = 2 * round_trips.histogram().len();
        ensure!(
            went >= messages,
            "only {went} of {messages} messages took the way past TCP"
        );
    }
    if let Some(library) = library {
        let (went, messages) = (library.stop()?, 2 * round_trips.histogram().len());
        // While a busy machine delays its turns, a bypass lets messages pass by TCP. A twentieth of them moves no median.
        ensure!(
            20 * went >= 19 * messages,
            "only {went} of {messages} messages took the way past TCP"
        );
    }
    path.add(&round_trips);
    let after = site.lab.relay().packets(Lab::TO_CLIENT)?;
    Ok(after.saturating_sub(before) as f64 / round_trips.histogram().len() as f64)
}

/// A bypass of a group, turned by a thread of its own.
struct Running {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Bypass>,
    _file_system: BpfFileSystem,
}

impl Running {
    fn start(group: &ControlGroup) -> Result<Self> {
        let file_system = BpfFileSystem::new("pins")?;
        let options = Options {
            pins: file_system.path().join("bypass"),
            // Nothing here asks for what is queued.
            despite_fionread: true,
            ..Options::of(vec![group.path().into()])
        };
        let mut bypass = Bypass::start(&options)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            while bypass.turn() && !told.load(Ordering::Relaxed) {
                thread::sleep(TURN_EVERY);
            }
            bypass
        });
        Ok(Self {
            is_over,
            thread,
            _file_system: file_system,
        })
    }

    /// Returns how many messages were redirected.
    fn stop(self) -> Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.join();
        let mut bypass = thread.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let redirected = bypass.status().sum().redirected_messages;
        bypass.stop(LEAVE_WITHIN)?;
        Ok(redirected)
    }
}

/// From now on what either end writes goes straight to the other.
fn bypass(connection: &Connection) -> Result<BpfObject> {
    let object = BpfObject::load(PROGRAM)?;
    // Before the sockets come in: a member keeps what was attached then.
    object.attach("send_to_local", "far_ends")?;
    for (near, far) in [
        (&connection.client, &connection.server),
        (&connection.server, &connection.client),
    ] {
        object.insert("far_ends", near.local_addr()?.port().into(), far)?;
    }
    Ok(object)
}
