// SPDX-License-Identifier: Apache-2.0
//! Namespace: a read-only stack of change sets as a file system: paths, attributes, content.
//!
//! Concurrency: share freely. Its contents do not change, except through the session above it.

use std::sync::{Arc, Weak};

use esker_base::{Bytes, Error, Kind, Result};
use esker_table::schema::{Key, RowBuffer};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::data::ReadAhead;
use crate::file::OpenFiles;
use crate::inode::xattr::{self, Xattrs};
use crate::inode::{DirId, FileKind, Inode, NameKind, column, key};
use crate::stack::dir::{Dir, DirNode, TouchedDirs};
use crate::stack::identity::{EXECUTE, Identity, READ};
use crate::stack::layers::{LayerIndex, LayerStack, dir_of};
use crate::stack::path::{show, split_last};

/// Mode of the root directory of a stack without a record of it, which only the superuser can
/// change: a session writes that record before anything else.
const ROOT_MODE: u32 = 0o755;

/// A stack of change sets, accessed with an identity.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::sync::Arc;
/// use esker_base::store::MemoryStore;
/// use esker_fs::repository::Repository;
/// use esker_fs::session::SessionOptions;
/// use esker_fs::stack::identity::Identity;
/// use esker_fs::stack::list::DirCursor;
/// use esker_fs::stack::namespace::FollowLinks;
///
/// let repository = Repository::new(Arc::new(MemoryStore::new()));
/// let options = SessionOptions { identity: Identity::root(), ..SessionOptions::default() };
/// let session = repository.begin(&[], options)?;
/// session.create(session.root(), b"file", 0o640)?;
/// session.symlink(session.root(), b"link", b"file")?;
/// let set = session.publish("names")?;
///
/// let namespace = repository.open(&[set], Identity::root())?;
/// assert_eq!(namespace.stat("/link", FollowLinks::Yes)?.mode, 0o640);
/// let mut names = Vec::new();
/// namespace.list(namespace.root(), &DirCursor::default(), &mut |entry| {
///     names.push(entry.name().to_vec());
///     Ok(ControlFlow::Continue(()))
/// })?;
/// names.sort();
/// assert_eq!(names, [&b"file"[..], b"link"]);
/// # Ok::<(), esker_base::Error>(())
/// ```
#[derive(Debug)]
pub struct Namespace {
    shared: Arc<SharedNamespace>,
    identity: Identity,
}

/// State of a namespace that its handles for several users share.
#[derive(Debug)]
struct SharedNamespace {
    layers: LayerStack,
    root: Dir,
    /// Open directories by identity, so that a change reaches all their users.
    nodes: Mutex<HashMap<DirId, Weak<DirNode>>>,
    touched: Arc<TouchedDirs>,
    files: OpenFiles,
    links: Dir,
    seat_roots: Dir,
    read_ahead: ReadAhead,
}

/// Choice to follow a symbolic link in a path's last component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowLinks {
    /// Follow it, like `stat`.
    Yes,
    /// Do not follow it, like `lstat`.
    No,
}

/// Result of looking up a path.
#[derive(Debug)]
pub struct PathTarget {
    /// The directory that contains it; for the root, the root.
    pub dir: Dir,
    /// Its name there; empty for the root.
    pub name: Vec<u8>,
    /// Its inode.
    pub inode: Inode,
}

impl Namespace {
    pub(crate) fn new(layers: LayerStack, identity: Identity) -> Result<Self> {
        let mut row = RowBuffer::default();
        let inode = match layers.get(&key(DirId::ROOT, b""), false, true, &mut row)? {
            Some(_) => Inode::of_buffer(&row)?,
            None => Inode::new(NameKind::Is(FileKind::Directory), ROOT_MODE, 0),
        };
        let touched = Arc::default();
        let root = DirNode::new(&inode, None, false, &touched);
        let nodes = Mutex::default();
        let files = OpenFiles::default();
        // No record has their times, so no list keeps them when they are touched.
        let hidden = |id: DirId, mode| {
            let mut inode = Inode::new(NameKind::Is(FileKind::Directory), mode, 0);
            inode.id = id.0;
            DirNode::new(&inode, None, false, &Arc::default())
        };
        let links = hidden(DirId::LINKS, 0o700);
        let seat_roots = hidden(DirId::SEAT_ROOTS, 0o711);
        let read_ahead = ReadAhead::default();
        let shared =
            SharedNamespace { layers, root, nodes, touched, files, links, seat_roots, read_ahead };
        Ok(Self { shared: Arc::new(shared), identity })
    }

    /// Returns the same namespace, accessed with `identity`.
    #[must_use]
    pub fn acting_as(&self, identity: Identity) -> Self {
        Self { shared: self.shared.clone(), identity }
    }

