//! A process that stands still, and makes system calls for this one.
//!
//! ```text
//!         PTRACE_SEIZE and PTRACE_INTERRUPT of each thread                dropped
//! running ────────────────────────────────────────────────▶ frozen ───────────────────▶ running
//!                                                           │    ▲
//!                                              call() ▼    │ the registers are restored
//!                                                    a thread makes one system call
//! ```
//!
//! A thread stops where a signal would be handled: between two instructions of the program, or at the end of a system call
//! that the stop has interrupted. The kernel restarts such a call from its registers, so they are put back whole, the
//! number of the interrupted call included (`orig_rax`; `arch_do_signal_or_restart`, Linux 6.18). A call that never
//! restarts, as epoll_wait(2), ends with `EINTR`, as by a signal without a handler.
//!
//! If this process ends, the kernel lets the frozen one go on.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::errno::Errno;
use nix::libc::{c_long, user_regs_struct};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::owner::Owner;

/// How long a process may stand still. A thread that waits for a disk cannot stop before it has the answer.
const LONGEST: Duration = Duration::from_millis(100);

/// How long a thread is waited for that did not stop in time, while the others run again. It can be let go only when it
/// stands still, or when this process ends.
const STRAGGLER_PATIENCE: Duration = Duration::from_secs(1);

/// Between two looks at a thread that is about to stop.
const LOOK_EVERY: Duration = Duration::from_micros(50);

/// `PTRACE_EVENT_STOP` of linux/ptrace.h: a stop for nobody's signal.
const EVENT_STOP: i32 = 128;

/// The part of the stack below its top that a program may use without saying so, in bytes (System V ABI for x86-64).
const RED_ZONE_BYTES: u64 = 128;

/// How many bytes of the thread's memory the arguments of a call may have.
pub(super) const SCRATCH_BYTES: usize = 256;

/// The machine code of `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// A process of which no thread runs. It runs again when this is dropped.
#[derive(Debug)]
pub(super) struct Frozen {
    owner: Owner,
    threads: Vec<Thread>,
    /// The thread that makes system calls for us, once it has.
    borrowed: Option<Borrowed>,
    /// Signals that came to that thread meanwhile.
    late: Vec<Signal>,
    memory: File,
    since: Instant,
}

/// A process stood still for too long, in words.
#[derive(Debug)]
pub(super) struct Late(String);

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Late {}

#[derive(Clone, Copy, Debug)]
struct Thread {
    id: Pid,
    /// It was about to handle this.
    signal: Option<Signal>,
}

#[derive(Debug)]
struct Borrowed {
    thread: Pid,
    /// What the program had there.
    registers: user_regs_struct,
    scratch: [u8; SCRATCH_BYTES],
    scratch_at: u64,
    /// Where the program has an instruction `syscall`.
    syscall_at: u64,
}

impl Frozen {
    /// Stops all threads of a process.
    ///
    /// # Errors
    /// Without the right to trace it, or if a thread does not stop.
    pub(super) fn freeze(owner: Owner) -> Result<Self> {
        let memory = File::options()
            .read(true)
            .write(true)
            .open(owner.path("mem"))
            .with_context(|| no_right(owner))?;
        let mut frozen = Self {
            owner,
            threads: Vec::new(),
            borrowed: None,
            late: Vec::new(),
            memory,
            since: Instant::now(),
        };
        // A thread that is not stopped yet may start others.
        while frozen.stop_new_threads()? {}
        Ok(frozen)
    }

    pub(super) fn owner(&self) -> Owner {
        self.owner
    }

    /// How long it has stood still.
    pub(super) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    /// How long it has stood still.
    ///
    /// # Errors
    /// If that is too long.
    pub(super) fn refuse_late(&self) -> Result<Duration> {
        let time = self.time();
        if time > LONGEST {
            bail!(Late(format!(
                "{} stood still for {} ms, and {} ms are the most; try again when the machine is less busy",
                self.owner.name(),
                time.as_millis(),
                LONGEST.as_millis()
            )));
        }
        Ok(time)
    }

