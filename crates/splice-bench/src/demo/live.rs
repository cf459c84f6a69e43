//! One live connection, watched while the library moves it into the kernel.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use splice::{Endpoint, EngineName, Handle, Options, Splicer};

use crate::results::count;
use crate::segment_counts::{Growth, SegmentCounts};
use crate::site::{Connection, PATIENCE, Site};
use crate::table::Table;

/// Its port is free: there are never so many contestants.
const INDEX: u16 = 500;

/// Bytes of a message, which goes to the server and back.
const MESSAGE_BYTES: usize = 1 << 10;

/// How often the counts of segments are read until then: many times before a connection moves at 50 ms.
const READ_EVERY: Duration = Duration::from_millis(5);

/// How long messages go on once the connection has moved.
const AFTERWARDS: Duration = Duration::from_millis(200);

/// The state of the connection at some time.
#[derive(Debug)]
pub(crate) struct Step {
    /// Since the connection began.
    at: Duration,
    engine: EngineName,
    why: String,
    /// Bytes moved, both ways together.
    moved: u64,
    /// Those of them that the kernel moved without this process.
    in_kernel: u64,
}

/// What was seen.
#[derive(Debug)]
pub(crate) struct Watched {
    steps: Vec<Step>,
    /// The counts of the segment programs that grew meanwhile.
    counted: splice::Result<SegmentCounts>,
}

impl Step {
    fn now(handle: &Handle, began: Instant) -> Self {
        let (engine, why) = handle.engine();
        Self {
            at: began.elapsed(),
            engine,
            why: why.into_owned(),
            moved: handle.counters().total(),
            in_kernel: handle.redirected().total(),
        }
    }
}

/// Joins one connection with the library where the relays run, keeps it busy, and watches it move.
/// Fails when it does not come to `segment` within `patience`.
pub(crate) fn watch(site: &Site, options: &Options, patience: Duration) -> Result<Watched> {
    let mut counted = SegmentCounts::now().map(Growth::from);
    let mut read = Instant::now();
    let address = Site::relay(INDEX);
    let relay = site.lab.relay();
    let listener = relay.enter(|| TcpListener::bind(address))?;
    let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
    let client = TcpStream::connect_timeout(&address, PATIENCE)?;
    // The library's thread belongs where the sockets are, as in a relay.
    let (_splicer, handle) = relay.enter(|| join(&listener, options))??;
    let began = Instant::now();
    let server = site.accept(PATIENCE)?;
    let server = server.context("the library's connection did not reach the server")?;
    let mut ends = Connection::of(client, server)?;

    let mut steps = vec![Step::now(&handle, began)];
    while handle.engine().0 != EngineName::Segment {
        if let Some(outcome) = handle.outcome() {
            bail!("the live connection ended early: {:?}", outcome.reason);
        }
        if began.elapsed() > patience {
            let (engine, why) = handle.engine();
            bail!(
                "the live connection stayed with {engine} for {:.1} s instead of moving to segment: \
                 {why}; `spliced doctor` says what this machine lacks",
                patience.as_secs_f64()
            );
        }
        exchange(&mut ends)?;
        // The kernel frees the counts of the relays that were measured before in its own time.
        if read.elapsed() > READ_EVERY {
            counted = follow(counted);
            read = Instant::now();
        }
    }
    steps.push(Step::now(&handle, began));
    let moved = Instant::now();
    while moved.elapsed() < AFTERWARDS {
        exchange(&mut ends)?;
    }
    let last = Step::now(&handle, began);
    ensure!(
        last.in_kernel > 0,
        "the live connection is said to be with segment, but the kernel has moved none of its {} bytes",
        last.moved
    );
    steps.push(last);
    let counted = follow(counted).map(Growth::all);
    Ok(Watched { steps, counted })
}

fn follow(counted: splice::Result<Growth>) -> splice::Result<Growth> {
    let mut counted = counted?;
    counted.follow(SegmentCounts::now()?);
    Ok(counted)
}

fn join(listener: &TcpListener, options: &Options) -> Result<(Splicer, Handle)> {
    let (near, _) = listener.accept().context("the client did not come")?;
    let far = TcpStream::connect_timeout(&Site::server(), PATIENCE)?;
    for socket in [&near, &far] {
        socket.set_nodelay(true)?;
    }
    let splicer = Splicer::new(1)?;
    let handle = splicer.join(Endpoint::new(near)?, Endpoint::new(far)?, options)?;
    Ok((splicer, handle))
}

