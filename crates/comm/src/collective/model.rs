// SPDX-License-Identifier: Apache-2.0
//! Model: the time of a collective, computed from the cost of a message, for more ranks than can be
//! run.
//!
//! Every rank sends one value to a root and receives the result, as in Figure 12 of MetaKV §IV-F. A
//! message occupies its sender for an overhead, travels for a latency, and occupies its receiver
//! for an overhead; a rank does one thing at a time, and takes messages in order of arrival. Within
//! a node both costs are smaller. The time of a star is therefore the sum of its root's overheads;
//! that of a tree grows with its depth.
//! Source of the model: LogP, Culler et al., PPoPP 1993, with its gap equal to its overhead.

use esker_base::{Error, Kind, Result};

use super::tree::{ReductionTree, Topology};

/// Costs of messages, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageCosts {
    /// Travel time of a message between nodes.
    pub latency_ns: u64,
    /// Time for which sending or receiving a message between nodes occupies a rank.
    pub overhead_ns: u64,
    /// Travel time of a message within a node.
    pub local_latency_ns: u64,
    /// Time for which sending or receiving a message within a node occupies a rank.
    pub local_overhead_ns: u64,
}

impl Default for MessageCosts {
    /// Roughly those of a key-value server over InfiniBand, such as the paper's: 2 µs of network
    /// and 5 µs to handle a request; a tenth of both in shared memory.
    fn default() -> Self {
        Self {
            latency_ns: 2_000,
            overhead_ns: 5_000,
            local_latency_ns: 200,
            local_overhead_ns: 500,
        }
    }
}

/// The job to model.
#[derive(Clone, Copy, Debug)]
pub struct ModelledJob {
    /// Number of ranks that have a value.
    pub clients: u32,
    /// Number of servers in the tree, among which the clients are divided; one of them is the root.
    /// 0 if clients send directly to the root.
    pub servers: u32,
    /// The tree along which servers reach the root.
    pub topology: Topology,
}

/// Cost of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveCost {
    /// Time until the last rank has the result.
    pub total_ns: u64,
    /// Messages that the root received, excluding those of its own clients.
    pub root_received: u64,
    /// Messages that the root sent, excluding those to its own clients.
    pub root_sent: u64,
    /// Most hops of a value between servers.
    pub hops_max: u32,
}

/// Models one reduction and the broadcast of its result.
///
/// # Errors
/// `Invalid` without clients, or with more servers than clients.
pub fn time(setting: ModelledJob, costs: &MessageCosts) -> Result<CollectiveCost> {
    let ModelledJob { clients, servers, topology } = setting;
    if clients == 0 || servers > clients {
        let what = format!("{clients} clients of {servers} servers");
        return Err(Error::new(Kind::Invalid, what));
    }
    if servers == 0 {
        // Every client is on the network, and the root is the only server.
        let busy_ns = u64::from(clients) * costs.overhead_ns;
        let way_ns = costs.latency_ns + costs.overhead_ns;
        return Ok(CollectiveCost {
            total_ns: 2 * (busy_ns + way_ns),
            root_received: clients.into(),
            root_sent: clients.into(),
            hops_max: 0,
        });
    }
    let tree = ReductionTree::new(topology, servers, 0);
    let own = |server: u32| u64::from(clients / servers + u32::from(server < clients % servers));
    let local_way_ns = costs.local_latency_ns + costs.local_overhead_ns;
    let gathered = |server| own(server) * costs.local_overhead_ns + local_way_ns;
    let reduced_ns = reduce(&tree, servers, gathered, costs);
    let told = broadcast(&tree, servers, reduced_ns, costs);
    // A server answers its clients after it has passed the result on.
    let end = |server: u32| told.free_ns[server as usize] + own(server) * costs.local_overhead_ns;
    let total_ns = (0..servers).map(end).max().expect("some servers") + local_way_ns;
    let children = tree.children(0).count() as u64;
    Ok(CollectiveCost {
        total_ns,
        root_received: children,
        root_sent: children,
        hops_max: told.hops_max,
    })
}

