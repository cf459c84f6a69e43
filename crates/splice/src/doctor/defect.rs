//! Defects of kernels that are in use.

use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::sockets::{Family, connection};
use super::trial::Failure;
use super::{Defect, TimeBudget};
use crate::kernel::sockmap::Member;

/// How soon to look again for bytes on their way over loopback.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

const BYTES: &[u8] = b"queued";

/// FIONREAD returns 0 for a TCP socket in a map of sockets without a program, whatever is queued:
/// Linux 6.6.128, 6.12.75 and 6.18.14 on (commit 929e30f93125), fixed in 7.2.13.
pub(super) fn fionread(budget: &TimeBudget) -> Defect {
    let (present, reason) = match answer(budget) {
        Ok(0) => (
            true,
            format!(
                "ioctl(FIONREAD) returns 0 for a TCP socket in a BPF map of sockets that has {} \
                 bytes queued; programs that call it before they read (Java, .NET, nginx) stall if \
                 something on this machine puts their sockets into such a map; the engines do not \
                 call it",
                BYTES.len()
            ),
        ),
        Ok(_) => (
            false,
            "ioctl(FIONREAD) returns what is queued on a TCP socket in a BPF map of sockets".into(),
        ),
        Err(why) => {
            return Defect {
                name: "fionread",
                present: None,
                reason: format!("not tried: {why}"),
            };
        }
    };
    Defect {
        name: "fionread",
        present: Some(present),
        reason,
    }
}

/// What FIONREAD returns for a member that has `BYTES` queued.
fn answer(budget: &TimeBudget) -> Result<u64, String> {
    let connected = connection(Family::Tcp, budget.deadline());
    let (peer, socket) = connected.map_err(|error| error.to_string())?;
    let member = budget
        .excluding(|| Member::new(&socket))
        .map_err(|error| Failure::of(&error).reason)?;
    let deadline = budget.deadline();
    let words = |errno: Errno| errno.to_string();
    send(&peer, BYTES, SendFlags::NOSIGNAL).map_err(words)?;
    let mut buffer = [0; BYTES.len()];
    loop {
        match recv(&socket, &mut buffer, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((count, _)) if count == BYTES.len() => break,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) if Instant::now() < deadline => {
                thread::sleep(LOOK_AGAIN);
            }
            Ok(_) => return Err("its bytes did not arrive in time".into()),
            Err(errno) => return Err(words(errno)),
        }
    }
    let answer = ioctl_fionread(&socket).map_err(words);
    // A member must not leave its map with queued bytes.
    let _ = recv(&socket, &mut buffer, RecvFlags::DONTWAIT);
    drop(member);
    answer
}
