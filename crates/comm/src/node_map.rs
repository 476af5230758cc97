// SPDX-License-Identifier: Apache-2.0
//! Node map: which ranks share a node, and therefore memory.
//!
//! Nodes are numbered from 0 in the order of their lowest rank. Within its node a rank has a local
//! index, counted from 0 in rank order. The map takes twelve bytes per rank; ranks that are threads
//! share one map.

use esker_base::{Error, Kind, Result};

use crate::Rank;

/// The assignment of ranks to nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMap {
    /// By rank.
    node: Vec<u32>,
    /// By rank.
    local: Vec<u32>,
    /// Ranks, node by node.
    members: Vec<Rank>,
    /// Start of each node's members, followed by the total number of members.
    starts: Vec<u32>,
}

impl NodeMap {
    /// A map of `size` ranks with `per_node` consecutive ranks on each node; the last node may have
    /// fewer.
    ///
    /// # Errors
    /// `Invalid` if either is 0.
    pub fn even(size: u32, per_node: u32) -> Result<Self> {
        if size == 0 || per_node == 0 {
            let what = format!("a job of {size} ranks, {per_node} a node: both must be at least 1");
            return Err(Error::new(Kind::Invalid, what));
        }
        let labels: Vec<u32> = (0..size).map(|rank| rank / per_node).collect();
        Self::of_labels(&labels)
    }

    /// A map of ranks with one label each; ranks with equal labels share a node.
    ///
    /// # Errors
    /// `Invalid` without labels, `TooLarge` for more than 2^31.
    pub fn of_labels<L: Ord + Clone>(labels: &[L]) -> Result<Self> {
        let size = u32::try_from(labels.len()).unwrap_or(u32::MAX);
        if size == 0 {
            return Err(Error::new(Kind::Invalid, "a job has at least one rank"));
        }
        if size > 1 << 31 {
            return Err(Error::new(Kind::TooLarge, format!("a job of {} ranks", labels.len())));
        }
        let mut numbers = std::collections::BTreeMap::new();
        let mut counts: Vec<u32> = Vec::new();
        let (mut node, mut local) = (Vec::new(), Vec::new());
        for label in labels {
            let fresh = u32::try_from(counts.len()).expect("no more nodes than ranks");
            let number = *numbers.entry(label).or_insert(fresh);
            if number == fresh {
                counts.push(0);
            }
            let count = &mut counts[number as usize];
            node.push(number);
            local.push(*count);
            *count += 1;
        }
        let mut starts = vec![0];
        for count in counts {
            starts.push(starts.last().expect("it starts with 0") + count);
        }
        let mut members = vec![Rank(0); labels.len()];
        for rank in Rank::all(size) {
            let place = starts[node[rank.index()] as usize] + local[rank.index()];
            members[place as usize] = rank;
        }
        Ok(Self { node, local, members, starts })
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        *self.starts.last().expect("it starts with 0")
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        u32::try_from(self.starts.len() - 1).expect("no more nodes than ranks")
    }

    /// The node of `rank`.
    ///
    /// # Panics
    /// If the job has no such rank; so do all methods that take a rank or a node.
    #[must_use]
    pub fn node(&self, rank: Rank) -> u32 {
        self.node[rank.index()]
    }

    /// The local index of `rank` on its node.
    #[must_use]
    pub fn local_index(&self, rank: Rank) -> u32 {
        self.local[rank.index()]
    }

    /// The ranks on `node`, ascending: a rank's position is its local index.
    #[must_use]
    pub fn members(&self, node: u32) -> &[Rank] {
        let node = node as usize;
        &self.members[self.starts[node] as usize..self.starts[node + 1] as usize]
    }

    /// The first `count` ranks of each node, or all of a smaller one, ascending.
    pub fn first_of_each(&self, count: u32) -> impl Iterator<Item = Rank> {
        Rank::all(self.size()).filter(move |rank| self.local_index(*rank) < count)
    }

    /// The node of every rank, in rank order.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_nodes_hold_neighbours() {
        let map = NodeMap::even(7, 3).unwrap();
        assert_eq!((map.size(), map.nodes()), (7, 3));
        assert_eq!(map.members(1), [Rank(3), Rank(4), Rank(5)]);
        assert_eq!(map.members(2), [Rank(6)]);
        assert_eq!((map.node(Rank(5)), map.local_index(Rank(5))), (1, 2));
    }

    #[test]
    fn labels_may_come_in_any_order() {
        let map = NodeMap::of_labels(&["b", "a", "b", "c", "a"]).unwrap();
        assert_eq!(map.labels(), [0, 1, 0, 2, 1]);
        assert_eq!(map.members(0), [Rank(0), Rank(2)]);
        assert_eq!(map.members(1), [Rank(1), Rank(4)]);
        assert_eq!(map.local_index(Rank(4)), 1);
    }

    #[test]
    fn a_job_has_ranks_and_nodes() {
        assert_eq!(NodeMap::even(0, 1).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(NodeMap::even(1, 0).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(NodeMap::of_labels::<u8>(&[]).unwrap_err().kind(), Kind::Invalid);
    }
}
