//! Sockets of another process, handed over by SCM_RIGHTS: both sides of the protocol.
//!
//! The processes share a connected UNIX `SOCK_SEQPACKET` socket. One owns sockets and asks, the other has the rights
//! and links them.
//!
//! | message | bytes | descriptors |
//! |---|---|---|
//! | request | `splice01` and one byte, `L`: link | two: the source, the target |
//! | answer | one byte, 0: linked | none |
//! | answer | one byte, 1: refused; then the reason, UTF-8, 1000 bytes at most | none |
//!
//! Each request has one answer, in order. A process that asks has to read its answers: one for which its channel has no
//! room is lost, and the linking process gets an error (`EAGAIN`). The asking process keeps its descriptors: a link ends when the source is
//! closed, so the linking process closes its duplicates after it has linked.
//!
//! A message of other bytes or with another number of descriptors is answered with a refusal, and its descriptors are
//! closed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};
use splice_base::error::{Error, ErrorKind, Result};

/// The name and version of the protocol, and the one verb.
const LINK: &[u8] = b"splice01L";

/// The longest reason, in bytes: a sentence.
const REASON_MOST_BYTES: usize = 1000;

/// How many descriptors a request may bring so that they can still be closed: the kernel passes 253 at most
/// (`SCM_MAX_FD`).
const MOST_DESCRIPTORS: usize = 253;

const LINKED: u8 = 0;
const REFUSED: u8 = 1;

/// Asks the process at the other end of `channel` to link `source` to `target`, and waits for its answer.
///
/// # Errors
/// [`ErrorKind::EngineRefused`] with the other process's reason; [`ErrorKind::System`] if the channel fails or ends.
pub fn ask(channel: impl AsFd, source: impl AsFd, target: impl AsFd) -> Result<()> {
    let failed = |errno| Error::system("cannot hand sockets over", errno);
    let sockets = [source.as_fd(), target.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    // There is space for two.
    let _ = ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
    let request = [IoSlice::new(LINK)];
    sendmsg(&channel, &request, &mut ancillary, SendFlags::NOSIGNAL).map_err(failed)?;
    let mut answer = [0; 1 + REASON_MOST_BYTES];
    let received = retry_on_intr(|| recv(&channel, &mut answer[..], RecvFlags::empty()));
    let (_, length) = received.map_err(failed)?;
    match &answer[..length.min(answer.len())] {
        [LINKED] => Ok(()),
        [REFUSED, reason @ ..] => Err(Error::new(
            ErrorKind::EngineRefused,
            String::from_utf8_lossy(reason).into_owned(),
        )),
        [] => Err(failed(Errno::CONNRESET)),
        _ => Err(failed(Errno::PROTO)),
    }
}

/// A request that waits for its answer. Dropped without one it is answered with a refusal.
#[derive(Debug)]
pub struct Request<C: AsFd> {
    channel: C,
    /// The socket whose messages are to be redirected.
    pub source: OwnedFd,
    /// The socket that they are to go to.
    pub target: OwnedFd,
    answered: bool,
}

/// Waits for the next request on `channel`. `None` if the other process has closed it.
///
/// # Errors
/// [`ErrorKind::System`] if the channel fails. A malformed request was answered, and is an error of the kind
/// [`ErrorKind::UnsupportedSocket`]; the channel can be used further.
pub fn next<C: AsFd>(channel: C) -> Result<Option<Request<C>>> {
    let failed = |errno| Error::system("cannot receive sockets", errno);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    // One more byte, so that a longer message is not taken for a request.
    let mut bytes = [0; LINK.len() + 1];
    let received = recvmsg(
        &channel,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )
    .map_err(failed)?;
    let mut sockets: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(sockets) => Some(sockets),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 && sockets.is_empty() {
        return Ok(None);
    }
    let is_whole = !received.flags.contains(ReturnFlags::CTRUNC);
    match (&bytes[..received.bytes] == LINK, sockets.len(), is_whole) {
        (true, 2, true) => {}
        _ => {
            let what = "a request is 'splice01L' with two descriptors";
            answer(&channel, Err(what))?;
            return Err(Error::new(ErrorKind::UnsupportedSocket, what).about("a malformed request"));
        }
    }
    // There are two.
    let (target, source) = (sockets.remove(1), sockets.remove(0));
    Ok(Some(Request {
        channel,
        source,
        target,
        answered: false,
    }))
}

impl<C: AsFd> Request<C> {
    /// Tells the other process how it went, and closes the duplicates of its sockets.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the channel fails.
    pub fn answer(mut self, result: std::result::Result<(), &Error>) -> Result<()> {
        self.answered = true;
        let reason = result.map_err(ToString::to_string);
        answer(
            &self.channel,
            match &reason {
                Ok(()) => Ok(()),
                Err(reason) => Err(reason.as_str()),
            },
        )
    }
}

impl<C: AsFd> Drop for Request<C> {
    fn drop(&mut self) {
        if !self.answered {
            // If the other process is gone, nobody waits for it.
            let _ = answer(&self.channel, Err("the request was dropped"));
        }
    }
}

fn answer(channel: impl AsFd, result: std::result::Result<(), &str>) -> Result<()> {
    let message = match result {
        Ok(()) => vec![LINKED],
        Err(reason) => {
            let mut end = reason.len().min(REASON_MOST_BYTES);
            while !reason.is_char_boundary(end) {
                end -= 1;
            }
            [&[REFUSED], &reason.as_bytes()[..end]].concat()
        }
    };
    // There is room unless the other process asks on and on without reading: nobody is to wait for it.
    send(channel, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        .map(drop)
        .map_err(|errno| Error::system("cannot answer a request", errno))
}
