// SPDX-License-Identifier: Apache-2.0
//! Shared files: files that all ranks of a job write.
//!
//! The job belongs to one thread, and a file borrows it: a job cannot be published while a file is
//! open.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use esker_base::{Bytes, Result};
use esker_comm::{Rank, Transport};
use esker_fs::job::JobReport;
use esker_shared::{
    AgreedAttributes, RemoteReads, SharedFile as JobFile, SharedJob as FileJob, SharedOptions,
};
use esker_table::manifest::SetId;
use esker_table::tree::Durability;

use crate::dir::{Dir, FILE_MODE, bytes};
use crate::job::Job;
use crate::session_builder::SessionBuilder;
use crate::snapshot_ref::SnapshotRef;
use crate::tree_handle::{SessionTree, TreeHandle};

/// Describes a job with shared files; all ranks use equal values.
#[derive(Clone, Debug)]
#[must_use = "a job begins with `begin`"]
pub struct SharedJobBuilder {
    job: Job,
    session: SessionBuilder,
    bases: Vec<SnapshotRef>,
    options: SharedOptions,
    durability: Durability,
}

impl SharedJobBuilder {
    pub(crate) fn new(job: Job) -> Self {
        Self {
            session: job.repository().session(),
            job,
            bases: Vec::new(),
            options: SharedOptions::default(),
            durability: Durability::default(),
        }
    }

    /// Builds on a snapshot, below those that were given before.
    pub fn on(mut self, snapshot: impl Into<SnapshotRef>) -> Self {
        self.bases.push(snapshot.into());
        self
    }

    /// Ranks of each node that keep the index of the files; one unless it is given.
    pub fn servers_per_node(mut self, servers: u32) -> Self {
        self.options.servers_per_node = servers;
        self
    }

    /// The way in which a rank reads bytes that another one wrote; from the store unless it is
    /// given.
    pub fn remote_reads(mut self, reads: RemoteReads) -> Self {
        self.options.reads = reads;
        self
    }

    /// The promise of [`SharedFile::sync`]: at `None` that other ranks can read the bytes,
    /// otherwise (`Async` unless it is given) that they also survive power loss.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Memory of a rank for changes that are not in the store yet.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.session = self.session.memory_bytes(bytes);
        self
    }

    /// Continues the job even if ranks of an earlier run seem to be alive, for callers that know
    /// they are not. A rank that is alive after all stops with `Fenced`.
    pub fn take_over(mut self) -> Self {
        self.session = self.session.take_over();
        self
    }

    /// Begins the job, or continues it after its ranks ended without publishing it: with everything
    /// that was synced, by any number of ranks. Collective: all ranks call it.
    ///
    /// # Errors
    /// `NotFound` if a base does not exist; `Conflict` if ranks of an earlier run still write;
    /// `Invalid` if the job was joined already; `Unavailable` names a lost rank.
    pub fn begin<T: Transport>(self, transport: T) -> Result<SharedJob<T>> {
        let repository = self.job.repository();
        let bases = repository.resolve_all(self.bases)?;
        let mut options = self.options;
        options.session = self.session.options(Some(self.durability));
        let id = self.job.id();
        let mut job = FileJob::begin(transport, &repository.sets, id, &bases, &options)?;
        let rank = job.segments().rank();
        // A part stays until the job is published or given up.
        let part = SessionTree::new(job.session().clone(), repository.sets.clone(), false);
        let root = Dir::root_of(TreeHandle::Session(Arc::new(part)));
        Ok(SharedJob { rank, root, job: RefCell::new(job) })
    }
}

/// A rank of a job whose ranks write files together.
///
/// All ranks make the *collective* calls, in the same order. A rank answers the others while it
/// waits in any call; one that computes for long calls [`SharedJob::serve`] now and then. The guide
/// [`shared_files`](crate::guide::shared_files) says when ranks see each other's writes.
///
/// # Examples
/// ```
/// use esker::{JobId, Repository, threads};
///
/// let repository = Repository::create("memory:")?;
/// let job = repository.job(JobId::random());
/// threads::run(4, 2, |transport| {
///     let job = job.share_files().begin(transport)?;
///     let rank = u64::from(job.rank().0);
///     let mut file = job.create("/matrix")?;
///     file.write_at(&[rank as u8; 1000], rank * 1000)?;
///     file.sync()?;
///     job.barrier()?;
///     let neighbour = (rank + 1) % 4;
///     assert_eq!(file.read_at(neighbour * 1000, 1000)?, vec![neighbour as u8; 1000]);
///     file.close()?;
///     job.publish("matrix").map(drop)
/// })?;
/// assert_eq!(repository.snapshot("matrix")?.metadata("/matrix")?.len(), 4000);
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Debug)]
pub struct SharedJob<T> {
    rank: Rank,
    root: Dir,
    /// Borrowed during calls only, which never call back.
    job: RefCell<FileJob<T>>,
}

impl<T: Transport> SharedJob<T> {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The root directory of this rank's own part, for names and files that it does not share. A
    /// shared file must not be written through it.
    #[must_use]
    pub fn root(&self) -> &Dir {
        &self.root
    }

