//! The way of a connection's segments: the namespaces that they cross, and the devices there.
//!
//! A namespace with one neighbour cannot lie between two others. All that are left between both ends count, since
//! routes may lead through any of them.

use std::collections::{HashMap, HashSet};

use splice_firewall::{Device, Link};

use super::network::{Network, Node};

/// All namespaces on the way, both ends among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) stations: Vec<Station>,
}

/// What a namespace is for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Client,
    Server,
    /// The connection does not leave it.
    Both,
    Between,
}

/// One namespace on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Station {
    pub(super) namespace: u64,
    pub(super) part: Part,
    /// Every device that segments may pass.
    pub(super) devices: Vec<Device>,
    /// Those that IP sees, towards the client and towards the server; empty if they are not known.
    pub(super) routed: [Vec<Device>; 2],
    pub(super) has_bridge: bool,
}

type Neighbours = HashMap<Node, HashSet<Node>>;

impl Way {
    /// The way between two namespaces. With translated addresses it may leave a namespace and come back.
    ///
    /// # Errors
    /// Why it cannot be told, in words.
    pub(super) fn find(
        network: &Network,
        client: u64,
        server: u64,
        translated: bool,
    ) -> Result<Self, String> {
        if client == server && !translated {
            return Ok(Self {
                stations: vec![loopback(network, client)],
            });
        }
        let ends = [client, server].map(Node::Found);
        let all = network.neighbours();
        let mut near = all.clone();
        prune(&mut near, |node| {
            // Its neighbours may send it back what it has sent.
            ends.contains(&node)
                || client == server && all.get(&ends[0]).is_some_and(|next| next.contains(&node))
        });
        let reached = reachable(&near, ends[0], None);
        if !reached.contains(&ends[1]) {
            return Ok(Self::through_all(network, client, server));
        }
        let mut stations = Vec::new();
        for node in &reached {
            let Node::Found(here) = *node else {
                return Err("a network namespace between both ends was not found".into());
            };
            stations.push(station(network, &near, here, [client, server]));
        }
        stations.sort_by_key(|station| station.namespace);
        Ok(Self { stations })
    }

    /// What is certain if no link is known: nothing.
    fn through_all(network: &Network, client: u64, server: u64) -> Self {
        let mut stations: Vec<_> = network
            .namespaces()
            .map(|namespace| {
                let links = network.devices(namespace).unwrap_or_default();
                Station {
                    namespace,
                    part: part(namespace, [client, server]),
                    devices: links.iter().map(|link| link.device.clone()).collect(),
                    routed: [Vec::new(), Vec::new()],
                    has_bridge: links.iter().any(is_bridge),
                }
            })
            .collect();
        stations.sort_by_key(|station| station.namespace);
        Self { stations }
    }
}

fn part(namespace: u64, [client, server]: [u64; 2]) -> Part {
    match namespace {
        of if of == client && of == server => Part::Both,
        of if of == client => Part::Client,
        of if of == server => Part::Server,
        _ => Part::Between,
    }
}

/// `ARPHRD_LOOPBACK`.
const LOOPBACK: u16 = 772;

fn loopback(network: &Network, namespace: u64) -> Station {
    let links = network.devices(namespace).unwrap_or_default();
    let devices: Vec<_> = links
        .iter()
        .filter(|link| is_loopback(link))
        .map(|link| link.device.clone())
        .collect();
    Station {
        namespace,
        part: Part::Both,
        routed: [devices.clone(), devices.clone()],
        devices,
        has_bridge: false,
    }
}

