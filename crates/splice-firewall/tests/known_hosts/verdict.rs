//! The detector's verdict on a fixture.

use rustix::net::{AddressFamily, SocketType};
use splice_firewall::{Filters, Reason, RuleId, Verdict};

use crate::fixture::{Answer, Backend, Expectation, Fixture, Refusal};
use crate::host::Host;

/// Loads the rules and compares the verdict on each connection.
pub(crate) fn is_as_expected(name: &str) {
    is_as_expected_for(name, &Fixture::read(name));
}

/// The same for a fixture that is not in a file.
pub(crate) fn is_as_expected_for(name: &str, fixture: &Fixture) {
    let mut wrong = Vec::new();
    for &backend in &fixture.backends {
        let host = Host::new(fixture);
        host.load_all(fixture, backend);
        let verdicts: Vec<_> = host
            .namespace
            .enter(|| {
                let filters = Filters::read().expect("the rules of the namespace");
                let judge = |e: &Expectation| filters.judge(&e.connection(index(&e.device)));
                fixture.expectations.iter().map(judge).collect()
            })
            .expect("a namespace");
        for (expectation, verdict) in fixture.expectations.iter().zip(verdicts) {
            if !fits(&expectation.answer, &verdict, backend) {
                wrong.push(format!(
                    "{backend:?}: {}\n  found {verdict:?}",
                    expectation.text
                ));
            } else if let Some(reason) = verdict.reason() {
                check_handle(&host, reason);
            }
        }
    }
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

fn fits(expected: &Answer, found: &Verdict, backend: Backend) -> bool {
    match (expected, found) {
        (Answer::Accepts, found) => *found == Verdict::Accepts,
        (Answer::Not(refusal), Verdict::Stops(reason)) => {
            refusal.may_stop && names(refusal, reason, backend)
        }
        (Answer::Not(refusal), Verdict::Unknown(reason)) => {
            refusal.may_be_unknown && names(refusal, reason, backend)
        }
        (Answer::Not(_), Verdict::Accepts) => false,
    }
}

fn names(expected: &Refusal, found: &Reason, backend: Backend) -> bool {
    let Some(place) = &found.place else {
        return false;
    };
    let [family, table, chain] = &expected.place;
    let family = match (backend, family.as_str()) {
        (Backend::Legacy, "ip") => "iptables",
        (Backend::Legacy, "ip6") => "ip6tables",
        (_, family) => family,
    };
    place.family == family
        && place.table == *table
        && place.chain == *chain
        && place.rule.is_none() == expected.policy
        && found.why.starts_with(&expected.why)
}

/// Checks that the handle in a reason belongs to a rule of the chain in the reason.
fn check_handle(host: &Host, reason: &Reason) {
    let Some(place) = &reason.place else { return };
    let Some(RuleId::Handle(handle)) = place.rule else {
        return;
    };
    let chain = [
        "-a",
        "list",
        "chain",
        place.family,
        &place.table,
        &place.chain,
    ];
    let listed = host.output("nft", &chain);
    let ending = format!("# handle {handle}");
    assert!(
        listed.lines().skip(2).any(|line| line.ends_with(&ending)),
        "{reason} names no rule of\n{listed}"
    );
}

fn index(device: &str) -> u32 {
    let any = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None).expect("a socket");
    rustix::net::netdevice::name_to_index(&any, device).expect("a device of the host")
}
