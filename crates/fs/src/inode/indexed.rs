// SPDX-License-Identifier: Apache-2.0
//! Indexed directories as entries of a tree: where their logs are, and how these move with the
//! entry. Only `esker-imd` knows the content of the logs.
//!
//! `set/<set>/imd/<number>/` has the logs and the root object of one written part; the number is
//! random, so that copies in other sets keep it. An entry consists of the part that was appended
//! last, to which its extent refers, and of earlier parts, which its content lists. Each reference
//! has the checksum of the part's root object, which is written last.
//! Layout: docs/format/inode.md, "Parts of an indexed directory". This file is its only encoder and
//! decoder.
//! Source: DeltaFS thesis §5.2.4.

use esker_base::store::SharedStore;
use esker_base::{Kind, Result};
use esker_table::manifest::SetId;
use esker_table::object_name::{ObjectFolder, ObjectName};

use crate::inode::{Extent, Inode};

/// Bytes copied at once.
const PIECE_BYTES: u64 = 4 << 20;

/// Maximum size of a root object.
pub(crate) const ROOT_BYTES_MAX: u64 = 1 << 30;

/// The object that completes an indexed directory.
const ROOT: &str = "root";

/// Maximum number of parts of an indexed directory: their references fit the entry's record.
pub const PARTS_MAX: usize = 128;

/// Bytes of a reference to a part: set, number, checksum.
const PART_BYTES: usize = 28;

const _: () = assert!(PART_BYTES * (PARTS_MAX - 1) < crate::stack::path::PATH_BYTES_MAX);

/// A part of an indexed directory: the output of one job that wrote or appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexedPart {
    /// The set whose folder has its objects.
    pub set: SetId,
    /// Its number there.
    pub number: u64,
    /// The checksum of its root object.
    pub checksum: u32,
}

impl IndexedPart {
    /// Returns the common prefix of its objects' names.
    #[must_use]
    pub fn prefix(&self) -> String {
        prefix(self.set, self.number)
    }

    /// Returns the part to which the extent of an entry refers.
    pub(crate) const fn of_extent(extent: &Extent) -> Self {
        Self { set: extent.set, number: extent.log, checksum: extent.checksum }
    }

    /// Returns the extent of an entry whose last part this is.
    pub(crate) fn extent(&self) -> Extent {
        let Self { set, number: log, checksum } = *self;
        Extent { set, log, checksum, ..Extent::default() }
    }
}

/// Returns the parts of the indexed directory `inode`, oldest first; none for any other inode. Its
/// content must have been read, as by [`crate::stack::namespace::Namespace::stat`].
#[must_use]
pub fn parts_of(inode: &Inode) -> Vec<IndexedPart> {
    let is_indexed = inode.kind() == Some(crate::inode::FileKind::Indexed);
    let Some(last) = inode.extent.as_ref().filter(|_| is_indexed) else { return Vec::new() };
    earlier_parts(&inode.content).chain([IndexedPart::of_extent(last)]).collect()
}

/// True if an entry's content can be a list of parts.
pub(crate) const fn is_list(content: &[u8]) -> bool {
    content.len().is_multiple_of(PART_BYTES) && content.len() / PART_BYTES < PARTS_MAX
}

/// Returns the parts that an entry's content lists.
pub(crate) fn earlier_parts(content: &[u8]) -> impl Iterator<Item = IndexedPart> {
    content.as_chunks::<PART_BYTES>().0.iter().map(|bytes| {
        let (set, rest) = bytes.split_first_chunk::<16>().expect("28 bytes");
        let (number, rest) = rest.split_first_chunk::<8>().expect("12 bytes");
        IndexedPart {
            set: SetId(u128::from_le_bytes(*set)),
            number: u64::from_le_bytes(*number),
            checksum: u32::from_le_bytes(*rest.first_chunk().expect("4 bytes")),
        }
    })
}

/// Returns the content of an entry that lists `parts`.
pub(crate) fn list(parts: &[IndexedPart]) -> Vec<u8> {
    let mut content = Vec::with_capacity(parts.len() * PART_BYTES);
    for part in parts {
        content.extend_from_slice(&part.set.0.to_le_bytes());
        content.extend_from_slice(&part.number.to_le_bytes());
        content.extend_from_slice(&part.checksum.to_le_bytes());
    }
    content
}

/// Returns the common prefix of the names of all objects of directory `number` in `set`; ends in
/// `/`.
#[must_use]
pub fn prefix(set: SetId, number: u64) -> String {
    ObjectFolder::Indexed(set, number).to_string()
}

/// Returns the name of the root object of directory `number` in `set`.
pub(crate) fn root(set: SetId, number: u64) -> String {
    ObjectName::Indexed(set, number, ROOT.to_owned()).to_string()
}

/// Returns the checksum of a root object's bytes, as stored in entries.
pub(crate) fn checksum(root: &[u8]) -> u32 {
    crc32c::crc32c(root)
}

/// Copies all objects of `part` into `set`, the root object last, and verifies the root object.
/// Returns the copy and the bytes copied. Existing objects, which several entries may share, stay.
pub(crate) fn copy(
    store: &SharedStore,
    part: &IndexedPart,
    set: SetId,
) -> Result<(IndexedPart, u64)> {
    let (from, to) = (part.prefix(), prefix(set, part.number));
    let mut copied = 0;
    for object in store.list(&from)? {
        let name = &object.name[from.len()..];
        if name == ROOT {
            continue;
        }
        match copy_log(store, &object.name, &format!("{to}{name}"), object.bytes) {
            // Another entry of the same directory came first, in this or another thread.
            Err(error) if error.kind() == Kind::Exists => continue,
            done => done?,
        }
        copied += object.bytes;
    }
    let name = root(part.set, part.number);
    let bytes = store.get(&name, ROOT_BYTES_MAX)?;
    if checksum(&bytes) != part.checksum {
        let what = "the root of an indexed directory does not match its entry";
        return Err(esker_base::Error::corrupt(&name, 0, what));
    }
    match store.put_if_absent(&root(set, part.number), &bytes) {
        Err(error) if error.kind() == Kind::Exists => {}
        put => put?,
    }
    Ok((IndexedPart { set, ..*part }, copied + bytes.len() as u64))
}

/// Copies the first `bytes` of the log `from` to a new log `to`, which survives power loss once
/// this returns.
///
/// # Errors
/// `Exists` if there is a log `to`; other errors of the store.
pub fn copy_log(store: &SharedStore, from: &str, to: &str, bytes: u64) -> Result<()> {
    let log = store.append_log(to)?;
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + PIECE_BYTES);
        log.append(&store.get_range(from, at..end)?)?;
        at = end;
    }
    log.sync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_parts_round_trip() {
        let part = |number| IndexedPart { set: SetId(7 << 100), number, checksum: 9 };
        let parts = [part(1), part(u64::MAX)];
        let content = list(&parts);
        assert!(is_list(&content) && is_list(&[]));
        assert_eq!(earlier_parts(&content).collect::<Vec<_>>(), parts);
        assert!(!is_list(&content[1..]) && !is_list(&list(&vec![part(0); PARTS_MAX])));
    }
}
