//! `--engine segment`: relays in network namespaces of their own.

pub(crate) mod hop;
mod refusal;
mod row;
mod size;
pub(crate) mod witness;

use netlab::Namespace;

use crate::patience::until;
use crate::peer::{Peer, exchange};
use crate::server::Server;
use hop::Hop;
use witness::Witness;

/// Moves as many bytes each way at once over a connection, three times, after a short one with which
/// the program comes to stand on the devices; the hops read and write none of them. The server is the
/// last hop's target.
fn carry(client: &Namespace, hops: &[&Hop], server: &Server, bytes: u64) {
    let before: Vec<_> = hops.iter().map(|hop| hop.connections()).collect();
    for (number, bytes) in (0..).zip([1000, bytes, bytes, bytes]) {
        let near = client.enter(|| Peer::connect(hops[0].address()));
        let near = near.expect("entered");
        let far = server.accept();
        // A change-over in the middle of bulk is slow where others use the CPU.
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
