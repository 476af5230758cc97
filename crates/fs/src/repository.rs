// SPDX-License-Identifier: Apache-2.0
//! Repository: the change sets and names of one store. Opens namespaces, begins and resumes
//! sessions. What sessions wrote is published by `session/publish.rs`.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::memory::available_bytes;
use esker_base::store::{SharedStore, concurrent};
use esker_base::{Clock, Error, Kind, Result};
use esker_extent::{ExtentFamily, SegmentRun, logged_runs};
use esker_table::LogContent;
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};
use esker_table::schema::Row;
use esker_table::tables::TableSource;
use esker_table::tree::{LogCompanion, Tree, TreeSetup};
use hashbrown::HashMap;

use crate::data::DataLogs;
use crate::inode::{INODE, Inode};
use crate::job::joined_job;
use crate::names::{self, PublishedName};
use crate::retention::condemn;
use crate::retention::provisional_markers::ProvisionalMarkers;
use crate::retention::session_marker;
use crate::session::create_progress::CreateProgress;
use crate::session::set_ids::SetIds;
use crate::session::{Session, SessionOptions};
use crate::stack::identity::Identity;
use crate::stack::layers::{BaseSet, LayerStack, load_stack, load_stack_expecting};
use crate::stack::namespace::Namespace;

/// Maximum attempts to resume a session to which other processes commit meanwhile.
const RESUMES_MAX: usize = 4;
/// Memory for parsed blocks if the available memory is unknown.
pub const CACHE_BYTES: u64 = 256 << 20;
/// The default cache takes this fraction of the available memory, within these bounds.
const CACHE_SHARE: u64 = 16;
const CACHE_BYTES_MIN: u64 = 64 << 20;
const CACHE_BYTES_MAX: u64 = 2 << 30;

/// Returns the default memory for parsed blocks: a sixteenth of the memory available to this
/// process, from 64 MiB to 2 GiB. It is allocated as blocks are read.
#[must_use]
pub fn default_cache_bytes() -> u64 {
    let share = available_bytes().map(|bytes| bytes / CACHE_SHARE);
    share.map_or(CACHE_BYTES, |bytes| bytes.clamp(CACHE_BYTES_MIN, CACHE_BYTES_MAX))
}

/// The change sets and names of one store. Share freely; clones share the block cache.
///
/// ```
/// use std::sync::Arc;
/// use esker_base::store::MemoryStore;
/// use esker_fs::repository::Repository;
/// use esker_fs::session::SessionOptions;
/// use esker_fs::stack::identity::Identity;
/// use esker_fs::stack::namespace::FollowLinks;
///
/// let repository = Repository::new(Arc::new(MemoryStore::new()));
/// let options = || SessionOptions { identity: Identity::root(), ..SessionOptions::default() };
/// let session = repository.begin(&[], options())?;
/// session.mkdir(session.root(), b"base", 0o755)?;
/// let base = session.publish("base")?;
/// // A session on top of it adds one more layer; the base stays as it is.
/// let session = repository.begin(&[base], options())?;
/// session.mkdir(session.root(), b"added", 0o755)?;
/// let both = session.publish("both")?;
/// let stack = repository.open(&[both], Identity::root())?;
/// assert!(stack.stat("/base", FollowLinks::No)?.is_directory());
/// assert!(stack.stat("/added", FollowLinks::No)?.is_directory());
/// assert_eq!(repository.resolve("base")?.set, base);
/// # Ok::<(), esker_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Repository {
    source: TableSource,
    clock: Arc<dyn Clock>,
    set_ids: Arc<SetIds>,
}

impl Repository {
    /// Opens the repository in `store`, with a block cache of up to a sixteenth of the memory
    /// available to this process, at least 64 MiB and at most 2 GiB.
    #[must_use]
    pub fn new(store: SharedStore) -> Self {
        Self::with(store, default_cache_bytes(), Arc::new(SystemClock))
    }

