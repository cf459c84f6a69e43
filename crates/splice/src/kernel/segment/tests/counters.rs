//! The kernel's counters in a namespace.

use super::*;

fn counters() -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for file in [
        "/proc/thread-self/net/netstat",
        "/proc/thread-self/net/snmp",
    ] {
        let text = std::fs::read_to_string(file).expect("counters");
        let lines: Vec<_> = text.lines().collect();
        for pair in lines.chunks(2) {
            let names = pair[0].split_whitespace().skip(1);
            let values = pair[1].split_whitespace().skip(1);
            for (name, value) in names.zip(values) {
                found.push((name.to_owned(), value.parse().unwrap_or(0)));
            }
        }
    }
    found
}

const WATCHED: [&str; 24] = [
    "RetransSegs",
    "TCPTimeouts",
    "PAWSEstab",
    "TCPLossProbes",
    "TCPSACKReneging",
    "TCPFastRetrans",
    "TCPSlowStartRetrans",
    "TCPLostRetransmit",
    "TCPChallengeACK",
    "TCPZeroWindowDrop",
    "TCPDSACKRecv",
    "TCPOFOQueue",
    "TCPACKSkippedSeq",
    "TCPSpuriousRTOs",
    "BeyondWindow",
    "TCPRcvQDrop",
    "TCPBacklogDrop",
    "RcvPruned",
    "OfoPruned",
    "PruneCalled",
    "TCPSACKDiscard",
    "TCPSackFailures",
    "TCPWantZeroWindowAdv",
    "PAWSOldAck",
];

pub(super) fn changes(before: &[(String, u64)], after: &[(String, u64)]) -> String {
    before
        .iter()
        .zip(after)
        .filter(|((name, _), _)| WATCHED.contains(&name.as_str()))
        .filter(|(one, other)| one.1 != other.1)
        .map(|(one, other)| format!("{} {}", one.0, other.1 - one.1))
        .collect::<Vec<_>>()
        .join(", ")
}

pub(super) fn counters_across(lab: &Lab) -> Vec<(String, u64)> {
    let mut sum = counters_in(lab.client());
    for other in [lab.relay(), lab.server()] {
        for (one, other) in sum.iter_mut().zip(counters_in(other)) {
            one.1 += other.1;
        }
    }
    sum
}

pub(super) fn counters_in(namespace: &Namespace) -> Vec<(String, u64)> {
    namespace.enter(counters).expect("entered")
}

/// The sum of the counters with these names.
pub(super) fn count(namespace: &Namespace, names: &[&str]) -> u64 {
    let counters = counters_in(namespace);
    let found = counters
        .iter()
        .filter(|(name, _)| names.contains(&name.as_str()));
    found.map(|(_, value)| value).sum()
}
