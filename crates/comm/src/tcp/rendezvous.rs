// SPDX-License-Identifier: Apache-2.0
//! Rendezvous: the ranks of a job find each other through a store, without a daemon.
//!
//! ```text
//! job/<job>/rank-<n>   put by each rank: its address, and the name of its node
//! job/<job>/ranks      put by rank 0 once all have arrived: all entries, and the job's secret
//! ```
//! Both are JSON. Each rank puts one object and reads one; rank 0 reads all. Once all ranks are
//! connected, rank 0 deletes the objects, so a store keeps nothing of a job that has met.
//! `put_if_absent` decides races: of two processes with the same rank, or two jobs with the same
//! id, the second fails. Each object has random bytes, so a rank whose put has been carried out
//! although its answer was lost recognizes its own.

use std::time::Duration;

use esker_base::store::put_own;
use esker_base::{Clock, Error, Kind, Random, Result, Store};
use serde::{Deserialize, Serialize};

use super::handshake::JobSecret;
use crate::job::RankContext;
use crate::{NodeMap, Rank};

/// Largest entry of a rank, in bytes; one takes about 100.
const ENTRY_BYTES_MAX: u64 = 4096;

/// Interval at which a rank polls for the others: short at first, then longer.
const LOOK_MIN: Duration = Duration::from_millis(2);
const LOOK_MAX: Duration = Duration::from_millis(250);

/// The address of a rank, and the name of its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankAddress {
    /// Host name or IP address.
    pub host: String,
    pub port: u16,
    pub node: String,
}

/// The object of a rank.
#[derive(Serialize)]
struct RankEntry<'a> {
    #[serde(flatten)]
    address: &'a RankAddress,
    /// A random number: no other process puts the same bytes.
    token: u64,
}

#[derive(Serialize, Deserialize)]
struct AddressList {
    secret: String,
    ranks: Vec<RankAddress>,
}

/// The result of a rendezvous.
#[derive(Debug)]
pub(super) struct MetRanks {
    pub entries: Vec<RankAddress>,
    pub nodes: NodeMap,
    pub secret: JobSecret,
}

/// One job's rendezvous in a store.
pub(super) struct Rendezvous<'a> {
    pub store: &'a dyn Store,
    pub clock: &'a dyn Clock,
    pub job: &'a RankContext,
    /// Longest wait for the other ranks.
    pub wait: Duration,
}

impl Rendezvous<'_> {
    /// Publishes this rank's entry, and returns those of all ranks.
    pub fn meet(&self, entry: &RankAddress) -> Result<MetRanks> {
        let mine = self.entry_name(self.job.rank);
        let token = Random::from_system().next_u64();
        self.put(&mine, &RankEntry { address: entry, token })?;
        if self.job.rank == Rank(0) {
            let ranks = self.gather()?;
            let mut secret = [0; 32];
            Random::from_system().fill(&mut secret);
            let secret = to_hex(&JobSecret(secret));
            self.put(&self.ranks_name(), &AddressList { secret, ranks })?;
        }
        let name = self.ranks_name();
        // Every entry is bounded, so the list of all is.
        let bytes_max = ENTRY_BYTES_MAX * (u64::from(self.job.size) + 1);
        let ranks: AddressList =
            self.poll("rank 0, which waits for all others,", |rendezvous| {
                match rendezvous.store.get(&name, bytes_max) {
                    Ok(bytes) => decode(&name, &bytes).map(Some),
                    Err(error) if error.kind() == Kind::NotFound => Ok(None),
                    Err(error) => Err(error),
                }
            })?;
        let secret = from_hex(&ranks.secret)
            .filter(|_| ranks.ranks.len() == self.job.size as usize)
            .ok_or_else(|| Error::corrupt(&name, 0, "no secret, or a wrong number of ranks"))?;
        let labels: Vec<&str> = ranks.ranks.iter().map(|entry| &entry.node[..]).collect();
        let nodes = NodeMap::of_labels(&labels)?;
        Ok(MetRanks { nodes, entries: ranks.ranks, secret })
    }

    /// Deletes the rendezvous' objects, once all ranks have met.
    pub fn clear(&self) -> Result<()> {
        clear(self.store, &self.job.id)
    }

    fn gather(&self) -> Result<Vec<RankAddress>> {
        let prefix = prefix(&self.job.id);
        let all = self.job.size as usize;
        let mut missing = String::new();
        let done = self.poll("ranks", |rendezvous| {
            let names = rendezvous.store.list_names(&prefix)?;
            let has_come = |rank: &Rank| names.contains(&format!("rank-{}", rank.0));
            let absent: Vec<String> = Rank::all(rendezvous.job.size)
                .filter(|rank| !has_come(rank))
                .map(|rank| rank.0.to_string())
                .collect();
            missing = format!("{} of {all}, as {}", absent.len(), absent.join(" "));
            missing.truncate(100);
            Ok(absent.is_empty().then_some(()))
        });
        done.map_err(|error| error.within(format!("missing: {missing}")))?;
        Rank::all(self.job.size)
            .map(|rank| {
                let name = self.entry_name(rank);
                decode(&name, &self.store.get(&name, ENTRY_BYTES_MAX)?)
            })
            .collect()
    }

    fn poll<R>(&self, what: &str, mut look: impl FnMut(&Self) -> Result<Option<R>>) -> Result<R> {
        let wait_ns = u64::try_from(self.wait.as_nanos()).unwrap_or(u64::MAX);
        let end_ns = self.clock.monotonic_ns().saturating_add(wait_ns);
        let mut pause = LOOK_MIN;
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if self.clock.monotonic_ns() >= end_ns {
                let (store, job) = (self.store.url(), &self.job.id);
                let wait = self.wait;
                let what = format!("{what} did not come to job {job} in {store} within {wait:?}");
                return Err(Error::new(Kind::Unavailable, what));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK_MAX);
        }
    }

    fn put(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_vec(value).expect("strings and numbers are JSON");
        put_own(self.store, name, &json).map_err(|error| match error.kind() {
            Kind::Exists => {
                let what = format!(
                    "{name}: {} of this job came before: give every job another {}",
                    self.job.rank,
                    crate::job::JOB
                );
                Error::new(Kind::Exists, what)
            }
            _ => error.within("meet"),
        })
    }

    fn entry_name(&self, rank: Rank) -> String {
        format!("{}rank-{}", prefix(&self.job.id), rank.0)
    }

    fn ranks_name(&self) -> String {
        format!("{}ranks", prefix(&self.job.id))
    }
}

