//! `spliced bypass --demo`: round trips between network namespaces, by TCP and past it.

mod game;
mod report;
mod stage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use self::game::Game;
use self::report::Report;
use self::stage::Stage;
use super::own_group::OwnGroup;
use crate::diagnostics::Diagnostics;
use crate::exit_status::Ended;
use crate::signal::{Request, Signals};
use crate::standard_output::print;

/// As in the talk.
const MESSAGE_BYTES: usize = 64;

/// Ways take turns, so that whatever else this machine does hits all of them.
const ROUNDS: u32 = 3;
const ROUND: Duration = Duration::from_millis(500);

/// Before each of them.
const WARM_UP: Duration = Duration::from_millis(50);

/// What the control group of a demonstration is called, before the number of the process.
const GROUP: &str = "spliced-demo-";

/// What messages go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Tcp,
    SendToLocal,
    Bypass,
    ThroughProxy,
    SendToEgress,
}

impl Way {
    const ALL: [Self; 5] = [
        Self::Tcp,
        Self::SendToLocal,
        Self::Bypass,
        Self::ThroughProxy,
        Self::SendToEgress,
    ];

    /// Whether a proxy is between client and server.
    fn has_proxy(self) -> bool {
        matches!(self, Self::ThroughProxy | Self::SendToEgress)
    }

    /// The same way by TCP alone.
    fn by_tcp(self) -> Self {
        match self.has_proxy() {
            true => Self::ThroughProxy,
            false => Self::Tcp,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::SendToLocal => "send to local",
            Self::Bypass => "'spliced bypass'",
            Self::ThroughProxy => "TCP, copied by the proxy",
            Self::SendToEgress => "send to egress",
        }
    }

    /// Which redirect of SOCKMAP it is.
    fn redirect(self) -> Option<&'static str> {
        match self {
            Self::Tcp | Self::ThroughProxy => None,
            Self::SendToLocal | Self::Bypass => Some("send to local"),
            Self::SendToEgress => Some("send to egress"),
        }
    }
}

/// What was measured on one way.
#[derive(Debug)]
struct Measured {
    way: Way,
    /// Half of each round trip.
    one_way_ns: Vec<u64>,
    redirected: u64,
}

/// Runs it and prints what it has measured.
///
/// # Errors
/// Without the rights, if the kernel lacks something, or if a signal ended it.
pub(super) fn run(
    json: bool,
    pins: &Path,
    signals: Signals,
    diagnostics: &Diagnostics,
) -> Result<Ended> {
    let is_over = Arc::new(AtomicBool::new(false));
    let progress = signals.watch(diagnostics.clone(), false, {
        let is_over = Arc::clone(&is_over);
        move |request| {
            if request == Request::Stop {
                is_over.store(true, Ordering::Relaxed);
            }
        }
    })?;
    progress.running();
    // The next demonstration clears what one leaves that was killed.
    let mut own = pins.as_os_str().to_owned();
    own.push("-demo");
    let pins = PathBuf::from(own);
    let cpu = game::pin_to_one_cpu()?;
    let group = OwnGroup::of_process(GROUP)?;
    let stage = Stage::new()?;
    let mut all = Way::ALL.map(|way| Measured {
        way,
        one_way_ns: Vec::new(),
        redirected: 0,
    });
    for _ in 0..ROUNDS {
        for measured in &mut all {
            let way = measured.way;
            round(&stage, (&group, &pins), measured, &is_over)
                .with_context(|| format!("cannot measure {}", way.as_str()))?;
        }
    }
    drop(stage);
    drop(group);
    let report = Report::of(cpu, &mut all);
    print(&match json {
        true => serde_json::to_string_pretty(&report).context("cannot write JSON")? + "\n",
        false => report.table(),
    })?;
    Ok(Ended::Well)
}

fn round(
    stage: &Stage,
    own: (&OwnGroup, &Path),
    measured: &mut Measured,
    is_over: &AtomicBool,
) -> Result<()> {
    let players = stage.players(measured.way.has_proxy())?;
    let redirecting = stage::Redirecting::begin(measured.way, own, &players)?;
    let mut game = Game::begin(players, measured.way != Way::SendToEgress)?;
    redirecting.until_taken(&mut game)?;
    game.play(WARM_UP, &mut Vec::new())?;
    let before = redirecting.redirected()?;
    game.play(ROUND, &mut measured.one_way_ns)?;
    measured.redirected += redirecting.redirected()? - before;
    game.end()?;
    redirecting.end()?;
    if is_over.load(Ordering::Relaxed) {
        bail!("a signal has ended the demonstration");
    }
    Ok(())
}
