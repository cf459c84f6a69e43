//! `spliced bypass`: runs a bypass, shows what it does and what it redirects, and ends it.
//!
//! ```text
//!          a signal, off                all is read
//! running ───────────────▶ members leave ──────────▶ over
//!                               │ 10 s, or a second signal
//!                               ▼
//!                          over; the pins stay for what is unread, and all else goes over TCP
//! ```

mod capture;
pub(crate) mod control_group;
mod demo;
mod own_group;
mod pcapng;
mod report;
mod running;

use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use splice::bypass::{Options, Rules, off};

use crate::bypass_args::{Action, BypassArgs, PinsArgs, StartArgs};
use crate::diagnostics::Diagnostics;
use crate::exit_status::Ended;
use crate::refusal::WrongUsage;
use crate::signal::{Request, Signals};
use crate::standard_output::print;

pub(crate) use self::control_group::check as check_group;
pub(crate) use self::own_group::OwnGroup;
pub(crate) use self::running::{Group, Interrupted, Running};

/// How long members may take to read what was redirected to them.
pub(crate) const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// Does what was asked for.
///
/// # Errors
/// If it cannot start, or cannot be read or ended.
pub(crate) fn run(args: BypassArgs, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    match args.action {
        None if args.demo.demo => {
            let pins = &args.start.pins.pins;
            demo::run(args.demo.json, pins, signals, diagnostics)
        }
        None => start(args.start, signals, diagnostics),
        Some(Action::Status(args)) => {
            signals.leave_to_default()?;
            report::show(&args).map(|()| Ended::Well)
        }
        Some(Action::Capture(args)) => capture::run(&args, signals, diagnostics),
        Some(Action::Off(PinsArgs { pins })) => {
            signals.leave_to_default()?;
            let shown = pins.display();
            let told = match off(&pins, LEAVE_WITHIN)? {
                true => format!("the bypass with its pins in {shown} is off\n"),
                false => format!("no bypass has its pins in {shown}\n"),
            };
            print(&told).map(|()| Ended::Well)
        }
    }
}

enum Event {
    Signal,
    Over,
}

fn start(args: StartArgs, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    let wrong = |why: String| anyhow::Error::from(WrongUsage::new(why));
    if args.cgroup.is_empty() {
        return Err(wrong(
            "a bypass needs the control groups whose processes it covers: give --cgroup PATH"
                .into(),
        ));
    }
    let groups = args.cgroup.iter().map(|path| check_group(path, args.all));
    let groups = groups.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    let options = options(groups, args);
    let (sender, events) = mpsc::channel();
    let progress = signals.watch(diagnostics.clone(), false, {
        let sender = sender.clone();
        move |request| {
            if request == Request::Stop {
                // Nobody receives once it is over.
                let _ = sender.send(Event::Signal);
            }
        }
    })?;
    // From then on there are pins to remove.
    progress.running();
    let running = Running::start(&options, move || drop(sender.send(Event::Over)))?;
    for asked in [Running::ask_to_stop, Running::give_up] {
        match events.recv() {
            Ok(Event::Signal) => asked(&running),
            _ => break,
        }
    }
    running.join()
}

fn options(groups: Vec<std::path::PathBuf>, args: StartArgs) -> Options {
    Options {
        rules: Rules {
            allow: args.allow,
            deny: args.deny,
        },
        pins: args.pins.pins,
        bulk_bytes: args.bulk_bytes,
        despite_fionread: args.despite_fionread,
        bypass_firewall: args.bypass_firewall,
        ..Options::of(groups)
    }
}
