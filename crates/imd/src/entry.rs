// SPDX-License-Identifier: Apache-2.0
//! Entry: an indexed directory within a namespace, read by path, with one file a key.
//!
//! Each name in it is the name of a key ([`crate::schema::KeyNames`]).
//! Source: DeltaFS thesis §5.2.4.

use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::indexed::{IndexedPart, parts_of};
use esker_fs::inode::{FileKind, Inode, NameKind};
use esker_fs::stack::identity::{EXECUTE, READ};
use esker_fs::stack::namespace::{FollowLinks, Namespace};

use crate::hash::key_hash;
use crate::indexed_reader::IndexedReader;

/// An indexed directory at or above the end of a path.
#[derive(Debug)]
pub struct IndexedEntry {
    /// The entry.
    pub inode: Inode,
    /// Object name prefix of each part, oldest first.
    pub prefixes: Vec<String>,
    /// Remainder of the path: a key's name; empty if the path ends at the directory.
    pub rest: Vec<u8>,
}

/// Returns the key that `path` leads to, if it leads into an indexed directory.
///
/// # Errors
/// As [`find`].
pub fn find_key(view: &Namespace, path: &[u8]) -> Result<Option<IndexedEntry>> {
    Ok(find(view, path)?.filter(|entry| !entry.rest.is_empty()))
}

/// Finds the indexed directory at `path` or above it, if there is one.
///
/// # Errors
/// `Denied` if the caller may not read it, and the errors of the look-up. A path that leads
/// elsewhere or nowhere is `None`.
pub fn find(view: &Namespace, path: &[u8]) -> Result<Option<IndexedEntry>> {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..end];
    let slash = path.iter().rposition(|&byte| byte == b'/');
    let of_itself = (path, &b""[..]);
    let of_parent = slash.map(|slash| (&path[..slash], &path[slash + 1..]));
    for (place, rest) in [Some(of_itself), of_parent].into_iter().flatten() {
        let inode = match view.stat(place, FollowLinks::Yes) {
            Ok(inode) => inode,
            Err(error) if matches!(error.kind(), Kind::NotFound | Kind::NotADirectory) => continue,
            Err(error) => return Err(error),
        };
        let parts = parts_of(&inode);
        if !parts.is_empty() {
            let needed = if rest.is_empty() { READ } else { READ | EXECUTE };
            view.identity().check(needed, &inode, place)?;
            let prefixes = parts.iter().map(IndexedPart::prefix).collect();
            return Ok(Some(IndexedEntry { inode, prefixes, rest: rest.to_vec() }));
        }
    }
    Ok(None)
}

/// Returns the inode of the file that holds the values of `key`, `size` bytes, in the indexed
/// directory with the inode `directory`: it has the directory's owner and times, and nobody may
/// write it.
#[must_use]
pub fn key_inode(directory: &Inode, key: &[u8], size: u64) -> Inode {
    let mut inode =
        Inode::new(NameKind::Is(FileKind::File), directory.mode & 0o444, directory.mtime_ns);
    let id = directory.id.to_le_bytes();
    // Two independent hashes, so that two keys of a stack share an identity only by a 128-bit
    // collision.
    let halves = [[&id[..], key].concat(), [key, &id].concat()];
    let [high, low] = halves.map(|bytes| u128::from(key_hash(&bytes)));
    inode.id = high << 64 | low;
    (inode.uid, inode.gid, inode.size) = (directory.uid, directory.gid, size);
    inode.nlink = 1;
    inode
}

impl IndexedEntry {
    /// Returns the key that the path leads to as a file: its inode, and all values of the key, one
    /// after the other.
    ///
    /// # Errors
    /// `NotFound` if the key has no value, `Invalid` if it is not the name of a key; as
    /// [`IndexedReader::open`].
    pub fn key_file(&self, store: &SharedStore) -> Result<(Inode, Vec<u8>)> {
        let reader = self.open(store, 0)?;
        let key = reader.key_names().key_of_name(&self.rest)?;
        let values = reader.get(&key)?.values;
        if values.is_empty() {
            return Err(Error::new(Kind::NotFound, "no record has this key"));
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes.iter().copied()).collect();
        Ok((key_inode(&self.inode, &key, bytes.len() as u64), bytes))
    }

    /// Opens the directory for reading.
    ///
    /// # Errors
    /// As [`IndexedReader::open`].
    pub fn open(&self, store: &SharedStore, cache_bytes: u64) -> Result<IndexedReader> {
        IndexedReader::open(store, &self.prefixes, cache_bytes)
    }
}