    /// Opens the repository in `store` with a block cache of `cache_bytes` (0: none) and a clock.
    #[must_use]
    pub fn with(store: SharedStore, cache_bytes: u64, clock: Arc<dyn Clock>) -> Self {
        Self { source: TableSource::new(store, cache_bytes), clock, set_ids: Arc::default() }
    }

    /// Makes new change sets get identities derived from `seed`, so that a simulation can replay
    /// its runs. Identities of two repositories with the same seed collide.
    #[must_use]
    pub fn with_set_ids(self, seed: u64) -> Self {
        Self { set_ids: Arc::new(SetIds::from_seed(seed)), ..self }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &SharedStore {
        &self.source.store
    }

    /// The source of tables.
    #[must_use]
    pub fn source(&self) -> &TableSource {
        &self.source
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Returns the identity of a new change set.
    pub(crate) fn draw_set_id(&self) -> SetId {
        self.set_ids.draw()
    }

    /// Runs `act`, which eventually frees room. If the store is full, retries with a part of the
    /// room reserved for that, until none is left. Releases one part at a time, because a live
    /// writer may take what is released.
    pub(crate) fn with_reserve<T>(&self, mut act: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match act() {
                Err(error) if error.kind() == Kind::NoSpace && self.store().release_reserve() => {}
                done => return done,
            }
        }
    }

    /// Returns the set for which `name` stands.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn resolve(&self, name: &str) -> Result<PublishedName> {
        names::resolve(&**self.store(), name)
    }

    /// Returns all published names, sorted.
    pub fn names(&self) -> Result<Vec<PublishedName>> {
        names::all(&**self.store())
    }

    /// Opens the stack of `bases`, of which earlier ones win, and everything they build on. Cost:
    /// two store requests per change set of any size.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` if a set is not sealed.
    pub fn open(&self, bases: &[SetId], identity: Identity) -> Result<Namespace> {
        let stack = load_stack(&self.source, bases)?;
        Namespace::new(LayerStack::new(self.source.clone(), stack, None), identity)
    }

    /// Begins a session on top of `bases`, of which earlier ones win. If none of them has a root
    /// directory, the session creates one that its user owns ([`SessionOptions::new_root`]). Cost:
    /// as [`Repository::open`], plus a marker for each base, one for the session itself, and a
    /// manifest.
    ///
    /// # Errors
    /// As [`Repository::open`].
    pub fn begin(&self, bases: &[SetId], options: SessionOptions) -> Result<Session> {
        self.begin_as(self.draw_set_id(), None, bases, options)
    }

    /// Like [`Repository::begin`], for the new `set`, which may belong to a job.
    pub(crate) fn begin_as(
        &self,
        set: SetId,
        job: Option<JobMembership>,
        bases: &[SetId],
        options: SessionOptions,
    ) -> Result<Session> {
        if options.own_identities && !bases.is_empty() {
            let what = "an insertable session cannot have bases";
            return Err(Error::new(Kind::Invalid, what));
        }
        let store = &**self.store();
        // Before the session can fill the store.
        store.keep_reserve();
        // Put markers first, then check what they hold: see `marker.rs`. If a collector swept them
        // meanwhile, the set cannot begin: see `condemn.rs`.
        let (mut markers, expected) = self.hold_bases(set, bases)?;
        let stack = load_stack_expecting(&self.source, bases, &expected)?;
        markers.may_begin(set, &*self.clock);
        let mut manifest = Manifest::new(bases.to_vec(), self.clock.now_ns());
        manifest.job = job;
        manifest.has_own_identities = options.own_identities;
        manifest.properties.clone_from(&options.properties);
        let data = Arc::new(DataLogs::new(self.store().clone(), set, manifest.epoch << 32));
        let creates = options.tracks_creates.then(Arc::<CreateProgress>::default);
        let create =
            || Tree::create_drawn(self.setup(&options, &data, creates.as_ref()), set, manifest);
        let (tree, ()) = concurrent::try_join(store, create, || self.warm_root(&stack))?;
        let session = self.session(stack, tree, (data, creates), &options)?;
        markers.keep();
        Ok(session)
    }

