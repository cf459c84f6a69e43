//! What a test needs beyond a plain user's rights, and what happens without it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::{env, thread};

use rustix::thread::CapabilitySet;

use crate::{Namespace, program};

/// The variable that turns a skip into a failure: a comma-separated list of [`Need::name`]s, or
/// `all`.
const VARIABLE: &str = "SPLICED_REQUIRE";

/// The variable with the file that gets a line for each skip. `scripts/test` counts them: a line on
/// stderr is lost among thousands, or in the output that a test keeps of a process of its own.
const LEFT_OUT: &str = "SPLICED_LEFT_OUT";

/// Something that not every machine or user has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Need {
    /// Being root.
    Root,
    /// Creating network namespaces.
    Netns,
    /// Loading BPF programs of the networking kind: CAP_BPF, CAP_NET_ADMIN and a kernel with BTF.
    Bpf,
    /// The `haproxy` program.
    Haproxy,
    /// The `ss` program of iproute2.
    Ss,
    /// The `chromium` program.
    Chromium,
    /// The `nft` program of nftables.
    Nft,
    /// The programs of iptables, those of the legacy tables too.
    Iptables,
    /// The `ipset` program.
    Ipset,
}

impl Need {
    /// Every need; no two have one name.
    pub const ALL: [Self; 9] = [
        Self::Root,
        Self::Netns,
        Self::Bpf,
        Self::Haproxy,
        Self::Ss,
        Self::Chromium,
        Self::Nft,
        Self::Iptables,
        Self::Ipset,
    ];

    /// What `SPLICED_REQUIRE` calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Netns => "netns",
            Self::Bpf => "bpf",
            Self::Haproxy => "haproxy",
            Self::Ss => "ss",
            Self::Chromium => "chromium",
            Self::Nft => "nft",
            Self::Iptables => "iptables",
            Self::Ipset => "ipset",
        }
    }

    /// Why it is not there, or `None` when it is.
    fn missing(self) -> Option<String> {
        match self {
            Self::Root => without_root(),
            Self::Netns => without_namespaces(),
            Self::Bpf => without_bpf(),
            Self::Haproxy => without_program("haproxy", "haproxy"),
            Self::Ss => without_program("ss", "iproute2"),
            Self::Chromium => without_program("chromium", "chromium"),
            Self::Nft => without_program("nft", "nftables"),
            Self::Iptables => without_program("iptables-nft-restore", "iptables")
                .or_else(|| without_program("iptables-legacy-restore", "iptables")),
            Self::Ipset => without_program("ipset", "ipset"),
        }
    }
}

/// Whether this machine has what a test needs. The test returns at once when it has not:
///
/// ```no_run
/// use netlab::{Need, available};
///
/// if !available(Need::Netns) {
///     return;
/// }
/// ```
///
/// A line `skipped: TEST: why` then goes to stderr. So that a machine which ought to have everything
/// cannot skip in silence, the variable `SPLICED_REQUIRE` lists what must be there, comma-separated
/// (`root,netns,bpf`), or says `all`.
///
/// # Panics
/// When the need is missing and `SPLICED_REQUIRE` names it.
pub fn available(need: Need) -> bool {
    present(need.name(), need.missing())
}

/// The same for something that [`Need`] does not list: `name` is what `SPLICED_REQUIRE` calls it,
/// `missing` why it is not there.
///
/// # Panics
/// When it is missing and `SPLICED_REQUIRE` names it.
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
    // Not `eprintln`, which the test harness keeps to itself when the test passes.
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
    // Tried once per process: a test binary asks this many times.
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
    // Kernels before 5.8 have no CAP_BPF and ask for CAP_SYS_ADMIN in its place.
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
    fn the_list_is_read_word_by_word() {
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
