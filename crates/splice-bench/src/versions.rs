//! Which programs took part, in which version.

use std::path::Path;
use std::process::Command;

use crate::results::Program;

/// Programs that may take part, and what makes each say its version; pen has no such flag.
const PEERS: [(&str, Option<&str>); 8] = [
    ("haproxy", Some("-v")),
    ("nginx", Some("-v")),
    ("envoy", Some("--version")),
    ("nft", Some("--version")),
    ("socat", Some("-V")),
    ("pen", None),
    ("iperf3", Some("--version")),
    ("sockperf", Some("--version")),
];

/// Lines of output that the version is looked for in: socat says its authors first, and what comes
/// further down are versions of something else.
const LINES: usize = 2;

/// `spliced` and every peer that is installed.
pub(crate) fn of_programs(spliced: &Path) -> Vec<Program> {
    let own = said_by(spliced, "--version");
    let mut all = vec![Program {
        name: "spliced".into(),
        version: own.as_deref().and_then(version).unwrap_or_else(unknown),
        commit: own.as_deref().and_then(commit),
    }];
    for (name, flag) in PEERS {
        let Some(path) = netlab::program(name) else {
            continue;
        };
        let said = flag.and_then(|flag| version(&said_by(&path, flag)?));
        all.push(Program {
            name: name.into(),
            version: said.or_else(|| of_package(name)).unwrap_or_else(unknown),
            commit: None,
        });
    }
    all
}

fn unknown() -> String {
    "unknown".into()
}

/// What a program prints; some print their version to stderr.
fn said_by(program: &Path, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let both = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&both).into_owned())
}

/// `2.6.12-1` of `HAProxy version 2.6.12-1 2026/10/17`, `1.22.1` of `nginx version: nginx/1.22.1`.
fn version(said: &str) -> Option<String> {
    let words = said.lines().take(LINES).flat_map(str::split_whitespace);
    words
        .flat_map(|word| word.split('/'))
        .map(|part| part.trim_start_matches('v'))
        .find(|part| part.contains('.') && part.starts_with(|letter: char| letter.is_ascii_digit()))
        .map(str::to_owned)
}

/// `a394bc1` of `spliced 0.1.0 (a394bc1)`.
fn commit(said: &str) -> Option<String> {
    let (_, rest) = said.split_once('(')?;
    let (commit, _) = rest.split_once(')')?;
    Some(commit.to_owned())
}

fn of_package(name: &str) -> Option<String> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Version}", name])
        .output()
        .ok()?;
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    (!version.is_empty()).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::{commit, version};

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, found) in [
            (
                "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://x/",
                Some("2.6.12-1+deb12u4"),
            ),
            ("nginx version: nginx/1.22.1\n", Some("1.22.1")),
            (
                "socat by G. R.\nsocat version 1.7.4.4 on 06 Nov 2022",
                Some("1.7.4.4"),
            ),
            (
                "envoy  version: 5c1d4b/1.40.0/Clean/RELEASE/BoringSSL\n",
                Some("1.40.0"),
            ),
            ("nftables v1.0.6 (Lester Gooch #5)\n", Some("1.0.6")),
            ("iperf 3.12 (cJSON 1.7.15)\nLinux vm 6.18", Some("3.12")),
            ("sockperf, version 3.7-no.git\n", Some("3.7-no.git")),
            ("spliced 0.1.0 (a394bc1)", Some("0.1.0")),
            ("invalid option -- 'V'\nusage:\n 1.0", None),
        ] {
            assert_eq!(version(said).as_deref(), found, "{said}");
        }
    }

    #[test]
    fn a_commit_stands_in_brackets() {
        assert_eq!(
            commit("spliced 0.1.0 (a394bc1)").as_deref(),
            Some("a394bc1")
        );
        assert_eq!(commit("spliced 0.1.0"), None);
    }
}