    /// Puts the markers of `set`. On a far store, also lists the numbers of the manifests of
    /// `bases` concurrently, which saves a round trip when they are read.
    fn hold_bases(
        &self,
        set: SetId,
        bases: &[SetId],
    ) -> Result<(ProvisionalMarkers<'_>, HashMap<SetId, u64>)> {
        let store = &**self.store();
        if store.requests_at_once() <= 1 {
            return Ok((ProvisionalMarkers::hold_session(store, set, bases)?, HashMap::new()));
        }
        // Damage shows when the manifest is read.
        let number = |base: &SetId| Ok((*base, Manifest::newest_number(store, *base).ok()));
        let numbers = || concurrent::try_map(store, bases, number);
        let hold = || ProvisionalMarkers::hold_session(store, set, bases);
        let (markers, numbers) = concurrent::try_join(store, hold, numbers)?;
        let known = numbers.into_iter().filter_map(|(base, number)| Some((base, number?)));
        Ok((markers, known.collect()))
    }

    /// On a far store, reads the records of `stack` that the session looks up first.
    fn warm_root(&self, stack: &[Arc<BaseSet>]) -> Result<()> {
        if self.store().requests_at_once() <= 1 {
            return Ok(());
        }
        LayerStack::new(self.source.clone(), stack.to_vec(), None).warm_root()
    }

    /// Resumes the session of `set`, which its writer left: fences that writer, and recovers its
    /// log up to the first operation whose file data did not survive. Copies the bytes of files
    /// that the old writer may still write in place.
    ///
    /// # Errors
    /// `Conflict` if another process still writes it, unless it is to be taken over
    /// ([`SessionOptions::take_over`]); `NotFound`, also if it was given up; `Invalid` if the set
    /// is sealed; `Corrupt`.
    pub fn resume(&self, set: SetId, options: SessionOptions) -> Result<Session> {
        let store = &**self.store();
        for attempt in 1.. {
            let (is_session, manifest) = concurrent::try_join(
                store,
                || session_marker::is_held(store, set),
                || condemn::load_live(store, set),
            )?;
            // It has had its marker since before it began, unless it was given up, or published
            // between the two answers.
            if attempt == 1 && manifest.state == SetState::Open && !is_session {
                continue;
            }
            check_is_session(set, &manifest, is_session)?;
            self.check_not_held(set, &manifest, &options)?;
            match self.resume_from(set, manifest, &options) {
                // Another process has committed since the manifest was read, perhaps a writer that
                // is starting.
                Err(error) if error.kind() == Kind::Conflict && attempt < RESUMES_MAX => {}
                resumed => return resumed,
            }
        }
        unreachable!("the last attempt returns")
    }

    fn resume_from(
        &self,
        set: SetId,
        manifest: Manifest,
        options: &SessionOptions,
    ) -> Result<Session> {
        let stack = load_stack(&self.source, &manifest.bases)?;
        // Replay appends nothing to them; their numbers begin with the epoch that the tree claims.
        let data = Arc::new(DataLogs::new(self.store().clone(), set, 0));
        let mut has_all = |logged: LogContent| match logged {
            LogContent::Row(_, row) => self.has_data(set, row, &data),
            LogContent::Family(_, operation) => self.has_bytes(set, logged_runs(operation), &data),
            _ => Ok(true),
        };
        let creates = options.tracks_creates.then(Arc::<CreateProgress>::default);
        let setup = self.setup(options, &data, creates.as_ref());
        let tree = Tree::resume(setup, set, Some(manifest), &mut has_all)?;
        data.number_from(tree.manifest().epoch << 32);
        let session = self.session(stack, tree, (data, creates), options)?;
        session.seal_taken_over()?;
        Ok(session)
    }

