//! Who gets the frames to a group. All members are in the last one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use splice::mesh::Framing;

use crate::refusal::WrongUsage;

/// How many groups a member may be in: what they need grows with members times this.
const MOST_GROUPS: usize = 64;

#[derive(Debug)]
pub(super) struct Groups {
    /// The first destination that is a group.
    first: u64,
    everyone: u64,
    members: BTreeMap<u64, BTreeSet<u64>>,
    groups: BTreeMap<u64, BTreeSet<u64>>,
}

/// A frame on its way to the members of a group.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) sender: u64,
    pub(super) frame: Vec<u8>,
    pub(super) receivers: VecDeque<u64>,
}

impl Groups {
    /// So many groups at the end of what the destination can name, and the one of everybody behind them.
    ///
    /// # Errors
    /// If no ids are left for members.
    pub(super) fn new(framing: &Framing, count: u32) -> Result<Self, WrongUsage> {
        let everyone = framing.most_ids();
        match everyone.checked_sub(count.into()) {
            Some(first) if first > 1 => Ok(Self {
                first,
                everyone,
                members: BTreeMap::new(),
                groups: BTreeMap::new(),
            }),
            _ => Err(WrongUsage::new(format!(
                "{count} groups leave no ids for members: the destination names up to {everyone}; use a wider \
                 field, or fewer groups"
            ))),
        }
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn has(&self, destination: u64) -> bool {
        (self.first..=self.everyone).contains(&destination)
    }

    /// Whether the member is in the group now.
    pub(super) fn join(&mut self, member: u64, group: u64) -> bool {
        if group == self.everyone {
            return true;
        }
        let own = self.groups.entry(member).or_default();
        if !(self.first..self.everyone).contains(&group)
            || (own.len() >= MOST_GROUPS && !own.contains(&group))
        {
            return false;
        }
        own.insert(group);
        self.members.entry(group).or_default().insert(member);
        true
    }

    /// Whether the member is not in the group now.
    pub(super) fn leave(&mut self, member: u64, group: u64) -> bool {
        if let Some(own) = self.groups.get_mut(&member) {
            own.remove(&group);
        }
        if let Some(members) = self.members.get_mut(&group) {
            members.remove(&member);
            if members.is_empty() {
                self.members.remove(&group);
            }
        }
        group != self.everyone && self.has(group)
    }

    /// The member has left the mesh.
    pub(super) fn forget(&mut self, member: u64) {
        for group in self.groups.remove(&member).unwrap_or_default() {
            self.leave(member, group);
        }
    }

    /// Who gets a frame of `sender`; `all` are the members of the mesh.
    pub(super) fn receivers(
        &self,
        group: u64,
        sender: u64,
        all: impl Iterator<Item = u64>,
    ) -> VecDeque<u64> {
        let but_sender = |id: &u64| *id != sender;
        match self.members.get(&group) {
            _ if group == self.everyone => all.filter(but_sender).collect(),
            Some(members) => members.iter().copied().filter(but_sender).collect(),
            None => VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(count: u32) -> Result<Groups, WrongUsage> {
        let length = "u8@0".parse().expect("a length");
        let framing = Framing::new(length, "u8@1".parse().expect("a field"), 200);
        Groups::new(&framing.expect("a framing"), count)
    }

    #[test]
    fn groups_are_at_the_end_of_what_a_destination_names() {
        let mut groups = groups(2).expect("groups");
        assert_eq!((groups.first(), groups.everyone), (253, 255));
        assert!(!groups.has(252) && groups.has(253) && groups.has(255));
        let all = [1, 2, 3];
        let to = |groups: &Groups, group| groups.receivers(group, 1, all.into_iter());
        assert!(groups.join(2, 253) && groups.join(1, 253) && groups.join(2, 254));
        assert!(!groups.join(2, 252) && groups.join(2, 255));
        assert_eq!(to(&groups, 253), [2]);
        assert_eq!(to(&groups, 255), [2, 3]);
        assert!(groups.leave(2, 253) && !groups.leave(2, 255) && !groups.leave(2, 9));
        assert!(to(&groups, 253).is_empty());
        assert_eq!(to(&groups, 254), [2]);
        groups.forget(2);
        groups.forget(1);
        assert!(groups.members.is_empty() && groups.groups.is_empty());
    }

    #[test]
    fn a_member_is_in_a_bounded_number_of_groups_and_members_have_ids() {
        let mut groups = groups(200).expect("groups");
        let joined = (55..255).filter(|group| groups.join(1, *group)).count();
        assert_eq!(joined, MOST_GROUPS);
        assert!(self::groups(253).is_ok());
        let error = self::groups(254).expect_err("no ids");
        assert!(error.to_string().contains("leave no ids"), "{error}");
    }
}
