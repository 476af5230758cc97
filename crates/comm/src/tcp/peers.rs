// SPDX-License-Identifier: Apache-2.0
//! Peers: the addresses of the job's ranks, and which of them have left or are unreachable.
//!
//! A refused connection shows that a rank has ended, but not how. If it was lost, the ranks that
//! watch it report that to all; until they have had the time, this rank gives no verdict
//! ([`VERDICT`]).

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use esker_base::{Error, Kind, Result};

use super::rendezvous::RankAddress;
use crate::Rank;

/// Time to wait for a report on a rank that refuses connections: enough for a loss to spread among
/// ranks that make calls from time to time.
pub(super) const VERDICT: Duration = Duration::from_secs(5);

/// The ranks of the job, as this rank sees them.
#[derive(Debug)]
pub(super) struct PeerTable {
    peers: Vec<PeerState>,
    /// Names or addresses of hosts, and what they resolved to.
    hosts: Vec<(String, Option<SocketAddr>)>,
    /// Unreachable ranks: why, and since when.
    unreachable: HashMap<Rank, (String, u64)>,
}

/// State of one rank; small, since there is an entry for every rank of the job.
#[derive(Clone, Copy, Debug)]
struct PeerState {
    /// Index among the hosts.
    host: u32,
    port: u16,
    has_goodbye: bool,
    /// Connections that the peer opened and that have not said goodbye.
    incoming: u32,
}

/// Bytes that a TCP rank keeps for each rank of its job.
pub(crate) const PEER_BYTES: usize = size_of::<PeerState>();

impl PeerTable {
    /// Takes the ranks' addresses from their entries.
    pub fn new(entries: &[RankAddress]) -> Self {
        let mut numbers = HashMap::new();
        let mut hosts = Vec::new();
        let peers = entries.iter().map(|entry| {
            let host = *numbers.entry(&entry.host[..]).or_insert_with(|| {
                hosts.push((entry.host.clone(), None));
                u32::try_from(hosts.len() - 1).expect("no more hosts than ranks")
            });
            PeerState { host, port: entry.port, has_goodbye: false, incoming: 0 }
        });
        Self { peers: peers.collect(), hosts, unreachable: HashMap::new() }
    }

    /// The port on which `rank` listens.
    pub fn port(&self, rank: Rank) -> u16 {
        self.peers[rank.index()].port
    }

    /// Resolves the address on which `to` listens.
    pub fn resolve(&mut self, to: Rank) -> Result<SocketAddr> {
        let peer = self.peers[to.index()];
        let (host, known) = &mut self.hosts[peer.host as usize];
        let mut address = match known {
            Some(address) => *address,
            None => {
                let found = (&host[..], peer.port).to_socket_addrs();
                let found = found.and_then(|mut all| all.next().ok_or(ErrorKind::NotFound.into()));
                let what = || format!("find {to} at {host}:{}", peer.port);
                *known.insert(found.map_err(|error| Error::io(error, what()))?)
            }
        };
        address.set_port(peer.port);
        Ok(address)
    }

    /// Counts a connection that `rank` has opened.
    pub fn begin_connection(&mut self, rank: Rank) {
        self.peers[rank.index()].incoming += 1;
    }

    /// Counts the end of a connection that `rank` opened.
    pub fn end_connection(&mut self, rank: Rank) {
        self.peers[rank.index()].incoming -= 1;
    }

    /// Records that `rank` leaves the job.
    pub fn mark_left(&mut self, rank: Rank) {
        self.peers[rank.index()].has_goodbye = true;
    }

    /// Returns whether `rank` is leaving or has left.
    pub fn has_goodbye(&self, rank: Rank) -> bool {
        self.peers[rank.index()].has_goodbye
    }

    /// Returns whether `rank` has left and all its messages have arrived.
    pub fn has_left(&self, rank: Rank) -> bool {
        let peer = &self.peers[rank.index()];
        peer.has_goodbye && peer.incoming == 0
    }

    /// Records that `rank` is unreachable from now on, and `why`.
    pub fn mark_unreachable(&mut self, rank: Rank, why: &str, now_ns: u64) {
        self.unreachable.entry(rank).or_insert_with(|| (why.to_owned(), now_ns));
    }

    /// Returns true if messages can be sent to `to`, and false while its fate is unknown. Fails
    /// with `Unavailable` if it has left, or if no rank reported its fate within `wait`.
    pub fn check_reachable(
        &self,
        to: Rank,
        now_ns: impl FnOnce() -> u64,
        wait: Duration,
    ) -> Result<bool> {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let what = match self.unreachable.get(&to) {
            _ if self.has_goodbye(to) => format!("{to} has left the job and takes no messages"),
            Some((_, since_ns)) if now_ns() < since_ns.saturating_add(wait_ns) => return Ok(false),
            Some((why, _)) => format!("{to} cannot be reached: {why}"),
            None => return Ok(true),
        };
        Err(Error::new(Kind::Unavailable, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A refused connection is no verdict until the ranks that watch have had time to report; a
    /// goodbye is one.
    #[test]
    fn a_rank_that_cannot_be_reached_has_a_verdict_in_the_end() {
        let entry = RankAddress { host: "h".into(), port: 1, node: "0".into() };
        let mut peers = PeerTable::new(&[entry.clone(), entry.clone(), entry]);
        let wait = Duration::from_nanos(100);
        let check = |peers: &PeerTable, now_ns| peers.check_reachable(Rank(1), || now_ns, wait);
        assert!(check(&peers, 0).unwrap());
        peers.mark_unreachable(Rank(1), "refused", 1_000);
        peers.mark_unreachable(Rank(1), "refused again", 1_050);
        assert!(!check(&peers, 1_099).unwrap());
        let error = check(&peers, 1_100).unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("rank 1 cannot be reached: refused"), "{error}");
        assert!(peers.check_reachable(Rank(2), || 1_100, wait).unwrap());
        peers.mark_left(Rank(1));
        for now_ns in [1_000, 1_100] {
            let error = check(&peers, now_ns).unwrap_err();
            assert!(error.to_string().contains("rank 1 has left"), "{error}");
        }
    }
}
