//! A relay that has no descriptors left while its host changes under connections of every engine. With `copy` none of them
//! needs one. A spliced connection lives as well, whether it may stay spliced or goes back to its sockets, and the next
//! ones are spliced once there are descriptors again.

use std::fs;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use netlab::{Need, available};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::connection::{Connection, Side};
use super::path_mtu::{CONNECTIONS, move_some};
use super::site::Site;
use super::stage::{Family, IN_ORDER, Stage};
use super::tc_programs::{come_first, expect_by_sockets, start_another};
use super::untranslated::fragment;
use crate::firewall::host::{iptables, load};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{Over, Peer, exchange_until};

/// What an idle connection moves in each direction during the shortage, in bytes.
const BYTES: u64 = 1 << 20;

/// Clients that come during the shortage, and would take each descriptor that becomes free.
const WAITING: u64 = 3;

/// Why those that a rule may stop go back.
const BY_RULE: &str = "packet filters: ";

/// Why each connection goes back to its sockets if it was spliced, or none if it stays so.
type Fates<'a> = [Option<&'a str>; CONNECTIONS];

const STAY: Fates<'_> = [None; CONNECTIONS];

/// A relay without a free descriptor, until this is dropped.
struct Shortage<'a> {
    stage: &'a Stage,
    waiting: Vec<Peer>,
}

impl<'a> Shortage<'a> {
    fn begin(stage: &'a Stage) -> Self {
        until("no descriptor is free", || {
            // The kernel gives the lowest number that is free, if that is below the limit.
            let limit = lowest_free(stage);
            set_limit(stage, Some(limit));
            lowest_free(stage) >= limit
        });
        let mut shortage = Self {
            stage,
            waiting: Vec::new(),
        };
        let connect = || Peer::connect(stage.hop().address());
        let connect = || stage.client().enter(connect).expect("entered");
        shortage.waiting = (0..WAITING).map(|_| connect()).collect();
        let relay = &stage.hop().relay;
        relay.wait_logged("no connection can be accepted for now");
        shortage
    }

    /// Serves the clients that have come meanwhile.
    fn end(mut self) -> Vec<Connection> {
        let server = self.stage.target();
        assert!(!server.is_called_within(Duration::ZERO), "nothing is short");
        let waiting = std::mem::take(&mut self.waiting);
        drop(self);
        for (client, number) in waiting.iter().zip(0..) {
            client.write_number(number);
        }
        let mut servers: Vec<_> = (waiting.iter())
            .map(|_| {
                let server = server.accept();
                (server.read_number(), server)
            })
            .collect();
        servers.sort_by_key(|(number, _)| *number);
        let both = waiting.into_iter().zip(servers);
        both.map(|(client, (_, server))| Connection { client, server })
            .collect()
    }
}

impl Drop for Shortage<'_> {
    fn drop(&mut self) {
        set_limit(self.stage, None);
    }
}

fn lowest_free(stage: &Stage) -> u64 {
    let path = format!("/proc/{}/fd", stage.hop().relay.id());
    let used: Vec<u64> = fs::read_dir(path)
        .expect("its descriptors")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let free = (0..).find(|number| !used.contains(number));
    free.expect("numbers do not end")
}

/// Sets the soft limit; `None` sets it to the hard one, as the relay does.
fn set_limit(stage: &Stage, limit: Option<u64>) {
    let relay = Pid::from_raw(stage.hop().relay.id() as i32);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limits = Rlimit {
        current: limit.or(maximum),
        maximum,
    };
    prlimit(relay, Resource::Nofile, limits).expect("prlimit");
}

/// Waits until the relay has looked at tc and at its packet filters: this connection goes back by a new rule, and `left` stay
/// spliced.
fn expect_look(stage: &Stage, connection: &Connection, left: usize) {
    let (_, port) = client_of(connection);
    let rule = format!("tcp sport {port} log");
    load(stage.lab(), &chain_of(&format!("of{port}"), &rule));
    if stage.splices() {
        until("it has looked", || stage.hop().are_spliced(left));
    }
}

