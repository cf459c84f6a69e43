//! `--engine segment`: relays in network namespaces of their own.

pub(crate) mod hop;
mod reasons;
mod refusal;
mod row;
mod size;
mod told;
pub(crate) mod witness;

use netlab::Namespace;

use crate::patience::until;
use crate::peer::{Peer, exchange};
use crate::server::Server;
use hop::Hop;
pub(crate) use hop::translated_bytes;
use witness::Witness;

/// Moves the same number of bytes in both directions at once over a connection, three times. A short
/// connection before attaches the BPF program to the devices. The hops read and write none of the bytes. The
/// server is the last hop's target.
fn carry(client: &Namespace, hops: &[&Hop], server: &Server, bytes: u64) {
    let before: Vec<_> = hops.iter().map(|hop| hop.connections()).collect();
    for (number, bytes) in (0..).zip([1000, bytes, bytes, bytes]) {
        let near = client.enter(|| Peer::connect(hops[0].address()));
        let near = near.expect("entered");
        let far = server.accept();
        // A change-over during bulk is slow on a busy machine.
        for hop in hops {
            let before = hop.translated_bytes();
            until("the pair is translated", || {
                near.write_number(number);
                assert_eq!(far.read_number(), number);
                hop.translated_bytes() > before
            });
        }
        let witnesses: Vec<_> = hops.iter().map(|hop| Witness::of(hop, 1)).collect();
        exchange(&near, &far, number, bytes, bytes);
        witnesses.into_iter().for_each(Witness::end);
    }
    for (hop, before) in hops.iter().zip(before) {
        hop.expect_translated(before + 4);
    }
}
