// SPDX-License-Identifier: Apache-2.0
//! Shared file: objects are regions of one file, which the ranks of a job write together.
//!
//! ```text
//! offset   (number · N · D + rank · D + dataset) · S
//! ```
//! The ranks thus take turns in the file, object by object: N-1 strided access. A create appends
//! the content to the rank's own log; the flush sends the segments to the servers of their slices.
//! A stat asks the server for the segments of a region, and a read reads them from the store. Every
//! rank counts as a node and serves slices. It answers others only while it waits in a call of its
//! own, so ranks may not pause between calls, and the backend has a barrier for waiting ranks. The
//! job is never published: a run keeps no working set, and a killed one leaves its sessions to
//! `esker gc`. Concurrency: each rank has its own part of the job.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_comm::threads::ThreadTransport;
use esker_fs::job::JobId;
use esker_fs::session::SessionOptions;
use esker_shared::{SharedFile, SharedJob, SharedOptions};

use super::library_session::LibrarySession;
use super::rank_transports::RankTransports;
use super::{Backend, BackendConnection};
use crate::options::RunOptions;
use crate::pattern::{ObjectId, WorkingSetSize};

const PATH: &[u8] = b"/objects";
const FILE_MODE: u32 = 0o644;

/// A file that all ranks of a job on a store of Esker share.
#[derive(Debug)]
pub struct SharedFileBackend {
    working_set: LibrarySession,
    options: SessionOptions,
    job: JobId,
    transports: RankTransports,
    /// Created by all ranks.
    objects: AtomicU64,
}

impl SharedFileBackend {
    /// Begins a session in `store`, in which messages call the file `name`. `random` numbers the
    /// job.
    ///
    /// # Errors
    /// As the store answers; `Invalid` for a bad name.
    pub fn open(
        store: SharedStore,
        name: &str,
        options: SessionOptions,
        clock: Arc<dyn Clock>,
        mut random: Random,
    ) -> Result<Self> {
        let named = (format!("shared:{name}"), name);
        let options = options.private();
        let working_set = LibrarySession::open(store, named, options.clone(), clock)?;
        let (job, transports) = (JobId(random.u128()), RankTransports::default());
        Ok(Self { working_set, options, job, transports, objects: AtomicU64::new(0) })
    }
}

impl Backend for SharedFileBackend {
    fn target(&self) -> String {
        self.working_set.target().to_owned()
    }

    fn kind(&self) -> &'static str {
        "shared-file"
    }

    fn connect(&self, rank: u32, size: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        let transport = Some(self.transports.take(rank, size.ranks)?);
        Ok(Box::new(SharedConnection { backend: self, size: *size, transport, open: None }))
    }

    fn check(&self, options: &RunOptions) -> Result<()> {
        let refused = |what: &str| {
            let context = format!("{}: {what}", self.target());
            Err(Error::new(Kind::Unsupported, context))
        };
        let is_paced = !options.rates.is_empty() || options.saturation || options.adaptive;
        if is_paced || options.waiting_factors.iter().any(|factor| *factor > 0.0) {
            return refused(
                "ranks answer each other only within calls: measure a closed loop \
                            without waits",
            );
        }
        if options.keep {
            return refused("the file is not published, so no working set can be kept");
        }
        if options.size.object_bytes == 0 {
            return refused("a region of no bytes cannot be found: use a larger -S");
        }
        Ok(())
    }

    fn serves_processes(&self) -> bool {
        false
    }

    fn is_write_once(&self) -> bool {
        true
    }

    fn is_read_by_later_connections(&self) -> bool {
        false
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.working_set.read_marker()
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        self.working_set.write_marker(marker)
    }

    fn clear(&self) -> Result<u64> {
        self.working_set.to_clear()?;
        self.working_set.repository().abandon_parts(self.job)?;
        self.working_set.remove_marker()?;
        Ok(self.objects.swap(0, Ordering::Relaxed))
    }

    fn finish(&self, _: bool) -> Result<()> {
        self.working_set.finish(false)
    }
}

