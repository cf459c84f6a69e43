//! Programs as they come, with and without a bypass.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use netlab::{Lab, Need, Scratch, available, until, until_found};
use rustix::net::{RecvFlags, recv};
use splice::bypass::{Options, Reason, State};

use crate::programs::{ALL, Program};
use crate::stage::{Ends, Running, Stage};

/// How many of all messages of covered connections were redirected while `work` ran.
fn share(stage: &Stage, work: impl FnOnce()) -> f64 {
    let before = stage.status().sum();
    work();
    let after = stage.status().sum();
    let redirected = after.redirected_messages - before.redirected_messages;
    redirected as f64 / (after.messages - before.messages).max(1) as f64
}

/// As it is when nothing else is said.
fn measuring(stage: &Stage) -> Options {
    Options {
        bulk_bytes: None,
        ..stage.options()
    }
}

fn is_right(program: &Program) {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let scratch = Scratch::new(program.name).expect("a directory");
    let Some(server) = program.start(&stage, &scratch) else {
        return;
    };
    // The largest that is ever measured, so that the shares do not depend on the moment.
    let running = Running::start(&Options {
        bulk_bytes: Some(32 << 10),
        ..stage.options()
    });
    let mut figure = 0.0;
    let packets = || {
        let relay = stage.lab.relay();
        [Lab::TO_CLIENT, Lab::TO_SERVER].map(|device| relay.packets(device).expect("counted"))
    };
    let before = packets();
    // On a busy machine it may take a good part of a load until its connections are redirected.
    let share = until_found("enough is redirected", || {
        let share = share(&stage, || figure = server.load(&stage));
        (share >= program.least_redirected).then_some(share)
    });
    let [to_client, to_server] = [0, 1].map(|at| packets()[at] - before[at]);
    println!(
        "{}: {figure} {}, {share:.3} of the messages redirected, {to_client} and {to_server} packets",
        program.name, program.unit
    );
    server.check(&stage);
    running.stop();
}

macro_rules! each {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            let mut all = ALL.iter();
            is_right(all.find(|one| one.name == stringify!($name)).expect("a program"));
        }
    )*};
}

each! { redis pgbench sysbench wrk sidecar h2load sockperf sockperf_veth iperf3 iperf3_4k iperf3_16k scp curl }

/// Connections a second, one after the other: connect, a byte there and back, close.
fn short_connections(stage: &Stage) -> f64 {
    const CONNECTIONS: u32 = 4_000;
    let [near, far] = &stage.groups;
    let bind = || TcpListener::bind((Lab::SERVER_V4, 0)).expect("a listener");
    let listener = far.enter(|| stage.lab.server().enter(bind));
    let listener = listener.expect("entered").expect("entered");
    let to = listener.local_addr().expect("bound");
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..CONNECTIONS {
                let (mut server, _) = listener.accept().expect("accepted");
                let mut byte = [0];
                server.read_exact(&mut byte).expect("received");
                server.write_all(&byte).expect("sent");
            }
        });
        let call = || {
            let begun = Instant::now();
            for _ in 0..CONNECTIONS {
                let mut client = TcpStream::connect(to).expect("connected");
                client.write_all(b"?").expect("sent");
                client.read_exact(&mut [0]).expect("received");
            }
            f64::from(CONNECTIONS) / begun.elapsed().as_secs_f64()
        };
        let rate = near.enter(|| stage.lab.client().enter(call));
        rate.expect("entered").expect("entered")
    })
}

#[test]
#[ignore = "figure: prints ratios"]
fn short_connections_beside_tcp() {
    let stage = Stage::new();
    short_connections(&stage);
    let mut ratios: Vec<f64> = (0..21)
        .map(|round| {
            let bypassed = || {
                let running = Running::start(&measuring(&stage));
                let rate = short_connections(&stage);
                running.stop();
                rate
            };
            match round % 2 {
                0 => bypassed() / short_connections(&stage),
                _ => 1.0 / (short_connections(&stage) / bypassed()),
            }
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "short connections: {:.3} ({:.3} to {:.3})",
        ratios[10], ratios[5], ratios[15]
    );
}

/// Round trips a second, of which each message to the server passes, since that uses MSG_WAITALL.
fn half_passed(ends: &Ends) -> f64 {
    const ROUNDS: u32 = 20_000;
    let (mut client, mut server) = (&ends.client, &ends.server);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut heard = [0; 64];
            for _ in 0..ROUNDS {
                let (count, _) = recv(server, &mut heard, RecvFlags::WAITALL).expect("received");
                assert_eq!(count, 64);
                server.write_all(&heard).expect("sent");
            }
        });
        let begun = Instant::now();
        let mut heard = [0; 64];
        for _ in 0..ROUNDS {
            client.write_all(&[1; 64]).expect("sent");
            client.read_exact(&mut heard).expect("received");
        }
        f64::from(ROUNDS) / begun.elapsed().as_secs_f64()
    })
}

/// As a member it would be at 0.94 (Linux 6.18): so it leaves the map.
#[test]
#[ignore = "figure: prints ratios"]
fn half_passed_beside_tcp() {
    let stage = Stage::new();
    let ends = stage.connect(Lab::SERVER_V4);
    half_passed(&ends);
    let mut ratios: Vec<f64> = (0..11)
        .map(|round| {
            let bypassed = || {
                let running = stage.start();
                until("it has left", || {
                    half_passed(&ends);
                    let of = stage.connection(&ends).expect("it is there");
                    of.reason == Some(Reason::Passing) && of.state == State::Tcp
                });
                let rate = half_passed(&ends);
                running.stop();
                rate
            };
            let plain = || {
                half_passed(&ends);
                half_passed(&ends)
            };
            match round % 2 {
                0 => bypassed() / plain(),
                _ => 1.0 / (plain() / bypassed()),
            }
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "half of the messages would pass: {:.3} ({:.3} to {:.3})",
        ratios[5], ratios[2], ratios[8]
    );
}

/// The figures of docs/bypass.md.
#[test]
#[ignore = "figure: takes minutes, and prints ratios"]
fn beside_tcp() {
    let rounds = std::env::var("ROUNDS").map_or(7, |rounds| rounds.parse().expect("a number"));
    let only = std::env::var("ONLY").unwrap_or_default();
    for program in &ALL {
        if !program.name.contains(&only) {
            continue;
        }
        let stage = Stage::new();
        let scratch = Scratch::new(program.name).expect("a directory");
        let Some(server) = program.start(&stage, &scratch) else {
            continue;
        };
        server.load(&stage);
        let mut ratios = Vec::new();
        let mut shares = Vec::new();
        for round in 0..rounds {
            let mut figures = [0.0; 2];
            for turn in 0..2 {
                if (round + turn) % 2 == 0 {
                    figures[0] = server.load(&stage);
                } else {
                    let running = Running::start(&measuring(&stage));
                    shares.push(share(&stage, || figures[1] = server.load(&stage)));
                    running.stop();
                }
            }
            let [tcp, bypassed] = figures;
            ratios.push(match program.less_is_better {
                true => tcp / bypassed,
                false => bypassed / tcp,
            });
        }
        for values in [&mut ratios, &mut shares] {
            values.sort_by(f64::total_cmp);
        }
        let at = |of: f64| ratios[((ratios.len() - 1) as f64 * of).round() as usize];
        println!(
            "{}: {:.3} ({:.3} to {:.3}, all {:.3} to {:.3}), redirected {:.3}",
            program.name,
            at(0.5),
            at(0.25),
            at(0.75),
            at(0.0),
            at(1.0),
            shares[shares.len() / 2]
        );
    }
}
