use std::collections::HashSet;
use std::fs;
use std::io::Read;

use proptest::prelude::*;
use rustix::thread::CapabilitySet;

use super::fixture::{
    PROGRAMS, actions, chain, connection, holds, namespace, read, restore, table,
};
use super::parse;
use super::socket::{self, Blob, HookOffsets};
use super::{Error, Names};
use crate::action::Action;
use crate::known::Answer::{Maybe, No, Yes};
use crate::rule::{Base, Step};
use crate::segment::{Family, Hook};
use crate::verdict::RuleId;

fn names(namespace: &netlab::Namespace) -> [String; 2] {
    [super::IPV4_NAMES, super::IPV6_NAMES].map(|path| {
        namespace
            .enter(|| fs::read_to_string(path))
            .unwrap()
            .unwrap()
    })
}

#[test]
fn reading_creates_no_table() {
    let Some(namespace) = namespace() else { return };
    assert_eq!(names(&namespace), ["", ""]);
    assert_eq!(read(&namespace).unwrap(), []);
    assert_eq!(names(&namespace), ["", ""]);
}

#[test]
fn only_listed_tables_are_read_and_nat_without_its_rules() {
    let Some(namespace) = namespace() else { return };
    for table in ["mangle", "nat"] {
        restore(&namespace, Family::Ipv4, &format!("*{table}\nCOMMIT\n"));
    }
    let tables = read(&namespace).unwrap();
    let found: HashSet<_> = tables
        .iter()
        .map(|table| (table.family, table.name.as_str(), table.chains.is_empty()))
        .collect();
    let expected = [("iptables", "mangle", false), ("iptables", "nat", true)];
    assert_eq!(found, HashSet::from(expected));
    let [v4, v6] = names(&namespace);
    let listed: HashSet<&str> = v4.lines().collect();
    assert_eq!(listed, HashSet::from(["mangle", "nat"]));
    assert_eq!(v6, "");
}

#[test]
fn an_empty_table_has_the_chains_of_its_hooks() {
    let Some(namespace) = namespace() else { return };
    let tables: [(&str, &[&str]); 4] = [
        ("raw", &["PREROUTING", "OUTPUT"]),
        (
            "mangle",
            &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
        ),
        ("filter", &["INPUT", "FORWARD", "OUTPUT"]),
        ("security", &["INPUT", "FORWARD", "OUTPUT"]),
    ];
    for (family, _) in PROGRAMS {
        for (name, chains) in tables {
            restore(&namespace, family, &format!("*{name}\nCOMMIT\n"));
            let table = table(&namespace, family, name);
            for (chain, name) in table.chains.iter().zip(chains) {
                assert_eq!(chain.name, *name);
                assert_eq!(chain.rules, []);
                let hook = match *name {
                    "PREROUTING" => Hook::Prerouting,
                    "INPUT" => Hook::Input,
                    "FORWARD" => Hook::Forward,
                    "OUTPUT" => Hook::Output,
                    _ => Hook::Postrouting,
                };
                let base = Base {
                    hook,
                    priority: parse::priority(&table.name),
                    devices: Vec::new(),
                    drops: false,
                };
                assert_eq!(chain.base, Some(base));
            }
            assert_eq!(table.chains.len(), chains.len());
        }
    }
    assert_eq!(read(&namespace).unwrap().len(), 2 * tables.len());
}

/// User-defined chains, verdicts, jumps and policies.
const RULES: &str = "*filter
:INPUT DROP
:OUTPUT ACCEPT
:FORWARD DROP
:EMPTY -
:LOOK -
:REST -
-A INPUT -p tcp -j LOOK
-A INPUT -j EMPTY
-A INPUT -g REST
-A LOOK -j RETURN
-A LOOK -p tcp --dport 80 -j ACCEPT
-A LOOK -p tcp --dport 80
-A LOOK -p tcp --dport 22 -j DROP
-A LOOK -j QUEUE
-A REST -j LOOK
-A REST -j RETURN
-A OUTPUT -j LOG
COMMIT
";