/// When the root has reduced all values; server s begins at `ready(s)`.
fn reduce(
    tree: &ReductionTree,
    servers: u32,
    ready: impl Fn(u32) -> u64,
    costs: &MessageCosts,
) -> u64 {
    // In order of distance from the root: a member's children are all farther away than the member.
    let mut arrivals: Vec<Vec<u64>> = vec![Vec::new(); servers as usize];
    for distance in (0..servers).rev() {
        let server = (servers - distance) % servers;
        let mut now_ns = ready(server);
        let mut incoming = std::mem::take(&mut arrivals[server as usize]);
        incoming.sort_unstable();
        for arrival_ns in incoming {
            now_ns = now_ns.max(arrival_ns) + costs.overhead_ns;
        }
        match tree.parent(server) {
            Some(parent) => {
                let arrival_ns = now_ns + costs.overhead_ns + costs.latency_ns;
                arrivals[parent as usize].push(arrival_ns);
            }
            None => return now_ns,
        }
    }
    unreachable!("the root has distance 0")
}

struct BroadcastTimes {
    /// By server: when it has sent the result to all its children.
    free_ns: Vec<u64>,
    hops_max: u32,
}

/// The broadcast from the root, which begins at `start_ns`.
fn broadcast(
    tree: &ReductionTree,
    servers: u32,
    start_ns: u64,
    costs: &MessageCosts,
) -> BroadcastTimes {
    let mut free_ns = vec![0; servers as usize];
    let mut hops = vec![0_u32; servers as usize];
    free_ns[0] = start_ns;
    for distance in 0..servers {
        let server = (servers - distance) % servers;
        let mut now_ns = free_ns[server as usize];
        for child in tree.children(server) {
            now_ns += costs.overhead_ns;
            free_ns[child as usize] = now_ns + costs.latency_ns + costs.overhead_ns;
            hops[child as usize] = hops[server as usize] + 1;
        }
        free_ns[server as usize] = now_ns;
    }
    BroadcastTimes { free_ns, hops_max: hops.into_iter().max().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(clients: u32, servers: u32, topology: Topology) -> CollectiveCost {
        time(ModelledJob { clients, servers, topology }, &MessageCosts::default()).unwrap()
    }

    /// Figure 12: 1,024 clients, 64 to 1,024 servers. Delegation helps while servers are few; with
    /// many servers only the log-ring still helps.
    #[test]
    fn the_comparison_of_figure_12() {
        let direct = taken(1024, 0, Topology::Star).total_ns;
        for servers in [64, 128, 256, 512] {
            assert!(taken(1024, servers, Topology::Star).total_ns < direct);
        }
        for servers in [64, 128, 256, 512, 1024] {
            let star = taken(1024, servers, Topology::Star).total_ns;
            let ring = taken(1024, servers, Topology::LogRing).total_ns;
            assert!(ring < star, "{servers}");
            assert!(servers < 256 || 5 * ring < star, "{servers}: {ring} {star}");
        }
        assert!(taken(1024, 1024, Topology::Star).total_ns * 10 > direct * 9, "as slow as direct");
    }

    #[test]
    fn a_root_of_a_million_handles_twenty_messages() {
        let ring = taken(1 << 20, 1 << 20, Topology::LogRing);
        assert_eq!((ring.root_received, ring.root_sent, ring.hops_max), (20, 20, 20));
        let direct = taken(1 << 20, 0, Topology::Star);
        assert_eq!(direct.root_received, 1 << 20);
        assert!(direct.total_ns > 10_000 * ring.total_ns);
    }

    #[test]
    fn one_server_has_nobody_to_tell() {
        let one = taken(16, 1, Topology::LogRing);
        assert_eq!((one.root_received, one.hops_max), (0, 0));
        let error = time(
            ModelledJob { clients: 1, servers: 2, topology: Topology::Star },
            &MessageCosts::default(),
        );
        assert_eq!(error.unwrap_err().kind(), Kind::Invalid);
    }

    /// By hand: two servers of one client each. A client's value takes 0.5 + 0.2 + 0.5 µs to its
    /// server, 5 + 2 + 5 µs to the root, 5 + 2 + 5 back, and 0.5 + 0.2 + 0.5 to the client.
    #[test]
    fn two_servers_by_hand() {
        assert_eq!(taken(2, 2, Topology::LogRing).total_ns, 1_200 + 12_000 + 12_000 + 1_200);
    }
}
