//! Puts another socket in the place of a descriptor of a frozen process.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use nix::libc;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use super::frozen::Frozen;
use super::owner::Registration;

// Where the arguments of the calls lie in the scratch memory, in bytes.
const PAIR_AT: u64 = 0;
const EVENT_AT: u64 = 16;
const HEADER_AT: u64 = 64;
const VECTOR_AT: u64 = 128;
const BYTE_AT: u64 = 144;
const CONTROL_AT: u64 = 160;

/// The control message with one descriptor: a header of 16 bytes, the descriptor, and padding (`struct cmsghdr`).
const CONTROL_BYTES: u64 = 24;
const DESCRIPTOR_AT: u64 = CONTROL_AT + 16;

/// Makes `number` of the frozen process `socket`, also for the epoll instances in `watching`, which watch what it is now.
///
/// # Errors
/// If the process has no room for it, or a call fails. Then everything is as before, unless the error says otherwise.
pub(super) fn exchange(
    frozen: &mut Frozen,
    number: u32,
    socket: BorrowedFd<'_>,
    closes_on_exec: bool,
    watching: &[Registration],
) -> Result<()> {
    let name = frozen.owner().name();
    let fresh = give(frozen, socket).with_context(|| {
        format!("cannot hand a socket to {name}; it needs three free descriptors")
    })?;
    let number = u64::from(number);
    let mut done = Ok(());
    let mut ended = Vec::new();
    for registration in watching {
        done = control(frozen, registration, libc::EPOLL_CTL_DEL, number);
        if done.is_err() {
            break;
        }
        ended.push(*registration);
    }
    if done.is_ok() {
        let flags = if closes_on_exec { libc::O_CLOEXEC } else { 0 };
        let arguments = [fresh, number, u64::from(flags.cast_unsigned())];
        done = frozen.call(libc::SYS_dup3, &arguments).map(drop);
    }
    // What was not exchanged is watched again as it was.
    for registration in &ended {
        let again = control(frozen, registration, libc::EPOLL_CTL_ADD, number);
        done = done.and(again);
    }
    let closed = frozen.call(libc::SYS_close, &[fresh]).map(drop);
    done.and(closed)
        .with_context(|| format!("cannot put another socket in the place of {number} of {name}"))
}

fn control(
    frozen: &mut Frozen,
    registration: &Registration,
    operation: i32,
    number: u64,
) -> Result<()> {
    // `struct epoll_event` is packed on x86-64.
    let mut event = [0; 12];
    event[..4].copy_from_slice(&registration.events.to_ne_bytes());
    event[4..].copy_from_slice(&registration.data.to_ne_bytes());
    frozen.write(EVENT_AT, &event)?;
    let at = frozen.scratch_at()? + EVENT_AT;
    let arguments = [
        u64::from(registration.epoll),
        u64::from(operation.cast_unsigned()),
        number,
        at,
    ];
    frozen.call(libc::SYS_epoll_ctl, &arguments).map(drop)
}

/// Makes `socket` a new descriptor of the process, and returns its number there.
fn give(frozen: &mut Frozen, socket: BorrowedFd<'_>) -> Result<u64> {
    let [one, other] = channel(frozen)?;
    let given = receive(frozen, one, other, socket);
    for end in [one, other] {
        frozen.call(libc::SYS_close, &[end])?;
    }
    given
}

/// A pair of connected UNIX sockets in the process.
fn channel(frozen: &mut Frozen) -> Result<[u64; 2]> {
    let at = frozen.scratch_at()? + PAIR_AT;
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let arguments = [libc::AF_UNIX, kind, 0].map(|value| u64::from(value.cast_unsigned()));
    let [family, kind, protocol] = arguments;
    frozen.call(libc::SYS_socketpair, &[family, kind, protocol, at])?;
    let pair: [u8; 8] = frozen.read(PAIR_AT)?;
    let [a, b, c, d, rest @ ..] = pair;
    let numbers = [[a, b, c, d], rest].map(u32::from_ne_bytes);
    Ok(numbers.map(u64::from))
}

/// Sends `socket` into `other`, and has the process receive it from `one`.
fn receive(frozen: &mut Frozen, one: u64, other: u64, socket: BorrowedFd<'_>) -> Result<u64> {
    let process = Pid::from_raw(frozen.owner().0.cast_signed())
        .with_context(|| format!("there is no process {}", frozen.owner().0))?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    let channel = pidfd_getfd(&process, other as i32, PidfdGetfdFlags::empty())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets = [socket];
    // There is space for one.
    let _ = ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    sendmsg(
        channel.as_fd(),
        &[IoSlice::new(b"s")],
        &mut ancillary,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;

    let base = frozen.scratch_at()?;
    // `struct iovec`, and `struct msghdr` with one of them and room for one control message.
    let vector = [base + BYTE_AT, 1];
    let header = [
        0,
        0,
        base + VECTOR_AT,
        1,
        base + CONTROL_AT,
        CONTROL_BYTES,
        0,
    ];
    frozen.write(VECTOR_AT, &vector.map(u64::to_ne_bytes).concat())?;
    frozen.write(HEADER_AT, &header.map(u64::to_ne_bytes).concat())?;
    frozen.write(DESCRIPTOR_AT, &(-1i32).to_ne_bytes())?;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    let arguments = [one, base + HEADER_AT, u64::from(flags.cast_unsigned())];
    frozen.call(libc::SYS_recvmsg, &arguments)?;
    // Without a free descriptor, the kernel leaves the control message out (`MSG_CTRUNC`).
    let number = i32::from_ne_bytes(frozen.read(DESCRIPTOR_AT)?);
    u64::try_from(number).context("it has no free descriptor")
}
