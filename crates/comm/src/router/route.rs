// SPDX-License-Identifier: Apache-2.0
//! Route: a record's next hop, and which ranks send to which.
//!
//! ```text
//! direct     origin ───────────────────── 3 ─────────────────────► destination
//! 3-hop      origin ── 1 ──► local rep. ── 2 ──► remote rep. ── 3 ──► destination
//! ```
//! On a node of C ranks, the rank of local index i represents the remote nodes i, i + C, i + 2C, ….
//! Both representatives of a pair of nodes therefore follow from the nodes' numbers, and the loads
//! of a node's ranks differ by at most one remote node. A hop from a rank to itself is left out, as
//! is the middle hop within a node. Every origin has one path to each destination, so records keep
//! their order.
//! Each hop has its own buffers and channel: a full hop waits only for room at later hops, so full
//! buffers never form a cycle.
//! Source: DeltaFS thesis §5.3.3.

use std::sync::Arc;

use crate::{NodeMap, Rank};

/// The path that records take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// From origin to destination: a buffer for every rank of the job.
    Direct,
    /// Over a representative on each of the two nodes: two buffers for every rank of the node, and
    /// one for each of the other nodes in this rank's share.
    ThreeHop,
}

impl Routing {
    /// The hops that this routing uses.
    pub(super) fn hops(self) -> std::ops::RangeInclusive<u8> {
        match self {
            Self::Direct => LAST..=LAST,
            Self::ThreeHop => FIRST..=LAST,
        }
    }
}

/// The hop to the local representative.
pub(super) const FIRST: u8 = 0;
/// The hop between nodes.
pub(super) const MIDDLE: u8 = 1;
/// The hop to the destination.
pub(super) const LAST: u8 = 2;

/// Bytes of a route with `slots` slots that stores the first slot of `nodes` nodes.
pub(super) fn route_bytes(slots: usize, nodes: usize) -> usize {
    slots * size_of::<(u8, Rank)>() + nodes * size_of::<u32>()
}

/// The next hops of one rank. The slots of one hop are contiguous.
#[derive(Debug)]
pub(super) struct NextHops {
    nodes: Arc<NodeMap>,
    routing: Routing,
    me: Rank,
    my_node: u32,
    /// By slot.
    hops: Vec<(u8, Rank)>,
    /// Start of each hop's slots, followed by the end.
    starts: [usize; 4],
    /// By node: the slot that a record from here takes first. Unused for the rank's own node.
    slot_of_node: Vec<u32>,
    /// Ranks on this node.
    locals: u32,
    my_index: u32,
}

impl NextHops {
    pub fn new(nodes: &Arc<NodeMap>, routing: Routing, me: Rank) -> Self {
        let my_node = nodes.node(me);
        let mates = nodes.members(my_node);
        let locals = u32::try_from(mates.len()).expect("a node has no more ranks than the job");
        let mut route = Self {
            nodes: nodes.clone(),
            routing,
            me,
            my_node,
            hops: Vec::new(),
            starts: [0; 4],
            slot_of_node: Vec::new(),
            locals,
            my_index: nodes.local_index(me),
        };
        match routing {
            Routing::Direct => {
                route.hops.extend(Rank::all(nodes.size()).map(|rank| (LAST, rank)));
                route.starts = [0, 0, 0, route.hops.len()];
            }
            Routing::ThreeHop => {
                route.hops.extend(mates.iter().map(|mate| (FIRST, *mate)));
                let middle = route.hops.len();
                let represented = route.represented().map(|node| (MIDDLE, route.remote(node)));
                let represented: Vec<(u8, Rank)> = represented.collect();
                route.hops.extend(represented);
                let last = route.hops.len();
                route.hops.extend(mates.iter().map(|mate| (LAST, *mate)));
                route.starts = [0, middle, last, route.hops.len()];
                route.slot_of_node =
                    (0..nodes.nodes()).map(|node| route.first_slot(node)).collect();
            }
        }
        route
    }

