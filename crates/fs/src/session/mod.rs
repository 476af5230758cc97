// SPDX-License-Identifier: Apache-2.0
//! Session: a namespace plus one new change set on top, which takes every change.
//!
//! Path of a change: an operation (`ops/`) checks permissions and names, then updates one or a few
//! inode records of the session's tree in one step; file data goes to data logs first.
//! Concurrency: share freely. Every operation takes `structure` shared, and operations that move or
//! remove directories take it exclusively, before any lock of the tree.
//! Crash guarantees: docs/guide/durability.md. Times of directories are lazy (`dir_times.rs`).

pub mod create_progress;
mod dir_times;
mod durability;
pub mod hold;
pub mod open_sessions;
mod permissions;
mod publish;
pub mod request_record;
pub(crate) mod set_ids;
pub mod view;

use std::sync::Arc;

use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use esker_base::{Clock, Error, Kind, Result};
use esker_extent::TreeExtents;
use esker_table::manifest::SetId;
use esker_table::schema::Key;
use esker_table::tree::{
    CurrentRow, Durability, Heartbeat, Tree, TreeOptions, TreeStatistics, WriteBatch,
};
use hashbrown::HashSet;
use parking_lot::{Mutex, MutexGuard};

use self::request_record::AttachedRecord;
use self::set_ids::SetIds;
use crate::data::DataLogs;
use crate::file::SharedLogs;
use crate::inode::timestamp;
use crate::inode::{DirId, FileKind, Inode, NameKind, identity_root, key};
use crate::session::create_progress::CreateProgress;
use crate::stack::dir::{Dir, DirNode};
use crate::stack::identity::Identity;
use crate::stack::layers::LowerRecords;
use crate::stack::namespace::Namespace;
use crate::stack::path::show;

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The acting user.
    pub identity: Identity,
    /// Durability, compaction and memory of the change set.
    pub tree: TreeOptions,
    /// Descriptive properties of the change set, for users: a program, a job, a purpose.
    pub properties: std::collections::BTreeMap<String, String>,
    /// Attributes of the root directory, unless a base has one.
    pub new_root: NewRoot,
    /// Identity of the writer, and its signs of life. Without it, other processes take the session
    /// over without being asked to.
    pub heartbeat: Option<Heartbeat>,
    /// Takes a session over from a writer that is still alive, which is otherwise refused.
    pub take_over: bool,
    /// Begins a session on no bases whose directories get identities that no other session's have,
    /// except those of its job. Another session can then make a directory of it, or of the job, its
    /// own ([`Session::adopt_set`]).
    pub own_identities: bool,
    /// Allows [`Session::track_creates`], for a server of others' requests. Each write of the log then
    /// locks the whole memtable while it gathers what it writes.
    pub tracks_creates: bool,
}

/// Attributes of the root directory of a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewRoot {
    /// Owner and group, unless they are those of the session's identity: those of a mount's user,
    /// for whom the session acts as the superuser.
    pub owner: Option<(u32, u32)>,
    /// Permission bits.
    pub mode: u32,
}

impl Default for NewRoot {
    fn default() -> Self {
        Self { owner: None, mode: 0o755 }
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            identity: Identity::of_process(),
            tree: TreeOptions::default(),
            properties: Default::default(),
            new_root: NewRoot::default(),
            heartbeat: Some(Heartbeat::of_process(rustix::process::geteuid().as_raw().to_string())),
            take_over: false,
            own_identities: false,
            tracks_creates: false,
        }
    }
}

impl SessionOptions {
    /// Returns these options for a session that this process begins for its own use: if the process
    /// dies before the result has a name, nobody continues the session, and a collection gives it
    /// up.
    #[must_use]
    pub fn private(mut self) -> Self {
        if let Some(heartbeat) = &mut self.heartbeat {
            heartbeat.writer.is_private = true;
        }
        self
    }
}

