//! Why an engine cannot be used, and what the user can do about it.
//!
//! The kernel answers `EPERM` and `EINVAL` for a dozen reasons. The process and its surroundings
//! show which one applies.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use crate::error::{Error, ErrorKind};

/// The kernel's type information (BTF). libbpf relocates programs by it when it loads them.
const KERNEL_TYPES: &str = "/sys/kernel/btf/vmlinux";

/// The uid map of the initial user namespace, which spans all users (user_namespaces(7)).
const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];

/// `Seccomp:` in `/proc/PID/status` if a filter is installed (`SECCOMP_MODE_FILTER`).
const FILTERED: &str = "2";

/// The last line of the verifier's log. A rejected program gives the same error numbers as a
/// missing capability (`libbpf_prog_load`), but without capabilities the verifier does not run and
/// logs nothing.
const VERIFIED: &str = "-- END PROG LOAD LOG --";

/// What the verifier says of a program that puts a socket into a map, or takes one out, and is of none of the types that may
/// (`check_map_func_compatibility`). Since Linux 7.3 only sock_ops programs and iterators may, and those that choose a socket
/// (sk_reuseport) take out (tried on 7.3.4).
const MAY_NOT_CHANGE: &str = "cannot update sockmap in this context";

/// Why an engine cannot be used, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The reason.
    pub reason: String,
    /// What the user can do about it.
    pub remedy: String,
}

