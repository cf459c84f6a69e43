//! Defects of kernels that are in use.

mod by_version;
mod seqpacket;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{SpliceFlags, pipe, splice};
use splice_base::release::Release;

use self::by_version::BY_VERSION;
use crate::look::look_until;
use crate::member::Pair;
use crate::{Link, MapType, Redirect, Redirections, SockMap, SocketKind};

/// How soon to look again for bytes on their way over loopback.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How long a trial may take. On loopback it takes microseconds.
const PATIENCE: Duration = Duration::from_secs(2);

const TIMES_SENT: u32 = 8;

const BYTES: &[u8] = b"queued";

/// A small receive buffer: some ten datagrams, each of which is charged with its bookkeeping.
const FULL_BYTES: usize = 4 << 10;

/// How long a reader that gets nothing is watched. One that gets something gets it at once.
const STALLED: Duration = Duration::from_millis(100);

const LATE_BYTES: &str = "its bytes did not arrive in time";
const LATE_DATAGRAM: &str = "its datagram did not arrive in time";

/// A defect of kernels that are in use, and whether this kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Defect {
    /// A short name.
    pub name: &'static str,
    /// Whether this kernel has it; `None` if that could not be tested.
    pub present: Option<bool>,
    /// What was seen and which programs it hurts, or why it could not be tested.
    pub reason: String,
}

/// Every defect that is known and may matter to a program with sockets in maps, present or not: tried where that is
/// harmless, and else told by the version. It takes well under a second if all is well.
pub fn defects() -> Vec<Defect> {
    let mut all = vec![
        fionread(),
        empty_datagram(),
        splice_is_blind(),
        udp_reader(),
        seqpacket::sends_twice(),
    ];
    let release = Release::here();
    all.extend(BY_VERSION.iter().map(|known| known.on(release)));
    all
}

/// An empty datagram that a program passes stays in front of the reader for good (`sk_msg_recvmsg`, seen on 6.18).
fn empty_datagram() -> Defect {
    let name = "empty";
    let trial = |link: &Link, source: Pair, _target: Pair| {
        let put = || send(&source.peer, &[], SendFlags::NOSIGNAL).map(drop);
        until_sent(put, || link.counters().empty_messages > 0)?;
        // The program has run; the kernel queues what it passes at once.
        is_stuck(&source.member, Instant::now() + PATIENCE)
    };
    let loaded = Redirections::raw(Redirect::IngressToEgress, MapType::Hash, 1)
        .map_err(|error| error.to_string());
    let tried = loaded.and_then(|redirections| linked(&redirections, SocketKind::Udp, trial));
    let (present, reason) = match tried {
        Ok(true) => (
            Some(true),
            "recv(2) fails with EFAULT for good after a program has passed an empty datagram to a member of a map; \
             links of the library drop empty datagrams"
                .into(),
        ),
        Ok(false) => (
            Some(false),
            "a member of a map receives an empty datagram that a program has passed".into(),
        ),
        Err(why) => (None, format!("not tried: {why}")),
    };
    Defect {
        name,
        present,
        reason,
    }
}

/// Whether a reader fails at an empty datagram rather than receive it.
fn is_stuck(reader: &OwnedFd, deadline: Instant) -> Result<bool, String> {
    match received(reader, deadline) {
        Some(Ok(())) => Ok(false),
        Some(Err(Errno::FAULT)) => Ok(true),
        Some(Err(errno)) => Err(errno.to_string()),
        None => Err(LATE_DATAGRAM.into()),
    }
}