    fn session(
        &self,
        stack: Vec<Arc<BaseSet>>,
        tree: Tree,
        (data, creates): (Arc<DataLogs>, Option<Arc<CreateProgress>>),
        options: &SessionOptions,
    ) -> Result<Session> {
        let layers = LayerStack::new(self.source.clone(), stack, Some(tree));
        let namespace = Namespace::new(layers, options.identity.clone())?;
        let durability = options.tree.durability;
        let clocks = (self.clock.clone(), self.set_ids.clone());
        let session = Session::new(namespace, (data, creates), durability, clocks);
        session.make_root(&options.new_root)?;
        Ok(session)
    }

    fn setup(
        &self,
        options: &SessionOptions,
        data: &Arc<DataLogs>,
        creates: Option<&Arc<CreateProgress>>,
    ) -> TreeSetup {
        let data = data.clone();
        let log_companion = creates.cloned().map(|creates| {
            let clock = self.clock.clone();
            Arc::new(move |put: &mut dyn FnMut(&Row)| creates.pass(&*clock, put)) as LogCompanion
        });
        TreeSetup {
            schema: &INODE,
            family: &ExtentFamily,
            source: self.source.clone(),
            clock: self.clock.clone(),
            options: options.tree.clone(),
            sync_dependencies: Arc::new(move || data.sync()),
            log_companion,
            heartbeat: options.heartbeat.clone(),
        }
    }

    /// True if the bytes of an operation's segments survived, as far as they are in logs of `set`
    /// and have checksums. Bytes in logs of other sets do not count: they were durable before the
    /// operation was logged, or have no checksum that could be compared. A failed read of them
    /// means that they were damaged or deleted later; readers of the file report that, and the
    /// operations that follow stay.
    fn has_bytes(&self, set: SetId, runs: &[SegmentRun], data: &DataLogs) -> Result<bool> {
        for segment in runs.iter().map(|run| &run.first) {
            let Some(place) = segment.place.filter(|place| place.set == set) else { continue };
            data.inherit(place.log);
            let Some(checksum) = segment.checksum else { continue };
            // The segment may be a whole file.
            match crate::data::has_checksum(&**self.store(), place, segment.length, checksum) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Corrupt) => {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// True if the bytes to which a logged record of `set` refers survived.
    fn has_data(&self, set: SetId, row: &Row, data: &DataLogs) -> Result<bool> {
        let inode = Inode::of_row(row)?;
        // Bytes without a checksum were synced before a record referred to them.
        if inode.extent.is_none_or(|extent| extent.set != set || !extent.is_checked()) {
            return Ok(true);
        }
        match crate::data::read_all(&**self.store(), &inode, &mut |_| Ok(())) {
            Ok(()) => {
                inode.extent.iter().for_each(|extent| data.inherit(extent.log));
                Ok(true)
            }
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::Corrupt) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Changes a set's manifest to the state of its writer's last commit.
pub(crate) fn complete_manifest(manifest: &mut Manifest) {
    manifest.state = SetState::Sealed;
    if let Some(writer) = &mut manifest.writer {
        writer.is_writing = false;
    }
}

/// Ignores the failure of a step after the decisive one: the caller's request is done, and a
/// collection does the rest. A closed store is reported, since it does nothing any more.
pub(crate) fn best_effort(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.kind() == Kind::Closed => Err(error),
        _ => Ok(()),
    }
}

/// The error of using the session of `set`.
pub(crate) fn given_up(set: SetId) -> Error {
    Error::new(Kind::NotFound, format!("@{set} was given up; the next `esker gc` deletes it"))
}

/// Fails if `set`, of `manifest`, was given up, or is left over from an unfinished join of a job's
/// parts: it shows their tables, but conflicts have not been decided.
fn check_is_session(set: SetId, manifest: &Manifest, is_session: bool) -> Result<()> {
    if manifest.state == SetState::Open && (!is_session || manifest.is_given_up) {
        return Err(given_up(set));
    }
    match joined_job(manifest) {
        Some(job) if manifest.state == SetState::Open => {
            let what = format!(
                "@{set} is left over from an unfinished publication of job {job}; give it up with \
                 `esker session drop @{set}`, and publish the job again"
            );
            Err(Error::new(Kind::Invalid, what))
        }
        _ => Ok(()),
    }
}