/// Waits until the thread that watches packet filters and tc has come to rest several times: it does so twice for each look.
fn let_it_look(stage: &Stage) {
    const RESTS: u64 = 6;
    let rests = || -> u64 {
        let of_thread = |status: &str| -> Option<u64> {
            let value = |name| status.lines().find_map(|line| line.strip_prefix(name));
            let is_it = value("Name:").is_some_and(|name| name.trim() == "firewall");
            let rests = value("voluntary_ctxt_switches:")?.trim().parse().ok();
            rests.filter(|_| is_it)
        };
        let of_threads = stage.hop().relay.of_threads("status", of_thread);
        of_threads.into_iter().flatten().sum()
    };
    if stage.splices() {
        let before = rests();
        until("it looks", || rests() >= before + RESTS);
    }
}

/// The client's address, and its port.
fn client_of(connection: &Connection) -> (String, String) {
    let address = connection.client.local_address();
    let (_, port) = address.rsplit_once(':').expect("a port");
    (address.clone(), port.to_owned())
}

/// One connection is idle while its host changes, and the others are full of bytes. Afterwards all have ended in order.
fn go_on(stage: &Stage, fates: Fates<'_>, change: impl FnOnce(&[Connection])) {
    let connections = stage.connect(CONNECTIONS);
    let clients: Vec<_> = connections.iter().map(client_of).collect();
    let (idle, full) = connections.split_first().expect("several");
    let has_changed = AtomicBool::new(false);
    let waiting = thread::scope(|scope| {
        let over = Over(&has_changed);
        for Connection { client, server } in full {
            scope.spawn(|| exchange_until(&has_changed, client, server, 5));
        }
        let shortage = Shortage::begin(stage);
        change(&connections);
        move_both_ways(idle);
        let waiting = shortage.end();
        drop(over);
        move_some(idle, BYTES);
        waiting
    });
    until("they have ended", || {
        stage.hop().connections() == connections.len()
    });
    if stage.splices() {
        until("those that have waited are spliced", || {
            stage.hop().are_spliced(waiting.len())
        });
    }
    for connection in &waiting {
        connection.moves_data();
        connection.ends_in_order();
    }
    stage.expect_ended(connections.len() + waiting.len(), IN_ORDER);
    for entry in stage.hop().entries().iter().filter(|_| stage.splices()) {
        let fate = clients.iter().zip(fates);
        let mut fate = fate.filter(|((client, _), _)| entry["client"] == **client);
        match fate.next().and_then(|(_, why)| why) {
            None => assert_eq!(entry["engine"], "segment", "{entry}"),
            Some(why) => {
                let found = entry["why_engine"].as_str().expect("a reason");
                assert!(found.contains(why), "{entry}");
            }
        }
    }
}

/// The streams go on.
fn move_both_ways(connection: &Connection) {
    let payload = Payload::new(8);
    thread::scope(|scope| {
        for from in Side::BOTH {
            scope.spawn(move || connection.end(from).send(payload, 0, BYTES));
            scope.spawn(move || connection.end(from.other()).expect(payload, 0, BYTES));
        }
    });
}

/// Waits until none is spliced any more.
fn until_gone_back(stage: &Stage) {
    if stage.splices() {
        until("all have gone back", || stage.hop().are_spliced(0));
    }
}

/// A chain for what this host takes, with one rule.
fn chain_of(table: &str, rule: &str) -> String {
    let chain = "type filter hook input priority 0; policy accept;";
    format!("table inet {table} {{\nchain c {{\n{chain}\n{rule}\n}}\n}}")
}

fn other_rules_come(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    go_on(stage, [Some(BY_RULE), None, None], |connections| {
        load(stage.lab(), &chain_of("other", "tcp dport 1 drop"));
        expect_look(stage, &connections[0], CONNECTIONS - 1);
    });
}

