//! What the programs of the engine segment have counted, as lines with what each count means.

use splice::Result;

/// How many segments went which way in the relays that run.
pub(super) type Counts = Result<Vec<(&'static str, u64)>>;

/// The lines, without those that are 0.
pub(super) fn lines(counts: &Counts) -> Vec<String> {
    match counts {
        Ok(counts) if counts.is_empty() => vec!["no relay here uses the engine segment".into()],
        Ok(counts) => {
            let seen = counts.iter().filter(|(_, count)| *count > 0);
            seen.map(|(name, count)| format!("{count} {}", meaning(name)))
                .collect()
        }
        Err(error) => vec![format!("unknown: {error}")],
    }
}

/// What the count of this name in docs/segment.md has counted, after its number.
fn meaning(name: &str) -> String {
    let words = match name {
        "translated" => "rewritten and sent on",
        "own_copies" => "copied without payload for the relay's own socket",
        "by_socket" => "left to the relay's own socket, which still receives that stream",
        "other_device" => "left to the stack: came in on another device than their connection",
        "expired" => "left to the stack: the process that owned the flow is gone",
        "reused" => "left to the stack: a SYN on the addresses and ports of a flow that is over",
        "hops_exceeded" => "dropped: their TTL was used up, or too many relays are chained",
        "malformed" => "left to the stack: options or headers that only the stack judges",
        "unwritable" => "dropped: no memory to rewrite them",
        "rst_refused" => "sent on, but no end of the flow: a reset at an unlikely place",
        "silenced" => "dropped: a socket that sleeps had sent them",
        "gone" => "dropped or answered: a reset of a peer that has ended in order",
        "no_room" => "sent on, though the receiver had not announced so much room",
        "forward_opened" => "SYNs that opened a forwarded connection",
        "forward_reopened" => "SYNs that opened one from a port whose last connection was over",
        "forward_unknown" => "SYNs left to the listening socket: of a kind that is not known",
        "forward_crowded" => "SYNs left to the listening socket: too many wait for their server",
        "forward_no_port" => "SYNs left to the listening socket: no port is left to the server",
        "forward_taken" => "SYNs left to the listening socket: a socket here uses the port",
        "forward_late" => "SYNs left to the listening socket: nobody looks after forwarded ones",
        "forward_lost" => "dropped: of a forwarded connection, with IP options or in fragments",
        "icmp_passed" => "ICMP errors about a forwarded connection, passed on",
        "icmp_refused" => "ICMP errors dropped: nobody has to hear of them",
        "too_big" => "dropped: longer than the device beyond takes",
        "damaged" => "with a wrong checksum: nothing is learned from them",
        "unacceptable" => "sent on, though their receiver will not take them",
        "held_back" => "dropped: the relay's sockets took the connection up again just then",
        "challenged" => "SYNs on a connection that lives, answered",
        "no_way" => "dropped: the stack has no way for them now",
        _ => return format!("({name})"),
    };
    format!("{words} ({name})")
}

#[cfg(test)]
mod tests {
    use splice_bpf::types::segment_reason::NAMES;

    use super::*;

    const PAGE: &str = include_str!("../../../../docs/segment.md");

    #[test]
    fn each_count_has_words_here_and_a_row_in_the_page() {
        for name in NAMES {
            let words = meaning(name);
            assert!(
                words.ends_with(&format!(" ({name})")) && words.len() > name.len() + 20,
                "{words}"
            );
            assert!(PAGE.contains(&format!("\n| `{name}` | ")), "{name}");
        }
    }

    #[test]
    fn counts_are_told_with_their_words() {
        let counts = Ok(vec![("translated", 7), ("too_big", 0), ("later", 1)]);
        assert_eq!(
            lines(&counts),
            ["7 rewritten and sent on (translated)", "1 (later)"]
        );
        assert_eq!(
            lines(&Ok(vec![])),
            ["no relay here uses the engine segment"]
        );
    }
}
