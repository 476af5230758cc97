// SPDX-License-Identifier: Apache-2.0
//! Indexed directories: shows their keys as read-only files.
//!
//! A key's file holds all values of the key, one after the other. It has the directory's owner, and
//! every user who may read the directory may read it. Nobody can change it: the contents of an
//! indexed directory are immutable. A look-up searches the directory's logs; readers of some
//! directories stay open. Concurrency: readers are shared; the map of open ones is a leaf lock, not
//! held across store I/O.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_base::{Bytes, Error, Kind};
use esker_fs::inode::indexed::{IndexedPart, parts_of};
use esker_fs::inode::{FileKind, Inode};
use esker_imd::IndexedReader;
use esker_imd::entry::key_inode;
use fuser::{Errno, FileAttr};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::listing::{EntrySink, ShownEntry};
use crate::mount_state::MountState;
use crate::node_location::NodeLocation;
use crate::nodes::KernelNode;

/// Directories with more keys are not listed: no user reads millions of names, and programs that
/// list everything they find would cause reads of all records.
pub(crate) const LISTED_KEYS_MAX: usize = 16 << 10;

/// Number of readers that stay open, and the cache of each.
const READERS_MAX: usize = 32;
const READER_CACHE_BYTES: u64 = 8 << 20;

/// Cookies of the two dots, with which listings of keys begin.
const DOTS: u64 = 2;

/// Open readers, by the last part of their directory.
#[derive(Debug, Default)]
pub(crate) struct IndexedReaders {
    open: Mutex<HashMap<(u128, u64), Arc<IndexedReader>>>,
}

/// A key of an indexed directory.
#[derive(Clone, Debug)]
pub(crate) struct KeyFile {
    /// The directory, whose node stays alive while its keys are known.
    pub(crate) directory: Arc<KernelNode>,
    key: Bytes,
    /// Bytes of the key's values.
    size: u64,
}

/// The keys of a directory, as of when it was opened.
#[derive(Debug)]
pub(crate) struct KeyList {
    keys: Vec<(String, Bytes, u64)>,
}

impl KeyFile {
    /// Bytes of the key's values.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// The inode of the file, in a directory with the inode `directory`.
    fn inode(&self, directory: &Inode) -> Inode {
        key_inode(directory, &self.key, self.size)
    }
}

impl MountState {
    /// The inode of an indexed directory and its parts.
    fn indexed_inode(&self, directory: &KernelNode) -> Result<Inode, Errno> {
        let location = directory.location.lock().clone();
        match &location {
            NodeLocation::Name(dir, name) => {
                self.view.namespace().lookup(dir, name, true).map_err(|error| self.errno(&error))
            }
            NodeLocation::Gone(_) => Err(Errno::ENOENT),
            NodeLocation::Dir(_) | NodeLocation::Key(_) => Err(Errno::ENOTDIR),
        }
    }

    /// A reader of the indexed directory `inode`.
    fn indexed_reader(&self, inode: &Inode) -> Result<Arc<IndexedReader>, Errno> {
        let parts = parts_of(inode);
        let last = parts.last().ok_or(Errno::ENOTDIR)?;
        let name = (last.set.0, last.number);
        if let Some(reader) = self.indexed.open.lock().get(&name) {
            return Ok(Arc::clone(reader));
        }
        let prefixes: Vec<String> = parts.iter().map(IndexedPart::prefix).collect();
        let store = &self.view.namespace().layers().source().store;
        let opened = IndexedReader::open(store, &prefixes, READER_CACHE_BYTES);
        let reader = Arc::new(opened.map_err(|error| self.errno(&error))?);
        let mut open = self.indexed.open.lock();
        if open.len() >= READERS_MAX {
            open.clear();
        }
        Ok(Arc::clone(open.entry(name).or_insert(reader)))
    }

    /// The attributes for the kernel of `name` in the indexed directory `directory`; `None` if
    /// `name` is not the name of a key, or the key has no value.
    pub(crate) fn lookup_key(
        &self,
        directory: &Arc<KernelNode>,
        name: &[u8],
    ) -> Result<Option<FileAttr>, Errno> {
        let inode = self.indexed_inode(directory)?;
        let reader = self.indexed_reader(&inode)?;
        let Ok(key) = reader.key_names().key_of_name(name) else { return Ok(None) };
        let values = reader.get(&key).map_err(|error| self.errno(&error))?.values;
        if values.is_empty() {
            return Ok(None);
        }
        let size = values.iter().map(|value| value.bytes.len() as u64).sum();
        let file = KeyFile { directory: Arc::clone(directory), key: key.into(), size };
        self.remember_key(file, &inode).map(Some)
    }