#[test]
fn chains_jumps_and_policies_are_read() {
    let Some(namespace) = namespace() else { return };
    for (family, _) in PROGRAMS {
        restore(&namespace, family, RULES);
        let table = table(&namespace, family, "filter");
        let index = |name: &str| {
            let mut chains = table.chains.iter();
            chains.position(|chain| chain.name == name).unwrap()
        };
        let actions_of = |name: &str| -> Vec<Vec<&Action>> {
            chain(&table, name).rules.iter().map(actions).collect()
        };
        let stop = |what: &str| Action::Stop(what.into());
        let queue = stop("queues to user space");
        assert_eq!(
            actions_of("INPUT"),
            [
                [&Action::Jump(index("LOOK"))],
                [&Action::Jump(index("EMPTY"))],
                [&Action::Goto(index("REST"))]
            ]
        );
        assert_eq!(
            actions_of("LOOK"),
            [
                vec![&Action::Return],
                vec![&Action::Accept],
                vec![],
                vec![&stop("drops")],
                vec![&queue]
            ]
        );
        assert_eq!(
            actions_of("REST"),
            [[&Action::Jump(index("LOOK"))], [&Action::Return]]
        );
        assert_eq!(actions_of("EMPTY"), Vec::<Vec<&Action>>::new());
        let numbers: Vec<_> = chain(&table, "LOOK")
            .rules
            .iter()
            .map(|rule| rule.id)
            .collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5].map(RuleId::Number));
        let drops = |name: &str| chain(&table, name).base.as_ref().map(|base| base.drops);
        assert_eq!(drops("INPUT"), Some(true));
        assert_eq!(drops("OUTPUT"), Some(false));
        assert_eq!(drops("FORWARD"), Some(true));
        assert_eq!(drops("LOOK"), None);

        // Counters have no influence.
        let again = super::fixture::table(&namespace, family, "filter");
        assert_eq!(again, table);
        restore(&namespace, family, "*filter\n-A OUTPUT -j LOG\nCOMMIT\n");
        assert_ne!(super::fixture::table(&namespace, family, "filter"), table);
    }
}

#[test]
fn an_unknown_address_matches_only_an_empty_mask() {
    let Some(rules) = super::fixture::rules(
        Family::Ipv6,
        "filter",
        &["-s 2001:db8:1::7", "-s ::/0", "! -d 2001:db8::1"],
    ) else {
        return;
    };
    let mut connection = connection(Family::Ipv6);
    connection.peer.address = None;
    let answers: Vec<_> = rules
        .iter()
        .map(|rule| holds(rule, &connection, Hook::Input))
        .collect();
    assert_eq!(answers, [Maybe, Yes, No]);
}

#[test]
fn a_large_table_is_read() {
    let Some(namespace) = namespace() else { return };
    let mut text = String::from("*filter\n");
    for port in 1..=5000 {
        text += &format!("-A INPUT -p tcp --dport {port} -j ACCEPT\n");
    }
    text += "COMMIT\n";
    restore(&namespace, Family::Ipv4, &text);
    let table = table(&namespace, Family::Ipv4, "filter");
    let rules = &chain(&table, "INPUT").rules;
    assert_eq!(rules.len(), 5000);
    assert_eq!(rules[4999].id, RuleId::Number(5000));
    assert_eq!(
        holds(&rules[79], &connection(Family::Ipv4), Hook::Input),
        Yes
    );
    assert_eq!(
        holds(&rules[80], &connection(Family::Ipv4), Hook::Input),
        No
    );
}

#[test]
fn open_lists_show_tables_that_were_created_since() {
    let Some(namespace) = namespace() else { return };
    let mut names = namespace.enter(|| Names::open().unwrap()).unwrap();
    let tables = |names: &mut Names| namespace.enter(|| names.tables().unwrap()).unwrap();
    assert_eq!(tables(&mut names), []);
    restore(&namespace, Family::Ipv6, "*filter\nCOMMIT\n");
    assert_eq!(tables(&mut names).len(), 1);
    restore(&namespace, Family::Ipv4, "*raw\nCOMMIT\n");
    assert_eq!(tables(&mut names).len(), 2);
    // The file was read to its end, and is read again from its start.
    let mut file = names.v4.file.as_ref().unwrap();
    file.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(tables(&mut names).len(), 2);
}

