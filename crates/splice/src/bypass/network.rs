//! The network namespaces of this host, and how their devices link them.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use splice_firewall::{Link, Links};

use super::namespaces::Namespaces;

/// A namespace that was found, or all that were not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Found(u64),
    NotFound,
}

/// All namespaces with their devices, as they were read.
#[derive(Debug, Default)]
pub(super) struct Network {
    devices: HashMap<u64, Vec<Link>>,
    /// Which namespace another one means by a number.
    numbers: HashMap<(u64, i32), u64>,
}

impl Network {
    /// Reads the devices of every namespace that can be found.
    pub(super) fn read(namespaces: &mut Namespaces) -> Self {
        let all = namespaces.all();
        let mut network = Self::default();
        // Most namespaces are linked only to one that has many links: it comes first.
        let mut by_links = Vec::new();
        for (cookie, namespace) in &all {
            let read = namespaces.at(namespace, || {
                let mut links = Links::new().ok()?;
                let devices = links.all().ok()?;
                Some((links, devices))
            });
            let Some((links, devices)) = read.flatten() else {
                continue;
            };
            by_links.push((*cookie, namespace, links, devices));
        }
        by_links.sort_by_key(|(.., devices)| std::cmp::Reverse(devices.len()));
        let files: Vec<_> = by_links
            .iter()
            .map(|(cookie, file, ..)| (*cookie, *file))
            .collect();
        for (cookie, _, mut links, devices) in by_links {
            let mut open: HashSet<i32> = devices
                .iter()
                .filter_map(|link| link.peer_namespace)
                .collect();
            for (other, file) in &files {
                if open.is_empty() {
                    break;
                }
                // The socket stays in the namespace in which it was made.
                if let Ok(Some(number)) = links.number_of(file.as_fd())
                    && open.remove(&number)
                {
                    network.numbers.insert((cookie, number), *other);
                }
            }
            network.devices.insert(cookie, devices);
        }
        network
    }

    /// The devices of a namespace.
    pub(super) fn devices(&self, of: u64) -> Option<&[Link]> {
        self.devices.get(&of).map(Vec::as_slice)
    }

    pub(super) fn namespaces(&self) -> impl Iterator<Item = u64> {
        self.devices.keys().copied()
    }

    /// Where a device leads to, if that is another namespace.
    fn beyond(&self, of: u64, link: &Link) -> Option<Node> {
        let number = link.peer_namespace?;
        Some(match self.numbers.get(&(of, number)) {
            Some(cookie) => Node::Found(*cookie),
            None => Node::NotFound,
        })
    }

    /// Which namespaces are next to each other.
    pub(super) fn neighbours(&self) -> HashMap<Node, HashSet<Node>> {
        let mut near: HashMap<Node, HashSet<Node>> = HashMap::new();
        for (cookie, devices) in &self.devices {
            let here = Node::Found(*cookie);
            near.entry(here).or_default();
            for there in devices.iter().filter_map(|link| self.beyond(*cookie, link)) {
                if there != here {
                    near.entry(here).or_default().insert(there);
                    near.entry(there).or_default().insert(here);
                }
            }
        }
        near
    }

    /// The devices of a namespace that lead to another one, by their indices.
    pub(super) fn between(&self, here: u64, there: u64) -> HashSet<u32> {
        let [devices, others] = [here, there].map(|of| self.devices(of).unwrap_or_default());
        let own = devices
            .iter()
            .filter(|link| self.beyond(here, link) == Some(Node::Found(there)))
            .map(|link| link.device.index);
        // A macvlan knows its lower device, and not the other way round.
        let of_others = others
            .iter()
            .filter(|link| self.beyond(there, link) == Some(Node::Found(here)))
            .filter_map(|link| link.peer);
        own.chain(of_others).collect()
    }
}

#[cfg(test)]
impl Network {
    /// Namespaces with their devices, in which each calls another one by its cookie.
    pub(super) fn of(devices: impl IntoIterator<Item = (u64, Vec<Link>)>) -> Self {
        let devices: HashMap<u64, Vec<Link>> = devices.into_iter().collect();
        let mut numbers = HashMap::new();
        for here in devices.keys() {
            for there in devices.keys() {
                // They are small in tests.
                numbers.insert((*here, *there as i32), *there);
            }
        }
        Self { devices, numbers }
    }
}
