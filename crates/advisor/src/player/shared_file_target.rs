// SPDX-License-Identifier: Apache-2.0
//! Shared-file target: the first player of the paper on Esker. A traced file is one that the ranks of
//! a job share: each writes its bytes to a log of its own, and asks the servers of the file's slices
//! where the bytes of others are.
//!
//! ```text
//! /esker-replay   the load marker
//! /file-<n>       file n of the trace
//! ```
//! A load makes a complete change set with the data that is read. A replay is a job that builds on it
//! and is given up afterwards. The set gets the target's name if the data is kept; if the process dies
//! before that, a collection gives everything up. All ranks open all files together before the first
//! call, so the opens of the trace are left out, and closes of files that the rank has only read. A
//! close after a write shows it to the other ranks, and makes it durable, which is more than the close
//! of a file system does.
//! Concurrency: ranks are threads. A rank answers others while it is in a call, or waits, and not
//! while the player makes or checks content.
//! Source: Kougkas et al. 2016, §4.1.2.

use std::sync::Arc;
use std::time::Duration;

use esker_base::store::SharedStore;
use esker_base::{Clock, Error, Kind, Random, Result};
use esker_comm::threads::ThreadTransport;
use esker_fs::job::JobId;
use esker_fs::repository::{CACHE_BYTES, Repository};
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::list::DirCursor;
use esker_shared::{SharedFile, SharedJob, SharedOptions};
use esker_table::manifest::{Manifest, SetId};
use esker_table::object_name::ObjectFolder;
use esker_table::tree::Durability;
use esker_workbench::backend::{RankTransports, page_cache};
use esker_workbench::pace::{PaceClock, Waiting};
use parking_lot::Mutex;

use super::load_marker::{LOAD_MARKER_BYTES_MAX, LoadState, LoadedData, load_marker, load_state};
use super::replay_content::fill_content;
use super::{ReplayConnection, ReplayPlan, ReplayStep, ReplayTarget, RequestLayout};
use crate::observation::StorageKind;
use crate::trace::TraceOperation;

/// What begins the name of such a target.
pub const SHARED_FILE_PREFIX: &str = "shared:";

const MARKER: &[u8] = b"esker-replay";
const FILE_PREFIX: &str = "file-";
const FILE_MODE: u32 = 0o644;

/// Files that ranks open: each open is collective, and waits for a sync.
const FILES_MAX: usize = 1_024;

/// Bytes that are written at once before a replay.
const LOAD_BYTES: usize = 1 << 20;

/// A waiting rank stops answering others this long before the time for which it waits.
const SERVE_MARGIN_NS: u64 = 200_000;

/// Files of a store of Esker that the ranks of a job share.
pub struct SharedFileTarget {
    repository: Repository,
    options: SessionOptions,
    name: String,
    jobs: Mutex<ReplayJobs>,
    loaded: Mutex<Option<LoadedSet>>,
}

/// The jobs of this target: one for each replay.
struct ReplayJobs {
    random: Random,
    /// All of them, the newest last.
    ids: Vec<JobId>,
    /// The transports of the newest one.
    transports: RankTransports,
}

impl ReplayJobs {
    /// The newest job and the transport of `rank` in it; begins a job once all ranks of the one before
    /// have theirs.
    fn take(&mut self, rank: u32, ranks: u32) -> Result<(JobId, ThreadTransport)> {
        if self.transports.is_unused_or_spent() {
            self.transports = RankTransports::default();
            self.ids.push(JobId(self.random.u128()));
        }
        let transport = self.transports.take(rank, ranks)?;
        Ok((*self.ids.last().expect("begun above"), transport))
    }
}

/// The change set that has the data of a replay.
#[derive(Clone, Copy)]
struct LoadedSet {
    set: SetId,
    /// True if it has the target's name.
    is_published: bool,
}

