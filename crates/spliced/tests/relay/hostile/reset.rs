//! Resets: only one at exactly the next sequence number counts (RFC 5961, section 3.2).

use std::io::ErrorKind;

use super::crowd::Crowd;
use super::segment::{ACK, RST, Segment};
use super::stage::{BY_RESET, IN_ORDER, Stage};

/// Half of the 64 KiB that a new connection announces.
const HALF_A_WINDOW: u32 = 32 << 10;

fn a_reset_at_the_next_number_resets_both_ends(stage: &Stage) {
    let crowd = Crowd::on(stage, &[RST, RST | ACK]);
    crowd.attack(|flags, forger, next| forger.send(&Segment { flags, ..next }));
    crowd.check(|claimed, connection| {
        connection.end(claimed.other()).expect_reset();
        // The claimed end has sent no reset. At the latest it learns that its peer is gone when it sends.
        let claimed = connection.end(claimed);
        match claimed.try_write_number(0) {
            Ok(()) => claimed.expect_reset(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    });
    crowd.close(BY_RESET);
}

fn a_reset_elsewhere_ends_nothing(stage: &Stage) {
    let within = [1, HALF_A_WINDOW];
    let outside = [u32::MAX, 1 << 30];
    let places = [within, outside].concat();
    let kinds = places
        .iter()
        .flat_map(|ahead| [(RST, *ahead), (RST | ACK, *ahead)]);
    let crowd = Crowd::on(stage, &kinds.collect::<Vec<_>>());
    crowd.attack(|(flags, ahead), forger, next| {
        forger.send(&Segment {
            flags,
            ..next.ahead(ahead)
        });
    });
    crowd.check(|_, connection| {
        connection.stays_quiet();
        connection.moves_data();
        connection.ends_in_order();
    });
    crowd.close(IN_ORDER);
}

with_each_engine!(a_reset_at_the_next_number_resets_both_ends);
with_each_engine!(a_reset_elsewhere_ends_nothing);
