//! Consistent hashing by a lookup table: Eisenbud et al., "Maglev: A Fast and Reliable Software Network
//! Load Balancer", NSDI 2016, section 3.4. A server that comes or goes moves few keys of the others.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Slots of the table: a prime. With up to 100 servers their shares differ by some percent. Cilium has the
/// same default.
const SLOTS: usize = 16_381;

/// Which server has which keys. Servers are known by their place in the list that it was made from.
#[derive(Debug)]
pub(super) struct Maglev {
    slots: Vec<u16>,
}

/// The walk of one server through the slots.
struct Walk {
    offset: usize,
    skip: usize,
    step: usize,
    weight: u32,
    saved: u32,
}

impl Maglev {
    /// A table for servers of these names and weights; `None` without a server.
    pub(super) fn new<'a>(servers: impl Iterator<Item = (&'a str, u32)>) -> Option<Self> {
        let mut walks: Vec<_> = servers
            .map(|(name, weight)| Walk {
                offset: xxh3_64_with_seed(name.as_bytes(), 1) as usize % SLOTS,
                skip: xxh3_64_with_seed(name.as_bytes(), 2) as usize % (SLOTS - 1) + 1,
                step: 0,
                weight,
                saved: 0,
            })
            .collect();
        let heaviest = walks.iter().map(|walk| walk.weight).max()?.max(1);
        const FREE: u16 = u16::MAX;
        let mut slots = vec![FREE; SLOTS];
        let mut taken = 0;
        while taken < SLOTS {
            for (server, walk) in walks.iter_mut().enumerate() {
                // The heaviest takes a slot each time, the others as often as their weight says.
                walk.saved += walk.weight.max(1);
                if walk.saved < heaviest || taken == SLOTS {
                    continue;
                }
                walk.saved -= heaviest;
                let free = loop {
                    let slot = (walk.offset + walk.step * walk.skip) % SLOTS;
                    walk.step += 1;
                    if slots[slot] == FREE {
                        break slot;
                    }
                };
                slots[free] = server as u16;
                taken += 1;
            }
        }
        Some(Self { slots })
    }

    /// The servers for `key`, the best first. Each is named once or more often.
    pub(super) fn servers(&self, key: &[u8]) -> impl Iterator<Item = usize> {
        let start = xxh3_64(key) as usize % SLOTS;
        let (before, from) = self.slots.split_at(start);
        from.iter().chain(before).map(|server| usize::from(*server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(servers: &[(&str, u32)]) -> Maglev {
        Maglev::new(servers.iter().copied()).expect("servers")
    }

    fn first(table: &Maglev, key: u32) -> usize {
        let key = key.to_be_bytes();
        table.servers(&key).next().expect("a server")
    }

    #[test]
    fn each_server_has_its_share() {
        let table = table(&[("a", 1), ("b", 1), ("c", 2)]);
        let mut shares = [0; 3];
        table
            .slots
            .iter()
            .for_each(|server| shares[usize::from(*server)] += 1);
        let quarter = SLOTS / 4;
        for (share, expected) in shares.iter().zip([quarter, quarter, 2 * quarter]) {
            assert!(expected.abs_diff(*share) < quarter / 20, "{shares:?}");
        }
    }

    #[test]
    fn a_server_that_goes_moves_few_keys_of_the_others() {
        let before = table(&[("a", 1), ("b", 1), ("c", 1), ("d", 1)]);
        let after = table(&[("a", 1), ("b", 1), ("c", 1)]);
        let keys = 20_000;
        let moved = (0..keys)
            .filter(|key| first(&before, *key) != 3 && first(&before, *key) != first(&after, *key))
            .count();
        // A quarter was on the server that went. The paper has some 2 % for the rest.
        assert!(moved < keys as usize / 20, "{moved} of {keys}");
    }

    #[test]
    fn every_server_is_named_for_every_key() {
        let table = table(&[("a", 1), ("b", 200), ("c", 1)]);
        let mut named: Vec<_> = table.servers(b"key").collect();
        named.sort_unstable();
        named.dedup();
        assert_eq!(named, [0, 1, 2]);
    }
}