/// A namespace that takes changes. Dropping it leaves the change set open, to be resumed or
/// deleted.
///
/// ```
/// use std::sync::Arc;
/// use esker_base::store::MemoryStore;
/// use esker_fs::ops::RenameFlags;
/// use esker_fs::repository::Repository;
/// use esker_fs::session::SessionOptions;
/// use esker_fs::stack::identity::Identity;
/// use esker_fs::stack::namespace::FollowLinks;
///
/// let repository = Repository::new(Arc::new(MemoryStore::new()));
/// let options = SessionOptions { identity: Identity::root(), ..SessionOptions::default() };
/// let session = repository.begin(&[], options)?;
/// let dir = session.mkdir(session.root(), b"steps", 0o755)?;
/// let file = session.create_file(&dir, b"0.part", 0o644)?;
/// session.file(&file).write(0, b"state")?;
/// session.file(&file).sync()?;
/// session.rename((&dir, b"0.part"), (&dir, b"0"), RenameFlags::Replace)?;
/// assert_eq!(session.namespace().stat("/steps/0", FollowLinks::No)?.size, 5);
/// assert_eq!(&session.file(&file).read(0, 100)?[..], b"state");
/// drop(file);
/// session.publish("steps")?;
/// # Ok::<(), esker_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Session {
    namespace: Namespace,
    shared: Arc<SharedSession>,
    /// The record of requests that each change through this handle carries.
    pub(crate) attached: Option<AttachedRecord>,
    /// The item to which its creates belong, while they are tracked.
    created_item: Option<u16>,
}

/// State of a session that its handles for several users share.
#[derive(Debug)]
struct SharedSession {
    data: Arc<DataLogs>,
    /// Present if the options allow tracking.
    creates: Option<Arc<CreateProgress>>,
    durability: Durability,
    clock: Arc<dyn Clock>,
    set_ids: Arc<SetIds>,
    structure: ShardedLock<()>,
    /// Held shared from before bytes go to a data log until a record refers to them, and during
    /// other work that must not run while data logs are reclaimed; exclusively during the critical
    /// parts of a reclaim, and while the set is completed.
    content: ShardedLock<()>,
    /// Held by the one thread that reclaims data logs; guards which of them snapshots show.
    reclaiming: Mutex<SharedLogs>,
    /// Files of branches whose content has become the session's own (`file/copy_up.rs`).
    copied_up: Mutex<HashSet<u128>>,
    /// Held while another set is adopted, and while a snapshot lists the sets that it needs.
    adopting: Mutex<()>,
    /// Stands for the root's identity in those of directories made there.
    identity_root: DirId,
    /// Files without names whose content could not be released for lack of room; the next flush of
    /// files tries again. A leaf.
    unreleased: Mutex<Vec<u128>>,
}

impl Session {
    pub(crate) fn new(
        namespace: Namespace,
        (data, creates): (Arc<DataLogs>, Option<Arc<CreateProgress>>),
        durability: Durability,
        (clock, set_ids): (Arc<dyn Clock>, Arc<SetIds>),
    ) -> Self {
        let tree = namespace.layers().writer().expect("a session has a tree to write to");
        data.stop_on_failure(tree.stopper());
        let identity_root = identity_root(tree.set(), &tree.manifest());
        let shared = SharedSession {
            data,
            creates,
            durability,
            clock,
            set_ids,
            structure: ShardedLock::new(()),
            content: ShardedLock::new(()),
            reclaiming: Mutex::default(),
            copied_up: Mutex::default(),
            adopting: Mutex::default(),
            identity_root,
            unreleased: Mutex::default(),
        };
        Self { namespace, shared: Arc::new(shared), attached: None, created_item: None }
    }

    /// Returns the same session for another user, whose permissions apply to operations through
    /// it: for a process that acts for several users. All handles share locks, open files and
    /// open directories; the change set stays open until the last one is dropped. Cost: no store
    /// request.
    #[must_use]
    pub fn acting_as(&self, identity: Identity) -> Self {
        let (namespace, shared) = (self.namespace.acting_as(identity), self.shared.clone());
        Self { namespace, shared, attached: None, created_item: None }
    }

    /// The file system that the session shows: its changes, above what it builds on.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The root directory, where changes start.
    #[must_use]
    pub fn root(&self) -> &Dir {
        self.namespace.root()
    }

    pub(crate) fn tree(&self) -> &Tree {
        self.namespace.layers().writer().expect("checked when the session was made")
    }

