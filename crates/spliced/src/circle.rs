//! Listeners of a process that lead to one another in a circle: a client would go round in it, and make a connection or a
//! session at each step, until there are no more descriptors. A listener that leads to itself is a matter of
//! [`refusal`](crate::refusal).

use std::collections::{BTreeSet, HashMap};

use splice_route::Conditions;

use crate::plan::{Action, BackendPlan, RoutePlan};
use crate::socket_address::SocketAddress;
use crate::target::{Meeting, leads_to};

/// A listener, and where its routes lead.
pub(crate) struct Listener<'p> {
    pub(crate) name: &'p str,
    pub(crate) is_of_datagrams: bool,
    pub(crate) listening: Vec<SocketAddress>,
    pub(crate) routes: &'p [RoutePlan],
    /// It resets clients that do not say who they are, before a route sees them.
    pub(crate) filters: bool,
}

/// A backend, and the addresses of each of its servers.
pub(crate) struct Backend<'p> {
    pub(crate) plan: &'p BackendPlan,
    pub(crate) servers: Vec<Vec<SocketAddress>>,
}

/// Listeners of which each leads to the next one, and the last one to the first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    names: Vec<String>,
    /// No client leaves it.
    pub(crate) is_certain: bool,
}

/// The listeners that a backend leads to, by their places.
struct Reached {
    perhaps: BTreeSet<usize>,
    /// There is no server that is none of them.
    is_certain: bool,
}

impl Circle {
    /// What is wrong, and what to do.
    pub(crate) fn sentence(&self) -> String {
        let first = self.names.first();
        let names: Vec<_> = self.names.iter().chain(first).map(String::as_str).collect();
        let (names, those) = (names.join(" -> "), ["clients", "some clients"]);
        format!(
            "listeners lead to one another ({names}), so that {} go round until the descriptors are used up; give one \
             of them other servers",
            those[usize::from(!self.is_certain)]
        )
    }
}

/// The circles of `listeners`, those that no client leaves first.
pub(crate) fn circles(listeners: &[Listener<'_>], backends: &[Backend<'_>]) -> Vec<Circle> {
    let reached = reached(listeners, backends);
    let of = |name: &String| reached.get(name.as_str());
    let mut always: HashMap<usize, BTreeSet<usize>> = HashMap::new();
    let mut perhaps = vec![BTreeSet::new(); listeners.len()];
    for (number, listener) in listeners.iter().enumerate() {
        for (place, route) in listener.routes.iter().enumerate() {
            let Action::Backend { name, fallback } = &route.action else {
                continue;
            };
            let backends = [Some(name), fallback.as_ref()].into_iter().flatten();
            for reached in backends.filter_map(of) {
                // A server that is the listener itself is left out.
                let others = reached.perhaps.iter().filter(|it| **it != number);
                perhaps[number].extend(others);
            }
            let takes_all = place == 0 && route.conditions == Conditions::default();
            if let Some(reached) = of(name).filter(|reached| reached.is_certain)
                && takes_all
                && !listener.filters
            {
                let mut others = reached.perhaps.clone();
                others.remove(&number);
                always.insert(number, others);
            }
        }
    }
    let certain = closed(always);
    for (number, others) in perhaps.iter_mut().enumerate() {
        match certain.contains_key(&number) {
            true => others.clear(),
            false => others.retain(|other| !certain.contains_key(other)),
        }
    }
    let certain: Vec<BTreeSet<_>> = (0..listeners.len())
        .map(|number| certain.get(&number).copied().into_iter().collect())
        .collect();
    let named = |is_certain: bool, circle: Vec<usize>| {
        let names = circle.iter().map(|it| listeners[*it].name.to_owned());
        Circle {
            names: names.collect(),
            is_certain,
        }
    };
    let of_certain = found(&certain).into_iter();
    let of_others = found(&perhaps).into_iter();
    of_certain
        .map(|circle| named(true, circle))
        .chain(of_others.map(|circle| named(false, circle)))
        .collect()
}

/// Where each backend leads, by its name.
fn reached<'p>(listeners: &[Listener<'_>], backends: &[Backend<'p>]) -> HashMap<&'p str, Reached> {
    let mut met: HashMap<(bool, Meeting), Vec<usize>> = HashMap::new();
    for (number, listener) in listeners.iter().enumerate() {
        for address in &listener.listening {
            let at = (listener.is_of_datagrams, Meeting::of(address));
            met.entry(at).or_default().push(number);
        }
    }
    let of_backend = |backend: &Backend<'p>| {
        let is_of_datagrams = backend.plan.is_of_datagrams();
        let reached = |address: &SocketAddress| {
            let met = met.get(&(is_of_datagrams, Meeting::of(address)));
            let mut met = met.into_iter().flatten().copied();
            met.find(|number| leads_to(address, &listeners[*number].listening))
        };
        let mut found = Reached {
            perhaps: BTreeSet::new(),
            is_certain: has_no_choice(backend.plan),
        };
        for addresses in &backend.servers {
            found.is_certain &= !addresses.is_empty();
            for address in addresses {
                let reached = reached(address);
                found.is_certain &= reached.is_some();
                found.perhaps.extend(reached);
            }
        }
        (backend.plan.name.as_str(), found)
    };
    backends.iter().map(of_backend).collect()
}

