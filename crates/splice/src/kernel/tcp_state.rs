//! The states of a TCP socket that engines in the kernel tell apart (`net/tcp_states.h`).

/// Open in both directions. An end of stream moves a socket on, and its FIN counts in the sequence space.
pub(super) const ESTABLISHED: u32 = 1;
pub(super) const LISTEN: u32 = 10;
