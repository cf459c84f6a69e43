//! What a bypass costs: those that it does not cover, its process, and memory.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use netlab::Lab;
use rustix::time::{ClockId, clock_gettime};
use splice::bypass::{Bypass, TURN_EVERY};

use crate::crowds::{connect, until_all_are_redirected};
use crate::stage::{LEAVE, Stage};

/// The median of some ratios, and their quartiles.
fn told(what: &str, mut ratios: Vec<f64>) {
    ratios.sort_by(f64::total_cmp);
    let at = |of: f64| ratios[((ratios.len() - 1) as f64 * of).round() as usize];
    println!(
        "{what}: {:.3} ({:.3} to {:.3})",
        at(0.5),
        at(0.25),
        at(0.75)
    );
}

/// What a second of work is worth with a bypass, beside one without it.
fn beside_none(stage: &Stage, rounds: usize, work: impl Fn() -> f64) -> Vec<f64> {
    work();
    let bypassed = || {
        let running = stage.start();
        let rate = work();
        assert!(stage.status().connections.is_empty());
        running.stop();
        rate
    };
    (0..rounds)
        .map(|round| match round % 2 {
            0 => bypassed() / work(),
            _ => 1.0 / (work() / bypassed()),
        })
        .collect()
}

/// A listener outside the groups.
fn listener(stage: &Stage) -> TcpListener {
    let bind = || TcpListener::bind((Lab::SERVER_V4, 0)).expect("a listener");
    stage.lab.server().enter(bind).expect("entered")
}

/// Programs outside the groups run through the tracepoints, too.
#[test]
#[ignore = "figure: prints ratios"]
fn outside_the_groups_beside_tcp() {
    const CONNECTIONS: u32 = 2_000;
    const ROUND_TRIPS: u32 = 20_000;
    let stage = Stage::new();
    let listener = listener(&stage);
    let to = listener.local_addr().expect("bound");
    let ping = |mut client: &TcpStream| {
        client.write_all(b"?").expect("sent");
        client.read_exact(&mut [0]).expect("received");
    };
    let echo = |mut server: TcpStream| {
        let mut byte = [0];
        while server.read(&mut byte).expect("received") == 1 {
            server.write_all(&byte).expect("sent");
        }
    };
    let dial = || {
        let client = TcpStream::connect(to).expect("connected");
        client.set_nodelay(true).expect("set");
        client
    };
    let in_client = |work: &(dyn Fn() + Sync)| {
        let begun = Instant::now();
        stage.lab.client().enter(work).expect("entered");
        begun.elapsed().as_secs_f64()
    };
    let short = || {
        thread::scope(|scope| {
            scope.spawn(|| {
                (0..CONNECTIONS).for_each(|_| echo(listener.accept().expect("accepted").0));
            });
            let took = in_client(&|| (0..CONNECTIONS).for_each(|_| ping(&dial())));
            f64::from(CONNECTIONS) / took
        })
    };
    let long = || {
        thread::scope(|scope| {
            scope.spawn(|| echo(listener.accept().expect("accepted").0));
            let took = in_client(&|| {
                let client = dial();
                (0..ROUND_TRIPS).for_each(|_| ping(&client));
            });
            f64::from(ROUND_TRIPS) / took
        })
    };
    told(
        "short connections outside the groups",
        beside_none(&stage, 21, short),
    );
    told(
        "round trips outside the groups",
        beside_none(&stage, 21, long),
    );
}

/// How much CPU time a second takes, turned as `spliced bypass` does.
fn turned(bypass: &mut Bypass) -> Duration {
    let cpu = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    };
    let (begun, before) = (Instant::now(), cpu());
    while begun.elapsed() < Duration::from_secs(3) {
        assert!(bypass.turn());
        thread::sleep(TURN_EVERY);
    }
    (cpu() - before) / 3
}

/// What the kernel has allocated in small pieces.
fn kernel_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").expect("readable");
    let line = text.lines().find(|line| line.starts_with("Slab:"));
    let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    number
        .and_then(|number| number.parse::<u64>().ok())
        .expect("a number")
        << 10
}

/// Of the process, and memory for each connection.
#[test]
#[ignore = "figure: prints times and sizes"]
fn of_a_thousand_connections() {
    const CONNECTIONS: usize = 1_000;
    let stage = Stage::new();
    let mut bypass = Bypass::start(&stage.options()).expect("a bypass");
    println!(
        "without a connection: {:?} of CPU a second",
        turned(&mut bypass)
    );
    bypass.stop(LEAVE).expect("nothing is left");

    let mut all = connect(&stage, CONNECTIONS);
    let mut random = crate::random::Random::of_run(64);
    all.iter_mut()
        .for_each(|ends| ends.converse(&mut random, 20, 200));
    let before = kernel_bytes();
    let running = stage.start();
    until_all_are_redirected(&stage, &mut all);
    let held = kernel_bytes().saturating_sub(before);
    let mut bypass = running.abandon();
    println!(
        "{CONNECTIONS} redirected connections: {:?} of CPU a second, {} bytes of the kernel's memory each",
        turned(&mut bypass),
        held / CONNECTIONS as u64
    );
    bypass.stop(LEAVE).expect("nothing is left");
}
