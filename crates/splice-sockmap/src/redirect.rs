//! The four redirects, and which kinds of sockets each supports.

use std::fmt;

use crate::socket_kind::SocketKind;

/// Which messages of a source go where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Redirect {
    /// What is sent on the source goes to the reader of the target (`bpf_msg_redirect_*` with `BPF_F_INGRESS`).
    SendToLocal,
    /// What is sent on the source is sent by the target instead (`bpf_msg_redirect_*`).
    SendToEgress,
    /// What the source receives is sent by the target (`bpf_sk_redirect_*`).
    IngressToEgress,
    /// What the source receives goes to the reader of the target (`bpf_sk_redirect_*` with `BPF_F_INGRESS`). Messages
    /// lose their borders where the reader's buffer is larger than one (`sk_msg_recvmsg`).
    IngressToLocal,
}

/// How a redirect that a pair of kinds does not support shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The program never runs, and the message goes to its usual peer: only TCP asks a program when it sends.
    NeverRuns,
    /// send(2) fails with `EACCES` (`tcp_bpf_send_verdict`).
    SendRefused,
    /// The message is acknowledged to its sender and lost in silence (`sk_psock_verdict_apply`).
    Lost,
}

impl Redirect {
    /// All four, in the order of the tables.
    pub const ALL: [Self; 4] = [
        Self::SendToLocal,
        Self::SendToEgress,
        Self::IngressToEgress,
        Self::IngressToLocal,
    ];

    /// Whether the redirect supports a pair of kinds, as `sock_map_redirect_allowed` and the helpers of Linux 6.6 to
    /// 7.3 decide.
    ///
    /// # Errors
    /// How the kernel would fail.
    pub fn supports(self, source: SocketKind, target: SocketKind) -> Result<(), Failure> {
        match self {
            Self::SendToLocal | Self::SendToEgress if source != SocketKind::Tcp => {
                Err(Failure::NeverRuns)
            }
            Self::SendToLocal if target.is_vsock() => Err(Failure::SendRefused),
            Self::SendToEgress if target != SocketKind::Tcp => Err(Failure::SendRefused),
            Self::IngressToLocal if target.is_vsock() => Err(Failure::Lost),
            Self::SendToLocal
            | Self::SendToEgress
            | Self::IngressToEgress
            | Self::IngressToLocal => Ok(()),
        }
    }

    /// The kernel's function that makes this redirect fail so.
    pub fn decided_by(self, failure: Failure) -> &'static str {
        match (failure, self) {
            // A socket of another kind has no sendmsg that would call it.
            (Failure::NeverRuns, _) => "tcp_bpf_sendmsg",
            (Failure::SendRefused | Failure::Lost, Self::SendToLocal | Self::SendToEgress) => {
                "bpf_msg_redirect_hash, bpf_msg_redirect_map"
            }
            (Failure::SendRefused | Failure::Lost, _) => {
                "bpf_sk_redirect_hash, bpf_sk_redirect_map"
            }
        }
    }

    /// Its name, as in "ingress to egress".
    pub fn name(self) -> &'static str {
        match self {
            Self::SendToLocal => "send to local",
            Self::SendToEgress => "send to egress",
            Self::IngressToEgress => "ingress to egress",
            Self::IngressToLocal => "ingress to local",
        }
    }

    /// Whether it redirects what is sent on the source, and not what the source receives.
    pub fn is_of_sent(self) -> bool {
        matches!(self, Self::SendToLocal | Self::SendToEgress)
    }

    /// Whether the messages go to the target's reader, and not to its peer.
    pub fn is_to_local(self) -> bool {
        matches!(self, Self::SendToLocal | Self::IngressToLocal)
    }
}

impl fmt::Display for Redirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Failure {
    /// The failure in a few words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NeverRuns => "the program never runs, and the message goes to its usual peer",
            Self::SendRefused => "send(2) fails with EACCES",
            Self::Lost => "the message is acknowledged and lost",
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of supported pairs of each redirect, as in the tables of the kernel's own test (sockmap_redir.c).
    #[test]
    fn each_redirect_supports_as_many_pairs_as_the_kernel_says() {
        let supported = Redirect::ALL.map(|redirect| {
            let pairs = SocketKind::ALL
                .iter()
                .flat_map(|source| SocketKind::ALL.iter().map(move |target| (source, target)));
            let of = pairs.filter(|(source, target)| redirect.supports(**source, **target).is_ok());
            of.count()
        });
        assert_eq!(supported, [4, 1, 36, 24]);
    }
}