    fn stop_new_threads(&mut self) -> Result<bool> {
        let owner = self.owner;
        let mut is_new = Vec::new();
        for id in owner
            .threads()
            .with_context(|| format!("{} has ended", owner.name()))?
        {
            let id = Pid::from_raw(id);
            let has_ended = owner
                .has_ended(id.as_raw())
                .with_context(|| format!("cannot look at a thread of {}", owner.name()))?;
            if has_ended || self.threads.iter().any(|thread| thread.id == id) {
                continue;
            }
            match ptrace::seize(id, ptrace::Options::empty()) {
                Ok(()) => {}
                Err(Errno::ESRCH) => continue,
                // It has not stopped since the last try.
                Err(Errno::EPERM) if owner.is_traced_here(id.as_raw()) => {}
                Err(errno) => return Err(errno).with_context(|| no_right(owner)),
            }
            self.threads.push(Thread { id, signal: None });
            is_new.push(id);
            match ptrace::interrupt(id) {
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(errno) => return Err(errno).context("cannot stop a thread"),
            }
        }
        for id in &is_new {
            match self.wait_stopped(*id)? {
                Some(signal) => {
                    let thread = self.threads.iter_mut().find(|thread| thread.id == *id);
                    thread.into_iter().for_each(|thread| thread.signal = signal);
                }
                None => self.threads.retain(|thread| thread.id != *id),
            }
        }
        Ok(!is_new.is_empty())
    }