/// A message to the server and back.
fn exchange(Connection { client, server }: &mut Connection) -> Result<()> {
    let mut message = [0; MESSAGE_BYTES];
    for (from, to) in [(&*client, &*server), (&*server, &*client)] {
        let (mut from, mut to) = (from, to);
        from.write_all(&message)
            .context("the live connection stopped")?;
        to.read_exact(&mut message)
            .context("the live connection stopped")?;
    }
    Ok(())
}

/// The steps in a table, what they mean, and what became of the segments.
pub(crate) fn told(Watched { steps, counted }: &Watched) -> String {
    let headings = [
        "engine",
        "why",
        "after ms",
        "bytes moved",
        "by the kernel alone",
    ];
    let mut table = Table::new(&headings).align_left(2);
    for step in steps {
        table.push(vec![
            step.engine.to_string(),
            step.why.clone(),
            format!("{:.1}", step.at.as_secs_f64() * 1e3),
            count(step.moved),
            count(step.in_kernel),
        ]);
    }
    let counted = match counted {
        Ok(counted) => {
            format!("What became of its segments, by the names of docs/segment.md: {counted}")
        }
        Err(error) => format!("What became of its segments is not known: {error}"),
    };
    format!(
        "One live connection, joined by the library and kept busy with messages:\n\n{table}\n{counted}\n"
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netlab::{Need, available};
    use splice::{EngineChoice, EngineName, Options};

    use super::{SegmentCounts, Step, Watched, told, watch};
    use crate::cpus::Placement;
    use crate::site::{PATIENCE, Site};

    fn watched(options: &Options, patience: Duration) -> anyhow::Result<Watched> {
        let site = Site::build(Placement::Spread).expect("root may");
        site.enter(|| watch(&site, options, patience))
    }

    #[test]
    fn a_connection_moves_from_copy_to_segment_with_its_counters() {
        if !available(Need::Netns) || !available(Need::Bpf) {
            return;
        }
        let watched = watched(&Options::default(), PATIENCE).expect("it moves");
        let steps = &watched.steps;
        let engines: Vec<EngineName> = steps.iter().map(|step| step.engine).collect();
        assert_eq!(
            engines,
            [EngineName::Copy, EngineName::Segment, EngineName::Segment],
            "{}",
            told(&watched)
        );
        let [first, .., last] = &steps[..] else {
            unreachable!("there are three")
        };
        assert_eq!(first.in_kernel, 0);
        assert!(
            last.in_kernel > 0 && last.moved >= last.in_kernel,
            "{last:?}"
        );
        let counted = watched.counted.expect("root may read it").0;
        assert!(
            counted.iter().any(|(name, _)| *name == "translated"),
            "{counted:?}"
        );
    }

    #[test]
    fn a_connection_that_does_not_move_is_an_error() {
        if !available(Need::Netns) {
            return;
        }
        let options = Options {
            engine: EngineChoice::Only(EngineName::Copy),
            ..Options::default()
        };
        let error = watched(&options, Duration::from_millis(300))
            .expect_err("it stays")
            .to_string();
        assert!(error.contains("stayed with copy"), "{error}");
    }

    #[test]
    fn steps_are_told_in_rows() {
        let step = Step {
            at: Duration::from_micros(51_300),
            engine: EngineName::Segment,
            why: "it lives".into(),
            moved: 123_456,
            in_kernel: 1_024,
        };
        let text = told(&Watched {
            steps: vec![step],
            counted: Ok(SegmentCounts(vec![("translated", 3), ("silenced", 1)])),
        });
        assert!(text.ends_with(": translated 3, silenced 1\n"), "{text}");
        let row = text.lines().find(|line| line.starts_with("segment"));
        let row = row.expect("a row");
        let cells: Vec<&str> = row.split("  ").filter(|cell| !cell.is_empty()).collect();
        assert_eq!(
            cells.iter().map(|cell| cell.trim()).collect::<Vec<_>>(),
            ["segment", "it lives", "51.3", "123\u{202f}456", "1024"]
        );
    }
}