#[test]
fn without_privileges_tables_are_an_error_but_no_tables_are_not() {
    let Some(namespace) = namespace() else { return };
    let mut names = namespace.enter(|| Names::open().unwrap()).unwrap();
    // Only this thread drops the capability, and it ends with the closure.
    let mut unprivileged = || {
        namespace
            .enter(|| {
                let mut sets = rustix::thread::capabilities(None).unwrap();
                sets.effective = CapabilitySet::empty();
                rustix::thread::set_capabilities(None, sets).unwrap();
                names.tables()
            })
            .unwrap()
    };
    assert_eq!(unprivileged().unwrap(), []);
    restore(&namespace, Family::Ipv4, "*filter\nCOMMIT\n");
    let error = unprivileged().unwrap_err();
    assert!(matches!(&error, Error::Table("iptables", ..)), "{error:?}");
    assert_eq!(
        error.to_string(),
        "cannot read the iptables table filter: Operation not permitted (os error 1); \
         this needs CAP_NET_ADMIN"
    );
}

/// Tables of both families, as the kernel returns them.
fn blobs() -> Option<Vec<(Family, Blob)>> {
    let namespace = namespace()?;
    Some(
        PROGRAMS
            .iter()
            .map(|(family, _)| {
                restore(&namespace, *family, RULES);
                let blob = namespace.enter(|| {
                    let socket = socket::for_tables(*family)?;
                    socket::read(socket, *family, "filter")
                });
                (*family, blob.unwrap().unwrap())
            })
            .collect(),
    )
}

#[test]
fn a_truncated_table_is_an_error() {
    let Some(blobs) = blobs() else { return };
    for (family, blob) in blobs {
        assert!(parse::table(family, "filter", &blob).is_ok());
        for length in 0..blob.entries.len() {
            let mut cut = blob.clone();
            cut.entries.truncate(length);
            assert!(parse::table(family, "filter", &cut).is_err(), "{length}");
        }
    }
}

#[test]
fn an_impossible_table_is_an_error() {
    let Some(blobs) = blobs() else { return };
    for (family, blob) in blobs {
        let with = |first: Option<u32>, policy: Option<u32>| {
            let mut changed = blob.clone();
            let input = changed.hooks[1].as_mut().unwrap();
            input.first = first.unwrap_or(input.first);
            input.policy = policy.unwrap_or(input.policy);
            parse::table(family, "filter", &changed).map(drop)
        };
        let end = u32::try_from(blob.entries.len()).unwrap();
        let input = blob.hooks[1].unwrap();
        assert_eq!(with(None, None), Ok(()));
        let nowhere = Err("a hook has no rule where it should");
        assert_eq!(with(Some(1), None), nowhere);
        assert_eq!(with(None, Some(u32::MAX)), nowhere);
        assert_eq!(with(Some(end), None), nowhere);
        let other = blob.hooks[3].unwrap();
        assert_eq!(
            with(Some(other.policy), None),
            Err("the policy of a hook is before its rules")
        );
        assert_eq!(
            with(None, Some(input.first)),
            Err("the policy of a hook is neither ACCEPT nor DROP")
        );
    }
    assert!(parse::table(Family::Ipv4, "filter", &Blob::default()).is_err());
}

/// More where `PROPTEST_CASES` asks for more, as `make soak` does.
fn at_least(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: cases.max(config.cases),
        ..config
    }
}

proptest! {
    #![proptest_config(at_least(512))]

    #[test]
    fn random_bytes_are_rejected_without_a_panic(
        entries in proptest::collection::vec(any::<u8>(), 0..1024),
        hooks: [Option<(u16, u16)>; 5],
    ) {
        let hooks = hooks.map(|offsets| offsets.map(|(first, policy)| HookOffsets {
            first: first.into(),
            policy: policy.into(),
        }));
        let blob = Blob { hooks, entries };
        for (family, _) in PROGRAMS {
            prop_assert!(parse::table(family, "filter", &blob).is_err());
        }
    }
}

#[test]
fn a_damaged_table_does_not_panic() {
    let Some(blobs) = blobs() else { return };
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..at_least(2048)
    });
    let damage = proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8);
    let result = runner.run(&(damage, any::<bool>()), |(damage, ipv6)| {
        let (family, mut blob) = blobs[usize::from(ipv6)].clone();
        for (at, byte) in damage {
            let at = at.index(blob.entries.len());
            blob.entries[at] = byte;
        }
        if let Ok(table) = parse::table(family, "filter", &blob) {
            let connection = connection(family);
            for rule in table.chains.iter().flat_map(|chain| &chain.rules) {
                holds(rule, &connection, Hook::Input);
                for step in &rule.steps {
                    if let Step::Act(Action::Jump(chain) | Action::Goto(chain)) = step {
                        prop_assert!(*chain < table.chains.len());
                    }
                }
            }
        }
        Ok(())
    });
    result.unwrap();
}
