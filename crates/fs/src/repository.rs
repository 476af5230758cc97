// SPDX-License-Identifier: Apache-2.0
//! Repository: the change sets and names of one store. Opens namespaces, begins sessions and
//! publishes results.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::memory::available_bytes;
use esker_base::store::{SharedStore, Store, concurrent};
use esker_base::{Clock, Error, Kind, Result};
use esker_extent::{ExtentFamily, SegmentRun, logged_runs};
use esker_table::LogContent;
use esker_table::manifest::{JobMembership, Manifest, SetId, SetState};
use esker_table::schema::Row;
use esker_table::set_writer::SetWriter;
use esker_table::tables::TableSource;
use esker_table::tree::{Tree, TreeSetup};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::data::DataLogs;
use crate::inode::{INODE, Inode};
use crate::job::joined_job;
use crate::names::name_table::SeenPart;
use crate::names::publication::{PendingPublication, publish_held};
use crate::names::{self, IfTaken, PublishedName};
use crate::retention::condemn;
use crate::retention::dependency::{self, SetDependency};
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::provisional_markers::ProvisionalMarkers;
use crate::retention::session_marker;
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
        let store = &**self.store();
        // Before the session can fill the store.
        store.keep_reserve();
        // Put markers first, then check what they hold: see `marker.rs`. If a collector swept them
        // meanwhile, the set cannot begin: see `condemn.rs`.
        let (mut markers, expected) = self.hold_bases(set, bases)?;
        let stack = load_stack_expecting(&self.source, bases, &expected)?;
        markers.may_begin(&*self.clock);
        let mut manifest = Manifest::new(bases.to_vec(), self.clock.now_ns());
        manifest.job = job;
        manifest.properties.clone_from(&options.properties);
        let data = Arc::new(DataLogs::new(self.store().clone(), set, manifest.epoch << 32));
        let create = || Tree::create(self.setup(&options, &data), set, manifest);
        let (tree, ()) = concurrent::try_join(store, create, || self.warm_root(&stack))?;
        let session = self.session(stack, tree, data, &options)?;
        markers.keep();
        Ok(session)
    }

    /// Puts the markers of `set`. On a far store, also lists the numbers of the manifests of
    /// `bases` concurrently, which saves a round trip when they are read.
    fn hold_bases<'a>(
        &'a self,
        set: SetId,
        bases: &'a [SetId],
    ) -> Result<(ProvisionalMarkers<'a>, HashMap<SetId, u64>)> {
        let store = &**self.store();
        if store.requests_at_once() <= 1 {
            return Ok((ProvisionalMarkers::hold(store, set, bases)?, HashMap::new()));
        }
        // Damage shows when the manifest is read.
        let number = |base: &SetId| Ok((*base, Manifest::newest_number(store, *base).ok()));
        let numbers = || concurrent::try_map(store, bases, number);
        let hold = || ProvisionalMarkers::hold(store, set, bases);
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
        let store = &**self.store();
        let stack = load_stack(&self.source, &manifest.bases)?;
        // Replay appends nothing to them; their numbers begin with the epoch that the tree claims.
        let data = Arc::new(DataLogs::new(self.store().clone(), set, 0));
        let mut has_all = |logged: LogContent| match logged {
            LogContent::Row(_, row) => self.has_data(set, row, &data),
            LogContent::Family(_, operation) => self.has_bytes(set, logged_runs(operation), &data),
            _ => Ok(true),
        };
        let epoch = manifest.epoch + 1;
        let tree = Tree::resume_from(self.setup(options, &data), set, manifest, &mut has_all);
        let tree = tree.map_err(|error| fenced_or(error, store, set, epoch))?;
        data.number_from(tree.manifest().epoch << 32);
        let session = self.session(stack, tree, data, options)?;
        session.seal_taken_over()?;
        Ok(session)
    }

    fn session(
        &self,
        stack: Vec<Arc<BaseSet>>,
        tree: Tree,
        data: Arc<DataLogs>,
        options: &SessionOptions,
    ) -> Result<Session> {
        let layers = LayerStack::new(self.source.clone(), stack, Some(tree));
        let namespace = Namespace::new(layers, options.identity.clone())?;
        let session = Session::new(namespace, data, self.clock.clone(), self.set_ids.clone());
        session.make_root(&options.new_root)?;
        Ok(session)
    }

    fn setup(&self, options: &SessionOptions, data: &Arc<DataLogs>) -> TreeSetup {
        let data = data.clone();
        TreeSetup {
            schema: &INODE,
            family: &ExtentFamily,
            source: self.source.clone(),
            clock: self.clock.clone(),
            options: options.tree.clone(),
            barrier: Arc::new(move || data.sync()),
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

/// Returns why the resume of `set` under `epoch` failed with `error`: a process that takes the
/// session over deletes the logs that are still being replayed.
fn fenced_or(error: Error, store: &dyn Store, set: SetId, epoch: u64) -> Error {
    match Manifest::load(store, set) {
        Ok(now) if error.kind() != Kind::Conflict && now.epoch > epoch => {
            let what = format!("another process took over @{set} while it was resumed");
            Error::new(Kind::Fenced, what)
        }
        _ => error,
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

impl Session {
    /// Completes the change set and publishes it as `name`: everything written so far becomes one
    /// snapshot on which others can build, and survives power loss once this returns. Concurrent
    /// changes wait, and then fail with `Closed`. Cost: a flush, two markers, a commit and the
    /// name, independent of the size of the namespace.
    ///
    /// # Errors
    /// `Exists` if the name is taken: publish it under another name. If the name was taken only
    /// during the call, the session is complete and takes no more changes. `Fenced`; errors of the
    /// store: the call may then be repeated.
    pub fn publish(&self, name: &str) -> Result<SetId> {
        let store = self.layers().source().store.clone();
        let set = self.set();
        let seen: Arc<Mutex<Option<SeenPart>>> = Arc::default();
        // Before the commit, which proves that no collection has condemned the set.
        let check = {
            let (store, clock, name) = (store.clone(), self.clock().clone(), name.to_owned());
            let seen = seen.clone();
            move || {
                let see = || names::see_free_for(&*store, &*clock, &name, set);
                let hold = || marker::hold(&*store, set, &MarkerHolder::Name(name.clone()));
                *seen.lock() = Some(concurrent::try_join(&*store, see, hold)?.0);
                Ok(())
            }
        };
        let known = match self.complete_if(check)? {
            true => self.tree().committed(),
            // It was complete before, and a collection may have condemned it.
            false => Arc::new(condemn::load_live(&*store, set)?),
        };
        let publication = PendingPublication {
            set,
            known: &known,
            name,
            if_taken: IfTaken::Refuse,
            seen: seen.lock().take().expect("the name is looked up before the set is complete"),
            was_session: true,
        };
        let publish = || publish_held(&*store, &**self.clock(), publication);
        let delete_logs = || best_effort(self.tree().delete_logs());
        concurrent::try_join(&*store, publish, delete_logs)?;
        Ok(set)
    }

    /// Completes the change set: everything written so far survives power loss once this returns,
    /// and the set is kept until it, its name, or the job of which it is a part is given up
    /// ([`Repository::abandon`]). Concurrent changes wait, and then fail with `Closed`. Does
    /// nothing if the set is already complete.
    ///
    /// # Errors
    /// `Fenced`; `Closed` after a failed write; errors of the store.
    pub fn complete(&self) -> Result<SetId> {
        self.complete_if(|| Ok(()))?;
        best_effort(self.tree().delete_logs())?;
        Ok(self.set())
    }

    /// Like [`Session::complete`] if `check` succeeds, and also calls `check` if the set is already
    /// complete; otherwise the session stays as it is, flushed. Its logs stay. Returns whether the
    /// set was completed by this call, after `check`.
    fn complete_if(&self, check: impl Fn() -> Result<()> + Send + Sync + 'static) -> Result<bool> {
        let set = self.set();
        let is_complete = || self.tree().manifest().state == SetState::Sealed;
        if is_complete() {
            return check().map(|()| false);
        }
        let _shown = self.files().show();
        self.write_back_metadata()?;
        // A change made between the flush and the commit would be in no table, and in no log that
        // is ever read, although it was acknowledged.
        self.alone(|| {
            if is_complete() {
                // Completed by another thread, for which this one waited.
                return check().map(|()| false);
            }
            let committed = self.tree().complete(complete_manifest, check);
            match &committed {
                Ok(Err(_)) => {}
                Ok(Ok(_)) => self.tree().close(format!(
                    "change set {set} is complete and takes no more changes; begin a session on \
                     top of it"
                )),
                // The commit did not happen, and may be retried once there is room.
                Err(error) if error.kind() == Kind::NoSpace && !is_complete() => {}
                // The commit may have happened; a log that continued would then never be read.
                Err(_) => self.tree().close(format!(
                    "it is unknown whether change set {set} is complete; publish @{set} again"
                )),
            }
            committed?.map(|_| true)
        })
    }

    /// Publishes the session's current state as `name` and continues: the snapshot is a separate
    /// change set that shows this one's tables.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Fenced`, also if a concurrent collection had a grace period
    /// shorter than this took (take the snapshot again); errors of the store.
    pub fn snapshot(&self, name: &str) -> Result<SetId> {
        let store = self.layers().source().store.clone();
        let snapshot = self.draw_set_id();
        let seen = names::see_free_for(&*store, &**self.clock(), name, snapshot)?;
        let shown = self.files().show();
        self.write_back_metadata()?;
        // Held before its tables are listed: a collector that finds one of them obsolete sees this
        // marker, and keeps them until the snapshot has a manifest, or cannot get one any more.
        let needed = dependency::of(snapshot, &self.tree().manifest());
        let hold = |needed: &SetDependency| marker::hold(&*store, needed.set, &needed.holder);
        concurrent::try_map(&*store, &needed, hold)?;
        self.hold_own_set(snapshot)?;
        let own = self.tree().commit(|_| {})?;
        drop(shown);
        let mut manifest = Manifest::new(own.bases.clone(), self.clock().now_ns());
        manifest.state = SetState::Sealed;
        manifest.last_seq = own.last_seq;
        manifest.tables.clone_from(&own.tables);
        manifest.data_sets.clone_from(&own.data_sets);
        manifest.properties.clone_from(&own.properties);
        manifest.writer = own.writer.map(SetWriter::released);
        // Nothing else holds it: without its name it is garbage.
        marker::hold(&*store, snapshot, &MarkerHolder::Name(name.to_owned()))?;
        manifest.claim(&*store, snapshot, self.clock().now_ns())?;
        let publication = PendingPublication {
            set: snapshot,
            known: &manifest,
            name,
            if_taken: IfTaken::Refuse,
            seen,
            was_session: false,
        };
        publish_held(&*store, &**self.clock(), publication)?;
        self.keep_logs_of(snapshot);
        Ok(snapshot)
    }

    /// Marks the session's set as shown by `snapshot`: its data logs stay from now on, and its
    /// tables refer only to existing ones. Waits for a thread that reclaims data logs.
    fn hold_own_set(&self, snapshot: SetId) -> Result<()> {
        let _content = self.pin_data_logs();
        marker::hold(&*self.layers().source().store, self.set(), &MarkerHolder::Set(snapshot))
    }
}
