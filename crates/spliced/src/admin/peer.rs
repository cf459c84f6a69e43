//! Who is at the other end of a control socket, and whether that may ask.

use std::fmt;
use std::os::unix::net::UnixStream;

use hyper::StatusCode;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use splice_base::socket_option::peer_groups;

use super::refusal::Refusal;

/// The process that has connected, as it was then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    user: u32,
    process: i32,
    /// It is in the group of the socket.
    is_in_group: bool,
}

impl Peer {
    /// The peer of `client`, or why it is not known. `group` is that of the socket.
    pub(super) fn of(client: &UnixStream, group: Option<u32>) -> Result<Self, String> {
        let found = getsockopt(client, PeerCredentials).map_err(|errno| errno.to_string())?;
        let is_in_group = group.is_some_and(|group| {
            found.gid() == group || peer_groups(client).is_ok_and(|all| all.contains(&group))
        });
        Ok(Self {
            user: found.uid(),
            process: found.pid(),
            is_in_group,
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {} (process {})", self.user, self.process)
    }
}

/// Whether a process may ask this one, which runs as `user`.
///
/// # Errors
/// If it is neither root's nor the same user's, nor in the group of the socket, or that is not known.
pub(super) fn admit(peer: &Result<Peer, String>, user: u32) -> Result<(), Refusal> {
    match peer {
        Ok(peer) if peer.user == 0 || peer.user == user || peer.is_in_group => Ok(()),
        Ok(peer) => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            format!(
                "user {} may not ask the process of user {user}; ask as that user or as root, or let a group ask with \
                 --control-group GROUP, or control_group of [process]",
                peer.user
            ),
        )),
        // Not the client's fault: it is told even if nobody named the process.
        Err(error) => Err(Refusal::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!(
                "which user asks the process of user {user} cannot be found out ({error}), so it does not answer; let \
                 it call getsockopt(2) with SO_PEERCRED"
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_neither_root_nor_the_same_user_nor_in_the_group_gets_no_answer() {
        let peer = |user, is_in_group| {
            Ok(Peer {
                user,
                process: 1,
                is_in_group,
            })
        };
        for known in [peer(0, false), peer(1000, false), peer(1001, true)] {
            admit(&known, 1000).expect("admitted");
        }
        for (peer, why) in [
            (
                peer(1001, false),
                "user 1001 may not ask the process of user 1000; ask as",
            ),
            (
                Err("broken".into()),
                "cannot be found out (broken), so it does not answer; let it",
            ),
        ] {
            let refusal = admit(&peer, 1000).expect_err("refused");
            assert!(refusal.sentence.contains(why), "{refusal:?}");
        }
    }

    #[test]
    fn a_peer_is_known_by_user_process_and_group() {
        let (client, process) = UnixStream::pair().expect("connected");
        let peer = Peer::of(&process, None).expect("known");
        assert_eq!(peer.process, std::process::id().cast_signed());
        assert_eq!(peer.user, rustix::process::geteuid().as_raw());
        assert!(!peer.is_in_group);
        let own = rustix::process::getegid().as_raw();
        assert!(Peer::of(&process, Some(own)).expect("known").is_in_group);
        drop(client);
    }
}