impl Obstacle {
    /// An obstacle and its remedy.
    pub fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }

    /// Why bpf(2) failed with this error.
    pub fn of_bpf(error: &Error) -> Self {
        // Whoever knows the remedy has looked at the cause.
        if let Some(remedy) = error.remedy() {
            return Self::new(error.context(), remedy);
        }
        let is_verified = error.log().is_some_and(|log| log.contains(VERIFIED));
        match error.errno() {
            Some(Errno::PERM | Errno::ACCESS) => Self::of_refusal(error, &Process::this()),
            // The verifier's log has nothing then.
            Some(Errno::MFILE) => Self::too_many_files(),
            _ if is_verified => Self::of_refusal(error, &Process::this()),
            Some(Errno::NOMEM) => Self::new(
                "the kernel has no memory for its tables",
                "raise the memory limit of the control group, or RLIMIT_MEMLOCK before Linux \
                 5.11; a smaller RLIMIT_NOFILE makes the tables smaller",
            ),
            Some(Errno::NOSYS) => Self::new(
                "this kernel has no bpf(2)",
                "run one that was built with CONFIG_BPF_SYSCALL and CONFIG_BPF_STREAM_PARSER, or \
                 allow the call where a sandbox answers in the kernel's place",
            ),
            _ if !Path::new(KERNEL_TYPES).exists() => Self::new(
                format!("the kernel has no type information (BTF): there is no {KERNEL_TYPES}"),
                "run a kernel that was built with CONFIG_DEBUG_INFO_BTF, and mount /sys where it \
                 is missing",
            ),
            _ => Self::new(
                error.to_string(),
                "run a kernel of 6.1 or later, built with CONFIG_BPF_SYSCALL, \
                 CONFIG_BPF_STREAM_PARSER and CONFIG_BPF_JIT",
            ),
        }
    }

    /// Why io_uring(7) failed with this error.
    pub fn of_io_uring(errno: Errno) -> Self {
        const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";
        match errno {
            Errno::PERM | Errno::ACCESS => {
                let disabled = fs::read_to_string(DISABLED).unwrap_or_default();
                Self::of_closed_ring(disabled.trim(), &Process::this())
            }
            Errno::NOSYS => Self::new(
                "this kernel has no io_uring(7)",
                "run one that was built with CONFIG_IO_URING, or allow io_uring_setup, \
                 io_uring_enter and io_uring_register where a sandbox answers in the kernel's place",
            ),
            Errno::MFILE => Self::too_many_files(),
            Errno::NOMEM => Self::new(
                "the kernel has no memory for an io_uring",
                "raise the memory limit of the control group, or RLIMIT_MEMLOCK before Linux 5.12",
            ),
            Errno::INVAL => Self::new(
                "this kernel's io_uring(7) has no provided buffer rings",
                "run a kernel of 5.19 or later",
            ),
            other => Self::new(
                format!("an io_uring cannot be created: {other}"),
                "report it with this kernel's release",
            ),
        }
    }

    /// `io_uring_allowed` checks the sysctl. A seccomp filter or a security module decides before
    /// it.
    fn of_closed_ring(disabled: &str, process: &Process) -> Self {
        match disabled {
            "2" => Self::new(
                "kernel.io_uring_disabled is 2, which forbids io_uring(7) to everybody",
                "set it to 0 (sysctl kernel.io_uring_disabled=0)",
            ),
            "1" if !process.held.contains(CapabilitySet::SYS_ADMIN) => Self::new(
                "kernel.io_uring_disabled is 1, which forbids io_uring(7) to users outside of the \
                 group kernel.io_uring_group",
                "add the user to that group, or set kernel.io_uring_disabled to 0",
            ),
            _ if process.filtered => Self::new(
                "a seccomp filter forbids io_uring(7)",
                "allow the system calls io_uring_setup, io_uring_enter and io_uring_register in \
                 the filter (SystemCallFilter= of its service, or the seccomp profile of its \
                 container)",
            ),
            _ => Self::new(
                "the kernel forbids io_uring(7)",
                "look for a security module that forbids it (SELinux, AppArmor) in the kernel's log",
            ),
        }
    }

    /// What bpf(2) will refuse for, as far as this process shows it. Loads nothing.
    pub fn foreseen() -> Option<Self> {
        Self::foreseen_for(&Process::this())
    }

    fn foreseen_for(process: &Process) -> Option<Self> {
        let is_refused = !process.missing().is_empty() || process.nested || process.locked_down;
        let refusal = || Error::new(ErrorKind::BpfRefused, "it is refused");
        is_refused.then(|| Self::of_refusal(&refusal(), process))
    }

    /// The process lacks CAP_NET_ADMIN, which netlink asks for: there CAP_SYS_ADMIN does not stand for it, as it does with
    /// bpf(2).
    pub fn without_net_admin() -> Option<Self> {
        Self::without_net_admin_in(&Process::this())
    }

    fn without_net_admin_in(process: &Process) -> Option<Self> {
        let is_held = process.held.contains(CapabilitySet::NET_ADMIN);
        (!is_held).then(|| Self::lacking(&["CAP_NET_ADMIN"]))
    }

    fn lacking(missing: &[&str]) -> Self {
        let names = listed(missing, "and");
        Self::new(
            format!("this process lacks {names}"),
            format!(
                "run it as root, or give it {names} (setcap on the program's file, or \
                 AmbientCapabilities= of its service)"
            ),
        )
    }

    /// The process has no file descriptors left.
    pub fn too_many_files() -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(String::new(), |limit| {
            format!(": its limit (RLIMIT_NOFILE) is {limit}")
        });
        Self::new(
            format!("the process has no file descriptors left{limit}"),
            "raise RLIMIT_NOFILE (ulimit -n, or LimitNOFILE= of its service)",
        )
    }

    fn of_refusal(error: &Error, process: &Process) -> Self {
        let missing = process.missing();
        if !missing.is_empty() {
            return Self::lacking(&missing);
        }
        if process.nested {
            return Self::new(
                "its capabilities count in a user namespace only, and bpf(2) asks for those of \
                 the machine",
                "run it outside of the user namespace (a rootless container is one)",
            );
        }
        // The verifier is stricter with processes that lack capabilities, so this comes after
        // those.
        if error.log().is_some_and(|log| log.contains(MAY_NOT_CHANGE)) {
            return Self::new(
                "this kernel does not let the program change a map of sockets (none but sock_ops programs and iterators may \
                 since Linux 7.3)",
                "run a kernel before 7.3; every engine but sockmap works without such a map",
            );
        }
        if error.log().is_some_and(|log| log.contains(VERIFIED)) {
            return Self::new(
                format!("this kernel's verifier rejects the program: {error}"),
                "run a kernel of 6.1 or later, and report it with this kernel's release if it is one",
            );
        }
        if process.filtered {
            return Self::new(
                "a seccomp filter forbids bpf(2), although the process has the capabilities",
                "allow the system call bpf in the filter (SystemCallFilter= of its service, or \
                 the seccomp profile of its container)",
            );
        }
        if process.locked_down {
            return Self::new(
                "the kernel is locked down, so that no program may read its memory",
                "boot it with lockdown=integrity or none",
            );
        }
        Self::new(
            format!("the kernel forbids it, although the process has the capabilities: {error}"),
            "look for a security module that forbids bpf(2) (SELinux, AppArmor) in the kernel's \
             log",
        )
    }
}

