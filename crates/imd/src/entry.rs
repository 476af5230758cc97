//! Entry: an indexed directory within a namespace, read by path, with one file a key.
//!
//! Each name in it is the name of a key ([`crate::schema::KeyNames`]).
//! Source: DeltaFS thesis §5.2.4.

use esker_base::store::SharedStore;
use esker_base::{Kind, Result};
use esker_fs::identity::{EXECUTE, READ};
use esker_fs::indexed::{IndexedPart, parts_of};
use esker_fs::inode::Inode;
use esker_fs::namespace::{Follow, Namespace};

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
        let inode = match view.stat(place, Follow::Yes) {
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

impl IndexedEntry {
    /// Opens the directory for reading.
    ///
    /// # Errors
    /// As [`IndexedReader::open`].
    pub fn open(&self, store: &SharedStore, cache_bytes: u64) -> Result<IndexedReader> {
        IndexedReader::open(store, &self.prefixes, cache_bytes)
    }
}
