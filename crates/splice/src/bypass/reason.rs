//! Why messages go over TCP: those of a connection, and one of a connection whose messages are redirected.

use splice_bpf::types::bypass_obstacle as obstacle;

macro_rules! reasons {
    ($(#[$what:meta])* $of:ident: $($(#[$meta:meta])* $name:ident = $number:expr, $text:literal;)*) => {
        $(#[$what])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[non_exhaustive]
        pub enum $of {
            $($(#[$meta])* $name = $number,)*
        }

        impl $of {
            /// In words.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// `None` if there is none, or for what a newer version has written.
            pub(super) fn of(number: u32) -> Option<Self> {
                [$(Self::$name),*].into_iter().find(|one| *one as u32 == number)
            }
        }

        impl std::fmt::Display for $of {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

reasons! {
    /// Why a connection is not redirected, or not any more.
    Reason:
    /// It has not shown yet what it does.
    Young = 1, "it has not moved enough messages yet";
    /// Its messages are large, or have become so.
    Bulk = 2, "its messages are large, and TCP moves bulk faster";
    /// A rule denies it, or none allows it.
    Rule = 3, "the rules exclude it";
    /// Its network namespace is not that of a process in a covered group, and has no name.
    Network = 4, "the network namespace of one end was not found";
    /// The socket was not found in its namespace.
    Socket = 5, "one end was not found in its network namespace";
    /// kTLS.
    UpperProtocol = 6, "one end has an upper layer protocol such as kTLS";
    /// `SO_ZEROCOPY`.
    ZeroCopy = 7, "one end sends with SO_ZEROCOPY, which members of a map of sockets lose";
    /// `SO_RCVLOWAT`.
    LowWater = 8, "one end has SO_RCVLOWAT, which members of a map of sockets do not keep";
    /// The kernel.
    Refused = 9, "the kernel does not take one end into a map of sockets: another program may have it";
    /// `MSG_WAITALL`, splice(2) or `MSG_OOB`.
    Reader = 10, "both ends read in a way that a redirect would change (MSG_WAITALL, splice(2) or MSG_OOB)";
    /// Two connections with the same numbers.
    Conflict = 11, "another connection has the same sequence numbers";
    /// It ends, or its bypass does.
    Stopped = 12, "the bypass ends";
    /// A packet filter.
    Filter = 13, "a packet filter on the way would drop, change or count its segments";
    /// One thread reads with calls that wait, another one sends.
    Threads = 14, "one thread waits for messages while another one sends: such a wait may end early (EAGAIN) in a map of sockets";
    /// splice(2) with unread messages in front of it.
    Stuck = 15, "its reader has called splice(2), which does not see the messages that it has not read yet: it is reset";
    /// Its messages pass, for whatever [`Obstacle`].
    Passing = 16, "too many of its messages had to go over TCP, which costs members of a map of sockets more than others";
    /// It sends with calls that do not wait, and reads with calls that do.
    Mixes = 17, "one end sends without waiting for room and waits in recv(2): such a wait may end early (EAGAIN) in a map of sockets";
    /// It was seen.
    Woken = 18, "a recv(2) of one end has ended early (EAGAIN) in a map of sockets";
}

reasons! {
    /// Why a message of a redirected connection goes over TCP.
    Obstacle:
    /// The heartbeat.
    Stale = obstacle::STALE, "the process of the bypass does not answer";
    /// Its size.
    Large = obstacle::LARGE, "it is large, and TCP moves bulk faster";
    /// `MSG_WAITALL`, splice(2) or `MSG_OOB`.
    Reader = obstacle::READER, "its reader uses MSG_WAITALL, splice(2) or MSG_OOB";
    /// No read yet.
    Unseen = obstacle::UNSEEN, "its reader has not read since both ends are in the map";
    /// The bound.
    Full = obstacle::FULL, "too much is unread";
    /// Order.
    Behind = obstacle::BEHIND, "what went over TCP before is unread";
    /// `SO_RCVLOWAT`.
    LowMark = obstacle::LOW_MARK, "its reader has SO_RCVLOWAT";
    /// kTLS.
    Upper = obstacle::UPPER, "one end has an upper layer protocol such as kTLS";
    /// The kernel.
    Helper = obstacle::HELPER, "the kernel does not redirect it";
}