/// What of this process decides whether bpf(2) is allowed.
#[derive(Clone, Copy, Debug)]
struct Process {
    held: CapabilitySet,
    nested: bool,
    filtered: bool,
    locked_down: bool,
}

impl Process {
    fn this() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let users = read("/proc/self/uid_map");
        let status = read("/proc/thread-self/status");
        Self {
            held: capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective),
            nested: !users.is_empty() && !users.split_whitespace().eq(ALL_USERS),
            filtered: status
                .lines()
                .filter_map(|line| line.strip_prefix("Seccomp:"))
                .any(|mode| mode.trim() == FILTERED),
            locked_down: read("/sys/kernel/security/lockdown").contains("[confidentiality]"),
        }
    }

    /// The required capabilities that the process lacks. CAP_SYS_ADMIN implies each of them
    /// (`bpf_token_capable`, `perfmon_capable`).
    fn missing(&self) -> Vec<&'static str> {
        [
            (CapabilitySet::BPF, "CAP_BPF"),
            (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
            (CapabilitySet::PERFMON, "CAP_PERFMON"),
        ]
        .into_iter()
        .filter(|(one, _)| !self.held.intersects(*one | CapabilitySet::SYS_ADMIN))
        .map(|(_, name)| name)
        .collect()
    }
}

