//! `spliced top`: sessions, servers and engines, live on the whole terminal.
//!
//! ```text
//! keyboard ──keys──▶                          ┌──▶ view ──▶ screen
//! asker ──answers──▶ one channel ──▶ model ───┤
//! signals ─────────▶                          └──▶ asker: gives an order
//! ```

mod asker;
mod cursor;
mod dialog;
mod engines;
mod key;
mod keyboard;
mod known;
mod layout;
mod model;
mod order;
mod screen;
mod view;

use std::iter::once;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::consts::{SIGCONT, SIGQUIT, SIGTSTP, SIGWINCH};
use signal_hook::low_level::emulate_default_handler;

use self::asker::{Asked, Asker, News};
use self::key::Key;
use self::model::{Action, Model};
use self::screen::{Screen, give_back};
use crate::diagnostics::Diagnostics;
use crate::session_args::TopArgs;
use crate::signal::Signals;

/// How long a signal waits for the page that is being written: the terminal may read nothing.
const LAST_PAGE: Duration = Duration::from_secs(1);

/// How long an order may take that was given just before the end.
const LAST_ORDER: Duration = Duration::from_secs(2);

enum Event {
    Key(Key),
    News(News),
    Signal(i32),
    /// The terminal is gone.
    HungUp,
}

/// Shows what there is until a key ends it.
///
/// # Errors
/// If there is no terminal, or it is gone.
pub(crate) fn run(args: TopArgs, signals: Signals, diagnostics: &Diagnostics) -> Result<()> {
    let (events, received) = channel();
    let mut screen = Screen::open()?;
    let tell = events.clone();
    signals.hand_over(&[SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH], move |signal| {
        // It fails at the end only, and so do the others.
        let _ = tell.send(Event::Signal(signal));
        if ends(signal) {
            thread::sleep(LAST_PAGE);
            die(signal);
        }
    })?;
    let tell = events.clone();
    let asked = Asked {
        control: args.which.control.clone(),
        config: args.which.config.clone(),
        delay: args.delay,
    };
    let asker = Asker::start(asked, move |news| drop(tell.send(Event::News(news))))?;
    keyboard::start(move |key| drop(events.send(key.map_or(Event::HungUp, Event::Key))))?;
    let mut model = Model::new(&args, SystemTime::now());
    loop {
        let size = screen.size();
        model.resize(size);
        screen.draw(size, |buffer| view::draw(&model, buffer))?;
        // All that has come meanwhile is on the next page.
        let Ok(first) = received.recv() else {
            bail!("the threads of this program have ended; please report this bug");
        };
        for event in once(first).chain(received.try_iter()) {
            match event {
                Event::News(news) => model.news(news, SystemTime::now()),
                Event::Signal(SIGTSTP) => {
                    screen.leave();
                    emulate_default_handler(SIGTSTP)?;
                    screen.enter()?;
                }
                // Whoever has stopped it without asking may have used the terminal.
                Event::Signal(SIGCONT) => screen.enter()?,
                Event::Signal(SIGWINCH) => {}
                Event::Signal(signal) => {
                    diagnostics.finish();
                    die(signal);
                }
                Event::HungUp => bail!("the terminal is gone"),
                Event::Key(key) => match model.key(key) {
                    None => {}
                    Some(Action::Redraw) => screen.forget(),
                    // The shell waits for all that it has started together.
                    Some(Action::Suspend) => kill_current_process_group(Signal::TSTP)?,
                    Some(Action::Order(order)) => asker.order(order),
                    Some(Action::Quit) => {
                        screen.leave();
                        finish_orders(&model, &received);
                        return Ok(());
                    }
                },
            }
        }
    }
}

/// Waits until every order has an answer.
fn finish_orders(model: &Model, received: &Receiver<Event>) {
    let deadline = Instant::now() + LAST_ORDER;
    let mut left = model.orders;
    while left > 0 {
        let within = deadline.saturating_duration_since(Instant::now());
        match received.recv_timeout(within) {
            Ok(Event::News(News::Ordered(..))) => left -= 1,
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn ends(signal: i32) -> bool {
    ![SIGTSTP, SIGCONT, SIGWINCH].contains(&signal)
}

/// As the signal would have it, but with the terminal as it was.
fn die(signal: i32) {
    give_back();
    // It ends the process; otherwise nothing can be done.
    let _ = emulate_default_handler(signal);
}