    /// The attributes for the kernel of `file`, in a directory with `inode`.
    fn remember_key(&self, file: KeyFile, inode: &Inode) -> Result<FileAttr, Errno> {
        let shown = file.inode(inode);
        let node = self.nodes.intern(&shown, || NodeLocation::Key(Box::new(file)));
        node.is_known_without_xattrs.store(true, Ordering::Relaxed);
        self.attributes_with_links(&node, &shown).inspect_err(|_| self.forget(node.number, 1))
    }

    /// The inode of a key.
    pub(crate) fn key_inode(&self, file: &KeyFile) -> Result<Inode, Errno> {
        Ok(file.inode(&self.indexed_inode(&file.directory)?))
    }

    /// All values of a key, one after the other.
    pub(crate) fn read_key(&self, file: &KeyFile) -> Result<Bytes, Errno> {
        let reader = self.indexed_reader(&self.indexed_inode(&file.directory)?)?;
        let mut values = reader.get(&file.key).map_err(|error| self.errno(&error))?.values;
        if values.len() == 1 {
            return Ok(values.remove(0).bytes);
        }
        let pieces: Vec<&[u8]> = values.iter().map(|value| &value.bytes[..]).collect();
        Ok(pieces.concat().into())
    }

    /// The keys of an indexed directory.
    ///
    /// # Errors
    /// `EFBIG` if there are more than [`LISTED_KEYS_MAX`], which is reported with an alternative.
    pub(crate) fn key_list(&self, directory: &KernelNode) -> Result<KeyList, Errno> {
        let reader = self.indexed_reader(&self.indexed_inode(directory)?)?;
        let listed = reader.list(LISTED_KEYS_MAX).map_err(|error| self.errno(&error))?;
        let Some(keys) = listed else {
            let name = match &*directory.location.lock() {
                NodeLocation::Name(_, name) => String::from_utf8_lossy(name).into_owned(),
                _ => "an indexed directory".to_owned(),
            };
            let what = format!(
                "{name} has more than {LISTED_KEYS_MAX} keys, which a mount does not list: each can be \
                 read by its name, and `esker ls` lists all"
            );
            self.report(&Error::new(Kind::FileTooLarge, what));
            return Err(Errno::EFBIG);
        };
        let names = reader.key_names();
        let named = |(key, size): (Bytes, u64)| (names.name_of_key(&key), key, size);
        Ok(KeyList { keys: keys.into_iter().map(named).collect() })
    }

    /// Passes the keys of `list` after `cookie` to `sink` until it is full or they end.
    pub(crate) fn list_keys<S: EntrySink>(
        &self,
        directory: &Arc<KernelNode>,
        list: &KeyList,
        cookie: u64,
        sink: &mut S,
    ) -> Result<(), Errno> {
        let inode = self.indexed_inode(directory)?;
        let parent = match &*directory.location.lock() {
            NodeLocation::Name(dir, _) => self.nodes.number(dir.id().0, FileKind::Directory),
            _ => directory.number,
        };
        let dots = [(1, &b"."[..], directory.number), (DOTS, b"..", parent)];
        for (dot, name, number) in dots {
            let shown = ShownEntry::Kind(number, FileKind::Directory);
            if dot > cookie && !sink.put(dot, name, shown) {
                return Ok(());
            }
        }
        let first = usize::try_from(cookie.saturating_sub(DOTS)).unwrap_or(usize::MAX);
        for (at, (name, key, size)) in list.keys.iter().enumerate().skip(first) {
            let file = KeyFile { directory: Arc::clone(directory), key: key.clone(), size: *size };
            let cookie = DOTS + 1 + at as u64;
            let has_room = if S::WITH_ATTRIBUTES {
                let shown = self.remember_key(file, &inode)?;
                let number = shown.ino.0;
                let has_room = sink.put(cookie, name.as_bytes(), ShownEntry::All(shown));
                if !has_room {
                    self.forget(number, 1);
                }
                has_room
            } else {
                let number = self.nodes.number(file.inode(&inode).id, FileKind::File);
                sink.put(cookie, name.as_bytes(), ShownEntry::Kind(number, FileKind::File))
            };
            if !has_room {
                return Ok(());
            }
        }
        Ok(())
    }
}