    /// The segments in the tree.
    pub(crate) fn extents(&self) -> TreeExtents<'_> {
        TreeExtents::of(self.tree())
    }

    pub(crate) fn data(&self) -> &DataLogs {
        &self.shared.data
    }

    /// Returns the current timestamp, by the clock that sets file times.
    #[must_use]
    pub fn now_ns(&self) -> i64 {
        timestamp::of_clock(self.shared.clock.now_ns())
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// Returns the identity of a new change set.
    pub(crate) fn draw_set_id(&self) -> SetId {
        self.shared.set_ids.draw()
    }

    /// The change set that takes the changes.
    #[must_use]
    pub fn set(&self) -> SetId {
        self.tree().set()
    }

    /// Number of this writer among those of the change set.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.tree().manifest().epoch
    }

    /// Statistics of the change set.
    #[must_use]
    pub fn statistics(&self) -> TreeStatistics {
        self.tree().statistics()
    }

    /// Takes the lock held while an operation relies on directories staying where they are.
    pub(crate) fn read_structure(&self) -> ShardedLockReadGuard<'_, ()> {
        // The lock guards no data that a panic could leave inconsistent.
        self.shared.structure.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes the lock held while stored bytes have no record yet, or while data logs must stay.
    pub(crate) fn pin_data_logs(&self) -> ShardedLockReadGuard<'_, ()> {
        self.shared.content.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Takes the lock that excludes storing bytes.
    pub(crate) fn exclude_writers(&self) -> ShardedLockWriteGuard<'_, ()> {
        self.shared.content.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn reclaiming(&self) -> &Mutex<SharedLogs> {
        &self.shared.reclaiming
    }

    pub(crate) fn copied_up(&self) -> &Mutex<HashSet<u128>> {
        &self.shared.copied_up
    }

    /// Takes the lock under which this session comes to need other sets.
    pub(crate) fn adopting(&self) -> MutexGuard<'_, ()> {
        self.shared.adopting.lock()
    }

    /// Returns the identity of a directory made in `dir` at `name`, which was a directory
    /// `generation` times before.
    pub(crate) fn new_dir_id(&self, dir: &DirNode, generation: u64, name: &[u8]) -> DirId {
        let parent = if dir.id() == DirId::ROOT { self.shared.identity_root } else { dir.id() };
        DirId::child(parent, generation, name)
    }

    pub(crate) fn unreleased(&self) -> &Mutex<Vec<u128>> {
        &self.shared.unreleased
    }

    /// Runs `act` while all changes are excluded. It may wait for the store: it is the last act of
    /// the writer, and changes that wait fail afterwards.
    pub(crate) fn alone<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let _content = self.exclude_writers();
        self.with_structure_locked(act)
    }

    /// Runs `change`, which moves or removes directories, exclusively.
    pub(crate) fn with_structure_locked<T>(&self, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let guard =
            self.shared.structure.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let done = change();
        drop(guard);
        done
    }

    /// Returns the records that the layers below this session have for `key`, a name in `dir`.
    #[inline]
    pub(crate) fn below(&self, dir: &DirNode, key: &Key) -> Result<LowerRecords> {
        self.namespace.layers().below(key, dir.is_absent_below())
    }

    /// Updates the record of `name` in `dir`, wherever its inode is stored, with `change`.
    pub(crate) fn update_inode(
        &self,
        dir: &DirNode,
        name: &[u8],
        change: impl FnMut(&mut Inode) -> Result<()>,
    ) -> Result<Inode> {
        self.update_inode_if_present(dir, name, change)?.ok_or_else(|| not_found(name))
    }

    /// Like [`Session::update_inode`], but returns `None` if there is no such record. A store that
    /// lacks a table also fails with `NotFound`, which must not be mistaken for that.
    pub(crate) fn update_inode_if_present(
        &self,
        dir: &DirNode,
        name: &[u8],
        mut change: impl FnMut(&mut Inode) -> Result<()>,
    ) -> Result<Option<Inode>> {
        match self.update_record(dir.id(), dir.is_absent_below(), name, &mut change)? {
            Some(inode) if inode.entry == NameKind::Link => {
                self.update_record(DirId::LINKS, false, &inode.id.to_be_bytes(), &mut change)
            }
            amended => Ok(amended),
        }
    }

    /// Updates the record at one key, unless it is a link; returns it, if there is one.
    pub(crate) fn update_record(
        &self,
        dir: DirId,
        is_absent_below: bool,
        name: &[u8],
        change: &mut dyn FnMut(&mut Inode) -> Result<()>,
    ) -> Result<Option<Inode>> {
        let key = key(dir, name);
        let below = self.below_to_change(&key, is_absent_below)?;
        self.update([key], |[own], batch| {
            let Some(mut inode) = NameState::of(own, &below)?.inode else { return Ok(None) };
            if inode.seat().is_some() {
                let what = "it is at another seat, whose server changes it";
                return Err(Error::new(Kind::CrossDevice, what));
            }
            if inode.entry != NameKind::Link {
                change(&mut inode)?;
                put(batch, &key, &inode);
            }
            Ok(Some(inode))
        })
    }

    /// Writes the root's own record unless a layer has one. That applies to the first session of a
    /// file system, and to one that resumes a set whose log did not survive.
    pub(crate) fn make_root(&self, new_root: &NewRoot) -> Result<()> {
        if self.namespace.entry(self.root(), b"", false)?.is_some() {
            return Ok(());
        }
        let identity = self.namespace.identity();
        let owner = new_root.owner.unwrap_or((identity.uid, identity.gid));
        let now_ns = self.now_ns();
        self.update_root(|root| {
            *root = Inode::new(NameKind::Is(FileKind::Directory), new_root.mode & 0o7777, now_ns);
            (root.uid, root.gid) = owner;
            Ok(())
        })
    }

    /// Updates the root's own record, creating it if no layer has one.
    pub(crate) fn update_root(
        &self,
        mut change: impl FnMut(&mut Inode) -> Result<()>,
    ) -> Result<()> {
        let current = self.namespace.stat_dir(self.root())?;
        let key = key(DirId::ROOT, b"");
        self.update([key], |[own], batch| {
            let mut inode = match own {
                Some(row) => Inode::of_row(&row)?,
                None => current.clone(),
            };
            change(&mut inode)?;
            put(batch, &key, &inode);
            self.root().set_attributes(&inode);
            Ok(())
        })
    }
}