    pub(crate) fn read_ahead(&self) -> &ReadAhead {
        &self.shared.read_ahead
    }

    /// The change sets.
    #[must_use]
    pub fn layers(&self) -> &LayerStack {
        &self.shared.layers
    }

    /// The identity whose permissions apply.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// True if each request to the store waits for a round trip to a server.
    #[must_use]
    pub fn is_far(&self) -> bool {
        self.shared.layers.source().store.requests_at_once() > 1
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> &Dir {
        &self.shared.root
    }

    /// The directory of inodes with several names. The name of each is its identity, 16 bytes in
    /// big-endian order. Operations that take a directory and a name reach a file there even while
    /// its names change. Only the superuser may use it, and it cannot be listed.
    #[must_use]
    pub fn links(&self) -> &Dir {
        &self.shared.links
    }

    /// The directory of seat roots, by [`DirId::seat_root_name`]. Whoever knows a name there can use
    /// it; only the superuser changes it.
    #[must_use]
    pub fn seat_roots(&self) -> &Dir {
        &self.shared.seat_roots
    }

    /// Returns the record of `name` in `dir`, without following a link to its inode; `None` for a
    /// tombstone. Content and extended attributes only if `with_strings`.
    #[inline]
    pub(crate) fn entry(
        &self,
        dir: &DirNode,
        name: &[u8],
        with_strings: bool,
    ) -> Result<Option<Inode>> {
        self.record(&key(dir.id(), name), dir.is_absent_below(), with_strings)
    }

    /// Returns the record of `key`; `None` if there is none or a tombstone.
    #[inline]
    pub(crate) fn record(
        &self,
        key: &Key,
        is_absent_below: bool,
        with_strings: bool,
    ) -> Result<Option<Inode>> {
        let mut row = RowBuffer::default();
        let Some(layer) = self.shared.layers.get(key, is_absent_below, with_strings, &mut row)?
        else {
            return Ok(None);
        };
        let inode = self.shared.layers.inode(layer, dir_of(key), &row)?;
        Ok((inode.entry != NameKind::Tombstone).then_some(inode))
    }

    /// Returns the inode of a file with several names.
    pub(crate) fn linked(&self, id: u128, with_strings: bool) -> Result<Inode> {
        let found = self.record(&key(DirId::LINKS, &id.to_be_bytes()), false, with_strings)?;
        // A directory with several names would make infinite trees.
        let is_file = |inode: &Inode| inode.kind().is_some_and(|kind| kind != FileKind::Directory);
        found.filter(is_file).ok_or_else(|| {
            let context = format!("file {id:032x} has a name but no inode; run `esker verify`");
            Error::new(Kind::Corrupt, context)
        })
    }

    /// Returns the inode of file `id`, with its strings, if it is in the links directory and has
    /// names.
    pub(crate) fn entry_of_links(&self, id: u128) -> Result<Option<Inode>> {
        let found = self.record(&key(DirId::LINKS, &id.to_be_bytes()), false, true)?;
        Ok(found.filter(|inode| inode.nlink > 0))
    }

    /// Looks up `name` in `dir` and returns its inode; content and extended attributes only if
    /// `with_strings`. Cost: at most one block read per layer.
    ///
    /// # Errors
    /// `NotFound`; `Denied` without permission to search `dir`.
    #[inline]
    pub fn lookup(&self, dir: &DirNode, name: &[u8], with_strings: bool) -> Result<Inode> {
        dir.check(&self.identity, EXECUTE, name)?;
        let (key, mut row) = (key(dir.id(), name), RowBuffer::default());
        loop {
            let flushes = self.shared.files.flushes();
            // The root stores its own inode under the empty name.
            let found = match name.is_empty() {
                true => None,
                false => {
                    self.shared.layers.get(&key, dir.is_absent_below(), with_strings, &mut row)?
                }
            };
            let is_file = row.ints[column::ENTRY] == NameKind::Is(FileKind::File).number();
            if let Some(layer) = found
                && is_file
                && self.shared.files.is_empty()
                && self.shared.files.flushes() == flushes
            {
                return self.shared.layers.inode(layer, dir.id(), &row);
            }
            let found = found.map(|layer| (layer, dir.id(), &row));
            if let Some(inode) = self.current(dir, name, found, (with_strings, flushes))? {
                return Ok(*inode);
            }
        }
    }

    /// Completes `row`, the record of `name` in `dir` if there is one, for cases that the record alone does
    /// not decide. Returns `None` if the record, read when the counter was `flushes`, must be read
    /// again. Boxed so that the common case stays in registers.
    #[inline(never)]
    fn current(
        &self,
        dir: &DirNode,
        name: &[u8],
        found: Option<(LayerIndex, DirId, &RowBuffer)>,
        (with_strings, flushes): (bool, u64),
    ) -> Result<Option<Box<Inode>>> {
        let inode = found.map(|(layer, dir, row)| self.shared.layers.inode(layer, dir, row));
        let inode = inode.transpose()?;
        let Some(mut inode) = inode.filter(|inode| inode.entry != NameKind::Tombstone) else {
            dir.check_name(name)?;
            return Err(Error::new(Kind::NotFound, format!("{}: no such file", show(name))));
        };
        match inode.entry {
            NameKind::Link if inode.seat().is_none() => {
                inode = self.linked(inode.id, with_strings)?;
            }
            NameKind::Is(FileKind::Directory) => self.overlay_times(&mut inode),
            _ => {}
        }
        let is_current = self.shared.files.overlay(&mut inode, flushes);
        Ok(is_current.then(|| Box::new(inode)))
    }

    pub(crate) fn overlay_times(&self, inode: &mut Inode) {
        if let Some(node) = self.open_node(inode.dir_id()) {
            node.overlay_times(inode);
        }
    }

    /// Open files.
    pub(crate) fn files(&self) -> &OpenFiles {
        &self.shared.files
    }

    /// Returns the handle of a directory, if it is open.
    pub(crate) fn open_node(&self, id: DirId) -> Option<Dir> {
        if id == DirId::ROOT {
            return Some(self.shared.root.clone());
        }
        self.shared.nodes.lock().get(&id).and_then(Weak::upgrade)
    }

    /// Takes the list of directories whose records lack their latest times.
    pub(crate) fn take_touched(&self) -> Vec<Dir> {
        std::mem::take(&mut *self.shared.touched.lock())
    }

    /// Puts back directories from [`Namespace::take_touched`] whose times were not written.
    pub(crate) fn touched_still(&self, nodes: Vec<Dir>) {
        self.shared.touched.lock().extend(nodes);
    }

    /// Number of directories whose records lack their latest times.
    pub(crate) fn touched_count(&self) -> usize {
        self.shared.touched.lock().len()
    }

    /// Returns the attributes of an open directory.
    pub fn stat_dir(&self, dir: &Dir) -> Result<Inode> {
        dir.check_alive()?;
        let mut inode = match dir.location() {
            Some((parent, name)) => self.entry(&parent, &name, true)?.ok_or_else(|| {
                Error::new(Kind::NotFound, format!("{}: no such directory", show(&name)))
            })?,
            None => self.root_inode()?,
        };
        dir.overlay_times(&mut inode);
        Ok(inode)
    }

    /// Returns the root's inode, whose record has the empty name in the root itself.
    fn root_inode(&self) -> Result<Inode> {
        match self.entry(&self.shared.root, b"", true)? {
            Some(inode) => Ok(inode),
            None => Ok(Inode::new(NameKind::Is(FileKind::Directory), ROOT_MODE, 0)),
        }
    }

    /// Opens the directory `inode`, which was found as `name` in `parent`.
    ///
    /// # Errors
    /// `NotADirectory`.
    pub fn open_dir(&self, parent: &Dir, name: &[u8], inode: &Inode) -> Result<Dir> {
        if !inode.is_directory() {
            let what = match inode.kind() {
                Some(FileKind::Indexed) => {
                    "an indexed directory: `cat`, `stat`, `ls` and `cp` read a key of it, and nothing \
                     changes one"
                }
                _ => "not a directory",
            };
            return Err(Error::new(Kind::NotADirectory, format!("{}: {what}", show(name))));
        }
        // If no layer below has entries of the parent, none has entries of a child of generation 0:
        // see `Session::mkdir`. A directory that arrived by a rename has the identity of its first
        // name.
        let is_absent_below =
            || parent.is_absent_below() && inode.dir_id() == DirId::child(parent.id(), 0, name);
        Ok(self.node(parent, name, inode, is_absent_below))
    }

    /// Returns the unique handle of a directory. If it is not open yet, `is_absent_below` tells
    /// whether no layer below has entries of it.
    pub(crate) fn node(
        &self,
        parent: &Dir,
        name: &[u8],
        inode: &Inode,
        is_absent_below: impl FnOnce() -> bool,
    ) -> Dir {
        let mut nodes = self.shared.nodes.lock();
        if let Some(node) = nodes.get(&inode.dir_id()).and_then(Weak::upgrade) {
            return node;
        }
        let location = Some((parent.clone(), name.to_vec()));
        let node = DirNode::new(inode, location, is_absent_below(), &self.shared.touched);
        if nodes.len() == nodes.capacity() {
            nodes.retain(|_, node| node.strong_count() > 0);
        }
        nodes.insert(node.id(), Arc::downgrade(&node));
        node
    }

    /// Returns every open directory except the root.
    pub(crate) fn open_nodes(&self) -> Vec<Dir> {
        self.shared.nodes.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Opens the directory at `path`, following symbolic links.
    ///
    /// # Errors
    /// `NotFound`, `NotADirectory`, `Denied`, `TooLarge`; `Loop` for a loop of links.
    pub fn dir(&self, path: impl AsRef<[u8]>) -> Result<Dir> {
        self.dir_at(&self.shared.root, path)
    }

    /// Like [`Namespace::dir`], for a `path` that starts at `from` unless it begins with a slash.
    ///
    /// # Errors
    /// As [`Namespace::dir`].
    pub fn dir_at(&self, from: &Dir, path: impl AsRef<[u8]>) -> Result<Dir> {
        let found = self.find_at(from, path.as_ref(), FollowLinks::Yes)?;
        self.dir_of(&found, path.as_ref())
    }

    /// Opens the directory that was found.
    fn dir_of(&self, found: &PathTarget, path: &[u8]) -> Result<Dir> {
        if found.name.is_empty() {
            return Ok(found.dir.clone());
        }
        self.open_dir(&found.dir, &found.name, &found.inode)
            .map_err(|error| error.within(show(path)))
    }

    /// Looks up `path`, with content and extended attributes.
    ///
    /// # Errors
    /// As [`Namespace::dir`].
    pub fn find(&self, path: impl AsRef<[u8]>, follow: FollowLinks) -> Result<PathTarget> {
        self.find_at(&self.shared.root, path, follow)
    }

    /// Returns the attributes of the file at `path`.
    pub fn stat(&self, path: impl AsRef<[u8]>, follow: FollowLinks) -> Result<Inode> {
        self.find(path, follow).map(|found| found.inode)
    }

    /// Splits a path whose last component need not exist into the open directory and the name in
    /// it.
    ///
    /// # Errors
    /// As [`Namespace::dir`] for the directory; `Invalid` if the last component cannot be a name.
    pub fn locate<'a>(&self, path: &'a (impl AsRef<[u8]> + ?Sized)) -> Result<(Dir, &'a [u8])> {
        let (parent, name) = split_last(path.as_ref())?;
        // Errors show the parent without the slash after it.
        let end = parent.iter().rposition(|&byte| byte != b'/').map_or(parent.len(), |at| at + 1);
        let parent = &parent[..end];
        Ok((self.dir(parent)?, name))
    }

    /// Returns the target of the symbolic link at `path`.
    ///
    /// # Errors
    /// `Invalid` if it is not a symbolic link.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let inode = self.stat(path, FollowLinks::No)?;
        if inode.kind() != Some(FileKind::Symlink) {
            return Err(Error::new(Kind::Invalid, format!("{}: not a symbolic link", show(path))));
        }
        Ok(inode.content)
    }