    /// The nodes that this rank represents. Its own node may be among them, as an unused slot.
    fn represented(&self) -> impl Iterator<Item = u32> + '_ {
        (self.my_index..self.nodes.nodes()).step_by(self.locals as usize)
    }

    /// The rank on `node` that represents this rank's node.
    fn remote(&self, node: u32) -> Rank {
        let members = self.nodes.members(node);
        members[self.my_node as usize % members.len()]
    }

    fn first_slot(&self, node: u32) -> u32 {
        let local = node % self.locals;
        if local != self.my_index {
            return local;
        }
        self.locals + node / self.locals
    }

    /// The slots of `hop`.
    pub fn slots(&self, hop: u8) -> std::ops::Range<usize> {
        self.starts[hop as usize]..self.starts[hop as usize + 1]
    }

    /// Number of slots.
    pub fn slot_count(&self) -> usize {
        self.hops.len()
    }

    /// The hop and the receiver of a slot.
    pub fn next(&self, slot: usize) -> (u8, Rank) {
        self.hops[slot]
    }

    /// Returns whether `slot` leads nowhere: to this rank itself, or to its own node.
    pub fn is_unused(&self, slot: usize) -> bool {
        let (hop, rank) = self.hops[slot];
        rank == self.me || hop == MIDDLE && self.nodes.node(rank) == self.my_node
    }

    /// The slot that a record at this rank takes to `to`, which is another rank.
    #[inline]
    pub fn slot(&self, to: Rank) -> usize {
        if self.routing == Routing::Direct {
            return to.index();
        }
        let node = self.nodes.node(to);
        if node == self.my_node {
            return self.starts[LAST as usize] + self.nodes.local_index(to) as usize;
        }
        self.slot_of_node[node as usize] as usize
    }

    /// The slot over which this rank sends to `from`, given that `from` sends to it on `hop`;
    /// `None` if `from` may not send on that hop.
    pub fn reverse(&self, hop: u8, from: Rank) -> Option<usize> {
        if from.0 >= self.nodes.size() {
            return None;
        }
        let node = self.nodes.node(from);
        let slot = match (self.routing, hop) {
            (Routing::Direct, LAST) => from.index(),
            (Routing::ThreeHop, FIRST | LAST) if node == self.my_node => {
                self.starts[hop as usize] + self.nodes.local_index(from) as usize
            }
            (Routing::ThreeHop, MIDDLE) if node % self.locals == self.my_index => {
                self.starts[MIDDLE as usize] + (node / self.locals) as usize
            }
            _ => return None,
        };
        (self.next(slot) == (hop, from) && !self.is_unused(slot)).then_some(slot)
    }

    /// Bytes of memory of the route, excluding the node map.
    pub fn bytes(&self) -> usize {
        route_bytes(self.hops.capacity(), self.slot_of_node.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(labels: &[u32], routing: Routing) -> Vec<NextHops> {
        let nodes = Arc::new(NodeMap::of_labels(labels).unwrap());
        Rank::all(nodes.size()).map(|me| NextHops::new(&nodes, routing, me)).collect()
    }

    /// Follows a record and returns its hops.
    fn path(routes: &[NextHops], from: Rank, to: Rank) -> Vec<(u8, Rank)> {
        let (mut at, mut hops) = (from, Vec::new());
        while at != to {
            let route = &routes[at.index()];
            let slot = route.slot(to);
            assert!(!route.is_unused(slot), "{from} → {to} at {at}");
            let (hop, next) = route.next(slot);
            assert!(hops.last().is_none_or(|(before, _)| *before < hop), "hops ascend");
            assert!(routes[next.index()].reverse(hop, at).is_some(), "{next} expects {at}");
            hops.push((hop, next));
            at = next;
        }
        hops
    }

    #[test]
    fn every_pair_has_a_path_on_any_nodes() {
        let jobs: [&[u32]; 5] = [
            &[0],
            &[0, 0, 0, 0],
            &[0, 1, 2, 3, 4],
            &[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3],
            &[0, 1, 1, 2, 2, 2, 0, 3, 4, 4, 4, 4, 4, 5, 6, 1],
        ];
        for labels in jobs {
            for routing in [Routing::Direct, Routing::ThreeHop] {
                let routes = routes(labels, routing);
                let ranks = || Rank::all(u32::try_from(routes.len()).unwrap());
                for (from, to) in ranks().flat_map(|from| ranks().map(move |to| (from, to))) {
                    let hops = path(&routes, from, to);
                    let across = hops.iter().filter(|(hop, _)| *hop == MIDDLE).count();
                    let apart = labels[from.index()] != labels[to.index()];
                    assert_eq!(across, usize::from(apart && routing == Routing::ThreeHop));
                }
            }
        }
    }

    /// The thesis' example: with 4 nodes of 4 ranks, 3 local connections and at most one remote
    /// one.
    #[test]
    fn a_rank_of_sixteen_has_four_peers() {
        let labels: Vec<u32> = (0..16).map(|rank| rank / 4).collect();
        for route in routes(&labels, Routing::ThreeHop) {
            let used = |hop: u8| route.slots(hop).filter(|slot| !route.is_unused(*slot)).count();
            assert_eq!((used(FIRST), used(LAST)), (3, 3));
            assert!(used(MIDDLE) <= 1);
        }
    }

    #[test]
    fn strangers_have_no_slot() {
        let routes = routes(&[0, 0, 1, 1], Routing::ThreeHop);
        assert_eq!(routes[0].reverse(FIRST, Rank(2)), None, "of another node");
        assert_eq!(routes[0].reverse(MIDDLE, Rank(1)), None, "of the same node");
        assert_eq!(routes[0].reverse(LAST, Rank(0)), None, "itself");
        assert_eq!(routes[0].reverse(LAST, Rank(9)), None, "nobody");
    }
}
