//! Targets: `-j NAME`, except chains and the standard verdicts.

use crate::action::Action;

/// What a target does to a segment of an established TCP connection (`struct xt_entry_target`). Its data,
/// such as the value of a mark, does not matter.
pub(crate) fn target(name: &str) -> Action {
    let stop = |what: &str| Action::Stop(what.into());
    let effect = |what: &str| Action::Effect(what.into());
    match name {
        "REJECT" => stop("rejects"),
        "NFQUEUE" | "QUEUE" => stop("queues to user space"),
        "TPROXY" => stop("diverts to a proxy"),
        "SYNPROXY" => stop("proxies the handshake"),
        "LOG" | "NFLOG" | "ULOG" | "TRACE" | "AUDIT" => effect("logs"),
        "MARK" | "CONNMARK" | "SECMARK" | "CONNSECMARK" | "HMARK" => effect("sets a mark"),
        "CLASSIFY" => effect("sets a priority"),
        "CT" | "NOTRACK" => effect("tells connection tracking what to do"),
        "DSCP" | "TOS" | "TTL" | "HL" => effect("changes the IP header"),
        // It is meant for SYNs, which another match of the rule selects. Without that match it adds the
        // option to a pure ACK as well (`tcpmss_mangle_packet`).
        "TCPMSS" => effect("changes the maximum segment size"),
        "ECN" | "TCPOPTSTRIP" => effect("changes the TCP header"),
        "CHECKSUM" => effect("fills in checksums"),
        "SET" => effect("changes a set"),
        "RATEEST" => effect("counts against a rate"),
        "IDLETIMER" => effect("restarts a timer"),
        "LED" => effect("lights an LED"),
        "TEE" => effect("sends a copy to another host"),
        // Includes address translation, which has a table of its own that is not walked.
        _ => Action::Opaque(format!(
            "is of a kind that is not understood (xt target {name})"
        )),
    }
}
