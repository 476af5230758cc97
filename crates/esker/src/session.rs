// SPDX-License-Identifier: Apache-2.0
//! Session: a tree that takes changes, and the ways in which it ends.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use esker_base::{Error, Kind, Random, Result};
use esker_fs::names::IfTaken;
use esker_fs::ops::AttributeChanges;
use esker_fs::session::Session as Writer;
use esker_fs::traversal::import::ImportOptions;
use esker_fs::traversal::tally::{TransferCounts, TransferTally};
use esker_imd::{RecordLayout, SessionDirectory, ValueFormat};
use esker_table::manifest::SetId;

use crate::dir::{Dir, bytes};
use crate::entries::DirEntries;
use crate::file::{File, OpenOptions};
use crate::indexed::{IndexedDir, IndexedDraft};
use crate::metadata::Metadata;
use crate::tree_handle::{SessionTree, TreeHandle};

/// A tree of files that takes changes: a new change set on top of any snapshots.
///
/// The files of its bases are there from the start, and are never copied. [`Session::root`] gives
/// the directory, which has all operations on paths; those here are shortcuts. Clones are cheap,
/// and threads may change one session together: every operation is atomic.
///
/// # How a session ends
///
/// | | what others see | what stays |
/// |---|---|---|
/// | [`Session::publish`] | a snapshot with a name | everything |
/// | [`Session::complete`] | a snapshot without a name | everything |
/// | [`Session::suspend`] | nothing | everything, for [`resume`](crate::SessionBuilder::resume) |
/// | [`Session::abandon`] | nothing | nothing |
/// | drop, [resumable](crate::SessionBuilder::resumable) | nothing | what its durability promises, for `resume` |
/// | drop, private (the default) | nothing | nothing |
///
/// The session is dropped with the last clone of it, and the last [`Dir`], [`File`] or
/// [`DirEntries`] that was opened in it. A collection deletes sessions that are given up, and
/// private ones whose process died.
///
/// # Examples
/// ```
/// use esker::{Kind, Repository};
///
/// let repository = Repository::create("memory:")?;
/// let session = repository.session().property("purpose", "example").begin()?;
/// session.write("/notes", "first draft")?;
/// session.snapshot("draft")?;
/// session.write("/notes", "final text")?;
/// session.publish("final")?;
/// assert_eq!(session.write("/notes", "more").unwrap_err().kind(), Kind::Closed);
///
/// assert_eq!(repository.snapshot("draft")?.read("/notes")?, b"first draft");
/// assert_eq!(repository.snapshot("final")?.read("/notes")?, b"final text");
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    tree: Arc<SessionTree>,
    root: Dir,
}

impl Session {
    pub(crate) fn new(tree: SessionTree) -> Self {
        let tree = Arc::new(tree);
        let root = Dir::root_of(TreeHandle::Session(tree.clone()));
        Self { tree, root }
    }

    fn writer(&self) -> &Writer {
        &self.tree.writer
    }

