//! Indexed directories as entries of a tree: where their logs are, and how these go where the entry
//! goes. What is in the logs only `esker-imd` knows.
//!
//! `set/<set>/imd/<number>/` has the logs and the root object of one directory; the number is chosen
//! at random, so that copies in other sets keep it. An entry refers to set and number, and has the
//! checksum of the root object, which is the last that is written.
//! Source: DeltaFS thesis §5.2.4.

use esker_base::store::SharedStore;
use esker_base::{Kind, Result};
use esker_table::manifest::SetId;

use crate::inode::{Extent, Inode};

/// Bytes that are copied at once.
const PIECE_BYTES: u64 = 4 << 20;

/// A root object is not larger than this.
pub(crate) const ROOT_BYTES_MAX: u64 = 1 << 30;

/// The object that completes an indexed directory.
const ROOT: &str = "root";

/// What the names of all objects of directory `number` in `set` begin with; ends in `/`.
#[must_use]
pub fn prefix(set: SetId, number: u64) -> String {
    format!("set/{set}/imd/{number:016x}/")
}

/// Where the objects of the indexed directory `inode` are; none if it is none.
#[must_use]
pub fn prefix_of(inode: &Inode) -> Option<String> {
    let is_indexed = inode.kind() == Some(crate::inode::FileKind::Indexed);
    let extent = inode.extent.as_ref().filter(|_| is_indexed)?;
    Some(prefix(extent.set, extent.log))
}

/// The name of the root object of directory `number` in `set`.
pub(crate) fn root(set: SetId, number: u64) -> String {
    prefix(set, number) + ROOT
}

/// Checksum of a root object's bytes, as entries have it.
pub(crate) fn checksum(root: &[u8]) -> u32 {
    crc32c::crc32c(root)
}

/// Copies all objects of the directory that `extent` refers to into `set`, the root object last,
/// and verifies that. Returns what an entry there refers to, and the bytes copied. Objects that
/// are there already, which several entries may share, stay.
pub(crate) fn copy(store: &SharedStore, extent: &Extent, set: SetId) -> Result<(Extent, u64)> {
    let (from, to) = (prefix(extent.set, extent.log), prefix(set, extent.log));
    let placed = Extent { set, ..*extent };
    let mut copied = 0;
    for object in store.list(&from)? {
        let name = &object.name[from.len()..];
        if name == ROOT {
            continue;
        }
        let log = match store.append_log(&format!("{to}{name}")) {
            // Another entry of the same directory came first, in this or another thread.
            Err(error) if error.kind() == Kind::Exists => continue,
            log => log?,
        };
        let mut at = 0;
        while at < object.bytes {
            let end = object.bytes.min(at + PIECE_BYTES);
            log.append(&store.get_range(&object.name, at..end)?)?;
            at = end;
        }
        log.sync()?;
        copied += object.bytes;
    }
    let name = root(extent.set, extent.log);
    let bytes = store.get(&name, ROOT_BYTES_MAX)?;
    if checksum(&bytes) != extent.checksum {
        let what = "the root of an indexed directory is not the one that its entry has";
        return Err(esker_base::Error::corrupt(&name, 0, what));
    }
    match store.put_if_absent(&root(set, extent.log), &bytes) {
        Err(error) if error.kind() == Kind::Exists => {}
        put => put?,
    }
    Ok((placed, copied + bytes.len() as u64))
}
