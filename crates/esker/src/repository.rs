// SPDX-License-Identifier: Apache-2.0
//! Repository: the snapshots, sessions and names in one store.

use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::{Clock, Result};
use esker_fs::job::JobId;
use esker_fs::maintenance::squash::{SquashOptions, SquashReport};
use esker_fs::maintenance::verify::{VerifyOptions, VerifyReport};
use esker_fs::names::delete::FormerName;
use esker_fs::names::{self, IfTaken, PublishedName};
use esker_fs::repository::{Repository as SetRepository, default_cache_bytes};
use esker_fs::retention::gc::{GcOptions, GcReport};
use esker_fs::retention::read_lease::ReadLease;
use esker_fs::session::SessionOptions;
use esker_fs::session::open_sessions::OpenSession;
use esker_fs::stack::identity::Identity;
use esker_table::manifest::SetId;
use parking_lot::Mutex;

use crate::job::Job;
use crate::namespace::Namespace;
use crate::session_builder::SessionBuilder;
use crate::snapshot_ref::SnapshotRef;
use crate::store::Store;
use crate::tree_handle::SnapshotTree;

/// The snapshots, sessions and names in one store.
///
/// A *snapshot* is a published change set with everything that it builds on; it has a name and
/// never changes. A *session* is a change set that one writer makes, on top of any snapshots.
/// Clones are cheap, share the cache of blocks, and may be used by several threads.
///
/// # Examples
/// ```
/// use esker::Repository;
///
/// let repository = Repository::create("memory:")?;
/// let session = repository.session().begin()?;
/// session.create_dir_all("/runs/1")?;
/// session.write("/runs/1/input", "temperature = 300")?;
/// session.publish("prepared")?;
///
/// let snapshot = repository.snapshot("prepared")?;
/// assert_eq!(snapshot.read("/runs/1/input")?, b"temperature = 300");
/// assert_eq!(repository.names()?[0].name, "prepared");
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Repository {
    pub(crate) sets: SetRepository,
    pub(crate) identity: Identity,
}

/// Options for opening a repository: [`Repository::open`] and [`Repository::create`] take the
/// defaults.
///
/// # Examples
/// ```
/// use esker::{Identity, RepositoryOptions};
///
/// let root = RepositoryOptions::new().cache_bytes(64 << 20).identity(Identity::root());
/// let repository = root.create("memory:")?;
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RepositoryOptions {
    cache_bytes: Option<u64>,
    identity: Identity,
    clock: Arc<dyn Clock>,
}

impl Default for RepositoryOptions {
    fn default() -> Self {
        Self { cache_bytes: None, identity: Identity::of_process(), clock: Arc::new(SystemClock) }
    }
}

impl RepositoryOptions {
    /// The defaults: the user of this process, and a cache of a sixteenth of the memory that is
    /// available to it, from 64 MiB to 2 GiB.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Memory for blocks that were read; 0 for none. It is allocated as blocks are read.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// The user whose permissions apply, and who owns new files. Mode bits protect users of one
    /// program from each other, not the store: anybody who may read the store can read everything
    /// in it.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// The clock, which a simulation replaces.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Opens the repository at `url`, as [`Repository::open`] does.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(&self, url: &str) -> Result<Repository> {
        Ok(self.open_in(Store::open(url)?))
    }

    /// Makes a repository at `url`, as [`Repository::create`] does.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn create(&self, url: &str) -> Result<Repository> {
        Ok(self.open_in(Store::create(url)?))
    }

    /// Opens the repository in `store`. No request.
    #[must_use]
    pub fn open_in(&self, store: Store) -> Repository {
        let objects = store.objects().clone();
        let cache_bytes = self.cache_bytes.unwrap_or_else(default_cache_bytes);
        let sets = SetRepository::with(objects, cache_bytes, self.clock.clone());
        Repository { sets, identity: self.identity.clone() }
    }
}

