// SPDX-License-Identifier: Apache-2.0
//! Job: the parts that ranks write, shared files opened in them, and their publication.
//!
//! Every rank has a part of the job (`esker_fs::job`): a change set with its data logs and its own
//! names. Rank 0's part has the names of shared files. A server has a second part, of rank
//! [`INDEX_RANK`] plus its own, whose tree holds only the segments of its slices; these point into
//! data logs of other parts. Publishing joins all parts, and a shared file becomes a plain file.
//! After a crash, any number of ranks resumes the parts of the earlier run: a part whose rank no
//! longer exists goes to the rank with its number modulo the new size (`migrate.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use esker_base::Result;
use esker_comm::collective::{CollectiveOptions, Collectives};
use esker_comm::{Rank, Transport};
use esker_fs::job::{JobId, JobPart, JobReport};
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_table::manifest::SetId;
use esker_table::set_writer::SetWriter;
use esker_table::tree::Durability;

use crate::gather;
use crate::service::{SegmentService, no_answer};
use crate::slices::{SLICE_BYTES, SliceMap};

/// Parts with this rank or a higher one hold segments of shared files.
pub const INDEX_RANK: u32 = 1 << 31;

/// The way in which a rank reads bytes that another rank wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemoteReads {
    /// From the store; for stores of which every rank reaches all objects.
    #[default]
    Store,
    /// Through the rank that wrote them, which answers while it waits in a call; for data logs that
    /// are close to their writers.
    Ranks,
}

/// Options of a job that shares files; the same at all ranks.
#[derive(Clone, Debug)]
pub struct SharedOptions {
    /// Ranks on each node that serve segments; with 1 the others do no serving.
    pub servers_per_node: u32,
    /// Bytes of a slice; [`SLICE_BYTES`] by default.
    pub slice_bytes: u64,
    /// The way in which a rank reads bytes of other ranks.
    pub reads: RemoteReads,
    /// Identity, durability and memory of the parts.
    pub session: SessionOptions,
}

impl Default for SharedOptions {
    fn default() -> Self {
        let (servers_per_node, slice_bytes) = (1, SLICE_BYTES);
        let (reads, session) = (RemoteReads::default(), SessionOptions::default());
        Self { servers_per_node, slice_bytes, reads, session }
    }
}

/// A job whose ranks write files together. All ranks make collective calls, in the same order; a
/// rank answers requests of others while it waits in any call.
#[derive(Debug)]
pub struct SharedJob<T> {
    pub(crate) segments: SegmentService<T>,
    pub(crate) session: Arc<Session>,
    pub(crate) index: Option<Arc<Session>>,
    /// Parts of ranks that no longer exist: names and data, and segments.
    inherited: Vec<(u32, Session)>,
    /// By change set: the rank that reads its logs for others.
    pub(crate) readers: BTreeMap<SetId, Rank>,
    pub(crate) reads: RemoteReads,
    pub(crate) is_durable: bool,
    parts: Vec<(u32, SetId)>,
    repository: Repository,
    /// The process that joins the parts.
    writer: Option<SetWriter>,
    /// Shared files that are open, by identity.
    pub(crate) open_files: BTreeMap<u128, Weak<()>>,
}

/// The parts that one rank writes; inherited ones with their rank.
struct RankPart {
    own: Session,
    index: Option<Session>,
    inherited: Vec<(u32, Session)>,
}

impl<T: Transport> SharedJob<T> {
    /// Begins job `id` on top of `bases`, or continues it after its ranks ended without publishing.
    /// A continued job has all synced changes, and may have other numbers of ranks and servers than
    /// before. Collective. Costs a listing by rank 0, two new parts per server and one per other
    /// rank; after a crash also the recovery of all parts and the migration of segments whose owner
    /// has changed.
    ///
    /// # Errors
    /// `Invalid` if the parts are already joined: publish the joined set; `Unavailable` names a
    /// lost rank; as [`Repository::begin_part`] and [`Repository::resume`].
    pub fn begin(
        mut transport: T,
        repository: &Repository,
        id: JobId,
        bases: &[SetId],
        options: &SharedOptions,
    ) -> Result<Self> {
        let map = SliceMap::new(transport.nodes(), options.servers_per_node, options.slice_bytes)?;
        let (me, size) = (transport.rank(), transport.size());
        // These barriers separate the collectives here from later ones: see `Barrier`.
        transport.barrier()?;
        let mut collectives = Collectives::new(&mut transport, CollectiveOptions::default());
        let left = left_parts(&mut collectives, repository, id)?;
        let begin = PartBegin { repository, id, bases, options: &options.session };
        let parts = begin.parts(&map, me, size, &left);
        let parts = collectives.agree(parts)?;
        transport.barrier()?;
        let (own, index) = (Arc::new(parts.own), parts.index.map(Arc::new));
        let segments =
            SegmentService::new(transport, map, index.clone(), repository.store().clone());
        let mut job = Self {
            segments,
            session: own,
            index,
            inherited: parts.inherited,
            readers: BTreeMap::new(),
            reads: options.reads,
            is_durable: options.session.tree.durability != Durability::None,
            parts: Vec::new(),
            repository: repository.clone(),
            writer: options.session.heartbeat.as_ref().map(|heartbeat| heartbeat.writer.clone()),
            open_files: BTreeMap::new(),
        };
        job.exchange_parts()?;
        if !left.is_empty() {
            job.migrate_segments()?;
        }
        Ok(job)
    }