impl SharedFileTarget {
    /// Replays in `store`, where `name` is that of the data that is kept. `random` numbers the jobs.
    ///
    /// # Errors
    /// `Invalid` for a bad name; as the store answers.
    pub fn open(
        store: SharedStore,
        name: &str,
        mut options: SessionOptions,
        clock: Arc<dyn Clock>,
        random: Random,
    ) -> Result<Self> {
        // A sync of the trace is one.
        options.tree.durability = Durability::Async;
        let repository = Repository::with(store, CACHE_BYTES, clock);
        let loaded = match repository.resolve(name) {
            Ok(published) => Some(LoadedSet { set: published.set, is_published: true }),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            repository,
            options: options.private(),
            name: name.to_owned(),
            jobs: Mutex::new(ReplayJobs {
                random,
                ids: Vec::new(),
                transports: RankTransports::default(),
            }),
            loaded: Mutex::new(loaded),
        })
    }

    fn failed(&self, kind: Kind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, format!("{}: {what}", self.target()))
    }

    /// The state that the marker in `set` records.
    fn state_of(&self, set: SetId) -> Result<LoadState> {
        let namespace = self.repository.open(&[set], self.options.identity.clone())?;
        let marker = match namespace.lookup(namespace.root(), MARKER, true) {
            Ok(inode) => namespace.read(&inode, 0, LOAD_MARKER_BYTES_MAX)?.to_vec(),
            Err(error) if error.kind() == Kind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        load_state(&marker).ok_or_else(|| {
            self.failed(Kind::NotEmpty, "the snapshot has no data of a replay; use another name")
        })
    }

    /// Writes the marker and the files that `plan` reads.
    fn write_files(&self, session: &Session, plan: &ReplayPlan) -> Result<()> {
        let root = session.root().clone();
        let marker = session.create_file(&root, MARKER, FILE_MODE)?;
        session.file(&marker).write(0, &load_marker(LoadedData::of(plan), true))?;
        session.close_file(marker)?;
        let mut buffer = vec![0; LOAD_BYTES];
        for (number, traced) in (0..).zip(&plan.files) {
            let file = session.create_file(&root, file_name(number).as_bytes(), FILE_MODE)?;
            for range in traced.read_ranges() {
                let mut position = range.start;
                while position < range.end {
                    let count = (range.end - position).min(LOAD_BYTES as u64) as usize;
                    fill_content(number, position, &mut buffer[..count]);
                    session.file(&file).write(position, &buffer[..count])?;
                    position += count as u64;
                }
            }
            session.file(&file).truncate(traced.bytes)?;
            session.close_file(file)?;
        }
        Ok(())
    }

    /// Gives up the parts of all jobs.
    fn end_jobs(&self) -> Result<()> {
        let ids = &mut self.jobs.lock().ids;
        while let Some(job) = ids.last() {
            self.repository.abandon_parts(*job)?;
            ids.pop();
        }
        Ok(())
    }

    /// Fails if `set` has more than the data of a replay, such as what somebody has added since.
    fn check_has_no_others(&self, set: SetId) -> Result<()> {
        let namespace = self.repository.open(&[set], self.options.identity.clone())?;
        let manifest = Manifest::load(&**self.repository.store(), set)?;
        let is_own = |name: &[u8]| {
            let number = name.strip_prefix(FILE_PREFIX.as_bytes());
            name == MARKER || number.is_some_and(|number| number.iter().all(u8::is_ascii_digit))
        };
        let mut entries =
            namespace.read_dir(namespace.root(), &DirCursor::default(), FILES_MAX + 2)?.into_iter();
        if manifest.bases.is_empty() && entries.all(|entry| is_own(&entry.name)) {
            return Ok(());
        }
        let what = "the snapshot has more than the data of a replay, and stays; `esker delete` removes \
                    it";
        Err(self.failed(Kind::NotEmpty, what))
    }
}

fn file_name(number: u32) -> String {
    format!("{FILE_PREFIX}{number}")
}

impl ReplayTarget for SharedFileTarget {
    fn system(&self) -> String {
        "esker-shared-file".to_owned()
    }

    fn storage_kind(&self) -> StorageKind {
        StorageKind::FileSystem
    }

    fn layout(&self) -> RequestLayout {
        RequestLayout::SharedFile
    }

    fn target(&self) -> String {
        format!("{SHARED_FILE_PREFIX}{}", self.name)
    }

    fn load_state(&self) -> Result<LoadState> {
        let loaded = *self.loaded.lock();
        loaded.map_or(Ok(LoadState::Absent), |loaded| self.state_of(loaded.set))
    }