struct SharedConnection<'a> {
    backend: &'a SharedFileBackend,
    size: WorkingSetSize,
    /// The transport, until the job takes it.
    transport: Option<ThreadTransport>,
    /// Set by [`BackendConnection::add_rank`].
    open: Option<(SharedJob<ThreadTransport>, SharedFile)>,
}

impl SharedConnection<'_> {
    /// Calls `work` with the job, the file, and the offset of `object`.
    fn at<T>(
        &mut self,
        object: ObjectId,
        work: impl FnOnce(&mut SharedJob<ThreadTransport>, &mut SharedFile, u64) -> Result<T>,
    ) -> Result<T> {
        let WorkingSetSize { ranks, datasets, object_bytes, .. } = self.size;
        let (ranks, datasets) = (u64::from(ranks), u64::from(datasets));
        let dataset = u64::from(object.dataset.rank) * datasets + u64::from(object.dataset.number);
        let before = object.number.checked_mul(ranks * datasets);
        let before = before.and_then(|before| before.checked_add(dataset));
        let offset =
            before.and_then(|before| before.checked_mul(object_bytes)).ok_or_else(|| {
                Error::new(Kind::FileTooLarge, format!("{}: {object}", self.backend.target()))
            })?;
        let (job, file) = self.open.as_mut().ok_or_else(|| not_open(self.backend))?;
        work(job, file, offset)
    }
}

/// Bytes of a region that have been written.
fn written_bytes(
    job: &mut SharedJob<ThreadTransport>,
    file: &SharedFile,
    offset: u64,
    bytes: u64,
) -> Result<u64> {
    let pieces = job.segments().get_range(file.id(), offset..offset + bytes)?;
    let written = pieces.iter().filter(|piece| piece.place.is_some());
    Ok(written.map(|piece| piece.length).sum())
}

fn not_open(backend: &SharedFileBackend) -> Error {
    Error::new(Kind::Closed, format!("{}: the rank has not been added", backend.target()))
}

fn not_found(backend: &SharedFileBackend, object: ObjectId) -> Error {
    Error::new(Kind::NotFound, format!("{}: {object}", backend.target()))
}

impl BackendConnection for SharedConnection<'_> {
    fn add_rank(&mut self, _: u32) -> Result<()> {
        let Some(transport) = self.transport.take() else { return Ok(()) };
        let session = self.backend.options.clone();
        let options = SharedOptions { session, ..SharedOptions::default() };
        let repository = self.backend.working_set.repository();
        let mut job = SharedJob::begin(transport, repository, self.backend.job, &[], &options)?;
        let file = job.open(PATH, Some(FILE_MODE))?;
        self.open = Some((job, file));
        Ok(())
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        self.at(object, |job, file, offset| job.write(file, offset, content))?;
        self.backend.objects.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        let (backend, bytes) = (self.backend, self.size.object_bytes);
        self.at(object, |job, file, offset| match written_bytes(job, file, offset, bytes)? {
            0 => Err(not_found(backend, object)),
            bytes => Ok(bytes),
        })
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        let (backend, bytes) = (self.backend, self.size.object_bytes);
        self.at(object, |job, file, offset| {
            let read = job.read(file, offset, bytes as usize)?;
            // A hole reads as zeros; a create that failed leaves one.
            if read.iter().all(|byte| *byte == 0) && written_bytes(job, file, offset, bytes)? == 0 {
                return Err(not_found(backend, object));
            }
            content.clear();
            content.extend_from_slice(&read);
            Ok(())
        })
    }

    fn flush(&mut self) -> Result<()> {
        let (job, file) = self.open.as_mut().ok_or_else(|| not_open(self.backend))?;
        let synced = job.sync(file);
        // Another rank finds the objects of this one only once its flush has returned, too. A rank
        // that failed also enters the barrier.
        job.segments().barrier()?;
        synced
    }

    fn wait_for_ranks(&mut self) -> Result<()> {
        match &mut self.open {
            Some((job, _)) => job.segments().barrier(),
            None => Ok(()),
        }
    }
}