/// Joins names for a sentence, with `and` or `or` before the last.
pub fn listed(names: &[&str], conjunction: &str) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).into(),
        [first @ .., last] => format!("{} {conjunction} {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(errno: Errno) -> Error {
        Error::new(ErrorKind::BpfRefused, "the BPF object cannot be loaded").with_source(errno)
    }
    const ALL_HELD: Process = Process {
        held: CapabilitySet::all(),
        nested: false,
        filtered: false,
        locked_down: false,
    };

    fn reason(process: Process) -> String {
        let Obstacle { reason, remedy } = Obstacle::of_refusal(&refused(Errno::PERM), &process);
        assert!(!remedy.is_empty(), "{reason}");
        reason
    }

    fn lacking(held: CapabilitySet) -> String {
        reason(Process { held, ..ALL_HELD })
    }

    #[test]
    fn exactly_the_missing_capabilities_are_named() {
        let [bpf, net, perf] = [
            CapabilitySet::BPF,
            CapabilitySet::NET_ADMIN,
            CapabilitySet::PERFMON,
        ];
        for (held, said) in [
            (
                CapabilitySet::empty(),
                "lacks CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
            ),
            (bpf, "lacks CAP_NET_ADMIN and CAP_PERFMON"),
            (net, "lacks CAP_BPF and CAP_PERFMON"),
            (bpf | net, "lacks CAP_PERFMON"),
        ] {
            let reason = lacking(held);
            assert!(reason.ends_with(said), "{reason}");
        }
        for held in [bpf | net | perf, CapabilitySet::SYS_ADMIN] {
            let reason = lacking(held);
            assert!(!reason.contains("lacks"), "{reason}");
        }
    }

    #[test]
    fn netlink_asks_for_cap_net_admin_itself() {
        let with = |held| Obstacle::without_net_admin_in(&Process { held, ..ALL_HELD });
        assert_eq!(with(CapabilitySet::NET_ADMIN), None);
        let others = CapabilitySet::all().difference(CapabilitySet::NET_ADMIN);
        assert!(!lacking(others).contains("lacks"));
        let Obstacle { reason, remedy } = with(others).expect("an obstacle");
        assert_eq!(reason, "this process lacks CAP_NET_ADMIN");
        assert!(remedy.contains("give it CAP_NET_ADMIN (setcap"), "{remedy}");
    }

    #[test]
    fn what_a_process_shows_is_foreseen() {
        assert_eq!(Obstacle::foreseen_for(&ALL_HELD), None);
        // A filter may allow bpf(2).
        let filtered = Process {
            filtered: true,
            ..ALL_HELD
        };
        assert_eq!(Obstacle::foreseen_for(&filtered), None);
        let bare = Process {
            held: CapabilitySet::empty(),
            ..ALL_HELD
        };
        let nested = Process {
            nested: true,
            ..ALL_HELD
        };
        for (process, why) in [(bare, "lacks CAP_BPF, "), (nested, "user namespace")] {
            let foreseen = Obstacle::foreseen_for(&process).expect("an obstacle");
            assert!(foreseen.reason.contains(why), "{foreseen:?}");
        }
    }

    #[test]
    fn with_all_capabilities_the_environment_is_the_reason() {
        let nested = reason(Process {
            nested: true,
            filtered: true,
            ..ALL_HELD
        });
        assert!(nested.contains("user namespace"), "{nested}");
        let filtered = reason(Process {
            filtered: true,
            ..ALL_HELD
        });
        assert!(filtered.contains("seccomp"), "{filtered}");
        let locked_down = reason(Process {
            locked_down: true,
            ..ALL_HELD
        });
        assert!(locked_down.contains("locked down"), "{locked_down}");
        assert!(reason(ALL_HELD).contains("Operation not permitted (os error 1)"));
    }

    #[test]
    fn what_forbids_io_uring_is_named() {
        let of = |disabled: &str, process: Process| Obstacle::of_closed_ring(disabled, &process);
        let plain = Process {
            held: CapabilitySet::empty(),
            ..ALL_HELD
        };
        let filtered = Process {
            filtered: true,
            ..ALL_HELD
        };
        for (disabled, process, reason, remedy) in [
            (
                "2",
                ALL_HELD,
                "io_uring_disabled is 2",
                "io_uring_disabled=0",
            ),
            ("1", plain, "kernel.io_uring_group", "add the user"),
            ("0", filtered, "a seccomp filter", "io_uring_setup"),
            ("1", filtered, "a seccomp filter", "io_uring_setup"),
            ("0", ALL_HELD, "the kernel forbids", "security module"),
        ] {
            let said = of(disabled, process);
            assert!(said.reason.contains(reason), "{said:?}");
            assert!(said.remedy.contains(remedy), "{said:?}");
        }
        for errno in [
            Errno::NOSYS,
            Errno::MFILE,
            Errno::NOMEM,
            Errno::INVAL,
            Errno::IO,
        ] {
            let Obstacle { reason, remedy } = Obstacle::of_io_uring(errno);
            assert!(!reason.is_empty() && !remedy.is_empty());
        }
    }

    #[test]
    fn errors_of_libbpf_have_remedies_of_their_own() {
        let of = |errno| Obstacle::of_bpf(&refused(errno)).remedy;
        assert!(of(Errno::MFILE).contains("RLIMIT_NOFILE"));
        let verified = refused(Errno::MFILE).with_log("-- END PROG LOAD LOG --");
        assert_eq!(Obstacle::of_bpf(&verified), Obstacle::too_many_files());
        assert!(of(Errno::NOMEM).contains("RLIMIT_MEMLOCK"));
        assert!(of(Errno::NOSYS).contains("CONFIG_BPF_SYSCALL"));
        let verified = refused(Errno::ACCESS).with_log("R4 invalid; -- END PROG LOAD LOG --");
        let Obstacle { reason, remedy } = Obstacle::of_refusal(&verified, &ALL_HELD);
        assert!(reason.starts_with("this kernel's verifier"), "{reason}");
        assert!(reason.contains("R4 invalid"), "{reason}");
        assert!(remedy.contains("6.1 or later"), "{remedy}");
        let newer = refused(Errno::INVAL).with_log(
            "231: (85) call bpf_map_update_elem#2; cannot update sockmap in this context; -- END PROG LOAD LOG --",
        );
        let Obstacle { reason, remedy } = Obstacle::of_refusal(&newer, &ALL_HELD);
        assert!(reason.contains("since Linux 7.3"), "{reason}");
        assert!(remedy.contains("before 7.3"), "{remedy}");
        let unprivileged = Process {
            held: CapabilitySet::BPF,
            ..ALL_HELD
        };
        let Obstacle { reason, .. } = Obstacle::of_refusal(&verified, &unprivileged);
        assert_eq!(reason, "this process lacks CAP_NET_ADMIN and CAP_PERFMON");
        let unknown = refused(Errno::INVAL);
        if Path::new(KERNEL_TYPES).exists() {
            assert_eq!(Obstacle::of_bpf(&unknown).reason, unknown.to_string());
        } else {
            assert!(Obstacle::of_bpf(&unknown).reason.contains("BTF"));
        }
    }
}
