// SPDX-License-Identifier: Apache-2.0
//! Object target: the second and the third player of the paper. Each request is an object of a
//! service of the workbench, named by file, position and size: a key of a key-value store with a
//! value of the request's size, or a small file that is opened, accessed and closed ("increased
//! metadata").
//!
//! Opens and closes of the trace are left out: each object has its own open and close, or none.
//! Source: Kougkas et al. 2016, §4.1.2.

use std::path::Path;

use esker_base::{Error, Kind, Result};
use esker_workbench::backend::{Backend, BackendConnection, PosixBackend};
use esker_workbench::pattern::{DatasetId, OBJECT_BYTES_MAX, ObjectId, WorkingSetSize};

use super::directory_lock::DirectoryLock;
use super::load_marker::{LoadState, LoadedData, load_marker, load_state};
use super::replay_content::fill_content;
use super::{ReplayConnection, ReplayPlan, ReplayStep, ReplayTarget, RequestLayout};
use crate::observation::StorageKind;
use crate::trace::TraceOperation;

/// The rank that owns all datasets; a dataset has the requests of one file.
const OWNER_RANK: u32 = 0;

/// Objects of a service.
pub struct ObjectTarget {
    backend: Box<dyn Backend>,
    /// The lock of the directory, if the objects are small files.
    lock: Option<DirectoryLock>,
}

impl ObjectTarget {
    /// Replays on the objects of `backend`.
    ///
    /// # Errors
    /// `Unsupported` for a service that does not keep the content of objects for later connections.
    pub fn new(backend: Box<dyn Backend>) -> Result<Self> {
        if !backend.keeps_content() || !backend.is_read_by_later_connections() {
            let what = "a replay needs objects that it can read after they were loaded";
            return Err(Error::new(Kind::Unsupported, format!("{}: {what}", backend.target())));
        }
        // A database has a lock of its own.
        let directory = backend.directory().filter(|_| backend.kind() == "posix");
        let lock = directory.map(DirectoryLock::new);
        Ok(Self { backend, lock })
    }

    /// True if `directory` has the data of a replay on small files.
    #[must_use]
    pub fn has_small_files(directory: &Path) -> bool {
        let marker = PosixBackend::new(directory).and_then(|backend| backend.read_marker());
        marker.is_ok_and(|marker| marker.and_then(|marker| load_state(&marker)).is_some())
    }

    /// Fails if the service cannot hold the objects of `plan`: write-once services are replayed with
    /// reads of one size.
    fn check(&self, plan: &ReplayPlan) -> Result<()> {
        let refused = |kind, what: String| {
            Err(Error::new(kind, format!("{}: {what}", self.backend.target())))
        };
        if plan.request_bytes_max > OBJECT_BYTES_MAX {
            let bytes = plan.request_bytes_max;
            let what =
                format!("a request of {bytes} bytes; objects have at most {OBJECT_BYTES_MAX}");
            return refused(Kind::TooLarge, what);
        }
        if !self.backend.is_write_once() {
            return Ok(());
        }
        let mut steps = plan.ranks.iter().flatten();
        if steps.any(|step| step.operation == TraceOperation::Write) {
            let what = "is written once: replay a trace that only reads, or use --as-reads";
            return refused(Kind::Unsupported, what.to_owned());
        }
        let mut sizes = plan.files.iter().flat_map(|file| &file.requests).map(|(_, bytes)| bytes);
        if sizes.any(|bytes| *bytes != plan.request_bytes_max) {
            let what = "has records of one size, and the requests of the trace have several";
            return refused(Kind::Unsupported, what.to_owned());
        }
        Ok(())
    }

    /// Creates the objects that `plan` reads.
    fn create_objects(&self, plan: &ReplayPlan) -> Result<()> {
        // One rank loads alone.
        let size = WorkingSetSize { ranks: 1, ..size(plan) };
        let mut connection = self.backend.connect(OWNER_RANK, &size)?;
        connection.add_rank(OWNER_RANK)?;
        let mut content = Vec::new();
        for (number, file) in (0..).zip(&plan.files) {
            if !self.backend.is_write_once() {
                connection.mkdir(DatasetId { rank: OWNER_RANK, number })?;
            }
            for request in &file.read {
                let (offset, bytes) = *request;
                let index = file.requests.binary_search(request);
                let index = index.expect("every request is in its file") as u64;
                content.resize(usize::try_from(bytes).expect("bounded by the caller"), 0);
                fill_content(number, offset, &mut content);
                connection.create(object(number, index), &content)?;
            }
        }
        connection.flush()
    }
}

