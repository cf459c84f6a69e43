//! A log that never blocks its users: a bounded queue of lines, and the thread that writes them.
//!
//! ```text
//!          a line                       written
//! asleep ─────────▶ writing ────────────────────────────▶ asleep
//!                    │   ▲
//!   the write fails, │   │ it works again: reports the lost lines
//!   or blocks        ▼   │
//!                    stuck (lines wait; once the queue is full they are dropped and counted)
//!
//! any ──finish──▶ writes the lines that wait ──▶ over; a failing write ends it as well
//! ```
//!
//! The crate `tracing-appender` has such a thread, but ignores write errors: with a full disk it loses
//! lines without counting them and leaves incomplete ones. It may also block on stdout when the program
//! ends.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::log_sink::LogSink;
use crate::log_state::LogState;

/// The pause before a failed write is tried again: short for an operator who has just made room, long
/// enough to cost nothing.
const RETRY_EVERY: Duration = Duration::from_secs(1);

/// Hears what happens to a log.
pub(crate) trait Reporter: Send + 'static {
    /// A write has failed, for the first time since writing worked.
    fn failed(&mut self, error: &io::Error);

    /// Writing works again after `lost` lines were dropped. Returns a line for the log itself, in place of
    /// the lost ones.
    fn recovered(&mut self, lost: u64) -> Option<Vec<u8>>;

    /// The sink was reopened on request.
    fn reopened(&mut self, result: io::Result<()>);
}

/// The sending end of the queue, for any number of threads. When the last one is dropped, the writer writes
/// what waits, and ends.
#[derive(Clone, Debug)]
pub(crate) struct LogQueue(Arc<Senders>);

#[derive(Debug)]
struct Senders(Arc<Shared>);

impl Drop for Senders {
    fn drop(&mut self) {
        self.0.lock().closing = true;
        self.0.to_writer.notify_one();
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the writer: there is a line or a request.
    to_writer: Condvar,
    ended: Condvar,
    capacity_lines: usize,
    /// What others may know of it; logs of one name share it.
    told: Arc<LogState>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// Lines that the writer has taken and not yet written.
    in_flight: usize,
    /// Lines that were dropped after those that wait, and not yet reported.
    dropped: u64,
    /// The writer waits for a line; waking it costs a system call.
    asleep: bool,
    reopen: bool,
    closing: bool,
    ended: bool,
}

/// How a log ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// Lines that are missing in the log without a report.
    pub(crate) lost: u64,
    /// The writer still waits for a reader.
    pub(crate) stalled: bool,
}

impl LogQueue {
    /// The most lines that may wait: two seconds at the highest rate of ending connections that the bench
    /// has seen (8000 a second), about 5 MB.
    pub(crate) const CAPACITY_LINES: usize = 16 * 1024;

