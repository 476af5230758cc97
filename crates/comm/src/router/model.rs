// SPDX-License-Identifier: Apache-2.0
//! Model: memory that routing needs per rank, for more ranks than can be run.
//!
//! Counts what [`super::RouterCounters`] account for in a run, and also the node map and the
//! transport's buffers and per-rank tables. On M nodes of C ranks, a rank has
//! ```text
//! direct   M·C - 1 batches
//! 3-hop    2·(C - 1) batches for its node, and for its share of the others at most ⌈M / C⌉
//! ```
//! Source: DeltaFS thesis §5.3.3 and Figure 15, which counts only batches of 32 KiB.

use esker_base::{Error, Kind, Result};

use super::route::{Routing, route_bytes};
use super::{HopArrivals, HopBatch, RouterOptions, SPARE_BUFFERS_MAX};
use crate::Rank;
use crate::tcp::PEER_BYTES;
use crate::transport::CHANNEL_BYTES_MAX;

/// Bytes of the node map per rank: its node, its local index, its entry among the members.
const NODE_MAP_BYTES: u64 = 4 + 4 + size_of::<Rank>() as u64;

/// Bytes that TCP may read at once beyond a channel's bound.
const OVERSHOOT_BYTES: u64 = 64 << 10;

/// Memory of the rank that needs the most, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterMemory {
    /// Number of next hops, each with a batch.
    pub next_hops: u64,
    /// Batches: the figure that the thesis counts.
    pub batches: u64,
    /// The router: batches, spare buffers, tables. The figure of [`super::RouterCounters`].
    pub router: u64,
    /// The node map.
    pub node_map: u64,
    /// Most that a TCP transport holds: unsent and unreceived messages of every hop's channel, and
    /// its table of ranks.
    pub transport: u64,
}

impl RouterMemory {
    /// The total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.router + self.node_map + self.transport
    }
}

/// The most memory that a rank needs on `nodes` nodes of `per_node` ranks.
///
/// # Errors
/// `Invalid` without nodes or ranks, `TooLarge` over 2^31 ranks.
pub fn memory(options: &RouterOptions, nodes: u32, per_node: u32) -> Result<RouterMemory> {
    let ranks = u64::from(nodes) * u64::from(per_node);
    if ranks == 0 {
        return Err(Error::new(Kind::Invalid, format!("{nodes} nodes of {per_node} ranks")));
    }
    if ranks > 1 << 31 {
        return Err(Error::new(Kind::TooLarge, format!("{nodes} nodes of {per_node} ranks")));
    }
    let (nodes, per_node) = (u64::from(nodes), u64::from(per_node));
    let batch_bytes = options.batch_bytes as u64;
    let (next_hops, slots, known_nodes, channels) = match options.routing {
        Routing::Direct => (ranks - 1, ranks, 0, 1),
        Routing::ThreeHop => {
            // Ranks of local index 0 represent the most nodes. On some nodes that share does not
            // include their own node, unless one rank represents all nodes.
            let share = nodes.div_ceil(per_node);
            let others = if per_node == 1 { nodes - 1 } else { share.min(nodes - 1) };
            (2 * (per_node - 1) + others, 2 * per_node + share, nodes, 3)
        }
    };
    let count = |value: u64| usize::try_from(value).expect("below 2^32");
    let tables = route_bytes(count(slots), count(known_nodes))
        + count(slots) * (size_of::<HopBatch>() + size_of::<HopArrivals>());
    let batches = next_hops * batch_bytes;
    let held = 2 * CHANNEL_BYTES_MAX as u64 + OVERSHOOT_BYTES + batch_bytes;
    Ok(RouterMemory {
        next_hops,
        batches,
        router: batches + SPARE_BUFFERS_MAX as u64 * batch_bytes + tables as u64,
        node_map: ranks * NODE_MAP_BYTES + (nodes + 1) * 4,
        transport: channels * held + ranks * PEER_BYTES as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The guarantee: at most 16 MiB per rank on 4,096 nodes of 32 cores, everything counted.
    #[test]
    fn three_hops_fit_where_direct_does_not() {
        let options = |routing| RouterOptions::new(routing);
        let three = memory(&options(Routing::ThreeHop), 4096, 32).unwrap();
        assert_eq!(three.next_hops, 2 * 31 + 128);
        assert!(three.total() <= 16 * MIB, "{three:?}");
        let direct = memory(&options(Routing::Direct), 4096, 32).unwrap();
        assert_eq!(direct.next_hops, 131_071);
        assert!(direct.batches > 4095 * MIB, "as in the thesis: 4 GiB");
    }

    #[test]
    fn small_jobs() {
        let hops = |nodes, per_node| {
            memory(&RouterOptions::new(Routing::ThreeHop), nodes, per_node).unwrap().next_hops
        };
        // The thesis' example: 3 local connections, for two hops, and at most one remote.
        assert_eq!(hops(4, 4), 2 * 3 + 1);
        assert_eq!((hops(1, 1), hops(1, 8), hops(5, 1)), (0, 14, 4));
        assert!(memory(&RouterOptions::new(Routing::Direct), 0, 4).is_err());
        assert!(memory(&RouterOptions::new(Routing::Direct), u32::MAX, 4).is_err());
    }
}
