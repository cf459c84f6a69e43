//! Targets: `-j NAME`, but for chains and the standard verdicts.

use crate::action::Action;

/// What a target does to a segment of an established TCP connection (`struct xt_entry_target`). Its
/// data is of no account: which mark or which queue it is does not matter.
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
        // The SYN that it is meant for is found by another match. Without that it gives the option
        // to a pure ACK as well (`tcpmss_mangle_packet`).
        "TCPMSS" => effect("changes the maximum segment size"),
        "ECN" | "TCPOPTSTRIP" => effect("changes the TCP header"),
        "CHECKSUM" => effect("fills in checksums"),
        "SET" => effect("changes a set"),
        "RATEEST" => effect("counts against a rate"),
        "IDLETIMER" => effect("restarts a timer"),
        "LED" => effect("lights an LED"),
        "TEE" => effect("sends a copy to another host"),
        // Address translation is left to a table of its own, which is not walked, and whatever else
        // there is.
        _ => Action::Opaque(format!(
            "is of a kind that is not understood (xt target {name})"
        )),
    }
}
