//! `aio`: Linux AIO. One `io_submit(2)` reads a message and writes it.
//!
//! ```text
//!             ┌───────────── one io_submit ─────────────┐
//! socket a ──read──▶ buffer ──writev──▶ socket b
//!             │                  ▲ its iovec: where, how many
//!             └── completion ────┘ in the ring, which the process has mapped
//! ```
//!
//! A write needs the number of bytes, and the read that returns it is in the same system call. But
//! a completion (`struct io_event`) is `data`, `obj`, `res`, `res2`: `obj` is the address of its
//! request, and `res` the number of bytes. From `obj` on it has the layout of a `struct iovec`, and
//! it is a valid one if the request lies at the beginning of the buffer that it reads into. So the
//! write is a `writev` whose iovec is the place in the ring where the kernel will put the read's
//! completion. This relies on four facts (`fs/aio.c`, 6.18):
//!
//! - `io_submit_one` copies a request before it runs it, so the read may overwrite its own request.
//! - A read or write of a socket is complete when the call returns, even with `EAGAIN`. Only
//!   `-EIOCBQUEUED` leaves it pending (`aio_rw_done`), and no stream socket returns that.
//! - The completion is in the ring before the kernel looks at the next request (`iocb_put`, at the
//!   end of `io_submit_one`).
//! - A failed read has a negative length, which `writev` rejects (`copy_iovec_from_user`,
//!   `EINVAL`). Then `io_submit` reports one request instead of two.
//!
//! A new context is first tested on a socket of its own. If the ring has an unknown layout, or the
//! test fails, read and write are two calls each, `io_submit` and `io_getevents`. The loop's epoll
//! waits for sockets in any case.
#![allow(
    unsafe_code,
    reason = "system calls without a wrapper and a ring that the kernel maps; see the SAFETY comments"
)]

mod completion_ring;
#[cfg(test)]
mod tests;

use std::ffi::c_long;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
};
use splice_base::obstacle::Obstacle;
use splice_base::socket_option::last_error;

use self::completion_ring::{Completion, CompletionRing};
use super::ReadOutcome;
use super::buffer::Buffer;

/// How many requests may be pending: the read of a message and its write. Each counts against
/// `fs.aio-max-nr`.
const REQUESTS: usize = 2;

/// A request, `struct iocb` of `linux/aio_abi.h`, as bytes, since it lies at the beginning of a
/// byte buffer.
type Request = [u8; 64];

const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_CMD_PWRITEV: u16 = 8;

/// Do not wait, even if another process clears the descriptor's `O_NONBLOCK`; and no SIGPIPE
/// (`linux/fs.h`). Both or neither are set; 6.18 knows both.
const RWF_NOWAIT: u32 = 0x08;
const RWF_NOSIGNAL: u32 = 0x100;

/// The result of a read or write, in bytes: one call moves less than 2 GiB (`MAX_RW_COUNT`).
type Moved = Result<u32, Errno>;

/// A loop's AIO context.
///
/// The loop keeps it until it ends: `io_destroy(2)` waits for an RCU grace period (`kill_ioctx`),
/// some 30 ms.
#[derive(Debug)]
pub(crate) struct AioContext {
    ring: CompletionRing,
    /// The ring has the layout that this code knows.
    known_ring: bool,
    /// A write can take its length from the ring.
    chained: bool,
    flags: u32,
}

impl AioContext {
    /// Creates and tests a context.
    ///
    /// # Errors
    /// The obstacle.
    pub(crate) fn new() -> Result<Self, Obstacle> {
        Self::tried().map_err(obstacle)
    }
}

fn obstacle(errno: Errno) -> Obstacle {
    let (reason, remedy) = match errno {
        Errno::NOSYS => (
            "this kernel has no Linux AIO".into(),
            "run one that was built with CONFIG_AIO",
        ),
        Errno::AGAIN => (
            "the contexts of all processes have used up fs.aio-max-nr".into(),
            "raise it",
        ),
        errno => (
            format!("an AIO context cannot be created: {errno}"),
            match errno {
                Errno::MFILE => "raise RLIMIT_NOFILE",
                Errno::NOMEM => "free memory, or raise RLIMIT_AS if it is set",
                _ => {
                    "allow io_setup(2), io_submit(2) and io_getevents(2) in the sandbox that this \
                      process is in"
                }
            },
        ),
    };
    Obstacle {
        reason,
        remedy: remedy.into(),
    }
}

