// SPDX-License-Identifier: Apache-2.0
//! Live namespace: one tree that many clients change at once, as a client of its server.

use std::path::Path;
use std::time::Duration;

use esker_base::{Error, Kind, Result};
use esker_fs::session::SessionOptions;
use esker_fs::stack::namespace::FollowLinks;
use esker_live::LiveTree;
use esker_live::client::{LiveClientOptions, LiveDir, LiveEntry, Request};
use esker_live::wire::{AttributeRequest, LiveAttributes};
use esker_table::manifest::SetId;
use parking_lot::Mutex;

use crate::dir::bytes;
use crate::repository::Repository;
use crate::session::Session;
use crate::snapshot_ref::SnapshotRef;

/// Items of one request.
const BATCH: usize = 1024;
/// Mode of new directories and files, as in sessions.
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// A live namespace, as a client of its server: each client sees the changes of the others at once.
///
/// `esker live serve` runs the server, which acts for the user of this process. If it dies, calls
/// wait up to half a minute for the next one, and are carried out once. A change survives power loss
/// once [`LiveNamespace::sync`] has returned, and lasts without that as long as its server. Paths
/// begin at the root. Threads may share a value: their calls follow one another. Cost: a round trip
/// or two for each call, however many files it has.
///
/// # Examples
/// ```no_run
/// use esker::Repository;
///
/// let repository = Repository::open("/scratch/store")?;
/// let live = repository.live("run")?;
/// live.create_dir_all("/results/1")?;
/// live.write("/results/1/energy", "-76.4")?;
/// live.sync()?;
///
/// // Many files at once, without the server: a session writes them, and the result is inserted.
/// let session = repository.session().insertable().begin()?;
/// session.create_dir_all("/2")?;
/// for number in 0..1_000_000 {
///     session.write(format!("/2/particle.{number}"), "0 0 0")?;
/// }
/// live.insert(&session, "/2", "/results/2")?;
/// live.snapshot("monday")?;
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Debug)]
pub struct LiveNamespace {
    tree: Mutex<LiveTree>,
    repository: Repository,
}

impl Repository {
    /// Makes the live namespace `name` on top of `bases`, of which earlier ones win; a server can
    /// then serve it.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `NotFound` if a base does not exist.
    pub fn create_live(
        &self,
        name: &str,
        bases: impl IntoIterator<Item = impl Into<SnapshotRef>>,
    ) -> Result<()> {
        let bases = self.resolve_all(bases)?;
        let identity = self.identity.clone();
        let options = SessionOptions { identity, ..SessionOptions::default() };
        self.sets.create_live(name, &bases, 1, options).map(drop)
    }

    /// Connects to the server of the live namespace `name`. Waits half a minute for one, as later
    /// calls do.
    ///
    /// # Errors
    /// `NotFound` if there is no such namespace; `Unavailable` if no server answers in that time;
    /// `Denied` if it does not serve this user.
    pub fn live(&self, name: &str) -> Result<LiveNamespace> {
        self.live_within(name, LiveClientOptions::default().patience)
    }

    /// Connects as [`Repository::live`] does, but waits only `patience` for a server, now and in
    /// later calls: 0 to try once, 300 s at most.
    ///
    /// # Errors
    /// As [`Repository::live`].
    pub fn live_within(&self, name: &str, patience: Duration) -> Result<LiveNamespace> {
        let identity = self.identity.clone();
        let options = LiveClientOptions { identity, patience, ..LiveClientOptions::default() };
        let tree = LiveTree::connect(self.sets.store(), name, options)?;
        Ok(LiveNamespace { tree: Mutex::new(tree), repository: self.clone() })
    }
}

