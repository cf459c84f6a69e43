//! The terminal: its modes, and what is on it.
//!
//! ```text
//!            open                    leave, a signal, a panic, drop
//! as it was ──────▶ raw, full screen ───────────────────────────────▶ as it was
//!                         ▲   enter                                     │
//!                         └─────────────────────────────────────────────┘
//! ```

use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic;
use std::process::exit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::queue;
use crossterm::style::{Attribute, Print, SetAttribute, SetForegroundColor};
use crossterm::terminal::{
    Clear, ClearType, DisableLineWrap, EnableLineWrap, EnterAlternateScreen, LeaveAlternateScreen,
};
use ratatui_core::buffer::{Buffer, Cell};
use ratatui_core::layout::{Rect, Size};
use ratatui_core::style::{Color, Modifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, write};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::refusal::WrongUsage;

/// What the terminal was like before, while it is not so.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The exit status of a program that panics.
const PANICKED: i32 = 101;

/// A terminal that says that it has no size is taken for the usual one.
const USUAL: Size = Size::new(80, 24);

#[derive(Debug)]
pub(super) struct Screen {
    /// What is on it; `None` if that is not known.
    shown: Option<Buffer>,
}

impl Screen {
    /// Takes the terminal, and gives it back if the program panics.
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn open() -> Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            let sentence = "standard input and output have to be a terminal; use 'spliced sessions' or 'spliced status' elsewhere";
            return Err(WrongUsage::new(sentence.into()).into());
        }
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            give_back();
            usual(panic);
            // In another thread it would go on with a page that is never new again.
            exit(PANICKED);
        }));
        let mut screen = Self { shown: None };
        screen.enter()?;
        Ok(screen)
    }

    /// Takes the terminal, maybe once more: somebody else may have had it.
    ///
    /// # Errors
    /// If it is gone.
    pub(super) fn enter(&mut self) -> Result<()> {
        self.shown = None;
        let input = io::stdin();
        let mut termios = tcgetattr(&input).context("cannot read the modes of the terminal")?;
        {
            let mut before = before();
            match &*before {
                Some(before) => termios = before.clone(),
                None => *before = Some(termios.clone()),
            }
        }
        termios.make_raw();
        tcsetattr(&input, OptionalActions::Now, &termios)
            .context("cannot set the modes of the terminal")?;
        let mut text = Vec::new();
        queue!(text, EnterAlternateScreen, DisableLineWrap, Hide)?;
        write_all(&text)
    }

    /// Gives the terminal back.
    pub(super) fn leave(&mut self) {
        self.shown = None;
        give_back();
    }

    /// What is on the terminal is to be written again.
    pub(super) fn forget(&mut self) {
        self.shown = None;
    }

    pub(super) fn size(&self) -> Size {
        let size = tcgetwinsize(io::stdout());
        let size = size.map(|size| Size::new(size.ws_col, size.ws_row));
        size.ok()
            .filter(|size| size.width > 0 && size.height > 0)
            .unwrap_or(USUAL)
    }

    /// Shows what `view` draws, by what has changed.
    ///
    /// # Errors
    /// If the terminal is gone.
    pub(super) fn draw(&mut self, size: Size, view: impl FnOnce(&mut Buffer)) -> Result<()> {
        let area = Rect::from((ratatui_core::layout::Position::ORIGIN, size));
        let mut text = Vec::new();
        let before = match self.shown.take().filter(|shown| shown.area == area) {
            Some(shown) => shown,
            None => {
                queue!(text, SetAttribute(Attribute::Reset), Clear(ClearType::All))?;
                Buffer::empty(area)
            }
        };
        let mut next = Buffer::empty(area);
        view(&mut next);
        encode(&mut text, before.diff_iter(&next))?;
        self.shown = Some(next);
        write_all(&text)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, from whichever thread. It waits for nothing.
pub(super) fn give_back() {
    let Some(termios) = before().take() else {
        return;
    };
    // If it fails, the terminal is gone.
    let _ = tcsetattr(io::stdin(), OptionalActions::Now, &termios);
    let mut text = Vec::new();
    let attributes = SetAttribute(Attribute::Reset);
    let encoded = queue!(text, attributes, EnableLineWrap, LeaveAlternateScreen, Show);
    let output = io::stdout();
    let mut ready = [PollFd::new(&output, PollFlags::OUT)];
    let at_once = Timespec::default();
    if encoded.is_ok() && poll(&mut ready, Some(&at_once)) == Ok(1) {
        let _ = write(&output, &text);
    }
}

fn before() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Errors
/// Of the encoder, which has none: the text is in memory.
fn encode<'a>(
    text: &mut Vec<u8>,
    cells: impl Iterator<Item = (u16, u16, &'a Cell)>,
) -> io::Result<()> {
    let mut style = (Color::Reset, Modifier::empty());
    let mut next = None;
    for (x, y, cell) in cells {
        if next != Some((x, y)) {
            queue!(text, MoveTo(x, y))?;
        }
        next = Some((x + 1, y));
        if style != (cell.fg, cell.modifier) {
            style = (cell.fg, cell.modifier);
            queue!(text, SetAttribute(Attribute::Reset))?;
            for (modifier, attribute) in [
                (Modifier::BOLD, Attribute::Bold),
                (Modifier::DIM, Attribute::Dim),
                (Modifier::REVERSED, Attribute::Reverse),
            ] {
                if cell.modifier.contains(modifier) {
                    queue!(text, SetAttribute(attribute))?;
                }
            }
            if let Some(colour) = colour(cell.fg) {
                queue!(text, SetForegroundColor(colour))?;
            }
        }
        queue!(text, Print(cell.symbol()))?;
    }
    queue!(text, SetAttribute(Attribute::Reset))
}

/// Those that the view uses.
fn colour(colour: Color) -> Option<crossterm::style::Color> {
    match colour {
        Color::Red => Some(crossterm::style::Color::DarkRed),
        Color::Yellow => Some(crossterm::style::Color::DarkYellow),
        _ => None,
    }
}

/// # Errors
/// If the terminal is gone.
fn write_all(mut text: &[u8]) -> Result<()> {
    let output = io::stdout();
    while !text.is_empty() {
        match write(&output, text) {
            Ok(count) => text = &text[count..],
            Err(Errno::INTR) => {}
            // A program before this one has left it non-blocking.
            Err(Errno::AGAIN) => wait_for_room(output.as_fd())?,
            Err(errno) => return Err(errno).context("cannot write to the terminal"),
        }
    }
    Ok(())
}

fn wait_for_room(output: BorrowedFd<'_>) -> Result<()> {
    match poll(&mut [PollFd::new(&output, PollFlags::OUT)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno).context("cannot wait for the terminal"),
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::io::Read as _;
    use std::process::Command;
    use std::thread;

    use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
    use vt100::Parser;

    use super::*;

    /// The program that runs the test panics on the terminal of another run.
    const PANICS: &str = "SPLICED_TEST_PANICS";

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_told() {
        if env::var_os(PANICS).is_some() {
            let mut screen = Screen::open().expect("a terminal");
            let drawn = screen.draw(USUAL, |page| {
                page.set_string(0, 0, "PAGE", ratatui_core::style::Style::new());
            });
            drawn.expect("a terminal");
            // Of a thread that nobody waits for.
            thread::spawn(|| panic!("a bug"));
            loop {
                thread::park();
            }
        }
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let slave = ioctl_tiocgptpeer(&master, flags).expect("its other side");
        let before = tcgetattr(&slave).expect("its modes");
        let end = || slave.try_clone().expect("a descriptor");
        let (_, module) = module_path!().split_once("::").expect("a module");
        let name = format!("{module}::a_panic_gives_the_terminal_back_before_it_is_told");
        let mut child = Command::new(env::current_exe().expect("this program"));
        let child = child.args(["--exact", &name, "--nocapture"]);
        let child = child.env(PANICS, "1").env("RUST_BACKTRACE", "0");
        let child = child.stdin(end()).stdout(end()).stderr(end());
        let status = child.status().expect("it runs");
        let mut bytes = vec![0; 1 << 16];
        let mut master = File::from(master);
        let count = master.read(&mut bytes).expect("what it has written");
        let mut emulator = Parser::new(USUAL.height, USUAL.width, 0);
        emulator.process(&bytes[..count]);
        let screen = emulator.screen();
        let left = screen.contents();
        assert_eq!(status.code(), Some(PANICKED), "{left}");
        assert!(left.contains("a bug") && !left.contains("PAGE"), "{left}");
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
        let written = String::from_utf8_lossy(&bytes[..count]);
        assert!(written.contains("PAGE"), "it was never taken");
        let after = tcgetattr(&slave).expect("its modes");
        assert_eq!(after.local_modes, before.local_modes);
        assert_eq!(after.input_modes, before.input_modes);
        assert_eq!(after.output_modes, before.output_modes);
    }
}