/// What a reader gets. `None` if that is nothing until the deadline.
fn received(reader: &OwnedFd, deadline: Instant) -> Option<Result<(), Errno>> {
    look_until(deadline, LOOK_AGAIN, || {
        match recv(reader, &mut [0; 1][..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => None,
            read => Some(read.map(drop)),
        }
    })
}

/// Sends datagrams until one has arrived. Also over loopback some get lost on a busy machine (seen on 6.18).
fn until_sent(
    mut put: impl FnMut() -> Result<(), Errno>,
    mut arrived: impl FnMut() -> bool,
) -> Result<(), String> {
    for _ in 0..TIMES_SENT {
        put().map_err(|errno| errno.to_string())?;
        let soon = Instant::now() + PATIENCE / TIMES_SENT;
        if look_until(soon, LOOK_AGAIN, || arrived().then_some(())).is_some() {
            return Ok(());
        }
    }
    Err(LATE_DATAGRAM.into())
}

/// Waits until a condition holds, which takes microseconds.
fn until(late: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    look_until(deadline, LOOK_AGAIN, || holds().then_some(())).ok_or_else(|| late.to_owned())
}

/// splice(2) does not see what a program has passed to a member (`tcp_splice_read`, seen up to 7.3).
fn splice_is_blind() -> Defect {
    let name = "splice";
    let trial = |_: &Link, source: Pair, target: Pair| {
        let words = |errno: Errno| errno.to_string();
        // Without a target the program passes.
        drop(target);
        send(&source.peer, BYTES, SendFlags::NOSIGNAL).map_err(words)?;
        let mut buffer = [0; BYTES.len()];
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        until(
            LATE_BYTES,
            || matches!(recv(&source.member, &mut buffer, peek), Ok((_, length)) if length == BYTES.len()),
        )?;
        // SPLICE_F_NONBLOCK is of the pipe only.
        fcntl_getfl(&source.member)
            .and_then(|flags| fcntl_setfl(&source.member, flags | OFlags::NONBLOCK))
            .map_err(words)?;
        let (_out, into) = pipe().map_err(words)?;
        let flags = SpliceFlags::NONBLOCK;
        let seen = splice(&source.member, None, &into, None, BYTES.len(), flags);
        // A member must not leave its map with passed bytes.
        let _ = recv(&source.member, &mut buffer, RecvFlags::DONTWAIT);
        Ok(seen == Err(Errno::AGAIN))
    };
    let loaded = Redirections::new(Redirect::IngressToEgress, MapType::Hash, 1)
        .map_err(|error| error.to_string());
    let tried = loaded.and_then(|redirections| linked(&redirections, SocketKind::Tcp, trial));
    let (present, reason) = match tried {
        Ok(true) => (
            Some(true),
            "splice(2) does not see bytes that a program has passed to a member of a map; programs that splice (Go's \
             io.Copy, HAProxy) stall if something on this machine puts their sockets into such a map"
                .into(),
        ),
        Ok(false) => (
            Some(false),
            "splice(2) sees bytes that a program has passed to a member of a map".into(),
        ),
        Err(why) => (None, format!("not tried: {why}")),
    };
    Defect {
        name,
        present,
        reason,
    }
}

/// A UDP reader whose queue is full of its own datagrams gets EAGAIN for as long as something redirected waits for room there,
/// which nobody makes: `udp_bpf_recvmsg` takes it for something to be read, and looks at nothing else (seen on 6.1.192 and
/// 6.12.117). On 6.18.44 and 7.2.13 the reader gets what was redirected at once.
fn udp_reader() -> Defect {
    let name = "udp";
    let trial = |link: &Link, source: Pair, target: Pair| {
        let words = |errno: Errno| errno.to_string();
        set_socket_recv_buffer_size(&target.member, FULL_BYTES).map_err(words)?;
        // The kernel drops those that find it full.
        for _ in 0..FULL_BYTES / BYTES.len() {
            send(&target.peer, BYTES, SendFlags::NOSIGNAL).map_err(words)?;
        }
        let put = || send(&source.peer, BYTES, SendFlags::NOSIGNAL).map(drop);
        until_sent(put, || link.counters().messages > 0)?;
        is_stalled(&target.member, Instant::now() + STALLED)
    };
    let loaded = Redirections::new(Redirect::IngressToLocal, MapType::Hash, 1)
        .map_err(|error| error.to_string());
    let tried = loaded.and_then(|redirections| linked(&redirections, SocketKind::Udp, trial));
    let (present, reason) = match tried {
        Ok(true) => (
            Some(true),
            "recv(2) fails with EAGAIN for good on a UDP socket whose queue is full of its own datagrams when another is \
             redirected to it; give such a socket a larger SO_RCVBUF"
                .into(),
        ),
        Ok(false) => (
            Some(false),
            "a UDP socket whose queue is full of its own datagrams receives when another is redirected to it".into(),
        ),
        Err(why) => (None, format!("not tried: {why}")),
    };
    Defect {
        name,
        present,
        reason,
    }
}

/// Whether a reader with datagrams in its queue gets none until `deadline`.
fn is_stalled(reader: &OwnedFd, deadline: Instant) -> Result<bool, String> {
    match received(reader, deadline) {
        Some(Ok(())) => Ok(false),
        Some(Err(errno)) => Err(errno.to_string()),
        None => Ok(true),
    }
}

/// Runs a trial with a link between two connections, which end with it. The link is forgotten whatever the trial shows:
/// if it were dropped, its maps would stay.
fn linked<T>(
    redirections: &Redirections,
    kind: SocketKind,
    trial: impl FnOnce(&Link, Pair, Pair) -> Result<T, String>,
) -> Result<T, String> {
    let (source, target) = (Pair::of(kind)?, Pair::of(kind)?);
    let link = redirections
        .link(&source.member, &target.member)
        .map_err(|error| error.to_string())?;
    // Nothing may return before the link is forgotten.
    let shown = trial(&link, source, target);
    link.forget();
    shown
}

/// FIONREAD counts only one of both queues of a member of a map of sockets (`tcp_ioctl`, `tcp_bpf_ioctl`): TCP's, or from
/// 6.6.128, 6.12.75 and 6.18.14 on (commit 929e30f93125) that of what was redirected or passed. 7.2.13 counts both.
fn fionread() -> Defect {
    let (present, reason) = miscounts(by_tcp(), redirected);
    Defect {
        name: "fionread",
        present,
        reason,
    }
}

/// What the answers of both trials show. 0 in the first one is proof, whatever would come of the second.
fn miscounts(
    by_tcp: Result<u64, String>,
    redirected: impl FnOnce() -> Result<u64, String>,
) -> (Option<bool>, String) {
    let all = BYTES.len() as u64;
    let untried = |why| (None, format!("not tried: {why}"));
    match by_tcp {
        Ok(0) => {
            return (
                Some(true),
                format!(
                    "ioctl(FIONREAD) returns 0 for a TCP socket in a BPF map of sockets that has {all} bytes queued; \
                     programs that call it before they read (Java, .NET, nginx) stall if something on this machine \
                     puts their sockets into such a map; the engines do not call it"
                ),
            );
        }
        Ok(_) => {}
        Err(why) => return untried(why),
    }
    match redirected() {
        Ok(counted) if counted != all => (
            Some(true),
            format!(
                "ioctl(FIONREAD) returns {counted} for a TCP socket to which a BPF program has redirected {all} bytes; \
                 programs that call it before they read (Java, .NET, nginx) stall if something on this machine \
                 redirects to their sockets; the engines do not call it"
            ),
        ),
        Ok(_) => (
            Some(false),
            "ioctl(FIONREAD) returns what is queued on a TCP socket in a BPF map of sockets".into(),
        ),
        Err(why) => untried(why),
    }
}

/// Whether FIONREAD misses what is queued on members of a map of sockets here. Without the rights to try, the defect counts
/// as absent.
pub fn has_fionread_defect() -> bool {
    fionread().present == Some(true)
}

/// What FIONREAD returns for a member that has `BYTES` in TCP's queue.
fn by_tcp() -> Result<u64, String> {
    let Pair { member, peer } = Pair::of(SocketKind::Tcp)?;
    let map = SockMap::create(1).map_err(|error| error.to_string())?;
    map.insert(0, &member).map_err(|error| error.to_string())?;
    answer(&peer, &member)
}

/// What FIONREAD returns for a member to which `BYTES` were redirected.
fn redirected() -> Result<u64, String> {
    let Pair { member, peer } = Pair::of(SocketKind::Tcp)?;
    let redirections = Redirections::new(Redirect::SendToLocal, MapType::Hash, 1);
    let redirections = redirections.map(Redirections::despite_defects);
    let linked = redirections.and_then(|redirections| redirections.link(&peer, &member));
    let link = linked.map_err(|error| error.to_string())?;
    let answer = answer(&peer, &member);
    let is_redirected = link.counters().messages > 0;
    drop((peer, member));
    link.forget();
    if !is_redirected {
        return Err("its bytes were not redirected".into());
    }
    answer
}

/// Sends `BYTES` from one to the other. What FIONREAD returns when they are there; they are read then.
fn answer(from: &OwnedFd, to: &OwnedFd) -> Result<u64, String> {
    let words = |errno: Errno| errno.to_string();
    send(from, BYTES, SendFlags::NOSIGNAL).map_err(words)?;
    let mut buffer = [0; BYTES.len()];
    let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    until(
        LATE_BYTES,
        || matches!(recv(to, &mut buffer, peek), Ok((_, length)) if length == BYTES.len()),
    )?;
    let answer = ioctl_fionread(to).map_err(words);
    // A member must not leave its map with queued bytes.
    let _ = recv(to, &mut buffer, RecvFlags::DONTWAIT);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_leaves_no_link_whatever_it_shows() {
        if !netlab::available(netlab::Need::Bpf) {
            return;
        }
        let redirections = Redirections::raw(Redirect::IngressToEgress, MapType::Hash, 2);
        let redirections = redirections.expect("loaded");
        for shown in [Ok(()), Err("late".to_owned())] {
            let told = linked(&redirections, SocketKind::Udp, |_, _, _| shown.clone());
            assert_eq!(told, shown);
            assert_eq!(redirections.orphans(), 0, "{shown:?}");
        }
    }

    #[test]
    fn a_datagram_that_does_not_arrive_shows_nothing() -> Result<(), String> {
        let udp = Pair::of(SocketKind::Udp)?;
        let late = is_stuck(&udp.member, Instant::now());
        assert_eq!(late, Err(LATE_DATAGRAM.into()));
        send(&udp.peer, &[], SendFlags::NOSIGNAL).expect("sent");
        assert_eq!(is_stuck(&udp.member, Instant::now() + PATIENCE), Ok(false));
        Ok(())
    }

    #[test]
    fn a_datagram_that_gets_lost_is_sent_again() {
        let (sent, most) = (std::cell::Cell::new(0), TIMES_SENT);
        let put = || {
            sent.set(sent.get() + 1);
            Ok(())
        };
        assert_eq!(until_sent(put, || sent.get() == 2), Ok(()));
        assert_eq!(sent.replace(0), 2);
        assert_eq!(until_sent(put, || false), Err(LATE_DATAGRAM.into()));
        assert_eq!(sent.get(), most);
    }

    #[test]
    fn a_reader_is_stalled_if_it_gets_nothing_and_not_if_it_gets_its_own() -> Result<(), String> {
        let udp = Pair::of(SocketKind::Udp)?;
        assert_eq!(is_stalled(&udp.member, Instant::now()), Ok(true));
        send(&udp.peer, BYTES, SendFlags::NOSIGNAL).expect("sent");
        assert_eq!(
            is_stalled(&udp.member, Instant::now() + PATIENCE),
            Ok(false)
        );
        Ok(())
    }

    /// Seen on 6.12.117 and not on 6.18. It is tried, so the version decides nothing.
    #[test]
    fn a_udp_reader_stalls_on_kernels_before_6_18() {
        if !netlab::available(netlab::Need::Bpf) {
            return;
        }
        let defect = udp_reader();
        let is_mended = Release::here().is_some_and(|release| release.series() >= (6, 18));
        if is_mended {
            assert_eq!(defect.present, Some(false), "{}", defect.reason);
        }
        assert!(defect.present.is_some(), "{}", defect.reason);
    }

    #[test]
    fn one_trial_can_prove_the_fionread_defect() {
        let all = BYTES.len() as u64;
        let late = || Err("late".to_owned());
        for (by_tcp, redirected, present) in [
            (Ok(0), late(), Some(true)),
            (Ok(all), Ok(0), Some(true)),
            (Ok(all), Ok(all), Some(false)),
            (Ok(all), late(), None),
            (late(), Ok(all), None),
        ] {
            let (told, reason) = miscounts(by_tcp, || redirected);
            assert_eq!(told, present, "{reason}");
        }
    }
}
