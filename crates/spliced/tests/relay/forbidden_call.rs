//! A system call that a seccomp filter forbids a program, as a fault that cannot be had otherwise.

use std::process::Command;

use netlab::{Need, available, present, program};
use rustix::io::Errno;

use crate::relay::BINARY;

/// The numbers of system calls: `asm/unistd_64.h` of x86-64, and the table of all newer architectures
/// (`asm-generic/unistd.h`).
const IS_X86: bool = cfg!(target_arch = "x86_64");
const PRCTL: u32 = if IS_X86 { 157 } else { 167 };
pub(crate) const SPLICE: u32 = if IS_X86 { 275 } else { 76 };
/// The same number on every architecture.
pub(crate) const IO_URING_SETUP: u32 = 425;
pub(crate) const BPF: u32 = if IS_X86 { 321 } else { 280 };
pub(crate) const IO_SETUP: u32 = if IS_X86 { 206 } else { 0 };
pub(crate) const GETDENTS64: u32 = if IS_X86 { 217 } else { 61 };
/// As the standard library makes it: readlink(2), or readlinkat(2) where there is no other.
pub(crate) const READLINK: u32 = if IS_X86 { 89 } else { 78 };
const SENDTO: u32 = if IS_X86 { 44 } else { 206 };
const SOCKET: u32 = if IS_X86 { 41 } else { 198 };
const SETSOCKOPT: u32 = if IS_X86 { 54 } else { 208 };
const GETSOCKOPT: u32 = if IS_X86 { 55 } else { 209 };

/// linux/socket.h and linux/netlink.h, and options of sockets (asm-generic/socket.h).
const AF_NETLINK: u32 = 16;
const NETLINK_NETFILTER: u32 = 12;
const SO_PEERCRED: u32 = 17;
const SO_MAX_PACING_RATE: u32 = 47;

/// The bytes of a question for the route to an IPv4 address: two headers, and attributes with the address, the protocol
/// and the port (linux/rtnetlink.h).
const ROUTE_QUESTION_BYTES: u32 = 16 + 12 + 8 + 8 + 8;

/// What fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForbiddenCall {
    number: u32,
    /// Only with this value of this argument, counted from 0.
    argument: Option<(u32, u32)>,
    errno: Errno,
}

impl ForbiddenCall {
    pub(crate) const NETLINK: Self = Self::with(SOCKET, 0, AF_NETLINK);
    pub(crate) const NETFILTER: Self = Self::with(SOCKET, 2, NETLINK_NETFILTER);
    pub(crate) const ROUTE_QUESTION: Self = Self::with(SENDTO, 2, ROUTE_QUESTION_BYTES);
    pub(crate) const PEER_CREDENTIALS: Self = Self::with(GETSOCKOPT, 2, SO_PEERCRED);
    pub(crate) const PACING_RATE: Self = Self::with(SETSOCKOPT, 2, SO_MAX_PACING_RATE);

    pub(crate) const fn any(number: u32, errno: Errno) -> Self {
        Self {
            number,
            argument: None,
            errno,
        }
    }

    /// The same with another error.
    pub(crate) const fn failing_with(self, errno: Errno) -> Self {
        Self { errno, ..self }
    }

    const fn with(number: u32, argument: u32, value: u32) -> Self {
        Self {
            number,
            argument: Some((argument, value)),
            errno: Errno::PERM,
        }
    }

    /// Has `command` run `spliced`, for which the call fails. `None` if the test lacks something.
    pub(crate) fn spliced(self, mut command: Command) -> Option<Command> {
        // `prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ...)` (linux/seccomp.h, linux/filter.h). Of an argument it
        // loads the lower half.
        const SCRIPT: &str = r#"
            my ($prctl, $call, $at, $value, $errno) = splice(@ARGV, 0, 5);
            my $low = unpack("C", pack("S", 1)) ? 0 : 4;
            my @filter = (
                0x20, 0, 0, 0,                         # load the number of the call
                0x15, 0, $at < 0 ? 1 : 3, $call,       # another: allow
                $at < 0 ? () : (
                    0x20, 0, 0, 16 + 8 * $at + $low,   # load the argument
                    0x15, 0, 1, $value,                # another: allow
                ),
                0x06, 0, 0, 0x50000 | $errno,          # return the error
                0x06, 0, 0, 0x7fff0000,                # allow
            );
            my $count = @filter / 4;
            my $filter = pack("SCCL" x $count, @filter);
            syscall($prctl+0, 22, 2, pack("Sx6P", $count, $filter)) == 0 or die "prctl: $!";
            exec(@ARGV) or die "exec: $!";
        "#;
        let perl = program("perl").map_or_else(|| Some("no perl".into()), |_| None);
        if !available(Need::Root) || !present("perl", perl) {
            return None;
        }
        let (at, value) = match self.argument {
            Some((at, value)) => (i64::from(at), value),
            None => (-1, 0),
        };
        let errno = self.errno.raw_os_error();
        command
            .args(["-e", SCRIPT, &PRCTL.to_string(), &self.number.to_string()])
            .args([&at.to_string(), &value.to_string(), &errno.to_string()])
            .arg(BINARY)
            .env_remove("SPLICED_LOG");
        Some(command)
    }
}