    /// Announces all parts to all ranks.
    fn exchange_parts(&mut self) -> Result<()> {
        let rank = self.segments.rank().0;
        let mut own = vec![(rank, self.session.set())];
        own.extend(self.index.iter().map(|index| (rank + INDEX_RANK, index.set())));
        own.extend(self.inherited.iter().map(|(rank, session)| (*rank, session.set())));
        for (_, set) in &own {
            self.segments.exchange().server.add_set(*set);
        }
        let bytes = |(rank, set): &(u32, SetId)| {
            let mut value = [0; 20];
            value[..4].copy_from_slice(&rank.to_le_bytes());
            value[4..].copy_from_slice(&set.0.to_le_bytes());
            value
        };
        let own: Vec<[u8; 20]> = own.iter().map(bytes).collect();
        for (reader, value) in gather::all_gather(self.segments.collectives(), &own)? {
            let part = part_of(&value)?;
            self.readers.insert(part.1, reader);
            self.parts.push(part);
        }
        self.parts.sort_unstable();
        Ok(())
    }

    /// The segment service, for callers that keep bytes elsewhere than in files.
    pub fn segments(&mut self) -> &mut SegmentService<T> {
        &mut self.segments
    }

    /// This rank's own part, for names and files that it does not share. A shared file must not be
    /// written through it.
    #[must_use]
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Inherited parts that hold segments of shared files.
    pub(crate) fn inherited_indexes(&self) -> impl Iterator<Item = &Session> {
        let indexes = self.inherited.iter().filter(|(rank, _)| *rank >= INDEX_RANK);
        indexes.map(|(_, session)| session)
    }

    /// Ends the job: joins all parts into one change set named `name`. Close shared files first.
    /// Collective; rank 0 gets the report. Costs a flush and a commit per part, and as
    /// [`Repository::publish_job`].
    ///
    /// # Errors
    /// As [`Repository::publish_job`], [`Session::complete`] and [`SegmentService::sync`]; a
    /// failure on one rank fails all ranks, with that rank's error.
    pub fn publish(mut self, name: &str) -> Result<(SetId, Option<JobReport>)> {
        // All segments arrive before an owner completes its part, and all parts are complete before
        // they are joined.
        let synced = self.segments.sync();
        self.segments.agree(synced)?;
        let completed = self.complete_parts();
        self.segments.agree(completed)?;
        let sets: Vec<SetId> = self.parts.iter().map(|(_, set)| *set).collect();
        let mut report = None;
        let mut told = Ok(Vec::new());
        if self.segments.rank() == Rank(0) {
            let joined =
                self.repository.publish_job_as(self.writer.as_ref(), &sets, name, |_| Ok(()));
            told = joined.map(|joined| {
                let set = joined.set.0.to_le_bytes().to_vec();
                report = Some(joined);
                set
            });
        }
        let told = self.segments.collectives().broadcast_result(Rank(0), told)?;
        let set = told.try_into().map_err(|_| no_answer())?;
        self.segments.barrier()?;
        Ok((SetId(u128::from_le_bytes(set)), report))
    }

    /// Completes all parts that this rank writes.
    fn complete_parts(&self) -> Result<()> {
        let inherited = self.inherited.iter().map(|(_, session)| session);
        let others = self.index.as_deref().into_iter().chain(inherited);
        std::iter::once(&*self.session).chain(others).try_for_each(|part| part.complete().map(drop))
    }
}

/// Parameters of new parts.
struct PartBegin<'a> {
    repository: &'a Repository,
    id: JobId,
    bases: &'a [SetId],
    options: &'a SessionOptions,
}

impl PartBegin<'_> {
    /// The parts of rank `me` of `size`, reusing its share of the parts `left` by an earlier run.
    fn parts(
        &self,
        map: &SliceMap,
        me: Rank,
        size: u32,
        left: &[(u32, SetId)],
    ) -> Result<RankPart> {
        let is_server = map.servers().contains(&me);
        let (mut own, mut index, mut inherited) = (None, None, Vec::new());
        for (rank, set) in left.iter().filter(|(rank, _)| rank % INDEX_RANK % size == me.0) {
            let session = self.repository.resume(*set, self.options.clone())?;
            if *rank == me.0 && own.is_none() {
                own = Some(session);
            } else if *rank == me.0 + INDEX_RANK && index.is_none() && is_server {
                index = Some(session);
            } else {
                inherited.push((*rank, session));
            }
        }
        let own = own.map_or_else(|| self.begin(me.0), Ok)?;
        if is_server && index.is_none() {
            index = Some(self.begin(me.0 + INDEX_RANK)?);
        }
        Ok(RankPart { own, index, inherited })
    }

    fn begin(&self, rank: u32) -> Result<Session> {
        self.repository.begin_part(self.id, rank, self.bases, self.options.clone())
    }
}

/// The parts that an earlier run of the job has left, found by rank 0.
fn left_parts<T: Transport>(
    collectives: &mut Collectives<T>,
    repository: &Repository,
    id: JobId,
) -> Result<Vec<(u32, SetId)>> {
    let mut told = Ok(Vec::new());
    if collectives.transport().rank() == Rank(0) {
        // If ranks ended while they published, some parts are complete: everything was synced
        // before.
        told = repository.reopen_parts(id).map(|parts| {
            let bytes = |part: &JobPart| {
                let (rank, set) = (part.rank.to_le_bytes(), part.set.0.to_le_bytes());
                rank.into_iter().chain(set)
            };
            parts.iter().flat_map(bytes).collect()
        });
    }
    let parts = collectives.broadcast_result(Rank(0), told)?;
    parts.chunks(20).map(|part| part_of(part.try_into().map_err(|_| no_answer())?)).collect()
}

fn part_of(value: &[u8; 20]) -> Result<(u32, SetId)> {
    let (rank, set) = value.split_first_chunk::<4>().ok_or_else(no_answer)?;
    let set = set.try_into().map_err(|_| no_answer())?;
    Ok((u32::from_le_bytes(*rank), SetId(u128::from_le_bytes(set))))
}

#[cfg(test)]
mod tests;
