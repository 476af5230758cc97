//! Peers: where the ranks of the job are, and which of them have left or cannot be reached.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, ToSocketAddrs};

use esker_base::{Error, Kind, Result};

use super::meeting::Entry;
use crate::Rank;

/// All ranks of the job.
#[derive(Debug)]
pub(super) struct Peers {
    peers: Vec<Peer>,
    /// The names or addresses of hosts, and what was found for them.
    hosts: Vec<(String, Option<SocketAddr>)>,
    /// Why ranks cannot be reached.
    unreachable: HashMap<Rank, String>,
}

/// What is known of a rank; small, since there is one of every rank of the job.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Among the hosts.
    host: u32,
    port: u16,
    has_goodbye: bool,
    /// Connections it opened that have not said goodbye.
    incoming: u32,
}

/// What a rank that is connected by TCP keeps of every rank of its job, in bytes.
pub(crate) const PEER_BYTES: usize = size_of::<Peer>();

impl Peers {
    /// The ranks as they met.
    pub fn new(entries: &[Entry]) -> Self {
        let mut numbers = HashMap::new();
        let mut hosts = Vec::new();
        let peers = entries.iter().map(|entry| {
            let host = *numbers.entry(&entry.host[..]).or_insert_with(|| {
                hosts.push((entry.host.clone(), None));
                u32::try_from(hosts.len() - 1).expect("no more hosts than ranks")
            });
            Peer { host, port: entry.port, has_goodbye: false, incoming: 0 }
        });
        Self { peers: peers.collect(), hosts, unreachable: HashMap::new() }
    }

    /// The port at which `rank` listens.
    pub fn port(&self, rank: Rank) -> u16 {
        self.peers[rank.index()].port
    }

    /// Where `to` listens.
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

    /// `rank` has opened a connection.
    pub fn note_begin(&mut self, rank: Rank) {
        self.peers[rank.index()].incoming += 1;
    }

    /// Nothing more comes on a connection that `rank` opened.
    pub fn note_end(&mut self, rank: Rank) {
        self.peers[rank.index()].incoming -= 1;
    }

    /// `rank` leaves the job.
    pub fn note_goodbye(&mut self, rank: Rank) {
        self.peers[rank.index()].has_goodbye = true;
    }

    /// Whether `rank` leaves, or has left.
    pub fn has_goodbye(&self, rank: Rank) -> bool {
        self.peers[rank.index()].has_goodbye
    }

    /// Whether `rank` has left, and all it had sent is here.
    pub fn has_left(&self, rank: Rank) -> bool {
        let peer = &self.peers[rank.index()];
        peer.has_goodbye && peer.incoming == 0
    }

    /// Nothing can be sent to `rank`, and `why`.
    pub fn note_unreachable(&mut self, rank: Rank, why: &str) {
        self.unreachable.insert(rank, why.to_owned());
    }

    /// `Unavailable` if nothing can be sent to `to`.
    pub fn check_reachable(&self, to: Rank) -> Result<()> {
        let what = match self.unreachable.get(&to) {
            _ if self.has_goodbye(to) => format!("{to} has left the job and takes no messages"),
            Some(why) => format!("{to} cannot be reached: {why}"),
            None => return Ok(()),
        };
        Err(Error::new(Kind::Unavailable, what))
    }
}
