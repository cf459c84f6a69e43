//! Proves that a relay neither reads nor writes for spliced connections.

use std::thread;

use crate::patience::until;
use crate::segment::hop::Hop;
use crate::system_calls::SystemCalls;

/// The system calls that move bytes of a socket, except read(2) and write(2): a loop reads its eventfd and
/// its timer, and logs are written.
const CARRYING: [&str; 7] = [
    "recvfrom", "recvmsg", "readv", "sendto", "sendmsg", "writev", "splice",
];

pub(crate) struct Witness(Vec<SystemCalls>);

impl Witness {
    /// Watches all threads of the relay, except those that read the rules and ask for routes, as soon as it has this number
    /// of connections and all are spliced.
    pub(crate) fn of(hop: &Hop, connections: usize) -> Self {
        until("the connections are spliced", || {
            hop.are_spliced(connections)
        });
        let threads = hop.relay.threads_but(&["firewall", "routing"]).into_iter();
        Self(threads.map(SystemCalls::of_thread).collect())
    }

    /// Ends the measurement, after all bytes have arrived.
    pub(crate) fn end(mut self) {
        for calls in &mut self.0 {
            assert_eq!(
                CARRYING.map(|name| calls.begun(name)),
                [0; 7],
                "{CARRYING:?}"
            );
        }
    }

    /// Runs a program that makes this number of connections and uses them until it ends. As soon as all are
    /// spliced, the hop must move no byte. `others` connections end before, for example those with which the
    /// program tests whether the server listens.
    pub(crate) fn of_program(
        hop: &Hop,
        others: usize,
        connections: usize,
        program: impl FnOnce() + Send,
    ) {
        thread::scope(|scope| {
            let program = scope.spawn(program);
            // A connection that is still open would be counted as one of the others.
            until("the others have ended", || hop.connections() >= others);
            let witness = Self::of(hop, connections);
            program.join().expect("the program ends well");
            witness.end();
        });
    }
}
