//! Forged ICMP errors: a connection survives them as it does with `copy`, also those whose sender knows what is on its
//! way (RFC 5927).

use std::fmt::Debug;

use splice_bpf::types::segment_reason as reason;

use super::crowd::Crowd;
use super::icmp::IcmpError;
use super::segment::Segment;
use super::stage::{IN_ORDER, Stage};
use crate::peer::exchange;
use crate::random::Random;

const BYTES: u64 = 1 << 20;
const ERRORS: usize = 2000;

/// Types that are an error, of either version of IP.
const KINDS: [&[u8]; 2] = [&[3, 4, 5, 11, 12], &[1, 2, 3, 4]];

/// Path MTUs below what IP allows (68, 1280), and above what the connection uses.
const SILLY_MTUS: [u16; 6] = [0, 1, 68, 552, 1279, u16::MAX];

/// What the relay may have sent last to the end that `next` is of.
fn answer_to(next: Segment) -> Segment {
    Segment {
        from: next.to,
        to: next.from,
        seq: next.ack,
        ack: next.seq,
        ..next
    }
}

fn survive<K: Copy + Debug + Sync>(crowd: Crowd<'_, K>) {
    crowd.check(|_, connection| {
        connection.stays_quiet();
        exchange(&connection.client, &connection.server, 44, BYTES, BYTES);
    });
    crowd.close(IN_ORDER);
}

/// Each kind has a connection of its own: one that names a small MTU ends the splicing.
fn errors_that_know_the_next_number_end_nothing(stage: &Stage) {
    let kinds: Vec<_> = (0..KINDS[0].len().max(KINDS[1].len())).map(Some).collect();
    let crowd = Crowd::on(stage, &[&kinds[..], &[None]].concat());
    crowd.attack(|kind, forger, next| {
        let segment = answer_to(next);
        let kinds = KINDS[usize::from(segment.from.is_ipv6())];
        let Some(kind) = kind else {
            for mtu in SILLY_MTUS {
                forger.send_error(&IcmpError::too_big(segment.clone(), mtu));
            }
            return;
        };
        for code in (0..16).filter(|_| kind < kinds.len()) {
            forger.send_error(&IcmpError {
                kind: kinds[kind],
                code,
                ..IcmpError::too_big(segment.clone(), 0)
            });
        }
    });
    survive(crowd);
    if stage.splices() {
        assert!(stage.hop().counted(reason::HELD_BACK) > 0);
        assert!(stage.hop().counted(reason::ICMP_REFUSED) > 0);
    }
}

fn errors_about_anything_end_nothing(stage: &Stage) {
    let crowd = Crowd::on(stage, &[()]);
    crowd.attack(|(), forger, next| {
        let segment = answer_to(next);
        let mut random = Random::of_run(45);
        for _ in 0..ERRORS {
            let mut segment = segment.clone();
            match random.below(4) {
                0 => segment.from.set_port(random.next() as u16),
                1 => segment.to.set_port(random.next() as u16),
                2 => segment.seq = random.next() as u32,
                _ => {}
            }
            forger.send_error(&IcmpError {
                kind: random.next() as u8 % 16,
                code: random.next() as u8 % 16,
                mtu: random.next() as u16,
                quoted_bytes: random.below(80) as usize,
                segment,
                is_damaged: false,
            });
        }
    });
    survive(crowd);
    if stage.splices() {
        assert!(stage.hop().counted(reason::ICMP_REFUSED) > 0);
    }
}

/// The stack discards it, whatever it says.
fn a_damaged_error_changes_nothing(stage: &Stage) {
    const MTU: u16 = 1300;
    let crowd = Crowd::on(stage, &[()]);
    crowd.attack(|(), forger, next| {
        let segment = Segment {
            payload: &[0; MTU as usize],
            ..answer_to(next)
        };
        forger.send_error(&IcmpError {
            is_damaged: true,
            ..IcmpError::too_big(segment, MTU)
        });
    });
    survive(crowd);
    for entry in stage.hop().entries().iter().filter(|_| stage.splices()) {
        assert_eq!(entry["engine"], "segment", "{entry}");
    }
}

with_each_engine!(a_damaged_error_changes_nothing);
with_each_engine!(errors_that_know_the_next_number_end_nothing);
with_each_engine!(errors_about_anything_end_nothing);
