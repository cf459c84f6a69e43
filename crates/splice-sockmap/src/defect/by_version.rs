//! Defects that are told by the kernel's release.

use splice_base::release::{FOREIGN_BYTES, FULL_TARGETS, FixedIn, PARSER_COUNTS, Release};

use super::Defect;

/// A defect that no doctor should provoke.
pub(super) struct Known {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    affected: Affected,
}

/// Which releases have a defect.
enum Affected {
    /// All from 6.1 to the last series whose source was read.
    Until((u32, u32)),
    /// All before the fix.
    Before(&'static [FixedIn]),
}

pub(super) const BY_VERSION: [Known; 7] = [
    Known {
        name: "backlog",
        what: "what is redirected to a socket whose peer does not read waits without a bound, charged to nobody \
               (sk_psock_skb_redirect); the engine sockmap bounds it, plain redirects do not",
        affected: Affected::Until((7, 3)),
    },
    Known {
        name: "fin",
        what: "a FIN that a program redirects breaks the target with EPIPE (sk_psock_backlog); no program here does it",
        affected: Affected::Until((7, 3)),
    },
    Known {
        name: "removal",
        what: "a source that is removed from its map in full flow loses what has its verdict in that moment \
               (sk_psock_stop_verdict); the engine and the links of the library hold it still before",
        affected: Affected::Until((7, 3)),
    },
    Known {
        name: "unread",
        what: "a member that is removed with passed bytes unread loses them and stalls, with a warning in the kernel's \
               log (tcp_recvmsg); the engine passes none, and a link does not leave before they are read",
        affected: Affected::Until((7, 3)),
    },
    Known {
        name: "foreign",
        what: "a TCP socket counts bytes that were redirected to its reader as read from its own connection \
               (tcp_bpf_recvmsg_parser), and may stall or skip later ones; links of the library refuse such a target here",
        affected: Affected::Before(FOREIGN_BYTES),
    },
    Known {
        name: "retry",
        what: "what a target with a full send buffer does not take at once is lost or sent twice (sk_psock_backlog); \
               no mesh is set up here",
        affected: Affected::Before(FULL_TARGETS),
    },
    Known {
        name: "parser",
        what: "a member with a stream parser counts twice what it has read (strp_read_sock); no mesh is set up here",
        affected: Affected::Before(PARSER_COUNTS),
    },
];

/// Where there is no loopback of VSOCK to try it on. It was tried on 6.1.192, 6.12.117, 6.18.15, 7.2.13 and 7.3.4.
pub(super) const SEQPACKET: Known = Known {
    name: "seqpacket",
    what: "a VSOCK seqpacket whose peer has no more credit sends the beginning of a message, and send(2) fails with EAGAIN; \
           the kernel tries again with what is redirected, and the peer gets a message that is too long; redirect to the \
           egress of one only if its peer keeps reading",
    affected: Affected::Until((7, 3)),
};

impl Known {
    pub(super) fn on(&self, release: Option<Release>) -> Defect {
        let present = release.and_then(|release| match self.affected {
            Affected::Until(last) => {
                let is_read = ((6, 1)..=last).contains(&release.series());
                is_read.then_some(true)
            }
            Affected::Before(fixed_in) => release.lacks(fixed_in),
        });
        let by = match present {
            Some(_) => "by its version",
            None => "not tried, and unknown for this version",
        };
        Defect {
            name: self.name,
            present,
            reason: format!("{by}: {}", self.what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(name: &str, release: &str) -> Defect {
        let mut known = BY_VERSION.iter().chain([&SEQPACKET]);
        let known = known.find(|known| known.name == name).expect("known");
        known.on(Release::of(release, ""))
    }

    #[test]
    fn a_defect_by_version_is_told_of_releases_that_were_read() {
        for (name, release, present) in [
            ("removal", "5.15.200", None),
            ("removal", "6.1.0-56-cloud-amd64", Some(true)),
            ("removal", "7.3.0-rc7", Some(true)),
            ("removal", "7.4.1", None),
            ("removal", "next", None),
            ("seqpacket", "7.2.13", Some(true)),
            ("seqpacket", "7.3.4", Some(true)),
            ("seqpacket", "7.4.1", None),
            ("retry", "6.1.141", Some(true)),
            ("retry", "6.1.142", Some(false)),
            ("retry", "6.6.1", None),
            ("parser", "6.12.16", Some(true)),
            ("parser", "6.18.15", Some(false)),
            ("foreign", "6.1.164", Some(true)),
            ("foreign", "6.1.0-56-cloud-amd64", None),
            ("foreign", "6.12.75", Some(false)),
        ] {
            let defect = on(name, release);
            assert_eq!(defect.present, present, "{name} on {release}");
            let begins = match present {
                Some(_) => "by its version: ",
                None => "not tried, and unknown for this version: ",
            };
            assert!(defect.reason.starts_with(begins), "{}", defect.reason);
        }
    }
}