/// State of a name, over all layers.
pub(crate) struct NameState {
    /// Its record; `None` if there is none or a tombstone.
    pub(crate) inode: Option<Inode>,
    /// The generation of a directory made at the name.
    pub(crate) next_generation: u64,
}

impl NameState {
    /// Combines the session's own record with those below.
    #[inline]
    pub(crate) fn of(own: CurrentRow, below: &LowerRecords) -> Result<Self> {
        let Some(row) = own else {
            let inode = below.inode.as_ref().filter(|inode| inode.entry != NameKind::Tombstone);
            return Ok(Self { inode: inode.cloned(), next_generation: below.next_generation });
        };
        let inode = Inode::of_row(&row)?;
        let next_generation = inode.next_generation().max(below.next_generation);
        let inode = (inode.entry != NameKind::Tombstone).then_some(inode);
        Ok(Self { inode, next_generation })
    }
}

/// Writes `inode` under `key` as the only record of an update; returns what [`WriteBatch::put`] does.
pub(crate) fn put(batch: &mut WriteBatch, key: &Key, inode: &Inode) -> bool {
    batch.put(&mut [inode.row(key)])
}

/// Returns the error for a `name` that is taken.
pub(crate) fn exists(name: &[u8]) -> Error {
    Error::new(Kind::Exists, format!("{}: file exists", show(name)))
}

/// Returns the error for a `name` that does not exist.
pub(crate) fn not_found(name: &[u8]) -> Error {
    Error::new(Kind::NotFound, format!("{}: no such file", show(name)))
}

/// Fails for a directory.
pub(crate) fn check_not_directory(inode: &Inode, name: &[u8]) -> Result<()> {
    if inode.entry == NameKind::Is(FileKind::Directory) {
        return Err(Error::new(Kind::IsADirectory, format!("{}: is a directory", show(name))));
    }
    Ok(())
}