    /// Starts the thread, called `name`, that writes to `sink`.
    #[cfg_attr(
        not(any(test, target_arch = "x86_64")),
        expect(
            dead_code,
            reason = "spliced adopt, which uses it, works on x86-64 only so far"
        )
    )]
    pub(crate) fn start(
        name: &str,
        sink: impl LogSink,
        reporter: impl Reporter,
    ) -> io::Result<Self> {
        Self::telling(Arc::default(), name, sink, reporter)
    }

    /// The same, with what happens to it told to `state`.
    pub(crate) fn telling(
        state: Arc<LogState>,
        name: &str,
        sink: impl LogSink,
        reporter: impl Reporter,
    ) -> io::Result<Self> {
        Self::with_capacity(Self::CAPACITY_LINES, state, name, sink, reporter)
    }

    fn with_capacity(
        capacity_lines: usize,
        told: Arc<LogState>,
        name: &str,
        sink: impl LogSink,
        reporter: impl Reporter,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            to_writer: Condvar::new(),
            ended: Condvar::new(),
            capacity_lines,
            told,
        });
        let writer = Writer {
            shared: Arc::clone(&shared),
            sink,
            reporter,
            failing: false,
        };
        thread::Builder::new()
            .name(name.into())
            .spawn(move || writer.run())?;
        Ok(Self(Arc::new(Senders(shared))))
    }

    /// Adds a line, its newline included. Never blocks: if the queue is full, the line is dropped and
    /// counted.
    pub(crate) fn push(&self, line: Vec<u8>) {
        let mut state = self.0.0.lock();
        if state.ended || state.waiting.len() >= self.0.0.capacity_lines {
            state.dropped += 1;
            self.0.0.told.has_lost(1);
            return;
        }
        self.0.0.told.waits();
        state.waiting.push_back(line);
        if std::mem::take(&mut state.asleep) {
            drop(state);
            self.0.0.to_writer.notify_one();
        }
    }

    /// Has the sink reopened. Lines that are pushed from now on go to the new one.
    pub(crate) fn reopen(&self) {
        self.0.0.lock().reopen = true;
        self.0.0.to_writer.notify_one();
    }

    /// Whether nothing waits to be written, and nobody else has an end to send more.
    pub(crate) fn is_over(&self) -> bool {
        let is_last = Arc::strong_count(&self.0) == 1;
        let state = self.0.0.lock();
        is_last && state.waiting.is_empty() && state.in_flight == 0
    }

    /// Waits until everything is written, at most for `time`.
    pub(crate) fn finish(&self, time: Duration) -> Finished {
        let mut state = self.0.0.lock();
        state.closing = true;
        self.0.0.to_writer.notify_one();
        let (state, _) = self
            .0
            .0
            .ended
            .wait_timeout_while(state, time, |state| !state.ended)
            .unwrap_or_else(PoisonError::into_inner);
        Finished {
            lost: state.dropped + (state.waiting.len() + state.in_flight) as u64,
            stalled: !state.ended,
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No change of the state can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that writes.
struct Writer<S, R> {
    shared: Arc<Shared>,
    sink: S,
    reporter: R,
    /// A failure has been reported, the recovery has not.
    failing: bool,
}

/// Marks the log as ended on drop, also if the thread panics.
struct Ending(Arc<Shared>);

impl Drop for Ending {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        // Nobody writes what waits any more.
        let left = (state.waiting.len() + state.in_flight) as u64;
        self.0.told.has_lost(left);
        self.0.told.has_done(left);
        drop(state);
        self.0.ended.notify_all();
    }
}

/// The log cannot be written, and the program is ending.
struct GivenUp;

impl<S: LogSink, R: Reporter> Writer<S, R> {
    fn run(mut self) {
        let _ending = Ending(Arc::clone(&self.shared));
        if let Err(error) = self.sink.ready() {
            self.failed(&error);
        }
        while let Some((lines, dropped)) = self.take() {
            for line in lines {
                if self.write(&line).is_err() {
                    return;
                }
                self.shared.lock().in_flight -= 1;
                self.shared.told.has_done(1);
            }
            if self.report_recovery(dropped).is_err() {
                return;
            }
        }
    }

    /// All lines that wait, and how many were dropped after them.
    fn take(&mut self) -> Option<(VecDeque<Vec<u8>>, u64)> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        loop {
            if state.reopen {
                drop(state);
                self.reopen_if_asked();
                state = shared.lock();
            } else if !state.waiting.is_empty() {
                let lines = std::mem::take(&mut state.waiting);
                state.in_flight = lines.len();
                return Some((lines, state.dropped));
            } else if state.closing {
                return None;
            } else {
                state.asleep = true;
                state = shared
                    .to_writer
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.asleep = false;
            }
        }
    }

    fn write(&mut self, line: &[u8]) -> Result<(), GivenUp> {
        loop {
            match self.sink.append(line) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.sink.wait_writable(RETRY_EVERY);
                }
                Err(error) => {
                    self.failed(&error);
                    let state = self.shared.lock();
                    if state.closing {
                        return Err(GivenUp);
                    }
                    let pause =
                        self.shared
                            .to_writer
                            .wait_timeout_while(state, RETRY_EVERY, |state| {
                                !state.reopen && !state.closing
                            });
                    drop(pause.unwrap_or_else(PoisonError::into_inner));
                }
            }
            self.reopen_if_asked();
        }
    }

    fn failed(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.failing, true) {
            self.reporter.failed(error);
        }
        // The reason may be another one by now.
        self.shared.told.fails(Some(error.to_string()));
    }

    fn reopen_if_asked(&mut self) {
        if std::mem::take(&mut self.shared.lock().reopen) {
            let result = self.sink.reopen();
            self.reporter.reopened(result);
        }
    }

    /// Reports the `dropped` lines, and the end of a failure, after everything taken has been written.
    fn report_recovery(&mut self, dropped: u64) -> Result<(), GivenUp> {
        // If lines were dropped meanwhile, the next call reports it.
        let recovered = self.failing && self.shared.lock().dropped == 0;
        if dropped == 0 && !recovered {
            return Ok(());
        }
        self.failing = false;
        self.shared.told.fails(None);
        let line = self.reporter.recovered(dropped);
        if let Some(line) = line {
            self.write(&line)?;
        }
        self.shared.lock().dropped -= dropped;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read};
    use std::sync::mpsc::{self, Sender};

    use netlab::{PATIENCE, Scratch, until};

    use super::*;
    use crate::log_file::LogFile;

    /// Passes on every report, and adds a line to the log on recovery.
    struct Reports(Sender<String>);

    impl Reporter for Reports {
        fn failed(&mut self, error: &io::Error) {
            self.0.send(error.kind().to_string()).expect("a test");
        }

        fn recovered(&mut self, lost: u64) -> Option<Vec<u8>> {
            self.0.send(format!("lost {lost}")).expect("a test");
            (lost > 0).then(|| format!("lost {lost}\n").into_bytes())
        }

        fn reopened(&mut self, result: io::Result<()>) {
            self.0.send(format!("{result:?}")).expect("a test");
        }
    }

    /// The smallest pipe, and its size in bytes.
    fn pipe() -> (io::PipeReader, LogFile, usize) {
        let (reader, writer) = io::pipe().expect("a pipe");
        let bytes = rustix::pipe::fcntl_setpipe_size(&writer, 1).expect("a small pipe");
        let file = LogFile::standard_stream(&writer).expect("a second descriptor");
        (reader, file, bytes)
    }

    /// A line of the given length.
    fn line(number: u64, bytes: usize) -> Vec<u8> {
        format!("{number:>0$}\n", bytes - 1).into_bytes()
    }

    /// Waits until the writer has taken every line, and is asleep or stuck.
    fn until_taken(queue: &LogQueue) {
        until("the lines are taken", || {
            queue.0.0.lock().waiting.is_empty()
        });
    }

    #[test]
    fn a_gap_is_reported_in_its_place_and_with_its_size() {
        const CAPACITY_LINES: usize = 3;
        let (reader, file, pipe_bytes) = pipe();
        let (sender, reports) = mpsc::channel();
        let queue =
            LogQueue::with_capacity(CAPACITY_LINES, Arc::default(), "log", file, Reports(sender));
        let queue = queue.expect("a thread");
        // The pipe holds the first line, the writer the second; three wait, the rest is lost.
        for number in 1..=2 {
            queue.push(line(number, pipe_bytes));
            until_taken(&queue);
        }
        (3..=9).for_each(|number| queue.push(line(number, pipe_bytes)));
        assert_eq!(queue.0.0.told.lost(), 4);
        assert!(reports.try_recv().is_err(), "nothing works again yet");
        let mut reader = BufReader::with_capacity(1, reader);
        let mut read = || {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a line");
            line.trim().to_owned()
        };
        for number in 1..=5 {
            assert_eq!(read(), number.to_string());
        }
        assert_eq!(read(), "lost 4");
        assert_eq!(reports.recv_timeout(PATIENCE).as_deref(), Ok("lost 4"));
        queue.push(line(10, pipe_bytes));
        assert_eq!(read(), "10");
        let all = Finished {
            lost: 0,
            stalled: false,
        };
        assert_eq!(queue.finish(PATIENCE), all);
        // Also once they were reported.
        assert_eq!(queue.0.0.told.lost(), 4);
    }

    #[test]
    fn finish_gives_up_on_a_stalled_reader_after_the_time_given() {
        let (_reader, file, pipe_bytes) = pipe();
        let queue =
            LogQueue::with_capacity(2, Arc::default(), "log", file, Reports(mpsc::channel().0));
        let queue = queue.expect("a thread");
        for number in 1..=2 {
            queue.push(line(number, pipe_bytes));
            until_taken(&queue);
        }
        (3..=7).for_each(|number| queue.push(line(number, pipe_bytes)));
        let finished = Finished {
            lost: 6,
            stalled: true,
        };
        assert_eq!(queue.finish(Duration::from_millis(10)), finished);
    }

    #[test]
    fn a_failure_is_reported_once_and_reopening_the_file_loses_no_line() {
        let scratch = Scratch::new("queue").expect("a directory");
        let path = scratch.path().join("log");
        std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
        let (sender, reports) = mpsc::channel();
        let file = LogFile::open(&path).expect("the device");
        let queue = LogQueue::start("log", file, Reports(sender)).expect("a thread");
        (1..=3).for_each(|number| queue.push(format!("{number}\n").into_bytes()));
        let full = io::ErrorKind::StorageFull.to_string();
        assert_eq!(reports.recv_timeout(PATIENCE), Ok(full));
        std::fs::remove_file(&path).expect("the link");
        queue.reopen();
        assert_eq!(reports.recv_timeout(PATIENCE).as_deref(), Ok("Ok(())"));
        assert_eq!(reports.recv_timeout(PATIENCE).as_deref(), Ok("lost 0"));
        assert_eq!(queue.finish(PATIENCE).lost, 0);
        let text = std::fs::read_to_string(&path).expect("the log");
        assert_eq!(text, "1\n2\n3\n");
    }

    #[test]
    fn an_incomplete_last_line_is_kept_apart_from_the_next() {
        let scratch = Scratch::new("half").expect("a directory");
        let path = scratch.write("log", "whole\nha").expect("a file");
        let mut file = LogFile::open(&path).expect("the file");
        file.append(b"next\n").expect("room");
        file.append(b"last\n").expect("room");
        let mut text = String::new();
        std::fs::File::open(&path)
            .and_then(|mut file| file.read_to_string(&mut text))
            .expect("the log");
        assert_eq!(text, "whole\nha\nnext\nlast\n");
    }
}
