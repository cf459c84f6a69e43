//! The report if the host's packet filters keep connections out of `segment`.

use netlab::{Namespace, Need, available};

use super::{examined, finding, report, text};
use crate::relay::{BINARY, output};

/// The doctor's own sockets use lo, those of a relay may not.
const ROWS: [(&str, &str, &str); 3] = [
    ("iifname to-client drop", "some connections", "drops"),
    ("ip saddr 198.18.1.3 drop", "some connections", "drops"),
    ("log", "some connections", "logs"),
];

#[test]
fn a_packet_filter_is_named_and_segment_still_works() {
    let needs = [Need::Netns, Need::Bpf, Need::Nft];
    if !needs.into_iter().all(available) {
        return;
    }
    for (rule, whom, does) in ROWS {
        let namespace = Namespace::new("doctor").expect("a namespace");
        for command in [
            "add table ip t",
            "add chain ip t c { type filter hook input priority 0; }",
            &format!("add rule ip t c {rule}"),
        ] {
            let done = output(namespace.command("nft").arg(command));
            assert!(done.status.success(), "{command}: {done:?}");
        }
        let doctor = || {
            let mut command = namespace.command(BINARY);
            command.arg("doctor").env_remove("SPLICED_LOG");
            command
        };
        let report = report(doctor().arg("--json"));
        let finding = finding(&report, "segment");
        assert_eq!(finding["verdict"], "yes", "{finding}");
        let (reason, remedy) = (text(&finding["reason"]), text(&finding["remedy"]));
        let named =
            format!("the packet filters of this host keep it from {whom}: ip t c handle 2 ");
        assert!(reason.contains(&named), "{rule}: {reason}");
        assert!(reason.ends_with(does), "{rule}: {reason}");
        assert!(remedy.contains("--bypass-firewall"), "{remedy}");

        let told = examined(&mut doctor()).stdout;
        let told = String::from_utf8(told).expect("text");
        assert!(told.contains("keep it from"), "{told}");
        assert!(told.contains("--bypass-firewall"), "{told}");
    }
}
