// SPDX-License-Identifier: Apache-2.0
//! Session builder: the bases of a new session, and the durability that it promises.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_base::Result;
use esker_fs::job::JobId;
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_table::manifest::SetId;
use esker_table::set_writer::SetWriter;
use esker_table::tree::{Durability, TreeOptions};

use crate::repository::Repository;
use crate::session::Session;
use crate::snapshot_ref::SnapshotRef;
use crate::tree_handle::SessionTree;

/// Describes a session: [`Repository::session`] and [`Job::part`](crate::Job::part) make one.
///
/// By default a session is *private*: it keeps no log, works at memory speed, and is given up if it
/// ends without being published, by a return, a panic or a crash. [`SessionBuilder::resumable`]
/// makes one that outlives its process.
///
/// # Examples
/// ```
/// use esker::{Durability, Repository};
///
/// let repository = Repository::create("memory:")?;
/// let session = repository.session().resumable(Durability::Always).begin()?;
/// session.write("/a", "acknowledged, so it survives")?;
/// let id = session.id();
/// drop(session);
///
/// let session = repository.session().resume(id)?;
/// assert_eq!(session.read("/a")?, b"acknowledged, so it survives");
/// session.publish("result")?;
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a session begins with `begin`"]
pub struct SessionBuilder {
    repository: Repository,
    /// The job and rank whose part it is.
    part: Option<(JobId, u32)>,
    bases: Vec<SnapshotRef>,
    identity: Identity,
    durability: Option<Durability>,
    memory_bytes: Option<usize>,
    properties: BTreeMap<String, String>,
    takes_over: bool,
    is_insertable: bool,
}

impl SessionBuilder {
    pub(crate) fn new(repository: &Repository, part: Option<(JobId, u32)>) -> Self {
        Self {
            identity: repository.identity.clone(),
            repository: repository.clone(),
            part,
            bases: Vec::new(),
            durability: part.map(|_| Durability::default()),
            memory_bytes: None,
            properties: BTreeMap::new(),
            takes_over: false,
            is_insertable: false,
        }
    }

    /// Builds on a snapshot, below those that were given before. Without any the session begins
    /// with an empty root directory, which its user owns.
    pub fn on(mut self, snapshot: impl Into<SnapshotRef>) -> Self {
        self.bases.push(snapshot.into());
        self
    }

    /// Keeps the session if it ends without being published: until it is given up,
    /// [`SessionBuilder::resume`] continues it, in this process or another. `durability` decides
    /// how much a crash leaves of it; its `sync`, `flush` and `publish` always wait until
    /// everything before them survives power loss.
    ///
    /// | durability | the process dies | the machine loses power | cost of an operation |
    /// |---|---|---|---|
    /// | `None` | loses everything since the last flush | the same | none |
    /// | `Async` | loses at most 100 ms | loses what was not synced | a share of a write |
    /// | `Always` | loses nothing acknowledged | loses nothing acknowledged | a share of a sync |
    ///
    /// In a bucket `Async` may also lose some megabytes, which gather in memory until they are
    /// worth a request.
    pub fn resumable(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// The user whose permissions apply; that of the repository unless it is given.
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Memory for changes that are not in the store yet; 768 MiB unless it is given. More memory
    /// makes fewer, larger tables.
    pub fn memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Adds a property that describes the change set to its users, such as the program that made
    /// it.
    pub fn property(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.insert(key.into(), value.into());
        self
    }

    /// Lets [`SessionBuilder::resume`] take the session over from a writer that seems to be alive.
    /// The old writer stops with `Fenced`.
    pub fn take_over(mut self) -> Self {
        self.takes_over = true;
        self
    }

    /// Makes a session without bases, a directory of which can be inserted into a live namespace
    /// ([`LiveNamespace::insert`](crate::LiveNamespace::insert)). If it is a part of a job, all parts
    /// must be, and what they publish together can be inserted
    /// ([`LiveNamespace::insert_snapshot`](crate::LiveNamespace::insert_snapshot)).
    pub fn insertable(mut self) -> Self {
        self.is_insertable = true;
        self
    }

    /// Begins the session. Cost: as [`Repository::snapshot`] for its bases, a marker for each of
    /// them and for the session, and a manifest.
    ///
    /// # Errors
    /// `NotFound` if a base does not exist; `Invalid` for an insertable session on bases.
    pub fn begin(self) -> Result<Session> {
        let bases = self.repository.resolve_all(self.bases.clone())?;
        let (sets, options) = (&self.repository.sets, self.options(self.durability));
        let writer = match self.part {
            None => sets.begin(&bases, options)?,
            Some((job, rank)) => sets.begin_part(job, rank, &bases, options)?,
        };
        let is_private = self.durability.is_none();
        Ok(Session::new(SessionTree::new(Arc::new(writer), sets.clone(), is_private)))
    }

    /// Resumes a session that its writer left, by a crash, a drop or [`Session::suspend`]: fences
    /// that writer, and recovers all changes that survived. The session keeps its bases, and stays
    /// resumable. Cost: as [`SessionBuilder::begin`], and a read of its logs.
    ///
    /// # Errors
    /// `Conflict`, which names the writer, if another process still writes it; `NotFound` if it was
    /// given up; `Invalid` if it is published.
    pub fn resume(self, session: SetId) -> Result<Session> {
        let sets = &self.repository.sets;
        let durability = self.durability.unwrap_or_default();
        let writer = sets.resume(session, self.options(Some(durability)))?;
        Ok(Session::new(SessionTree::new(Arc::new(writer), sets.clone(), false)))
    }

    /// The options of a session that is private without a durability.
    pub(crate) fn options(&self, durability: Option<Durability>) -> SessionOptions {
        let mut tree = TreeOptions {
            durability: durability.unwrap_or(Durability::None),
            ..TreeOptions::default()
        };
        tree.memory_bytes = self.memory_bytes.unwrap_or(tree.memory_bytes);
        let options = SessionOptions {
            identity: self.identity.clone(),
            tree,
            properties: self.properties.clone(),
            take_over: self.takes_over,
            own_identities: self.is_insertable,
            ..SessionOptions::default()
        };
        if durability.is_none() { options.private() } else { options }
    }

    /// This process, as the writer of a change set that is useful only to the process itself.
    pub(crate) fn private_writer() -> SetWriter {
        let heartbeat = SessionOptions::default().private().heartbeat;
        heartbeat.expect("sessions of this process have one").writer
    }
}