fn prefix(job: &str) -> String {
    format!("job/{job}/")
}

/// Deletes the objects of `job`'s rendezvous from `store`. Costs a listing and one request per
/// object.
///
/// # Errors
/// Errors of the store.
pub fn clear(store: &dyn Store, job: &str) -> Result<()> {
    store.list(&prefix(job))?.iter().try_for_each(|object| store.delete(&object.name))
}

fn decode<V: for<'a> Deserialize<'a>>(name: &str, bytes: &[u8]) -> Result<V> {
    serde_json::from_slice(bytes).map_err(|error| Error::corrupt(name, 0, error))
}

fn to_hex(secret: &JobSecret) -> String {
    secret.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<JobSecret> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| u8::try_from(c.to_digit(16)?).ok()).collect();
    let bytes: Vec<u8> =
        digits?.chunks(2).map(|pair| pair[0] << 4 | pair[pair.len() - 1]).collect();
    bytes.try_into().ok().map(JobSecret)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::clock::SystemClock;
    use esker_base::store::{FaultEffect, FaultStore, MemoryStore};

    use super::*;

    fn job(rank: u32, size: u32) -> RankContext {
        let node = format!("node{}", rank / 2);
        RankContext { id: "j".into(), rank: Rank(rank), size, node, address: None, meet: None }
    }

    fn meet(store: &MemoryStore, job: &RankContext, wait_ms: u64) -> Result<MetRanks> {
        let wait = Duration::from_millis(wait_ms);
        let rendezvous = Rendezvous { store, clock: &SystemClock, job, wait };
        let port = u16::try_from(job.rank.0).unwrap();
        rendezvous.meet(&RankAddress { host: "h".into(), port, node: job.node.clone() })
    }

    #[test]
    fn all_learn_of_all() {
        let store = MemoryStore::default();
        let met_ranks: Vec<MetRanks> = std::thread::scope(|scope| {
            let meet = |rank| meet(&store, &job(rank, 5), 10_000).unwrap();
            let threads: Vec<_> = (0..5).map(|rank| scope.spawn(move || meet(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for one in &met_ranks {
            assert_eq!(one.secret, met_ranks[0].secret);
            assert_eq!(one.nodes.labels(), [0, 0, 1, 1, 2]);
            assert_eq!(one.entries[3].port, 3);
        }
        assert_eq!(store.list("job/").unwrap().len(), 6);
        clear(&store, "j").unwrap();
        assert_eq!(store.list("job/").unwrap().len(), 0);
    }

    #[test]
    fn a_second_of_the_same_rank_is_refused() {
        let store = MemoryStore::default();
        meet(&store, &job(0, 1), 1000).unwrap();
        assert_eq!(meet(&store, &job(0, 1), 1000).unwrap_err().kind(), Kind::Exists);
    }

    #[test]
    fn a_put_whose_answer_is_lost_is_recognized() {
        // The puts of its own object and of the list.
        for lost in [1, 4] {
            let store = FaultStore::new(Arc::new(MemoryStore::default()), 1);
            store.fail_at_with(lost, Kind::Unavailable, FaultEffect::Full);
            let (wait, job) = (Duration::from_secs(10), job(0, 1));
            let rendezvous = Rendezvous { store: &store, clock: &SystemClock, job: &job, wait };
            let entry = RankAddress { host: "h".into(), port: 1, node: "n".into() };
            assert_eq!(rendezvous.meet(&entry).expect("alone").entries, [entry], "{lost}");
        }
    }

    #[test]
    fn who_does_not_come_is_named() {
        let store = MemoryStore::default();
        let error = meet(&store, &job(0, 3), 20).unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.to_string().contains("missing: 2 of 3, as 1 2"), "{error}");
        let error = meet(&store, &job(1, 3), 20).unwrap_err();
        assert!(error.to_string().contains("rank 0"), "{error}");
    }
}