/// Whether each of the servers is used, and reached as this host reaches an address.
fn has_no_choice(backend: &BackendPlan) -> bool {
    let mut servers = backend.servers.iter();
    let are_used = servers.all(|server| !server.disabled && server.weight > 0);
    are_used && backend.mark.is_none() && backend.interface.is_none()
}

/// The listeners all of whose clients go to others of these, each with one of those. `always` has where listeners lead
/// each client.
fn closed(mut always: HashMap<usize, BTreeSet<usize>>) -> HashMap<usize, usize> {
    loop {
        let leads_out = |others: &BTreeSet<usize>| {
            others.is_empty() || others.iter().any(|it| !always.contains_key(it))
        };
        let out = always.iter().filter(|(_, others)| leads_out(others));
        let out: Vec<_> = out.map(|(number, _)| *number).collect();
        if out.is_empty() {
            let ways = always.into_iter();
            return ways
                .filter_map(|(number, others)| Some((number, others.first().copied()?)))
                .collect();
        }
        for number in out {
            always.remove(&number);
        }
    }
}

/// Circles in a graph, one at most through each part of it.
fn found(edges: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let mut is_done = vec![false; edges.len()];
    let mut circles = Vec::new();
    for start in 0..edges.len() {
        let mut path = vec![(start, edges[start].iter())];
        while let Some((at, others)) = path.last_mut() {
            let (at, next) = (*at, others.next().copied());
            match next {
                _ if is_done[at] => {
                    path.pop();
                }
                Some(next) => {
                    let place = path.iter().position(|(number, _)| *number == next);
                    if let Some(place) = place {
                        let circle = path.iter().skip(place).map(|(number, _)| *number);
                        circles.push(circle.collect());
                        path.iter().for_each(|(number, _)| is_done[*number] = true);
                    } else if !is_done[next] {
                        path.push((next, edges[next].iter()));
                    }
                }
                None => {
                    is_done[at] = true;
                    path.pop();
                }
            }
        }
    }
    circles
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use splice::SocketName;
    use splice_route::Prefixes;

    use super::*;
    use crate::plan::ServerAddress;

    /// A listener on a port, whose only route leads to servers on ports.
    struct Given {
        name: &'static str,
        own: u16,
        has_condition: bool,
        servers: &'static [u16],
    }

    fn step(name: &'static str, own: u16, servers: &'static [u16]) -> Given {
        Given {
            name,
            own,
            has_condition: false,
            servers,
        }
    }

    fn at(port: u16) -> SocketAddress {
        SocketAddress::Inet(([127, 0, 0, 1], port).into())
    }

    fn told(given: &[Given]) -> Vec<(String, bool)> {
        let plans = given.iter().map(|one| {
            let address = "127.0.0.1:1".parse().expect("an address");
            let mut plan = BackendPlan::of_one(
                one.name,
                ServerAddress::Address(address),
                Duration::from_secs(1),
            );
            let name: SocketName = "udp:127.0.0.1:1".parse().expect("a name");
            plan.servers[0].address = ServerAddress::Datagrams(name);
            plan
        });
        let plans: Vec<_> = plans.collect();
        let routes = given.iter().map(|one| RoutePlan {
            conditions: Conditions {
                clients: one.has_condition.then(Prefixes::default),
                ..Conditions::default()
            },
            action: Action::Backend {
                name: one.name.into(),
                fallback: None,
            },
        });
        let routes: Vec<_> = routes.map(|route| [route]).collect();
        let listeners = given.iter().zip(&routes).map(|(one, routes)| Listener {
            name: one.name,
            is_of_datagrams: true,
            listening: vec![at(one.own)],
            routes,
            filters: false,
        });
        let backends = given.iter().zip(&plans).map(|(one, plan)| Backend {
            plan,
            servers: one.servers.iter().map(|port| vec![at(*port)]).collect(),
        });
        let (listeners, backends): (Vec<_>, Vec<_>) = (listeners.collect(), backends.collect());
        let told = circles(&listeners, &backends).into_iter();
        told.map(|it| (it.names.join(" "), it.is_certain)).collect()
    }

    #[test]
    fn circles_are_certain_if_no_client_leaves_them() {
        assert_eq!(told(&[step("a", 1, &[2]), step("b", 2, &[3])]), []);
        // One that leads to itself is told elsewhere.
        assert_eq!(told(&[step("a", 1, &[1])]), []);
        let both = [step("a", 1, &[2]), step("b", 2, &[1])];
        assert_eq!(told(&both), [("a b".into(), true)]);
        let leading_in = [
            step("in", 9, &[1]),
            step("a", 1, &[2]),
            step("b", 2, &[3]),
            step("c", 3, &[1]),
        ];
        assert_eq!(told(&leading_in), [("a b c".into(), true)]);
        let with_a_way_out = [step("a", 1, &[2]), step("b", 2, &[1, 7])];
        assert_eq!(told(&with_a_way_out), [("a b".into(), false)]);
        let mut with_a_condition = [step("a", 1, &[2]), step("b", 2, &[1])];
        with_a_condition[1].has_condition = true;
        assert_eq!(told(&with_a_condition), [("a b".into(), false)]);
        let two = [
            step("a", 1, &[2]),
            step("b", 2, &[1]),
            step("c", 3, &[4, 7]),
            step("d", 4, &[3, 7]),
        ];
        assert_eq!(told(&two), [("a b".into(), true), ("c d".into(), false)]);
    }
}
