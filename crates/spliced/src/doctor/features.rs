//! What differs between kernels beside maps of sockets, and matters to what is relayed: by the kernel's release, and by the
//! settings of this network namespace.

use std::fs;
use std::io::{Error, ErrorKind};

use splice_base::release::Release;

/// A feature of the kernel.
pub(super) struct Feature {
    /// The first release of Linux that has it.
    pub(super) since: &'static str,
    pub(super) what: &'static str,
    /// Whether it is here; `None` if that cannot be told.
    pub(super) works: Option<bool>,
    pub(super) reason: String,
}

/// All of them, the earliest first.
pub(super) fn features() -> Vec<Feature> {
    let release = Release::here();
    let has = |series| release.map(|release| release.series() >= series);
    let feature = |since, what, works, reason| Feature {
        since,
        what,
        works,
        reason,
    };
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/{name}"));
    let (vsock, why) = vsock(read("net/vsock/ns_mode"), has((7, 0)));
    vec![
        feature(
            "6.3",
            "big TCP over IPv4",
            has((6, 3)),
            "by its version: segments above 64 KiB within this host, which the engine segment passes on".into(),
        ),
        feature(
            "6.3",
            "lengths of reads and writes",
            has((6, 3)),
            "by its version: the tracepoints sock_recv_length and sock_send_length, which spliced bypass needs".into(),
        ),
        feature(
            "6.6",
            "tcx",
            has((6, 6)),
            "by its version: by it segment attaches its program to devices; else by a filter of a clsact qdisc".into(),
        ),
        feature(
            "7.0",
            "accurate ECN",
            has((7, 0)),
            accurate_ecn(read("net/ipv4/tcp_ecn").ok().as_deref()),
        ),
        feature("7.0", "VSOCK addresses by namespace", vsock, why),
    ]
}

/// The setting, and what it means for `segment`: a pair whose connections have agreed on accurate ECN stays with its sockets.
fn accurate_ecn(setting: Option<&str>) -> String {
    match setting.and_then(|text| text.trim().parse::<u8>().ok()) {
        None => "net.ipv4.tcp_ecn cannot be read".into(),
        // 3 asks for it and accepts it, and what is above accepts it (networking/ip-sysctl.rst).
        Some(value @ 3..) => format!(
            "by its version; net.ipv4.tcp_ecn is {value}, so connections may agree on it, and segment does not take those"
        ),
        Some(value) => format!(
            "by its version; net.ipv4.tcp_ecn is {value}, so no connection of this host agrees on it"
        ),
    }
}

/// By what the mode of this namespace could be read as.
fn vsock(mode: Result<String, Error>, has: Option<bool>) -> (Option<bool>, String) {
    match mode {
        Ok(mode) => {
            let means = match mode.trim() {
                "local" => "it has ports of its own, and reaches no other's",
                _ => "it shares the ports of the machine",
            };
            (
                Some(true),
                format!("net.vsock.ns_mode is {} here: {means}", mode.trim()),
            )
        }
        Err(_) if has == Some(false) => (
            Some(false),
            "by its version: all network namespaces share the ports of VSOCK".into(),
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            (None, "not tried: the module vsock is not loaded".into())
        }
        Err(error) => (None, format!("not tried: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_has_a_reason() {
        for feature in features() {
            assert!(!feature.reason.is_empty(), "{}", feature.what);
        }
    }

    #[test]
    fn a_host_that_asks_for_accurate_ecn_is_told_what_that_costs() {
        assert!(accurate_ecn(Some("3\n")).contains("does not take those"));
        assert!(accurate_ecn(Some("2\n")).contains("no connection"));
        assert!(accurate_ecn(None).contains("cannot be read"));
    }

    #[test]
    fn the_mode_of_vsock_is_told_in_words() {
        let missing = || Err(Error::from(ErrorKind::NotFound));
        assert_eq!(vsock(missing(), Some(true)).0, None);
        assert_eq!(vsock(missing(), Some(false)).0, Some(false));
        let (works, why) = vsock(Ok("local\n".into()), Some(true));
        assert_eq!(works, Some(true));
        assert!(why.contains("ports of its own"), "{why}");
        let (_, why) = vsock(Ok("global\n".into()), Some(true));
        assert!(why.contains("shares"), "{why}");
    }
}
