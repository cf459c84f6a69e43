//! What a test needs beyond the privileges of a plain user, and what happens without it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::{env, thread};

use rustix::thread::CapabilitySet;

use crate::{Namespace, program};

/// The variable that turns skipped tests into failures: a comma-separated list of [`Need::name`]s, or `all`.
const VARIABLE: &str = "SPLICED_REQUIRE";

/// The variable with the file that gets a line for each skip. `scripts/test` counts them: a line on
/// stderr is lost among thousands, or in the output that a test keeps of a process of its own.
const LEFT_OUT: &str = "SPLICED_LEFT_OUT";

/// A privilege or program that not every machine or user has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Being root.
    Root,
    /// Creating network namespaces.
    Netns,
    /// Loading BPF programs for networking: CAP_BPF, CAP_NET_ADMIN and a kernel with BTF.
    Bpf,
    /// The `haproxy` program.
    Haproxy,
    /// The `ss` program of iproute2.
    Ss,
    /// The `nft` program of nftables.
    Nft,
    /// The programs of iptables, including those for legacy tables.
    Iptables,
    /// The `ipset` program.
    Ipset,
}

impl Need {
    /// Every need. The names are unique.
    pub const ALL: [Self; 8] = [
        Self::Root,
        Self::Netns,
        Self::Bpf,
        Self::Haproxy,
        Self::Ss,
        Self::Nft,
        Self::Iptables,
        Self::Ipset,
    ];

    /// The name in `SPLICED_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Netns => "netns",
            Self::Bpf => "bpf",
            Self::Haproxy => "haproxy",
            Self::Ss => "ss",
            Self::Nft => "nft",
            Self::Iptables => "iptables",
            Self::Ipset => "ipset",
        }
    }

    /// Why it is missing; `None` if it is there.
    fn missing(self) -> Option<String> {
        match self {
            Self::Root => without_root(),
            Self::Netns => without_namespaces(),
            Self::Bpf => without_bpf(),
            Self::Haproxy => without_program("haproxy", "haproxy"),
            Self::Ss => without_program("ss", "iproute2"),
            Self::Nft => without_program("nft", "nftables"),
            Self::Iptables => without_program("iptables-nft-restore", "iptables")
                .or_else(|| without_program("iptables-legacy-restore", "iptables")),
            Self::Ipset => without_program("ipset", "ipset"),
        }
    }
}

/// Whether this machine has what a test needs. If not, the test returns at once:
///
/// ```no_run
/// use netlab::{Need, available};
///
/// if !available(Need::Netns) {
///     return;
/// }
/// ```
///
/// This prints `skipped: TEST: why` to stderr. The variable `SPLICED_REQUIRE` lists needs that must not be
/// missing, comma-separated (`root,netns,bpf`) or `all`, so that a fully equipped machine skips nothing.
///
/// # Panics
/// If the need is missing and `SPLICED_REQUIRE` lists it.
pub fn available(need: Need) -> bool {
    present(need.name(), need.missing())
}

/// The same for a need that is not in [`Need`]: `name` is its name in `SPLICED_REQUIRE`, `missing` says why
/// it is missing.
///
/// # Panics
/// If it is missing and `SPLICED_REQUIRE` lists it.
pub fn present(name: &str, missing: Option<String>) -> bool {
    let Some(why) = missing else {
        return true;
    };
    let thread = thread::current();
    let test = thread.name().unwrap_or("a test");
    let list = env::var(VARIABLE).unwrap_or_default();
    assert!(
        !names(&list, name),
        "{test} needs {name}, which {VARIABLE} names: {why}"
    );
    // Not `eprintln`: the test harness hides its output if the test passes.
    let _ = writeln!(io::stderr(), "skipped: {test}: {why}");
    if let Some(path) = env::var_os(LEFT_OUT) {
        note(Path::new(&path), test, &why);
    }
    false
}

/// Adds a line in one piece, since other processes do the same.
fn note(path: &Path, test: &str, why: &str) {
    let program = env::current_exe().unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    let line = format!("{}\t{program}: {test}\n", why.replace(['\n', '\t'], " "));
    // Who may not write there has said it on stderr.
    if let Ok(mut file) = OpenOptions::new().append(true).open(path) {
        let _ = file.write_all(line.as_bytes());
    }
}

fn names(list: &str, name: &str) -> bool {
    list.split(',')
        .map(str::trim)
        .any(|word| word == "all" || word == name)
}

fn without_root() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "not root".into())
}

fn without_namespaces() -> Option<String> {
    // Tested once per process, since a test binary asks many times.
    static TRIED: OnceLock<Option<String>> = OnceLock::new();
    TRIED
        .get_or_init(|| {
            without_root()
                .or_else(|| without_program("nsenter", "util-linux"))
                .or_else(|| {
                    Namespace::new("try")
                        .err()
                        .map(|error| format!("{error:#}"))
                })
        })
        .clone()
}

fn without_bpf() -> Option<String> {
    let held = rustix::thread::capabilities(None).map(|sets| sets.effective);
    // Kernels before 5.8 require CAP_SYS_ADMIN instead of CAP_BPF.
    let wanted = CapabilitySet::BPF | CapabilitySet::NET_ADMIN;
    if !held.is_ok_and(|held| held.contains(wanted) || held.contains(CapabilitySet::SYS_ADMIN)) {
        return Some("no CAP_BPF and CAP_NET_ADMIN".into());
    }
    let types = Path::new("/sys/kernel/btf/vmlinux");
    (!types.exists()).then(|| format!("no {}", types.display()))
}

fn without_program(name: &str, package: &str) -> Option<String> {
    program(name)
        .is_none()
        .then(|| format!("no {name} (apt install {package})"))
}

#[cfg(test)]
mod tests {
    use super::{Need, names};

    #[test]
    fn the_list_matches_whole_words() {
        assert!(names("root, netns", "netns"));
        assert!(names("all", "bpf"));
        assert!(!names("", "root"));
        assert!(!names("rooted", "root"));
    }

    #[test]
    fn names_are_unique() {
        for (index, need) in Need::ALL.iter().enumerate() {
            assert!(
                Need::ALL[index + 1..]
                    .iter()
                    .all(|other| other.name() != need.name())
            );
        }
    }
}
