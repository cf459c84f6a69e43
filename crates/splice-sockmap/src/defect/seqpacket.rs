//! A VSOCK seqpacket that sends the beginning of a message twice.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use splice_base::release::Release;

use super::by_version::SEQPACKET;
use super::{Defect, LOOK_AGAIN, PATIENCE};
use crate::SocketKind;
use crate::look::look_until;
use crate::member::Pair;

/// Less than the credit of a peer, 256 KiB (`VIRTIO_VSOCK_DEFAULT_BUF_SIZE`), and no part of it, so that it ends within a message.
const MESSAGE_BYTES: usize = 100 << 10;

/// More messages than that credit ever has room for.
const MOST_MESSAGES: usize = 64;

/// A seqpacket whose peer's credit ends within a message sends what fits and returns EAGAIN (`vsock_connectible_sendmsg`, seen on
/// 7.2). Whoever tries again sends the whole message, as the kernel's worker does with what is redirected. It is tried with a
/// program's own two sends, which needs no rights.
pub(super) fn sends_twice() -> Defect {
    let tried = Pair::of(SocketKind::VsockSeqpacket).and_then(|pair| second_message(&pair));
    let (present, reason) = match tried {
        Ok(bytes) if bytes > MESSAGE_BYTES => (Some(true), SEQPACKET.what.into()),
        Ok(_) => (
            Some(false),
            "a VSOCK seqpacket whose peer has no more credit sends nothing of a message for which send(2) fails with EAGAIN"
                .into(),
        ),
        Err(why) => {
            let known = SEQPACKET.on(Release::here());
            let reason = format!("{} (not tried: {why})", known.reason);
            return Defect { reason, ..known };
        }
    };
    Defect {
        name: SEQPACKET.name,
        present,
        reason,
    }
}

/// Sends until the peer has no credit, has it read, and sends again what was refused. The length of what that becomes.
fn second_message(pair: &Pair) -> Result<usize, String> {
    let message = vec![0; MESSAGE_BYTES];
    let mut whole = 0;
    loop {
        match send(
            &pair.member,
            &message,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        ) {
            Ok(_) if whole < MOST_MESSAGES => whole += 1,
            Ok(_) => return Err("its peer's credit has no end".into()),
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.to_string()),
        }
    }
    let deadline = Instant::now() + PATIENCE;
    for _ in 0..whole {
        next_message(&pair.peer, deadline)?;
    }
    // The credit takes its time. One message that was read makes room for the whole of this.
    again(deadline, || {
        send(
            &pair.member,
            &message,
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        )
    })?;
    next_message(&pair.peer, deadline)
}

fn next_message(peer: &OwnedFd, deadline: Instant) -> Result<usize, String> {
    let mut buffer = vec![0; 4 * MESSAGE_BYTES];
    again(deadline, || {
        let (bytes, _) = recv(peer.as_fd(), &mut buffer, RecvFlags::DONTWAIT)?;
        Ok(bytes)
    })
}

fn again(
    deadline: Instant,
    mut call: impl FnMut() -> Result<usize, Errno>,
) -> Result<usize, String> {
    let done = look_until(deadline, LOOK_AGAIN, || match call() {
        Err(Errno::AGAIN | Errno::INTR) => None,
        done => Some(done),
    });
    let late = || "its message did not arrive in time".to_owned();
    done.ok_or_else(late)?.map_err(|errno| errno.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sockets of UNIX keep what they refuse whole.
    #[test]
    fn a_message_that_is_sent_once_has_its_length() -> Result<(), String> {
        let pair = Pair::of(SocketKind::UnixDatagram)?;
        assert_eq!(second_message(&pair), Ok(MESSAGE_BYTES));
        Ok(())
    }

    #[test]
    fn without_a_loopback_of_vsock_it_is_told_by_the_version() {
        let defect = sends_twice();
        match Pair::of(SocketKind::VsockSeqpacket) {
            Ok(_) => assert!(defect.present.is_some(), "{}", defect.reason),
            Err(why) => {
                let said = format!("(not tried: {why})");
                assert!(defect.reason.ends_with(&said), "{}", defect.reason);
                assert_eq!(defect.present, SEQPACKET.on(Release::here()).present);
            }
        }
    }
}