    /// The id of the change set that the session writes: later that of the snapshot.
    #[must_use]
    pub fn id(&self) -> SetId {
        self.writer().set()
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> &Dir {
        &self.root
    }

    // --- How it ends -------------------------------------------------------------------------

    /// Publishes all changes of the session as the snapshot `name`, and ends the session. Survives
    /// power loss once it returns. Changes by other threads wait, and then fail with `Closed`.
    /// Returns the id of the snapshot. Cost: a flush, two markers, a commit and the name, for a
    /// tree of any size.
    ///
    /// # Errors
    /// `Exists` if the name is taken: publish it under another one. If somebody took the name
    /// during the call, the session takes no more changes, and only the name is missing. `Fenced`
    /// if another writer took the session over; errors of the store, after which the call may be
    /// repeated.
    pub fn publish(&self, name: &str) -> Result<SetId> {
        let set = self.writer().publish(name)?;
        self.tree.keep();
        Ok(set)
    }

    /// Publishes the session as `name`, and replaces the snapshot that has the name, in one step,
    /// if the session builds on it, directly or not: the way to update a snapshot. Returns the id
    /// of the snapshot that lost the name, which stays for the grace period of collections.
    ///
    /// # Errors
    /// `Conflict` if the name stands for a snapshot on which the session does not build: somebody
    /// else updated it meanwhile. The session then takes no more changes, and can be published
    /// under another name. As [`Session::publish`].
    pub fn publish_replacing(&self, name: &str) -> Result<Option<SetId>> {
        let set = self.writer().complete()?;
        let if_taken = IfTaken::ReplaceUnlessMoved;
        let replaced = self.tree.repository.publish_replacing(set, name, if_taken)?;
        self.tree.keep();
        Ok(replaced)
    }

    /// Publishes the current state as the snapshot `name`, and continues. Returns the id of the
    /// snapshot. Cost: a flush, and some requests, for a tree of any size.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Fenced`; errors of the store.
    pub fn snapshot(&self, name: &str) -> Result<SetId> {
        self.writer().snapshot(name)
    }

    /// Ends the session without a name: for a part of a job, which
    /// [`Job::publish`](crate::Job::publish) joins with the others, or to name it later with
    /// [`Repository::publish`](crate::Repository::publish). The change set stays until it is given
    /// up. Survives power loss once it returns.
    ///
    /// # Errors
    /// `Fenced`; `Closed` after a failed write; errors of the store.
    pub fn complete(&self) -> Result<SetId> {
        let set = self.writer().complete()?;
        if self.tree.is_private() {
            self.tree.repository.keep_complete(set)?;
            self.tree.keep();
        }
        Ok(set)
    }

    /// Ends the session for an insertion into a live namespace. Without one, it ends as if it was
    /// dropped.
    pub(crate) fn complete_to_insert(&self) -> Result<SetId> {
        self.writer().complete()
    }

    /// Gives up the session's own hold of its set, which a live namespace holds by now.
    pub(crate) fn forget_inserted(&self) {
        // Best effort: a drop, or a collection, does it otherwise.
        if self.tree.repository.abandon_session(self.writer()).is_ok() {
            self.tree.keep();
        }
    }

    /// Ends a resumable session for now: another process can resume it at once. Survives power loss
    /// once it returns. Later changes fail with `Closed`. Returns the id with which it is resumed.
    ///
    /// # Errors
    /// `Invalid` for a private session; as [`Session::flush`], after which the call may be
    /// repeated.
    pub fn suspend(&self) -> Result<SetId> {
        if self.tree.is_private() {
            let what = "a private session cannot be resumed: begin it with `resumable`";
            return Err(Error::new(Kind::Invalid, what));
        }
        self.writer().end()?;
        Ok(self.id())
    }

    /// Gives the session up: no process can resume it, and the next collection deletes its change
    /// set. Later changes through other handles are lost.
    ///
    /// # Errors
    /// Errors of the store; the session then ends as if it was dropped.
    pub fn abandon(self) -> Result<()> {
        self.tree.repository.abandon_session(self.writer())?;
        self.tree.keep();
        Ok(())
    }

    /// Returns once every change so far survives power loss, in a session that can be resumed.
    /// Cost: a write and a sync of each log with new bytes, and a check for another writer; at
    /// durability `None` a flush.
    ///
    /// # Errors
    /// `Fenced` if another writer took the session over; `Closed` after a failed write; errors of
    /// the store. No retry makes changes durable that a failed sync has lost.
    pub fn sync(&self) -> Result<()> {
        self.writer().sync()
    }

    /// Writes every change so far into tables: as [`Session::sync`], and memory and log are empty.
    ///
    /// # Errors
    /// As [`Session::sync`].
    pub fn flush(&self) -> Result<()> {
        self.writer().flush()
    }

    // --- Whole trees -------------------------------------------------------------------------

    /// Copies the entries of the real directory `source` into the directory `target`. Directories
    /// merge, other entries are replaced. Returns counts of the entries copied; entries that could
    /// not be copied count as problems.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` for `source` or `target`; `Denied`; `NoSpace`, `Unavailable`
    /// and others that end a session.
    pub fn import(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
    ) -> Result<TransferCounts> {
        let dir = self.root.open_dir(target)?;
        let (tally, options) = (TransferTally::default(), ImportOptions::default());
        self.writer().import(source.as_ref(), &dir.node, &options, &tally)?;
        Ok(tally.counts())
    }

    // --- Indexed directories -----------------------------------------------------------------

    /// Drafts an indexed directory in this session, which the ranks of a job write
    /// ([`IndexedDraft::writer`]). No request.
    #[must_use]
    pub fn draft_indexed(&self, format: ValueFormat, layout: RecordLayout) -> IndexedDraft {
        let directory = SessionDirectory::new(self.writer(), &mut Random::from_system());
        IndexedDraft::new(self.tree.repository.store().clone(), directory, format, layout)
    }

    /// Gives the indexed directory that was written from `draft` its path. All ranks have finished.
    /// Cost: two reads.
    ///
    /// # Errors
    /// `NotFound` unless it is finished; as [`Dir::create`].
    pub fn create_indexed(&self, path: impl AsRef<Path>, draft: &IndexedDraft) -> Result<()> {
        draft.directory().create(self.writer(), bytes(path.as_ref()), 0o755).map(drop)
    }

    /// Appends the epochs that were written from `draft` to the indexed directory at `path`, which
    /// may come from a snapshot below. Nothing is copied. Cost: some reads.
    ///
    /// # Errors
    /// `NotFound` unless the draft is finished; `NotADirectory`; `Invalid` if the records differ in
    /// kind, or the first step does not follow the last one.
    pub fn append_indexed(&self, path: impl AsRef<Path>, draft: &IndexedDraft) -> Result<()> {
        draft.directory().append(self.writer(), bytes(path.as_ref())).map(drop)
    }

    // --- Paths -------------------------------------------------------------------------------

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`Dir::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.root.open(path)
    }

    /// Opens a file as `options` say.
    ///
    /// # Errors
    /// As [`Dir::open_with`].
    pub fn open_with(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        self.root.open_with(path, options)
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// As [`Dir::open_dir`].
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        self.root.open_dir(path)
    }

    /// Opens an indexed directory for look-ups of keys.
    ///
    /// # Errors
    /// As [`Dir::open_indexed`].
    pub fn open_indexed(&self, path: impl AsRef<Path>, cache_bytes: u64) -> Result<IndexedDir> {
        self.root.open_indexed(path, cache_bytes)
    }

    /// Reads a whole file and verifies its checksum.
    ///
    /// # Errors
    /// As [`Dir::read`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        self.root.read(path)
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// As [`Dir::metadata`].
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.root.metadata(path)
    }

    /// True if `path` leads to a file of any kind.
    ///
    /// # Errors
    /// As [`Dir::exists`].
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        self.root.exists(path)
    }

    /// Lists a directory.
    ///
    /// # Errors
    /// As [`Dir::open_dir`] and [`Dir::entries`].
    pub fn entries(&self, path: impl AsRef<Path>) -> Result<DirEntries> {
        self.root.open_dir(path)?.entries()
    }

    /// Creates a file and opens it for reading and writing.
    ///
    /// # Errors
    /// As [`Dir::create`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.root.create(path)
    }

    /// Writes a whole file: creates it, or replaces its content in one step.
    ///
    /// # Errors
    /// As [`Dir::write`].
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        self.root.write(path, content)
    }

    /// Like [`Session::write`], with the bytes that `reader` yields.
    ///
    /// # Errors
    /// As [`Dir::write_from`].
    pub fn write_from(&self, path: impl AsRef<Path>, reader: &mut impl Read) -> Result<()> {
        self.root.write_from(path, reader)
    }

    /// Creates a directory and opens it.
    ///
    /// # Errors
    /// As [`Dir::create_dir`].
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        self.root.create_dir(path)
    }

    /// Opens a directory; creates it, and those above it, as far as they are missing.
    ///
    /// # Errors
    /// As [`Dir::create_dir_all`].
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<Dir> {
        self.root.create_dir_all(path)
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// As [`Dir::remove_file`].
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.root.remove_file(path)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`Dir::remove_dir`].
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.root.remove_dir(path)
    }

    /// Removes a directory of any size with everything in it, in one step.
    ///
    /// # Errors
    /// As [`Dir::remove_dir_all`].
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.root.remove_dir_all(path)
    }

    /// Renames a file or directory, and replaces a file, or an empty directory, that has the new
    /// name.
    ///
    /// # Errors
    /// As [`Dir::rename`].
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.root.rename(from, to)
    }

    /// Changes mode, owner, size or times of a file.
    ///
    /// # Errors
    /// As [`Dir::set_attributes`].
    pub fn set_attributes(&self, path: impl AsRef<Path>, changes: &AttributeChanges) -> Result<()> {
        self.root.set_attributes(path, changes)
    }
}