    /// Opens a file for all ranks. Collective.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `IsADirectory`, `Invalid` if it is open already, at all ranks;
    /// `Unavailable` names a lost rank.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<SharedFile<'_, T>> {
        self.open_file(path.as_ref(), None)
    }

    /// Opens a file for all ranks, and creates it if it does not exist. Its name survives power
    /// loss once this returns. Collective.
    ///
    /// # Errors
    /// As [`SharedJob::open`], without `NotFound` for the file itself.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<SharedFile<'_, T>> {
        self.open_file(path.as_ref(), Some(FILE_MODE))
    }

    fn open_file(&self, path: &Path, mode: Option<u32>) -> Result<SharedFile<'_, T>> {
        let file = self.job.borrow_mut().open(bytes(path), mode)?;
        Ok(SharedFile { job: self, file })
    }

    /// Removes a file that no rank has open. The removal survives power loss once this returns,
    /// unless the job's durability is `None`. Collective.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `IsADirectory`, at all ranks; `Unavailable` names a lost rank.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.job.borrow_mut().unlink(bytes(path.as_ref()))
    }

    /// Waits for all ranks, and answers them meanwhile. Collective.
    ///
    /// # Errors
    /// `Unavailable` names a lost rank.
    pub fn barrier(&self) -> Result<()> {
        self.job.borrow_mut().barrier()
    }

    /// Answers other ranks for `wait`.
    ///
    /// # Errors
    /// As [`SharedJob::barrier`].
    pub fn serve(&self, wait: Duration) -> Result<()> {
        self.job.borrow_mut().segments().serve(wait)
    }

    /// Ends the job and publishes all parts as the snapshot `name`. Collective; returns the
    /// snapshot's id, and at rank 0 the report. Survives power loss once it returns.
    ///
    /// # Errors
    /// `Exists` if the name is taken; as [`SharedFile::sync`]. A failure at one rank fails all.
    pub fn publish(self, name: &str) -> Result<(SetId, Option<JobReport>)> {
        self.job.into_inner().publish(name)
    }
}

/// A file that all ranks of a job have open.
///
/// Closing is collective, so a drop cannot close the file: bytes that were not synced are lost, and
/// the file's size is that of the last close.
#[derive(Debug)]
pub struct SharedFile<'job, T> {
    job: &'job SharedJob<T>,
    file: JobFile,
}

impl<T: Transport> SharedFile<'_, T> {
    /// Writes `bytes` at `offset`. This rank reads them at once, others after [`SharedFile::sync`].
    /// Cost: an append to this rank's data log, and a message to other ranks once in a while.
    ///
    /// # Errors
    /// `Denied` after [`SharedFile::laminate`]; `FileTooLarge`; `NoSpace`, and errors of the store;
    /// `Unavailable` names a lost rank.
    pub fn write_at(&mut self, bytes: &[u8], offset: u64) -> Result<()> {
        self.job.job.borrow_mut().write(&mut self.file, offset, bytes)
    }

    /// Returns up to `bytes_max` bytes from `offset`, fewer only at the end of the file. Cost: a
    /// message to each rank that has a part of the index, and a store request for each log; no
    /// message after [`SharedFile::laminate`].
    ///
    /// # Errors
    /// `Corrupt`; errors of the store; `Unavailable` names a lost rank.
    pub fn read_at(&mut self, offset: u64, bytes_max: usize) -> Result<Bytes> {
        self.job.job.borrow_mut().read(&mut self.file, offset, bytes_max)
    }

    /// Returns once all ranks can read this rank's writes, and, unless the job's durability is
    /// `None`, they survive power loss. Cost: a sync of the data log, and a message to each rank
    /// that has a part of the index, which syncs its log.
    ///
    /// # Errors
    /// As [`SharedFile::write_at`].
    pub fn sync(&mut self) -> Result<()> {
        self.job.job.borrow_mut().sync(&mut self.file)
    }

    /// Shows each rank all earlier writes of all ranks, and gives each the index of the file. Until
    /// the next collective call with the file, a rank reads those and its own writes, and its reads
    /// and writes neither send messages nor wait for other ranks (but [`RemoteReads::Ranks`] still
    /// fetches bytes from them). Use it in programs whose ranks wait for each other in other
    /// libraries. If the same bytes are written before and after an exchange, the later write wins.
    /// From the first exchange on, [`SharedFile::sync`] is collective. Only synced bytes survive
    /// the ranks. Collective.
    ///
    /// Cost: a reduction, and a broadcast of the new segments by each rank that has some; the first
    /// also as [`SharedFile::laminate`]. Each later write takes some 100 bytes of memory until the
    /// next sync, unless it continues another one.
    ///
    /// # Errors
    /// As [`SharedFile::sync`]; a failure at one rank fails all.
    pub fn exchange(&mut self) -> Result<()> {
        self.job.job.borrow_mut().exchange(&mut self.file)
    }

    /// Returns size and time over all ranks. Collective.
    ///
    /// # Errors
    /// `Unavailable` names a lost rank.
    pub fn metadata(&mut self) -> Result<AgreedAttributes> {
        self.job.job.borrow_mut().stat(&mut self.file)
    }

    /// The size as this rank knows it, without asking others: the size of the last call in which
    /// all agreed on it, or a larger one if this rank has written beyond.
    #[must_use]
    pub fn known_size(&self) -> u64 {
        self.file.known_size()
    }

    /// Cuts the file to `bytes`, or extends it with zeros. Collective.
    ///
    /// # Errors
    /// As [`SharedFile::sync`]; a failure at one rank fails all.
    pub fn set_len(&mut self, bytes: u64) -> Result<()> {
        self.job.job.borrow_mut().truncate(&mut self.file, bytes).map(drop)
    }

    /// Seals the file for the rest of the job, and gives every rank its whole index, so that reads
    /// send no messages. Collective.
    ///
    /// # Errors
    /// As [`SharedFile::sync`]; a failure at one rank fails all.
    pub fn laminate(&mut self) -> Result<()> {
        self.job.job.borrow_mut().laminate(&mut self.file)
    }

    /// Syncs and closes the file, and returns size and time over all ranks. Collective.
    ///
    /// # Errors
    /// As [`SharedFile::sync`]; a failure at one rank fails all.
    pub fn close(self) -> Result<AgreedAttributes> {
        self.job.job.borrow_mut().close(self.file)
    }
}
