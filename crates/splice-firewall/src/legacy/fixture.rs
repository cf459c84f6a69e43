//! Real tables for tests, which the programs of iptables-legacy load into a namespace.

use std::fmt::Write;
use std::io::Write as _;
use std::process::Stdio;

use netlab::{Namespace, Need};

use crate::action::Action;
use crate::known::Answer;
use crate::legacy::{Error, Names};
use crate::rule::{Chain, Rule, Step, Table};
use crate::segment::{Connection, Device, End, Family, Hook, Segment};

pub(crate) const PROGRAMS: [(Family, &str); 2] = [
    (Family::Ipv4, "iptables-legacy"),
    (Family::Ipv6, "ip6tables-legacy"),
];

/// A namespace for tables; `None` after reporting what is missing.
pub(crate) fn namespace() -> Option<Namespace> {
    let name = PROGRAMS[0].1;
    let missing = netlab::program(name)
        .is_none()
        .then(|| format!("no {name} (apt install iptables)"));
    (netlab::available(Need::Netns) && netlab::present(name, missing))
        .then(|| Namespace::new("legacy").unwrap())
}

/// Loads rules in the format of `iptables-save`.
pub(crate) fn restore(namespace: &Namespace, family: Family, text: &str) {
    let program = match family {
        Family::Ipv4 => "iptables-legacy-restore",
        Family::Ipv6 => "ip6tables-legacy-restore",
    };
    let mut child = namespace
        .command(netlab::program(program).unwrap().to_str().unwrap())
        .arg("--noflush")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{program}: {}\n{text}",
        String::from_utf8_lossy(&output.stderr)
    );
}

pub(crate) fn read(namespace: &Namespace) -> Result<Vec<Table>, Error> {
    namespace.enter(|| Names::open()?.tables()).unwrap()
}

pub(crate) fn table(namespace: &Namespace, family: Family, name: &str) -> Table {
    let family = match family {
        Family::Ipv4 => "iptables",
        Family::Ipv6 => "ip6tables",
    };
    let tables = read(namespace).unwrap();
    let mut found = tables.into_iter();
    found
        .find(|table| (table.family, table.name.as_str()) == (family, name))
        .unwrap()
}

pub(crate) fn chain<'a>(table: &'a Table, name: &str) -> &'a Chain {
    let mut chains = table.chains.iter();
    chains.find(|chain| chain.name == name).unwrap()
}

/// Loads rules, each given by its options, into one chain, and reads them back.
pub(crate) fn rules(family: Family, table_name: &str, options: &[&str]) -> Option<Vec<Rule>> {
    let namespace = namespace()?;
    let mut text = format!("*{table_name}\n:T -\n");
    for options in options {
        writeln!(text, "-A T {options}").unwrap();
    }
    text.push_str("COMMIT\n");
    restore(&namespace, family, &text);
    let read = table(&namespace, family, table_name);
    let rules = chain(&read, "T").rules.clone();
    assert_eq!(rules.len(), options.len());
    Some(rules)
}

/// Whether the tests of a rule hold.
pub(crate) fn holds(rule: &Rule, connection: &Connection, hook: Hook) -> Answer {
    holds_at(rule, &Segment::at(connection, hook, 0, false))
}

/// The same for one segment.
pub(crate) fn holds_at(rule: &Rule, segment: &Segment<'_>) -> Answer {
    let mut answer = Answer::Yes;
    for step in &rule.steps {
        if let Step::Test(test) = step {
            answer = answer.and(test.holds(segment));
        }
    }
    answer
}

pub(crate) fn actions(rule: &Rule) -> Vec<&Action> {
    let mut actions = Vec::new();
    for step in &rule.steps {
        if let Step::Act(action) = step {
            actions.push(action);
        }
    }
    actions
}

/// A connection that this host accepted on port 80.
pub(crate) fn connection(family: Family) -> Connection {
    let (local, peer) = match family {
        Family::Ipv4 => ("192.0.2.1", "198.51.100.7"),
        Family::Ipv6 => ("2001:db8::1", "2001:db8:1::7"),
    };
    let end = |address: &str, port| End {
        address: Some(address.parse().unwrap()),
        port: Some(port),
    };
    Connection {
        family,
        local: end(local, 80),
        peer: end(peer, 40000),
        device: Some(Device {
            index: 2,
            name: "eth0".into(),
            hardware_type: 1,
        }),
        accepted: true,
        tracked: true,
        opening: false,
    }
}
