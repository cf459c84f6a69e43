//! The kernel's release, and whether it has a fix.

/// The first release of a series that has a fix: 6, 1 and 142 of 6.1.142.
pub type FixedIn = (u32, u32, u32);

/// Bytes that a socket in a map does not take at once are neither lost nor sent twice: "skmsg: fix data lost during
/// EAGAIN retries" and the change before it, in 6.16 and back in 6.12.35 and 6.1.142.
pub const FULL_TARGETS: &[FixedIn] = &[(6, 1, 142), (6, 12, 35), (6, 16, 0)];

/// A socket with a stream parser counts what it has read once: 6.14 and back in 6.12.17 and 6.1.130.
pub const PARSER_COUNTS: &[FixedIn] = &[(6, 1, 130), (6, 12, 17), (6, 14, 0)];

/// A member of a map does not stall with bytes unread, at the end of its stream or because they came before it was put
/// in: "bpf sockmap fixes" (the backlog's delayed work, `read_skb`), in 6.4 and back in 6.1.32.
pub const NO_STALLS: &[FixedIn] = &[(6, 1, 32), (6, 4, 0)];

/// A TCP socket does not count what was redirected to its reader as read from its own connection: "bpf, sockmap: Fix
/// incorrect copied_seq calculation", in 7.0 and back in 6.18.14, 6.12.75 and 6.1.165.
pub const FOREIGN_BYTES: &[FixedIn] = &[(6, 1, 165), (6, 12, 75), (6, 18, 14), (7, 0, 0)];

/// A release of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    series: (u32, u32),
    /// `None` where a distribution counts in its own way.
    patch: Option<u32>,
}

impl Release {
    /// That of the running kernel; `None` if its name is no release.
    pub fn here() -> Option<Self> {
        let name = rustix::system::uname();
        Self::of(
            &name.release().to_string_lossy(),
            &name.version().to_string_lossy(),
        )
    }

    /// By what `uname -r` and `uname -v` print.
    ///
    /// Debian up to 12 and Ubuntu write 0 for the patch. Debian's version then has the one of the source.
    pub fn of(release: &str, version: &str) -> Option<Self> {
        let (series, patch, is_own) = numbers(release)?;
        let patch = if patch == 0 && is_own {
            let source = version.split_whitespace().filter_map(numbers);
            let mut patches =
                source.filter_map(|(of, patch, _)| (of == series && patch > 0).then_some(patch));
            patches.next()
        } else {
            Some(patch)
        };
        Some(Self { series, patch })
    }

    /// The series: 6 and 1 of 6.1.142.
    pub fn series(&self) -> (u32, u32) {
        self.series
    }

    /// Whether it was released without the fix. `None` if that cannot be told: the distribution hides the patch, or
    /// the series is older than the fix and not among those of `fixed_in` (the last of them has it from the start).
    pub fn lacks(&self, fixed_in: &[FixedIn]) -> Option<bool> {
        let of = |&(major, minor, _): &FixedIn| (major, minor);
        if fixed_in.last().is_none_or(|last| self.series > of(last)) {
            return Some(false);
        }
        // What is older than the oldest series with the fix got none.
        if fixed_in
            .first()
            .is_some_and(|first| self.series < of(first))
        {
            return Some(true);
        }
        let (_, _, first_patch) = fixed_in.iter().find(|fix| of(fix) == self.series)?;
        match self.patch {
            _ if *first_patch == 0 => Some(false),
            patch => patch.map(|patch| patch < *first_patch),
        }
    }
}

/// The series and the patch at the start of a word, and whether more follows behind a hyphen.
fn numbers(word: &str) -> Option<((u32, u32), u32, bool)> {
    let end = word.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let (digits, rest) = word.split_at(end.unwrap_or(word.len()));
    let mut parts = digits.split('.').map(str::parse);
    let mut next = || parts.next().and_then(Result::ok);
    let series = next().zip(next())?;
    Some((series, next().unwrap_or(0), rest.starts_with('-')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(release: &str, version: &str) -> Release {
        Release::of(release, version).expect("a release")
    }

    #[test]
    fn the_patch_is_the_one_of_the_source() {
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-1 (2026-10-01)";
        for (release, version, series, patch) in [
            ("6.1.0-56-cloud-amd64", debian, (6, 1), Some(192)),
            ("6.8.0-52-generic", "#53-Ubuntu SMP", (6, 8), None),
            ("6.12.117+deb12-cloud-amd64", "#1 SMP", (6, 12), Some(117)),
            ("7.2.13-1.el10.x86_64", "#1 SMP", (7, 2), Some(13)),
            ("6.16.0", "#1 SMP", (6, 16), Some(0)),
            ("7.3.0-rc7", "#1 SMP", (7, 3), None),
        ] {
            assert_eq!(of(release, version), Release { series, patch }, "{release}");
        }
        assert_eq!(Release::of("next", ""), None);
    }

    #[test]
    fn a_fix_came_with_a_patch_of_some_series_and_with_a_new_one() {
        for (release, lacks) in [
            ("5.15.200", Some(true)),
            ("6.1.141", Some(true)),
            ("6.1.142", Some(false)),
            ("6.1.0-9-generic", None),
            // It may have been ported back.
            ("6.6.99", None),
            ("6.12.34", Some(true)),
            ("6.12.35", Some(false)),
            ("6.15.5", None),
            ("6.16.0-rc1", Some(false)),
            ("7.2.13", Some(false)),
        ] {
            assert_eq!(of(release, "").lacks(FULL_TARGETS), lacks, "{release}");
        }
        for (release, lacks) in [
            ("6.1.164", Some(true)),
            ("6.1.165", Some(false)),
            ("6.12.74", Some(true)),
            ("6.12.75", Some(false)),
            ("6.17.9", None),
            ("6.18.13", Some(true)),
            ("6.18.44-fc", Some(false)),
            ("7.0.14", Some(false)),
        ] {
            assert_eq!(of(release, "").lacks(FOREIGN_BYTES), lacks, "{release}");
        }
    }
}