impl Repository {
    /// Opens the repository at `url` ([`Store`] lists the kinds of URLs). Cost: one read.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(url: &str) -> Result<Self> {
        RepositoryOptions::new().open(url)
    }

    /// Makes a repository at `url`, where there is nothing yet. Survives power loss once it
    /// returns.
    ///
    /// # Errors
    /// As [`Store::create`].
    pub fn create(url: &str) -> Result<Self> {
        RepositoryOptions::new().create(url)
    }

    /// Opens the repository in `store`. No request.
    #[must_use]
    pub fn open_in(store: Store) -> Self {
        RepositoryOptions::new().open_in(store)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> Store {
        Store::of_shared(self.sets.store().clone())
    }

    /// Opens a snapshot for reading, by name or id. Cost: a look-up of the name, two requests for
    /// each change set that it consists of, of any size, and a look-up of the root directory. Files
    /// are read on demand.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot.
    pub fn snapshot(&self, snapshot: impl Into<SnapshotRef>) -> Result<Namespace> {
        self.stack([snapshot])
    }

    /// Opens several snapshots as one tree: directories merge, and if two have a file at one path,
    /// the tree shows that of the earlier snapshot. Cost: as [`Repository::snapshot`].
    ///
    /// While the tree is open, nothing in it is collected, even if its names are deleted
    /// ([`Namespace::check_lease`]).
    ///
    /// # Errors
    /// As [`Repository::snapshot`].
    pub fn stack(
        &self,
        snapshots: impl IntoIterator<Item = impl Into<SnapshotRef>>,
    ) -> Result<Namespace> {
        let sets = self.resolve_all(snapshots)?;
        let layers = self.sets.open(&sets, self.identity.clone())?;
        let lease_failure = Arc::new(Mutex::new(None));
        let report = lease_failure.clone();
        let lease = ReadLease::after_delay(self.sets.clone(), sets, move |error| {
            *report.lock() = Some(error);
        })?;
        Ok(Namespace::new(Arc::new(SnapshotTree { layers, _lease: lease, lease_failure })))
    }

    /// Describes a session to begin, or to resume.
    pub fn session(&self) -> SessionBuilder {
        SessionBuilder::new(self, None)
    }

    /// The job of that id, whose ranks each write a part.
    #[must_use]
    pub fn job(&self, id: JobId) -> Job {
        Job::new(self.clone(), id)
    }

    /// Returns the id of a snapshot.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for text after an `@` that is not an id.
    pub fn resolve(&self, snapshot: impl Into<SnapshotRef>) -> Result<SetId> {
        snapshot.into().resolve(&self.sets)
    }

    pub(crate) fn resolve_all(
        &self,
        snapshots: impl IntoIterator<Item = impl Into<SnapshotRef>>,
    ) -> Result<Vec<SetId>> {
        snapshots.into_iter().map(|snapshot| self.resolve(snapshot)).collect()
    }

    /// Returns all published names, sorted. Cost: a read of each part of the name table.
    ///
    /// # Errors
    /// `Corrupt`; errors of the store.
    pub fn names(&self) -> Result<Vec<PublishedName>> {
        self.sets.names()
    }

    /// Gives a complete change set a name, in addition to those it has. This publishes a set that
    /// [`Session::complete`](crate::Session::complete) left, or gives a snapshot another name.
    /// Survives power loss once it returns.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Invalid` if the set is not complete.
    pub fn publish(&self, set: SetId, name: &str) -> Result<()> {
        self.sets.publish(set, name)
    }

    /// Renames a snapshot. Readers find it under at least one of the two names.
    ///
    /// # Errors
    /// `NotFound` if there is no `old`; `Exists` if `new` is taken.
    pub fn rename(&self, old: &str, new: &str) -> Result<()> {
        self.sets.rename(old, new, IfTaken::Refuse).map(drop)
    }

    /// Deletes a name. Its snapshot stays for the grace period of collections, an hour, and as long
    /// as other names, sessions or readers need it; until then [`Repository::undelete`] restores
    /// the name. Survives power loss once it returns.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.sets.delete(name)
    }

    /// Gives a name that was deleted back to its snapshot.
    ///
    /// # Errors
    /// `NotFound` if the snapshot was collected, or none had the name; `Exists` if it is taken.
    pub fn undelete(&self, name: &str) -> Result<PublishedName> {
        self.sets.undelete(name)
    }

    /// Returns the names that were deleted or replaced and whose snapshots are still there.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn former_names(&self) -> Result<Vec<FormerName>> {
        self.sets.former_names()
    }

    /// Returns the sessions that are not published, newest first: those that somebody writes, and
    /// those that a crash has left.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn open_sessions(&self) -> Result<Vec<OpenSession>> {
        self.sets.open_sessions()
    }

    /// Gives up a session that its writer left, for example one of [`Repository::open_sessions`]:
    /// no process can resume it, and the next collection deletes its change set.
    ///
    /// # Errors
    /// `Conflict`, which names the writer, if another process still writes it; `NotFound`.
    pub fn give_up(&self, session: SetId) -> Result<()> {
        self.sets.give_up(session, &SessionOptions::default())
    }

    /// Merges a stack of snapshots into one change set and publishes it as `name`: it shows the
    /// same tree, and reading it costs as little as if one session had written it. File data is not
    /// copied; [`Repository::squash_with`] can. Cost: every table is read twice, and every visible
    /// record written once.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `NotFound`; `Corrupt` if a table is damaged.
    pub fn squash(
        &self,
        snapshots: impl IntoIterator<Item = impl Into<SnapshotRef>>,
        name: &str,
    ) -> Result<SquashReport> {
        self.squash_with(snapshots, name, &SquashOptions::default())
    }

    /// Like [`Repository::squash`], with options: to copy file data, so that the result needs no
    /// other change set, or to limit the threads.
    ///
    /// # Errors
    /// As [`Repository::squash`].
    pub fn squash_with(
        &self,
        snapshots: impl IntoIterator<Item = impl Into<SnapshotRef>>,
        name: &str,
        options: &SquashOptions,
    ) -> Result<SquashReport> {
        let sets = self.resolve_all(snapshots)?;
        names::check(name)?;
        if names::is_taken(&**self.sets.store(), name)? {
            return Err(names::taken(name));
        }
        let mut options = options.clone();
        options.writer = options.writer.or_else(|| Some(SessionBuilder::private_writer()));
        let (set, report) = self.sets.squash(&sets, &options)?;
        if let Err(error) = self.sets.publish(set, name) {
            // Best effort: the next collection gives it up.
            drop(self.sets.abandon(set));
            return Err(error);
        }
        Ok(report)
    }

    /// Deletes everything that no name, session or reader needs any more. Safe beside writers and
    /// readers, and may be interrupted. Cost: three listings, two reads for each change set, and a
    /// request for each object that is deleted.
    ///
    /// # Errors
    /// Errors of the store. Damaged change sets are in the report.
    pub fn collect_garbage(&self, options: &GcOptions) -> Result<GcReport> {
        self.sets.gc(options)
    }

    /// Reads everything that `options` name, checks it, and reports each damage with the paths that
    /// it affects. It reads indexed directories, too, in the default way unless `options` give
    /// another.
    ///
    /// # Errors
    /// Errors of the store. Damage is not an error but a finding.
    pub fn verify(&self, options: &VerifyOptions) -> Result<VerifyReport> {
        let mut options = options.clone();
        options.indexed.get_or_insert_with(|| {
            Arc::new(|store, prefix, report| esker_imd::verify(store, prefix, report))
        });
        self.sets.verify(&options)
    }
}