impl AioContext {
    fn tried() -> Result<Self, Errno> {
        let mut id: usize = 0;
        let most = REQUESTS as c_long;
        // SAFETY: the kernel writes the context's id, a `long`, into `id`.
        called(unsafe { libc::syscall(libc::SYS_io_setup, most, &raw mut id) })?;
        // SAFETY: dropping the context destroys it, and its ring with it.
        let ring = unsafe { CompletionRing::of(id) };
        let mut context = Self {
            known_ring: ring.is_known(),
            ring,
            chained: false,
            flags: 0,
        };
        context.try_out()?;
        Ok(context)
    }

    /// Tests what this kernel can do, on a socket that is spliced to itself.
    fn try_out(&mut self) -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (peer, socket) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let mut memory = vec![0; 4096];
        self.flags = RWF_NOWAIT | RWF_NOSIGNAL;
        match self.pass(socket.as_fd(), &mut memory, 1, None) {
            // This kernel does not know the flags.
            Err(Errno::OPNOTSUPP | Errno::INVAL) => self.flags = 0,
            tried => drop(tried?),
        }
        if !self.known_ring {
            return Ok(());
        }
        self.chained = true;
        let empty = self.pass(socket.as_fd(), &mut memory, 1, Some(socket.as_fd()))?;
        send(&peer, b"ab", SendFlags::NOSIGNAL)?;
        let full = self.pass(socket.as_fd(), &mut memory, 2, Some(socket.as_fd()))?;
        let mut received = [0; 16];
        let received = match recv(&peer, &mut received, RecvFlags::DONTWAIT) {
            Ok((count, _)) => &received[..count],
            Err(_) => &[],
        };
        self.chained =
            empty == (Err(Errno::AGAIN), None) && full == (Ok(2), Some(Ok(2))) && received == b"ab";
        Ok(())
    }

    /// Reads at most `wanted` bytes (no more than `memory` has) into `memory`. If one system call
    /// can do both, it also writes them to `onward`.
    fn pass(
        &mut self,
        source: BorrowedFd<'_>,
        memory: &mut [u8],
        wanted: usize,
        onward: Option<BorrowedFd<'_>>,
    ) -> Result<(Moved, Option<Moved>), Errno> {
        assert!(wanted <= memory.len() && memory.len() >= size_of::<Request>());
        let read = self.request(0, IOCB_CMD_PREAD, source, memory.as_ptr().addr(), wanted);
        memory[..read.len()].copy_from_slice(&read);
        let start = memory.as_mut_ptr();
        // The kernel uses the address as a number.
        let _ = start.expose_provenance();
        let Some(onward) = onward.filter(|_| self.chained) else {
            // SAFETY: `memory` begins with a request, which reads no more into it than it can hold.
            let [read, _] = unsafe { self.submit(&mut [start]) }?;
            return Ok((read.unwrap_or(Err(Errno::IO)), None));
        };
        // Nothing is pending, so the next completion is that of the read.
        let slot = self.ring.next_slot();
        // If the read's completion is missing, the write must not use an old one.
        slot.res.store(-1, Ordering::Release);
        let iovec = (&raw const slot.obj).expose_provenance();
        let mut write = self.request(1, IOCB_CMD_PWRITEV, onward, iovec, 1);
        // SAFETY: as above. The write finds as its iovec `memory` and the number of bytes that were
        // read into it, or a negative number.
        let [read, written] = unsafe { self.submit(&mut [start, write.as_mut_ptr()]) }?;
        Ok((read.unwrap_or(Err(Errno::IO)), written))
    }

    fn write(&mut self, destination: BorrowedFd<'_>, bytes: &[u8]) -> Moved {
        let start = bytes.as_ptr().expose_provenance();
        let mut write = self.request(0, IOCB_CMD_PWRITE, destination, start, bytes.len());
        // SAFETY: the kernel reads the request and `bytes`, which outlive the call.
        let [written, _] = unsafe { self.submit(&mut [write.as_mut_ptr()]) }?;
        written.unwrap_or(Err(Errno::IO))
    }

    /// Fills the fields by their offset in `struct iocb`; the others are zero.
    fn request(
        &self,
        data: u64,
        opcode: u16,
        fd: BorrowedFd<'_>,
        address: usize,
        count: usize,
    ) -> Request {
        // The offsets of `aio_key` and `aio_rw_flags` depend on the byte order.
        const RW_FLAGS: usize = if cfg!(target_endian = "little") {
            12
        } else {
            8
        };
        let mut request = [0; 64];
        request[0..8].copy_from_slice(&data.to_ne_bytes());
        request[RW_FLAGS..RW_FLAGS + 4].copy_from_slice(&self.flags.to_ne_bytes());
        request[16..18].copy_from_slice(&opcode.to_ne_bytes());
        request[20..24].copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
        request[24..32].copy_from_slice(&(address as u64).to_ne_bytes());
        request[32..40].copy_from_slice(&(count as u64).to_ne_bytes());
        request
    }

    /// Submits at most two requests and returns their results; `None` for one that was not
    /// accepted. Fails if the first one was not.
    ///
    /// # Safety
    /// Each pointer points to an [`Request`] for a socket, whose data is its index. The memory
    /// that it reads from or writes to stays valid until this returns. No request is pending then:
    /// those of a socket are complete when io_submit(2) returns, and otherwise this waits for their
    /// completions.
    unsafe fn submit(&mut self, requests: &mut [*mut u8]) -> Result<[Option<Moved>; 2], Errno> {
        let count = requests.len() as c_long;
        // SAFETY: the caller guarantees the requests; the array of pointers outlives the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.ring.id(),
                count,
                requests.as_mut_ptr(),
            )
        };
        let submitted = match called(result) {
            // This `EAGAIN` means no memory for a request (`aio_get_req`), not an empty socket.
            Err(Errno::AGAIN) => return Err(Errno::NOMEM),
            submitted => submitted?,
        };
        let mut results = [None; REQUESTS];
        for _ in 0..submitted {
            let (data, result) = self.completion()?;
            if let Some(place) = results.get_mut(data as usize) {
                *place = Some(moved(result));
            }
        }
        Ok(results)
    }

    /// The next completion: the request's data and its result.
    fn completion(&mut self) -> Result<(u64, i64), Errno> {
        if self.known_ring
            && let Some(completion) = self.ring.take()
        {
            return Ok(completion);
        }
        let mut completion = Completion::default();
        let (one, timeout): (c_long, _) = (1, ptr::null_mut::<libc::timespec>());
        loop {
            // SAFETY: the kernel writes at most one completion, into a value of that layout.
            let result = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.ring.id(),
                    one,
                    one,
                    &raw mut completion,
                    timeout,
                )
            };
            match called(result) {
                Ok(1) => {
                    return Ok((completion.data.into_inner(), completion.res.into_inner()));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for AioContext {
    fn drop(&mut self) {
        // SAFETY: `submit` leaves no request pending, and nothing refers to the ring any more.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.ring.id()) };
    }
}

/// Converts the result of a completion.
fn moved(result: i64) -> Moved {
    u32::try_from(result).map_err(|_| Errno::from_raw_os_error(-result as i32))
}

/// Converts the result of a system call.
fn called(result: c_long) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| last_error())
}

impl AioContext {
    /// Reads at most `at_most` bytes. With `onward` they are also written there, and the next
    /// [`drain`](Self::drain) returns the result.
    pub(crate) fn fill(
        &mut self,
        buffer: &mut Buffer,
        source: BorrowedFd<'_>,
        at_most: usize,
        onward: Option<BorrowedFd<'_>>,
    ) -> Result<ReadOutcome, Errno> {
        let memory = buffer.space(usize::MAX);
        let wanted = at_most.min(memory.len());
        let (read, written) = self.pass(source, memory, wanted, onward)?;
        match read {
            Ok(count) => {
                let count = count as usize;
                buffer.took(count);
                // At EOF nothing was written.
                if let Some(written) = written.filter(|_| count > 0) {
                    buffer.wrote(written);
                }
                Ok(ReadOutcome::of_read(count, wanted))
            }
            Err(Errno::AGAIN) => Ok(ReadOutcome::Empty),
            Err(errno) => Err(errno),
        }
    }

    /// Writes what is in flight.
    pub(crate) fn drain(
        &mut self,
        buffer: &mut Buffer,
        destination: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        buffer.drain_by(|bytes| self.write(destination, bytes).map(|count| count as usize))
    }
}