    /// Waits until a thread stands still: with the signal that it was about to handle, if any; `None` if it has ended.
    fn wait_stopped(&self, thread: Pid) -> Result<Option<Option<Signal>>> {
        loop {
            let stop = poll_stopped(thread);
            match stop.with_context(|| format!("cannot stop {}", self.owner.name()))? {
                Some(Stop::Stopped(signal)) => return Ok(Some(signal)),
                Some(Stop::Ended) => return Ok(None),
                None => {}
            }
            // Once it makes calls for us it has to come to their end.
            if self.borrowed.is_none() && self.since.elapsed() > LONGEST {
                bail!(Late(format!(
                    "{} does not stop within {} ms: its thread {thread} waits in the kernel; try again",
                    self.owner.name(),
                    LONGEST.as_millis()
                )));
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Has the process make a system call. Arguments that are addresses lie in the scratch memory.
    ///
    /// # Errors
    /// The call's own error, or that of tracing the process.
    pub(super) fn call(&mut self, number: c_long, arguments: &[u64]) -> Result<u64> {
        let (thread, mut registers, syscall_at) = {
            let borrowed = self.borrow()?;
            (borrowed.thread, borrowed.registers, borrowed.syscall_at)
        };
        registers.rip = syscall_at;
        registers.rax = number.cast_unsigned();
        // Otherwise the kernel would restart the call that the stop has interrupted, at once.
        registers.orig_rax = u64::MAX;
        let places = [
            &mut registers.rdi,
            &mut registers.rsi,
            &mut registers.rdx,
            &mut registers.r10,
            &mut registers.r8,
            &mut registers.r9,
        ];
        for (place, argument) in places.into_iter().zip(arguments) {
            *place = *argument;
        }
        let traced = || format!("cannot have {} make a system call", self.owner.name());
        ptrace::setregs(thread, registers).with_context(traced)?;
        loop {
            ptrace::step(thread, None).with_context(traced)?;
            match self.wait_stopped(thread)? {
                None => bail!("{} has ended", self.owner.name()),
                Some(Some(Signal::SIGTRAP)) => break,
                // A signal was there first.
                Some(Some(signal)) => self.late.push(signal),
                Some(None) => {}
            }
        }
        let result = ptrace::getregs(thread)
            .with_context(traced)?
            .rax
            .cast_signed();
        // The kernel returns errors as small negative numbers (`MAX_ERRNO`).
        if (-4095..0).contains(&result) {
            return Err(Errno::from_raw(-result as i32).into());
        }
        Ok(result.cast_unsigned())
    }

    /// Where the scratch memory is in the process.
    ///
    /// # Errors
    /// If no thread can be borrowed.
    pub(super) fn scratch_at(&mut self) -> Result<u64> {
        Ok(self.borrow()?.scratch_at)
    }

    /// Writes into the scratch memory.
    ///
    /// # Errors
    /// If the process's memory cannot be written.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.scratch_at()? + offset;
        self.memory
            .write_all_at(bytes, at)
            .with_context(|| no_right(self.owner))
    }

    /// Reads from the scratch memory.
    ///
    /// # Errors
    /// If the process's memory cannot be read.
    pub(super) fn read<const N: usize>(&mut self, offset: u64) -> Result<[u8; N]> {
        let at = self.scratch_at()? + offset;
        let mut bytes = [0; N];
        self.memory
            .read_exact_at(&mut bytes, at)
            .with_context(|| no_right(self.owner))?;
        Ok(bytes)
    }

    fn borrow(&mut self) -> Result<&Borrowed> {
        if self.borrowed.is_none() {
            // One that is about to handle a signal would do that first.
            let idle = self.threads.iter().find(|thread| thread.signal.is_none());
            let thread = idle.map(|thread| thread.id).ok_or_else(|| {
                anyhow!(
                    "all threads of {} are about to handle signals; try again",
                    self.owner.name()
                )
            })?;
            let registers = ptrace::getregs(thread)
                .with_context(|| format!("cannot read the registers of {}", self.owner.name()))?;
            let scratch_at = (registers.rsp - RED_ZONE_BYTES - SCRATCH_BYTES as u64) & !15;
            let mut scratch = [0; SCRATCH_BYTES];
            self.memory
                .read_exact_at(&mut scratch, scratch_at)
                .with_context(|| no_right(self.owner))?;
            let syscall_at = self.syscall_at()?;
            self.borrowed = Some(Borrowed {
                thread,
                registers,
                scratch,
                scratch_at,
                syscall_at,
            });
        }
        Ok(self
            .borrowed
            .as_ref()
            .unwrap_or_else(|| unreachable!("it was set above")))
    }

    /// The kernel maps code into each process that makes system calls (vdso(7)).
    fn syscall_at(&self) -> Result<u64> {
        let maps =
            fs::read_to_string(self.owner.path("maps")).with_context(|| no_right(self.owner))?;
        for line in maps.lines().filter(|line| line.ends_with("[vdso]")) {
            let range = line
                .split_whitespace()
                .next()
                .and_then(|range| range.split_once('-'));
            let Some((Ok(from), Ok(to))) = range
                .map(|(from, to)| (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)))
            else {
                continue;
            };
            let mut code = vec![0; (to - from) as usize];
            self.memory
                .read_exact_at(&mut code, from)
                .with_context(|| no_right(self.owner))?;
            if let Some(at) = code
                .windows(SYSCALL.len())
                .position(|bytes| bytes == SYSCALL)
            {
                return Ok(from + at as u64);
            }
        }
        bail!(
            "{} has no code of the kernel to make system calls with (vdso)",
            self.owner.name()
        )
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // Each of these fails only if the process has ended.
        if let Some(borrowed) = &self.borrowed {
            let _ = self
                .memory
                .write_all_at(&borrowed.scratch, borrowed.scratch_at);
            let _ = ptrace::setregs(borrowed.thread, borrowed.registers);
        }
        let detach = |thread: &Thread| ptrace::detach(thread.id, thread.signal);
        let mut late = self.threads.clone();
        late.retain(|thread| detach(thread).is_err());
        // A thread that did not stop in time still does, and only then can it be let go.
        let until = Instant::now() + STRAGGLER_PATIENCE;
        while !late.is_empty() && Instant::now() < until {
            late.retain_mut(|thread| match poll_stopped(thread.id) {
                Ok(None) => true,
                Ok(Some(Stop::Stopped(signal))) => {
                    thread.signal = signal;
                    detach(thread).is_err()
                }
                Ok(Some(Stop::Ended)) | Err(_) => false,
            });
            thread::sleep(LOOK_EVERY);
        }
        for signal in &self.late {
            let _ = nix::sys::signal::kill(Pid::from_raw(self.owner.0.cast_signed()), *signal);
        }
    }
}

/// What has become of a thread that was to stop.
enum Stop {
    /// It stands still, and was about to handle this signal.
    Stopped(Option<Signal>),
    Ended,
}

/// `None` while it runs.
fn poll_stopped(thread: Pid) -> Result<Option<Stop>> {
    let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
    match waitpid(thread, Some(flags)) {
        Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => Ok(None),
        Ok(WaitStatus::PtraceEvent(_, _, EVENT_STOP)) => Ok(Some(Stop::Stopped(None))),
        Ok(WaitStatus::Stopped(_, signal)) => Ok(Some(Stop::Stopped(Some(signal)))),
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => {
            Ok(Some(Stop::Ended))
        }
        // The library has no name for real-time signals.
        Err(Errno::EINVAL) => {
            bail!("it got a real-time signal in the moment in which it was to stop; try again")
        }
        Ok(other) => bail!("it stops for another reason: {other:?}"),
        Err(errno) => Err(errno).context("cannot wait for a thread"),
    }
}

fn no_right(owner: Owner) -> String {
    format!(
        "cannot stop {}; run spliced as the same user, or with CAP_SYS_PTRACE, and look at kernel.yama.ptrace_scope",
        owner.name()
    )
}
