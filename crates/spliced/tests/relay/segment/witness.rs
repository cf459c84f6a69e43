//! That a relay neither reads nor writes for connections that are spliced.

use std::thread;

use crate::patience::until;
use crate::segment::hop::Hop;
use crate::system_calls::SystemCalls;

/// What can carry bytes of a socket. A loop calls read(2) for what wakes it, and a log is written.
const CARRYING: [&str; 7] = [
    "recvfrom", "recvmsg", "readv", "sendto", "sendmsg", "writev", "splice",
];

pub(crate) struct Witness(Vec<SystemCalls>);

impl Witness {
    /// Of all threads of the relay but the one that asks the kernel for its rules, from the moment on at which it has so many connections and all
    /// are spliced.
    pub(crate) fn of(hop: &Hop, connections: usize) -> Self {
        until("the connections are spliced", || {
            hop.are_spliced(connections)
        });
        let threads = hop.relay.threads_but("firewall").into_iter();
        Self(threads.map(SystemCalls::of_thread).collect())
    }

    /// All bytes have arrived.
    pub(crate) fn end(mut self) {
        for calls in &mut self.0 {
            assert_eq!(
                CARRYING.map(|name| calls.begun(name)),
                [0; 7],
                "{CARRYING:?}"
            );
        }
    }

    /// Runs what makes so many connections and uses them until it ends: from the moment on at which
    /// all are spliced the hop carries nothing. So many others have ended before, which the program may
    /// make itself to look around.
    pub(crate) fn of_program(
        hop: &Hop,
        others: usize,
        connections: usize,
        program: impl FnOnce() + Send,
    ) {
        thread::scope(|scope| {
            let program = scope.spawn(program);
            // While one of them lives it would pass for one of those that are meant.
            until("the others have ended", || hop.connections() >= others);
            let witness = Self::of(hop, connections);
            program.join().expect("the program ends well");
            witness.end();
        });
    }
}