    /// Returns the extended attributes of `inode`, which was read with its strings.
    pub fn xattrs(&self, inode: &Inode) -> Result<Xattrs> {
        xattr::decode(&inode.xattrs)
    }

    /// Returns up to `bytes_max` bytes of the file `inode`, which was read with its strings, from
    /// `offset`; fewer only at its end. Cost: one store request unless the content is in the inode.
    ///
    /// # Errors
    /// `Denied`; `IsADirectory` or `Invalid` for anything but a regular file; `Corrupt`.
    pub fn read(&self, inode: &Inode, offset: u64, bytes_max: usize) -> Result<Bytes> {
        self.identity.check(READ, inode, b"read")?;
        match inode.kind() {
            Some(FileKind::File) => {}
            Some(FileKind::Directory) => {
                return Err(Error::new(Kind::IsADirectory, "a directory has no bytes to read"));
            }
            _ => return Err(Error::new(Kind::Invalid, "only regular files have bytes to read")),
        }
        self.read_open(inode, offset, bytes_max)
    }

    /// Passes all bytes of the file `inode` to `take`, in pieces, and verifies their checksum.
    ///
    /// # Errors
    /// As [`Namespace::read`]; `Corrupt` if the bytes are not those written; errors of `take`.
    pub fn read_all(&self, inode: &Inode, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.read(inode, 0, 0)?;
        if self.shared.files.get(inode.id).is_some() {
            return self.read_pieces(inode, take);
        }
        match inode.mapped {
            true => self.read_mapped_whole(inode, take),
            false => self.read_recorded(inode, take),
        }
    }
}
