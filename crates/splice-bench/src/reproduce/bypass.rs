//! `reproduce bypass`: two namespaces, and a connection between them that SK_MSG takes past TCP, by a bare program and by
//! `splice::bypass`.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netlab::{BpfFileSystem, ControlGroup, Lab};
use splice::bypass::{Bypass, End, Options, State, TURN_EVERY};

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
use crate::workload::Window;
use crate::workload::ping_pong::Game;

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
        "Packets over the veth per round trip: {PLAIN} {}, {BYPASSED} {}, {LIBRARY} {}.",
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
    let mut game = Game::begin(connection, MESSAGE_BYTES)?;
    if let Some(library) = &library {
        library.play_until_taken(&mut game)?;
    }
    let window = Window::of(extent.window());
    game.warm_up(window.warm_up)?;
    let packets = || site.lab.relay().packets(Lab::TO_CLIENT);
    let redirected = || -> Result<u64> {
        match (&program, &library) {
            (Some(program), _) => program.number("bypassed"),
            (_, Some(library)) => Ok(library.redirected()),
            _ => Ok(0),
        }
    };
    let before = (packets()?, redirected()?);
    let round_trips = game.measure(window.length)?;
    let after = (packets()?, redirected()?);
    drop(game);
    if let Some(library) = library {
        library.stop()?;
    }
    let (went, messages) = (after.1 - before.1, 2 * round_trips.histogram().len());
    let least = match path.name.as_str() {
        BYPASSED => messages,
        // A heartbeat that a busy machine delays too long lets messages pass. A twentieth of them moves no median.
        LIBRARY => messages - messages / 20,
        _ => 0,
    };
    ensure!(
        went >= least,
        "only {went} of {messages} messages took the way past TCP"
    );
    path.add(&round_trips);
    let packets = after.0.saturating_sub(before.0);
    Ok(packets as f64 / round_trips.histogram().len() as f64)
}

/// A bypass of a group, turned by a thread of its own.
struct Running {
    bypass: Arc<Mutex<Bypass>>,
    is_over: Arc<AtomicBool>,
    /// Until it is dropped.
    thread: Option<JoinHandle<()>>,
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
        let bypass = Arc::new(Mutex::new(Bypass::start(&options)?));
        let is_over = Arc::new(AtomicBool::new(false));
        let (turned, told) = (Arc::clone(&bypass), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while locked(&turned).turn() && !told.load(Ordering::Relaxed) {
                thread::sleep(TURN_EVERY);
            }
        });
        Ok(Self {
            bypass,
            is_over,
            thread: Some(thread),
            _file_system: file_system,
        })
    }

    /// Plays until messages of both ends are redirected. Before, they go over TCP: for some turns, which a busy machine
    /// delays.
    fn play_until_taken(&self, game: &mut Game) -> Result<()> {
        let begin = Instant::now();
        while !self.has_taken() {
            ensure!(
                begin.elapsed() < PATIENCE,
                "the connection was not taken past TCP within {PATIENCE:?}"
            );
            game.warm_up(TURN_EVERY)?;
        }
        Ok(())
    }

    fn has_taken(&self) -> bool {
        let sends = |end: Option<End>| end.is_some_and(|end| end.redirected_messages > 0);
        let status = locked(&self.bypass).status();
        let mut connections = status.connections.iter();
        connections.any(|of| of.state == State::Redirected && sends(of.client) && sends(of.server))
    }

    /// How many messages were redirected.
    fn redirected(&self) -> u64 {
        locked(&self.bypass).status().sum().redirected_messages
    }

    fn stop(mut self) -> Result<()> {
        self.end_turns();
        Ok(locked(&self.bypass).stop(LEAVE_WITHIN)?)
    }

    fn end_turns(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed, and no message is redirected after it: the round fails.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end_turns();
    }
}

fn locked(bypass: &Mutex<Bypass>) -> MutexGuard<'_, Bypass> {
    bypass.lock().unwrap_or_else(PoisonError::into_inner)
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