fn object(file: u32, number: u64) -> ObjectId {
    DatasetId { rank: OWNER_RANK, number: file }.object(number)
}

/// The size of a working set that holds the objects.
fn size(plan: &ReplayPlan) -> WorkingSetSize {
    let objects = plan.files.iter().map(|file| file.requests.len() as u64).max();
    WorkingSetSize {
        ranks: plan.rank_count(),
        datasets: u32::try_from(plan.files.len()).expect("files of a trace have 32 bits"),
        objects: objects.unwrap_or_default().max(1),
        iterations: 0,
        object_bytes: plan.request_bytes_max,
        rank_offset: 0,
    }
}

impl ReplayTarget for ObjectTarget {
    fn system(&self) -> String {
        match self.backend.kind() {
            "posix" => "posix-small-files".to_owned(),
            kind => kind.to_owned(),
        }
    }

    fn storage_kind(&self) -> StorageKind {
        match self.backend.kind() {
            "posix" | "library" | "mpiio" => StorageKind::FileSystem,
            _ => StorageKind::KeyValue,
        }
    }

    fn layout(&self) -> RequestLayout {
        match self.storage_kind() {
            StorageKind::FileSystem => RequestLayout::SmallFile,
            StorageKind::KeyValue => RequestLayout::Object,
        }
    }

    fn target(&self) -> String {
        self.backend.target()
    }

    fn load_state(&self) -> Result<LoadState> {
        self.lock.iter().try_for_each(DirectoryLock::take)?;
        let Some(marker) = self.backend.read_marker()? else { return Ok(LoadState::Absent) };
        load_state(&marker).ok_or_else(|| {
            let what = "has a working set of `esker workbench`; name another target";
            Error::new(Kind::NotEmpty, format!("{} {what}", self.backend.target()))
        })
    }

    fn load(&self, plan: &ReplayPlan) -> Result<()> {
        self.check(plan)?;
        let data = LoadedData::of(plan);
        self.backend.create_marker(&load_marker(data, false))?;
        self.lock.iter().try_for_each(DirectoryLock::take)?;
        self.create_objects(plan)
            .and_then(|()| self.backend.write_marker(&load_marker(data, true)))
            .inspect_err(|_| drop(self.clear()))
    }

    fn drop_caches(&self) -> Result<()> {
        self.backend.drop_caches()
    }

    fn connect(&self, rank: u32, plan: &ReplayPlan) -> Result<Box<dyn ReplayConnection + '_>> {
        let connection = self.backend.connect(rank, &size(plan))?;
        Ok(Box::new(ObjectConnection { connection }))
    }

    fn clear(&self) -> Result<()> {
        // Fails for a working set that is not a replay's. Without a marker the backend may still have
        // what a kill has left.
        let state = self.load_state()?;
        self.backend.clear().map_err(|error| match (state, error.kind()) {
            (LoadState::Absent, Kind::NotFound) => {
                let what = format!("{} has no data of a replay", self.backend.target());
                Error::new(Kind::NotFound, what)
            }
            _ => error,
        })?;
        self.lock.iter().for_each(DirectoryLock::release);
        self.backend.finish(false)
    }

    fn finish(&self, is_kept: bool) -> Result<()> {
        self.backend.finish(is_kept)
    }
}

struct ObjectConnection<'a> {
    connection: Box<dyn BackendConnection + 'a>,
}

impl ReplayConnection for ObjectConnection<'_> {
    fn call(&mut self, step: &ReplayStep, buffer: &mut Vec<u8>) -> Result<bool> {
        let object = object(step.file, step.object);
        match step.operation {
            TraceOperation::Read => self.connection.read(object, buffer)?,
            TraceOperation::Write => match self.connection.create(object, buffer) {
                Err(error) if error.kind() == Kind::Exists => {
                    self.connection.delete(object)?;
                    self.connection.create(object, buffer)?;
                }
                created => created?,
            },
            _ => return Ok(false),
        }
        Ok(true)
    }
}