fn station(network: &Network, near: &Neighbours, here: u64, ends: [u64; 2]) -> Station {
    let links = network.devices(here).unwrap_or_default();
    let part = part(here, ends);
    let towards = |nodes: &HashSet<Node>| {
        let next = near[&Node::Found(here)].intersection(nodes);
        let seeds = next.flat_map(|node| match node {
            Node::Found(there) => network.between(here, *there),
            Node::NotFound => HashSet::new(),
        });
        with_stacked(links, seeds.collect())
    };
    let sides = match part {
        Part::Between => ends.map(|end| {
            let beyond = reachable(near, Node::Found(end), Some(Node::Found(here)));
            towards(&beyond)
        }),
        _ => {
            let mut all = towards(&near.keys().copied().collect());
            if part == Part::Both {
                let own = links.iter().filter(|link| is_loopback(link));
                all.extend(own.map(|link| link.device.index));
            }
            [all.clone(), all]
        }
    };
    let of = |indices: &HashSet<u32>, is_meant: &dyn Fn(&Link) -> bool| -> Vec<Device> {
        let chosen = links
            .iter()
            .filter(|link| indices.contains(&link.device.index) && is_meant(link));
        chosen.map(|link| link.device.clone()).collect()
    };
    let all: HashSet<u32> = sides.iter().flatten().copied().collect();
    Station {
        namespace: here,
        part,
        devices: of(&all, &|_| true),
        routed: sides
            .each_ref()
            .map(|side| of(side, &|link| !is_port(links, link))),
        has_bridge: links
            .iter()
            .any(|link| all.contains(&link.device.index) && is_bridge(link)),
    }
}

fn is_loopback(link: &Link) -> bool {
    link.device.hardware_type == LOOPBACK
}

fn is_bridge(link: &Link) -> bool {
    link.kind == "bridge"
}

/// Whether IP sees another device in its place.
fn is_port(links: &[Link], link: &Link) -> bool {
    let mut all = links.iter();
    let master = link
        .master
        .and_then(|index| all.find(|other| other.device.index == index));
    master.is_some_and(|master| master.kind != "vrf")
}

/// Devices with all that are above and below them, and the bridges that they are ports of.
fn with_stacked(links: &[Link], seeds: HashSet<u32>) -> HashSet<u32> {
    let mut all = seeds.clone();
    let mut ahead: Vec<u32> = seeds.into_iter().collect();
    while let Some(index) = ahead.pop() {
        let here = links.iter().filter(|link| link.device.index == index);
        let is_within = |link: &&Link| link.peer_namespace.is_none();
        let below = here.clone().filter(is_within).filter_map(|link| link.peer);
        let above = links
            .iter()
            .filter(is_within)
            .filter(|link| link.peer == Some(index));
        // Ports that lead to another bridge of this namespace.
        let inner = links
            .iter()
            .filter(is_within)
            .filter(|link| link.master == Some(index) && link.peer.is_some());
        let next: Vec<u32> = (here.clone().filter_map(|link| link.master))
            .chain(below)
            .chain(above.chain(inner).map(|link| link.device.index))
            .collect();
        ahead.extend(next.into_iter().filter(|index| all.insert(*index)));
    }
    all
}

/// Removes what cannot lie between two others.
fn prune(near: &mut Neighbours, is_kept: impl Fn(Node) -> bool) {
    loop {
        let leaf = near
            .iter()
            .find(|(node, next)| next.len() <= 1 && !is_kept(**node))
            .map(|(node, _)| *node);
        let Some(leaf) = leaf else { return };
        for next in near.remove(&leaf).unwrap_or_default() {
            if let Some(back) = near.get_mut(&next) {
                back.remove(&leaf);
            }
        }
    }
}