/// The relay reads these rules every second.
fn other_rules_of_iptables_come(stage: &Stage) {
    if !available(Need::Iptables) {
        return;
    }
    let program = match stage.family() {
        Family::V4 => "iptables-legacy",
        Family::V6 => "ip6tables-legacy",
    };
    let add = |rule: &str| iptables(stage.lab(), program, &format!("-A INPUT -p tcp {rule}"));
    add("--dport 1 -j DROP");
    go_on(stage, [Some(BY_RULE), None, None], |connections| {
        add("--dport 2 -j DROP");
        let (_, port) = client_of(&connections[0]);
        add(&format!("--sport {port} -j LOG"));
        if stage.splices() {
            until("they are read", || stage.hop().are_spliced(CONNECTIONS - 1));
        }
    });
}

/// Where a rule may stop them, they go back in any case.
fn a_rule_comes_that_may_stop_them(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    let why = "packet filters: inet stops c handle";
    go_on(stage, [Some(why); CONNECTIONS], |_| {
        load(stage.lab(), &chain_of("stops", "tcp dport 1-65535 log"));
        until_gone_back(stage);
        load(stage.lab(), "delete table inet stops");
    });
}

/// Its program leaves the connections of others alone, also while the kernel detaches it.
fn another_relay_comes_and_is_killed(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    go_on(stage, [Some(BY_RULE), Some(BY_RULE), None], |connections| {
        let (another, client, server) = start_another(stage);
        expect_look(stage, &connections[0], CONNECTIONS - 1);
        drop((another, client, server));
        expect_look(stage, &connections[1], CONNECTIONS - 2);
    });
}

fn routes_go_and_come(stage: &Stage) {
    go_on(stage, STAY, |_| {
        for side in Side::BOTH {
            let site = Site { stage, side };
            site.ip(&format!("route del {}", site.network()));
            if stage.splices() {
                until("all are closed", || stage.hop().closed() == CONNECTIONS);
            }
            site.restore_route();
            until("all are open", || stage.hop().closed() == 0);
        }
    });
}

/// The program is attached to it as well.
fn another_device_is_used(stage: &Stage) {
    let side = Side::Server;
    let why = "is reached over another device";
    go_on(stage, [Some(why); CONNECTIONS], |_| {
        Site { stage, side }.use_second_cable();
        until_gone_back(stage);
    });
}

/// The program is attached anew, before the other one, since the sockets need it for a while.
fn a_program_comes_first(stage: &Stage) {
    let side = Side::Client;
    let why = "the tc program foreign_tc before the relay's";
    go_on(stage, [Some(why); CONNECTIONS], |connections| {
        let program = come_first(&Site { stage, side });
        expect_by_sockets(stage, &connections[0]);
        drop(program);
        // The next pairs stay in the stack until it has seen that.
        let_it_look(stage);
    });
}

with_each_engine!(other_rules_come, routed);
with_each_engine!(other_rules_of_iptables_come, routed);
with_each_engine!(a_rule_comes_that_may_stop_them, routed);
with_each_engine!(another_relay_comes_and_is_killed, routed);
with_each_engine!(routes_go_and_come, routed);
with_each_engine!(another_device_is_used, routed);
with_each_engine!(a_program_comes_first, routed);

/// Over IPv4 only: nobody fragments IPv6 underway.
mod a_router_fragments {
    use super::*;

    fn with(engine: &str) {
        Stage::routed(engine, Family::V4, |stage| {
            let why = "come in fragments";
            go_on(stage, [Some(why); CONNECTIONS], |connections| {
                fragment(stage, Side::Client, connections);
                move_both_ways(&connections[0]);
                until_gone_back(stage);
            });
        });
    }

    #[test]
    fn copy() {
        with("copy");
    }

    #[test]
    fn auto() {
        with("auto");
    }

    #[test]
    fn segment() {
        with("segment");
    }
}
