//! A terminal with a program in it, as a person sees it.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use netlab::Process;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcsetwinsize};
use vt100::{Parser, Screen};

use crate::patience::{PATIENCE, until};
use crate::relay::BINARY;

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// As wide and as high as this.
pub(crate) type Size = (u16, u16);

pub(crate) struct Terminal {
    process: Process,
    /// `None` once it has hung up.
    master: Option<File>,
    slave: OwnedFd,
    /// The modes before the program.
    before: Termios,
    emulator: Parser,
}

impl Terminal {
    /// `spliced top` with `arguments`, as the leader of a session.
    pub(crate) fn top(size: Size, arguments: &[&str]) -> Self {
        Self::start(size, &["--ctty", BINARY], arguments)
    }

    /// The same on a terminal that sends no signal when it hangs up.
    pub(crate) fn top_without_control(size: Size, arguments: &[&str]) -> Self {
        Self::start(size, &[BINARY], arguments)
    }

    fn start((width, height): Size, program: &[&str], arguments: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let slave = ioctl_tiocgptpeer(&master, flags).expect("its other side");
        fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK).expect("set");
        tcsetwinsize(&master, winsize((width, height))).expect("set");
        let before = tcgetattr(&slave).expect("its modes");
        let mut command: Command = Process::command("setsid");
        let end = || slave.try_clone().expect("a descriptor");
        command
            .args(program)
            .arg("top")
            .args(arguments)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .env_remove("SPLICED_LOG")
            .stdin(end())
            .stdout(end())
            .stderr(end());
        Self {
            process: Process::spawn(&mut command).expect("it starts"),
            master: Some(master.into()),
            before,
            slave,
            emulator: Parser::new(height, width, 0),
        }
    }

    /// Types `keys`.
    pub(crate) fn press(&mut self, keys: &str) {
        let master = self.master.as_mut().expect("not hung up");
        master.write_all(keys.as_bytes()).expect("typed");
    }

    pub(crate) fn resize(&mut self, (width, height): Size) {
        let master = self.master.as_ref().expect("not hung up");
        // vt100 0.16 does not scroll a single line, as by a page for the size before (`col_wrap`).
        let screen = self.emulator.screen_mut();
        screen.set_size(height.max(2), width.max(2));
        // What was there is no answer.
        self.emulator.process(b"\x1b[2J");
        tcsetwinsize(master, winsize((width, height))).expect("set");
    }

    /// What is on it now.
    pub(crate) fn screen(&mut self) -> &Screen {
        let mut bytes = [0; 1 << 16];
        while let Some(master) = &mut self.master {
            match master.read(&mut bytes) {
                Ok(count) => self.emulator.process(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("reading the terminal: {error}"),
            }
        }
        self.emulator.screen()
    }

    /// Its lines, without blanks at their ends.
    pub(crate) fn lines(&mut self) -> Vec<String> {
        let screen = self.screen();
        let (_, width) = screen.size();
        screen
            .rows(0, width)
            .map(|line| line.trim_end().into())
            .collect()
    }

    /// Waits until it shows what `is_there` looks for, and returns the lines.
    pub(crate) fn until(
        &mut self,
        what: &str,
        is_there: impl Fn(&[String]) -> bool,
    ) -> Vec<String> {
        let start = Instant::now();
        loop {
            let lines = self.lines();
            if is_there(&lines) {
                return lines;
            }
            let shown = lines.join("\n");
            assert!(
                start.elapsed() < PATIENCE,
                "waited in vain until {what}:\n{shown}"
            );
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until a line has `text`.
    pub(crate) fn until_shown(&mut self, text: &str) -> Vec<String> {
        self.until(text, |lines| lines.iter().any(|line| line.contains(text)))
    }

    /// Waits until no line has `text`.
    pub(crate) fn until_gone(&mut self, text: &str) -> Vec<String> {
        let what = format!("there is no {text}");
        self.until(&what, |lines| lines.iter().all(|line| !line.contains(text)))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal).expect("it can be signalled");
    }

    /// The state of the program, as in `/proc`.
    pub(crate) fn state(&self) -> char {
        let path = format!("/proc/{}/stat", self.process.id());
        let stat = std::fs::read_to_string(path).expect("it is not reaped");
        let (_, after_name) = stat.rsplit_once(") ").expect("a state");
        after_name.chars().next().expect("a state")
    }

    /// Whether the program has the keys and all of the screen.
    pub(crate) fn is_taken(&mut self) -> bool {
        let modes = tcgetattr(&self.slave).expect("its modes").local_modes;
        let is_raw = !modes.intersects(LocalModes::ICANON | LocalModes::ECHO);
        let screen = self.screen();
        is_raw && screen.alternate_screen() && screen.hide_cursor()
    }

    /// The terminal has to be as before the program.
    pub(crate) fn expect_as_before(&mut self) {
        self.expect_modes_as_before();
        let screen = self.screen();
        assert!(!screen.alternate_screen(), "the screen was not left");
        assert!(!screen.hide_cursor(), "there is no cursor");
    }

    pub(crate) fn expect_modes_as_before(&self) {
        let modes = tcgetattr(&self.slave).expect("its modes");
        let before = &self.before;
        assert_eq!(modes.input_modes, before.input_modes);
        assert_eq!(modes.output_modes, before.output_modes);
        assert_eq!(modes.control_modes, before.control_modes);
        assert_eq!(modes.local_modes, before.local_modes);
    }

    pub(crate) fn wait_end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            // Otherwise it could wait for a reader.
            self.screen();
            if let Some(status) = self.process.try_wait().expect("wait") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until the program waits for somebody to read the terminal.
    pub(crate) fn until_full(&mut self) {
        // `n_tty_write` waits there, and reads are of another thread.
        let wait = format!("/proc/{}/wchan", self.process.id());
        until("its terminal is full", || {
            // All of the page again.
            self.press("\x0c");
            std::fs::read_to_string(&wait).expect("where it waits") == "wait_woken"
        });
    }

    /// The same as [`wait_end`](Self::wait_end), and nobody reads the terminal.
    pub(crate) fn wait_end_unread(&mut self) -> ExitStatus {
        let ended = self.process.wait_at_most(PATIENCE).expect("wait");
        ended.expect("it ends")
    }

    /// The terminal goes away.
    pub(crate) fn hang_up(&mut self) {
        self.master = None;
    }

    pub(crate) fn until_stopped(&self) {
        until("it is stopped", || self.state() == 'T');
    }
}

fn winsize((width, height): Size) -> Winsize {
    Winsize {
        ws_row: height,
        ws_col: width,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}