fn reachable(near: &Neighbours, from: Node, without: Option<Node>) -> HashSet<Node> {
    let mut all = HashSet::from([from]);
    let mut ahead = vec![from];
    while let Some(node) = ahead.pop() {
        for next in near.get(&node).into_iter().flatten() {
            if Some(*next) != without && all.insert(*next) {
                ahead.push(*next);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: u64 = 1;
    const HOST: u64 = 2;
    const SERVER: u64 = 3;
    const ROUTER: u64 = 4;

    fn device(index: u32, name: &str) -> Link {
        Link {
            device: Device {
                index,
                name: name.into(),
                hardware_type: 1,
            },
            kind: "veth".into(),
            peer: None,
            peer_namespace: None,
            master: None,
            has_xdp: false,
        }
    }

    /// A device whose other end has this index in another namespace.
    fn veth(index: u32, name: &str, (there, peer): (u64, u32)) -> Link {
        Link {
            peer: Some(peer),
            peer_namespace: Some(there as i32),
            ..device(index, name)
        }
    }

    fn port(link: Link) -> Link {
        Link {
            master: Some(9),
            ..link
        }
    }

    fn bridge() -> Link {
        Link {
            kind: "bridge".into(),
            ..device(9, "bridge")
        }
    }

    fn names(devices: &[Device]) -> Vec<&str> {
        let mut names: Vec<_> = devices.iter().map(|of| of.name.as_str()).collect();
        names.sort_unstable();
        names
    }

    fn way(network: &Network) -> Vec<(u64, Part)> {
        let way = Way::find(network, CLIENT, SERVER, false).expect("a way");
        let stations = way.stations.iter();
        stations.map(|of| (of.namespace, of.part)).collect()
    }

    #[test]
    fn between_two_containers_at_a_bridge_is_the_host_and_no_third_container() {
        let network = Network::of([
            (CLIENT, vec![veth(2, "eth0", (HOST, 11))]),
            (SERVER, vec![veth(2, "eth0", (HOST, 12))]),
            (5, vec![veth(2, "eth0", (HOST, 13))]),
            (
                HOST,
                vec![
                    bridge(),
                    port(veth(11, "to-client", (CLIENT, 2))),
                    port(veth(12, "to-server", (SERVER, 2))),
                    port(veth(13, "to-third", (5, 2))),
                ],
            ),
        ]);
        let expected = [
            (CLIENT, Part::Client),
            (HOST, Part::Between),
            (SERVER, Part::Server),
        ];
        assert_eq!(way(&network), expected);
        let found = Way::find(&network, CLIENT, SERVER, false).expect("a way");
        let host = &found.stations[1];
        assert!(host.has_bridge);
        assert_eq!(names(&host.devices), ["bridge", "to-client", "to-server"]);
        // IP sees the bridge in place of its ports.
        for side in &host.routed {
            assert_eq!(names(side), ["bridge"]);
        }
    }

    #[test]
    fn of_two_ways_both_count() {
        let network = Network::of([
            (
                CLIENT,
                vec![veth(2, "eth0", (HOST, 11)), veth(3, "eth1", (ROUTER, 11))],
            ),
            (
                SERVER,
                vec![veth(2, "eth0", (HOST, 12)), veth(3, "eth1", (ROUTER, 12))],
            ),
            (
                HOST,
                vec![
                    veth(11, "left", (CLIENT, 2)),
                    veth(12, "right", (SERVER, 2)),
                ],
            ),
            (
                ROUTER,
                vec![
                    veth(11, "left", (CLIENT, 3)),
                    veth(12, "right", (SERVER, 3)),
                ],
            ),
        ]);
        let expected = [
            (CLIENT, Part::Client),
            (HOST, Part::Between),
            (SERVER, Part::Server),
            (ROUTER, Part::Between),
        ];
        assert_eq!(way(&network), expected);
        let found = Way::find(&network, CLIENT, SERVER, false).expect("a way");
        // They are a circle, and either device leads to either end.
        for side in &found.stations[1].routed {
            assert_eq!(names(side), ["left", "right"]);
        }
    }

    #[test]
    fn without_a_known_link_every_namespace_counts() {
        let network = Network::of([
            (CLIENT, vec![device(2, "eth0")]),
            (SERVER, vec![device(2, "eth0")]),
            (5, vec![device(2, "eth0")]),
        ]);
        let expected = [
            (CLIENT, Part::Client),
            (SERVER, Part::Server),
            (5, Part::Between),
        ];
        assert_eq!(way(&network), expected);
    }

    #[test]
    fn a_namespace_between_that_was_not_found_is_no_way() {
        // 7 and 8 are numbers of namespaces that nobody has found.
        let network = Network::of([
            (CLIENT, vec![veth(2, "eth0", (7, 11))]),
            (SERVER, vec![veth(2, "eth0", (8, 12))]),
        ]);
        let error = Way::find(&network, CLIENT, SERVER, false).expect_err("no way");
        assert!(error.contains("was not found"), "{error}");
    }
}