    fn load(&self, plan: &ReplayPlan) -> Result<()> {
        if plan.files.len() > FILES_MAX {
            let what = format!(
                "the trace has {} files, and a replay has at most {FILES_MAX} that ranks share: use \
                 esker:NAME, a file for each request",
                plan.files.len()
            );
            return Err(self.failed(Kind::Unsupported, what));
        }
        if self.loaded.lock().is_some() {
            return Err(self.failed(Kind::Conflict, "the name is taken; use another one"));
        }
        let session = self.repository.begin(&[], self.options.clone())?;
        let set = session.set();
        let completed = self.write_files(&session, plan).and_then(|()| session.complete());
        drop(session);
        completed.inspect_err(|_| drop(self.repository.abandon(set)))?;
        *self.loaded.lock() = Some(LoadedSet { set, is_published: false });
        Ok(())
    }

    fn drop_caches(&self) -> Result<()> {
        let Some(LoadedSet { set, .. }) = *self.loaded.lock() else { return Ok(()) };
        page_cache::drop_objects(&**self.repository.store(), &ObjectFolder::All(set).to_string())
    }

    fn connect(&self, rank: u32, plan: &ReplayPlan) -> Result<Box<dyn ReplayConnection + '_>> {
        let loaded = *self.loaded.lock();
        let loaded = loaded.ok_or_else(|| self.failed(Kind::NotFound, "nothing was loaded"))?;
        let (id, transport) = self.jobs.lock().take(rank, plan.rank_count())?;
        let options = SharedOptions { session: self.options.clone(), ..SharedOptions::default() };
        let bases = [loaded.set];
        let mut job = SharedJob::begin(transport, &self.repository, id, &bases, &options)?;
        let files = (0..).zip(&plan.files).map(|(number, _)| {
            let file = job.open(format!("/{}", file_name(number)), None)?;
            Ok(SharedFileHandle { file, has_unsent: false })
        });
        let files = files.collect::<Result<Vec<_>>>()?;
        Ok(Box::new(SharedFileConnection { job, files }))
    }

    fn clear(&self) -> Result<()> {
        let mut loaded = self.loaded.lock();
        let Some(LoadedSet { set, is_published }) = *loaded else {
            return Err(self.failed(Kind::NotFound, "there is no data of a replay"));
        };
        self.end_jobs()?;
        self.state_of(set)?;
        self.check_has_no_others(set)?;
        match is_published {
            true => self.repository.delete_if_unchanged(&self.name, set)?,
            false => self.repository.abandon(set)?,
        }
        *loaded = None;
        Ok(())
    }

    fn finish(&self, is_kept: bool) -> Result<()> {
        self.end_jobs()?;
        let mut loaded = self.loaded.lock();
        match &mut *loaded {
            Some(loaded) if is_kept && !loaded.is_published => {
                self.repository.publish(loaded.set, &self.name)?;
                loaded.is_published = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// A file of the trace as a rank has it open.
struct SharedFileHandle {
    file: SharedFile,
    /// True if the rank has written since its last sync.
    has_unsent: bool,
}

struct SharedFileConnection {
    job: SharedJob<ThreadTransport>,
    /// By number.
    files: Vec<SharedFileHandle>,
}

impl ReplayConnection for SharedFileConnection {
    fn call(&mut self, step: &ReplayStep, buffer: &mut Vec<u8>) -> Result<bool> {
        let SharedFileHandle { file, has_unsent } = &mut self.files[step.file as usize];
        match step.operation {
            TraceOperation::Read => {
                let read = self.job.read(file, step.offset, buffer.len())?;
                buffer.clear();
                buffer.extend_from_slice(&read);
            }
            TraceOperation::Write => {
                self.job.write(file, step.offset, buffer)?;
                *has_unsent = true;
            }
            TraceOperation::Stat => drop(self.job.segments().end(file.id())?),
            TraceOperation::Close if !*has_unsent => return Ok(false),
            TraceOperation::Sync | TraceOperation::Close => {
                self.job.sync(file)?;
                *has_unsent = false;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn wait_until_ns(
        &mut self,
        until_ns: u64,
        clock: &dyn PaceClock,
        waiting: Waiting,
    ) -> Result<()> {
        loop {
            let left_ns = until_ns.saturating_sub(clock.monotonic_ns());
            if left_ns <= SERVE_MARGIN_NS {
                break;
            }
            self.job.segments().serve(Duration::from_nanos(left_ns - SERVE_MARGIN_NS))?;
        }
        clock.wait_until_ns(until_ns, waiting);
        Ok(())
    }

    fn wait_for_ranks(&mut self) -> Result<()> {
        self.job.segments().barrier()
    }
}