impl LiveNamespace {
    /// Makes a directory with mode 0755.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `Denied`.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (mut tree, path) = (self.tree.lock(), bytes(path.as_ref()));
        let (dir, name) = tree.locate(path)?;
        tree.change(Request::make_directory(&dir, DIRECTORY_MODE, &[name]))
    }

    /// Makes a directory with mode 0755 whose names are spread over all seats of the namespace, so
    /// that all its servers share the work of one large directory. Links between its names may fail with
    /// `CrossDevice`. Cost: a round trip; durable at all seats.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `Denied`; `Unavailable` unless all servers answer.
    pub fn create_spread_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let (mut tree, path) = (self.tree.lock(), bytes(path.as_ref()));
        let (dir, name) = tree.locate(path)?;
        tree.make_spread_directory(&dir, name, DIRECTORY_MODE).map(drop)
    }

    /// Makes a directory and those above it, as far as they are missing.
    ///
    /// # Errors
    /// `NotADirectory`, `Denied`.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.tree.lock().make_directories(bytes(path.as_ref()), DIRECTORY_MODE).map(drop)
    }

    /// Makes empty files named `names` with mode 0644 in the directory `dir`; returns an outcome
    /// for each, such as `Exists`. Cost: a round trip for each 1,024.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` for `dir`; `Unavailable`.
    pub fn create_many(&self, dir: impl AsRef<Path>, names: &[&[u8]]) -> Result<Vec<Result<()>>> {
        let mut tree = self.tree.lock();
        let dir = tree.dir(bytes(dir.as_ref()))?;
        let mut outcomes = Vec::with_capacity(names.len());
        for batch in names.chunks(BATCH) {
            outcomes.extend(tree.create_all(&dir, batch, FILE_MODE)?);
        }
        Ok(outcomes)
    }

    /// Reads a whole file.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `Denied`.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let mut tree = self.tree.lock();
        let (dir, name) = tree.locate_file(bytes(path.as_ref()))?;
        tree.read(&dir, &name)
    }

    /// Writes a whole file: creates it with mode 0644, or replaces its content, which others may see
    /// in part meanwhile.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `Denied`.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let (mut tree, path) = (self.tree.lock(), bytes(path.as_ref()));
        let (dir, name) = match tree.locate_file(path) {
            Ok((dir, name)) => {
                let empty = AttributeRequest { size: Some(0), ..AttributeRequest::default() };
                tree.set_attributes(&dir, &name, &empty)?;
                (dir, name)
            }
            Err(error) if error.kind() == Kind::NotFound => {
                let (dir, name) = tree.locate(path)?;
                tree.create(&dir, name, FILE_MODE)?;
                (dir, name.to_vec())
            }
            Err(error) => return Err(error),
        };
        tree.write(&dir, &name, 0, content.as_ref())
    }

    /// Returns the attributes of the file or directory at `path`, following symbolic links.
    ///
    /// # Errors
    /// `NotFound`, `Denied`, `Loop`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<LiveAttributes> {
        self.found(path.as_ref(), FollowLinks::Yes)
    }

    /// Like [`LiveNamespace::metadata`], of a symbolic link itself.
    ///
    /// # Errors
    /// As [`LiveNamespace::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<LiveAttributes> {
        self.found(path.as_ref(), FollowLinks::No)
    }

    fn found(&self, path: &Path, follow: FollowLinks) -> Result<LiveAttributes> {
        self.tree.lock().resolve(bytes(path), follow).map(|place| place.attributes)
    }

    /// Returns the attributes of each of `names` in the directory `dir`, of symbolic links
    /// themselves. Cost: a round trip for each 1,024.
    ///
    /// # Errors
    /// `NotFound` or `NotADirectory` for `dir`; `Unavailable`.
    pub fn metadata_many(
        &self,
        dir: impl AsRef<Path>,
        names: &[&[u8]],
    ) -> Result<Vec<Result<LiveAttributes>>> {
        let mut tree = self.tree.lock();
        let dir = tree.dir(bytes(dir.as_ref()))?;
        let mut found = Vec::with_capacity(names.len());
        for batch in names.chunks(BATCH) {
            found.extend(tree.lookup_all(&dir, batch)?);
        }
        Ok(found)
    }

    /// Returns all entries of a directory, in no particular order.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Denied`.
    pub fn entries(&self, path: impl AsRef<Path>) -> Result<Vec<LiveEntry>> {
        let mut tree = self.tree.lock();
        let dir = tree.dir(bytes(path.as_ref()))?;
        tree.list(&dir)
    }

    /// Renames a file or directory; what is at `to` is replaced.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, `Denied`, and others as POSIX' `rename`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let mut tree = self.tree.lock();
        let (old_dir, old) = tree.locate(bytes(from.as_ref()))?;
        let (dir, name) = tree.locate(bytes(to.as_ref()))?;
        tree.rename((&old_dir, old), (&dir, name))
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// `NotFound`, `IsADirectory`, `Denied`.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.remove(path.as_ref(), Request::unlink)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `NotEmpty`, `Denied`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.remove(path.as_ref(), Request::remove_directory)
    }

    fn remove(&self, path: &Path, request: fn(&LiveDir, &[&[u8]]) -> Request) -> Result<()> {
        let mut tree = self.tree.lock();
        let (dir, name) = tree.locate(bytes(path))?;
        tree.change(request(&dir, &[name]))
    }

    /// Returns once everything that was changed before survives power loss.
    ///
    /// # Errors
    /// `DeviceFailed`, once, if a server died that had answered changes which it had not synced:
    /// some may be lost.
    pub fn sync(&self) -> Result<()> {
        self.tree.lock().sync()
    }

    /// Publishes the current state as the snapshot `name`, and returns its set. Survives power loss
    /// once it returns.
    ///
    /// # Errors
    /// `Exists`; `NotPermitted` unless this is the server's user, or the superuser.
    pub fn snapshot(&self, name: &str) -> Result<SetId> {
        self.tree.lock().snapshot(name)
    }

    /// Ends the client, and waits for no server.
    #[cfg(feature = "server")]
    pub(crate) fn leave(self) {
        self.tree.into_inner().leave();
    }

    /// Makes the directory `from`, in the root of `session`, the new directory `to`: others see
    /// nothing of it before, and all of it afterwards. It survives power loss once this returns, and
    /// the session takes no more changes. One directory of a session can be inserted, once; after an
    /// error other than `Unavailable` it can be inserted elsewhere. Cost: a flush of the session, and
    /// at the server about a dozen store requests, whatever the number of files.
    ///
    /// # Errors
    /// `Invalid` for sessions that are not [insertable](crate::SessionBuilder::insertable);
    /// `Exists`, `NotFound`, `Denied`; `NotPermitted` unless this is the server's user, or the
    /// superuser.
    pub fn insert(
        &self,
        session: &Session,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        let source = name_in_root(from.as_ref())?;
        let set = session.complete_to_insert()?;
        self.insert_set((set, source), to.as_ref())?;
        session.forget_inserted();
        Ok(())
    }

    /// Makes the directory `from`, in the root of a snapshot, the new directory `to`, as
    /// [`LiveNamespace::insert`] does: for the result of a job whose ranks each wrote a part of the
    /// directory, in [insertable](crate::SessionBuilder::insertable) sessions. The snapshot stays.
    /// One directory of a snapshot, or of a job, can be inserted, once.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot; as [`LiveNamespace::insert`].
    pub fn insert_snapshot(
        &self,
        snapshot: impl Into<SnapshotRef>,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
    ) -> Result<()> {
        let source = name_in_root(from.as_ref())?;
        let set = self.repository.resolve(snapshot)?;
        self.insert_set((set, source), to.as_ref())
    }

    fn insert_set(&self, (set, source): (SetId, &[u8]), to: &Path) -> Result<()> {
        let mut tree = self.tree.lock();
        let (parent, name) = tree.locate(bytes(to))?;
        tree.insert_set((set, source), &parent, name)
    }
}

/// Returns the name of `path`, which must be in the root.
fn name_in_root(path: &Path) -> Result<&[u8]> {
    let mut names = bytes(path).split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    match (names.next(), names.next()) {
        (Some(name), None) => Ok(name),
        _ => {
            let what = format!("{}: only a directory in the root can be inserted", path.display());
            Err(Error::new(Kind::Invalid, what))
        }
    }
}
