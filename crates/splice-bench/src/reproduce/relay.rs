//! `reproduce relay`: ping-pong through a proxy between two veths.

use std::process::ExitCode;

use anyhow::Result;

use super::arguments;
use super::latency::{About as Ping, MESSAGE_BYTES, Paths};
use super::record::{About, Record, output, print_absent};
use super::{absent, chosen, own_paths, told, turns};
use crate::cpus::Placement;
use crate::entrant::Entrant;
use crate::site::Site;
use crate::usage::{program, require_root};
use crate::workload::{Window, ping_pong};

/// What the ratios are to: a proxy that reads and writes, as in the talk.
const REFERENCE: &str = "spliced copy";

pub(crate) fn run(arguments: &arguments::Rounds) -> Result<ExitCode> {
    require_root("reproduce relay")?;
    let spliced = program(&arguments.who.spliced)?;
    let output = output(&arguments.shared)?;
    let contestants = chosen(own_paths().collect(), &arguments.who.only, &[REFERENCE])?;
    let extent = arguments.extent.sized(arguments.shared.quick);
    let record = Record::begin()?;
    let site = Site::build(Placement::Pinned(arguments.shared.cpu))?;
    let (paths, missing) = site.enter(|| {
        let (entrants, missing) = Entrant::start_all(&site, &spliced, &contestants)?;
        let names: Vec<String> = entrants.iter().map(|one| one.contestant.name()).collect();
        let mut paths = Paths::new(&names);
        for index in turns(extent.rounds, entrants.len()) {
            let window = Window::of(extent.window());
            let address = entrants[index].address();
            let path = &mut paths.all[index];
            let outcome = ping_pong::play(&site, address, MESSAGE_BYTES, window)
                .map(|round_trips| path.add(&round_trips));
            if outcome.is_err() {
                site.drain()?;
            }
            path.note(outcome);
        }
        Ok((paths, missing))
    })?;
    println!(
        "Client, proxy and server in three namespaces joined by two veths share CPU {}, kept awake; \
         messages of {MESSAGE_BYTES} bytes; {} interleaved rounds.\nOne way, half of the round trip, \
         in µs; in brackets the ratio to {REFERENCE}. The talk (2024, three CPUs, 30 s each): a proxy \
         without SOCKMAP 23.8 ± 16.1, p50 23.8, p99 33.4, p99.9 82.9; with it 20.0 ± 5.7, p50 18.4, p99 \
         38.3, p99.9 64.3.\n",
        arguments.shared.cpu, extent.rounds
    );
    paths.print(REFERENCE);
    let missing = absent(&missing);
    print_absent(&missing);
    let ping = Ping {
        id: "relay",
        title: "Ping-pong through a proxy",
        description: "A message there and back through a proxy in a namespace of its own, between \
                      two veths.",
        reference: REFERENCE,
    };
    let workload = paths.workload(&ping, output.as_ref())?;
    let about = About {
        site: &site,
        title: "splice-bench reproduce relay",
        cpu: arguments.shared.cpu,
        rounds: extent.rounds,
        warm_up: "a tenth of each measurement",
        spliced: Some(&spliced),
        contestants: told(&contestants),
        absent: missing,
        notes: Vec::new(),
    };
    record.finish(output.as_ref(), about, vec![workload], paths.is_sound())
}
