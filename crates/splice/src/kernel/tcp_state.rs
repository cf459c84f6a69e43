//! The states of a TCP socket that engines in the kernel tell apart (`net/tcp_states.h`).

/// Open in both directions. An end of stream moves a socket on, and its FIN counts in the sequence space.
pub(super) const ESTABLISHED: u32 = 1;
pub(super) const LISTEN: u32 = 10;

/// Whether the peer has ended its stream: `TCP_CLOSE_WAIT`, `TCP_LAST_ACK`, `TCP_CLOSING`. In `TCP_TIME_WAIT` and
/// `TCP_CLOSE` nothing goes on.
pub(super) fn is_ended_by_peer(state: u32) -> bool {
    matches!(state, 8 | 9 | 11)
}
