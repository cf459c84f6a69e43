//! The arguments of `spliced adopt`.

use clap::Args;

use crate::sections::{self, as_help};

/// Splice two sockets of running processes, and give them back at the end.
///
/// The two are connected TCP sockets that their owner relays: what it reads from the one it writes to the other. From
/// now on spliced does it, and the owner, unmodified, waits at sockets that stand in for them. A signal gives the
/// sockets back. So does the end of a stream, or the owner if it writes something of its own. No byte is lost.
///
/// The owner stands still for some milliseconds while its sockets are exchanged, at the start and at the end. If what it
/// has read is not what it has written, and it does not write the rest, spliced refuses and leaves everything as it was.
/// docs/adopt.md says what else it refuses.
#[derive(Args, Debug)]
#[command(after_long_help = as_help(sections::ADOPT))]
pub(crate) struct AdoptArgs {
    /// The process that owns the socket. Given twice, the second one owns the second socket.
    #[arg(long, value_name = "PID", required_unless_present = "keeper")]
    pub(crate) pid: Vec<u32>,

    /// The number of the descriptor in its process, twice. Without it the sockets of the process are listed, with the reason
    /// why one cannot be adopted, and pairs that look like the two sides of one relayed connection.
    #[arg(long, value_name = "FD")]
    pub(crate) fd: Vec<u32>,

    /// Print the list as JSON, or the report, one line a second: seconds, state (settling, adopted, giving-back or over),
    /// stood_still_seconds and directions, each with from_pid, from_fd, to_pid, to_fd, bytes, bytes_per_second and reason.
    #[arg(long)]
    pub(crate) json: bool,

    /// Be the process that gives the sockets back if the first one is killed.
    #[arg(long, hide = true, exclusive = true)]
    pub(crate) keeper: bool,
}
