//! Which protocols the kernel has, without making it load one.

use std::fs;

/// Every protocol that is built in or whose module is loaded (`proto_register`, seen on 6.18), in every network namespace.
const TABLE: &str = "/proc/net/protocols";

/// That a protocol is there. A socket of one that is not would make the kernel load its module, which stays
/// (`__sock_create`).
///
/// # Errors
/// Why it is not to be tried.
pub(crate) fn require(protocol: &str, module: &str) -> Result<(), String> {
    let table =
        fs::read_to_string(TABLE).map_err(|error| format!("cannot read {TABLE}: {error}"))?;
    if is_in(&table, protocol) {
        Ok(())
    } else {
        Err(format!("the module {module} is not loaded"))
    }
}

fn is_in(table: &str, protocol: &str) -> bool {
    // The first line has the columns' names.
    let mut rows = table.lines().skip(1);
    rows.any(|row| row.split_whitespace().next() == Some(protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_is_found_by_its_whole_name() {
        const TABLE: &str = "\
protocol  size sockets  memory press maxhdr  slab module     cl co
AF_VSOCK  1240      0      -1   NI       0   yes  kernel      y  n
KCM       1000      0      -1   NI       0   no   kcm         n  n
TCPv6     2432      0     261   no     192   yes  kernel      y  y
";
        for (protocol, is_there) in [
            ("AF_VSOCK", true),
            ("KCM", true),
            ("TCPv6", true),
            ("TCP", false),
            ("VSOCK", false),
            ("protocol", false),
        ] {
            assert_eq!(is_in(TABLE, protocol), is_there, "{protocol}");
        }
    }

    #[test]
    fn this_kernel_has_tcp() {
        assert_eq!(require("TCP", "tcp"), Ok(()));
        let missing = require("none", "nothing");
        assert_eq!(missing, Err("the module nothing is not loaded".into()));
    }
}
