// SPDX-License-Identifier: Apache-2.0
//! Link counts of the job's set: each part counts the names that it sees, but a directory with
//! names of files may not be shown, or be shown again.

use esker_base::Result;
use esker_table::schema::{KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::TableRuns;

use super::resolve::JobLayers;
use crate::inode::{DirId, INODE, Inode, NameKind, key};
use crate::stack::dir_tree::DirTree;

/// Returns records for the files with several names whose count in the tables `joined` differs from
/// the number of names in `tree`, in key order. Leaves alone those without any name. Cost: a
/// look-up for each file with several names.
pub(super) fn corrected_counts(
    tree: &DirTree,
    joined: &TableRuns,
    layers: &JobLayers,
) -> Result<Vec<(KeyBuffer, Inode)>> {
    let mut corrected = Vec::new();
    for (file, names) in tree.linked_files() {
        let name = file.to_be_bytes();
        let key = key(DirId::LINKS, &name);
        let wanted = LookupKey { digest: INODE.digest(&key), key };
        let mut row = RowBuffer::default();
        // Counts of bases are those of the bases' names.
        if !joined.get(&wanted, true, &mut row)? {
            continue;
        }
        let key = KeyBuffer::from(key);
        let shown = Inode::of_buffer(&row)?;
        let count = if shown.entry == NameKind::Tombstone { 0 } else { shown.nlink };
        let Some(inode) = live(shown, &key, layers)?.filter(|_| count != names) else { continue };
        corrected.push((key, Inode { nlink: names, ..inode }));
    }
    corrected.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(corrected)
}

/// Returns `shown` or, if it is a tombstone, the inode at `key` in a part or the bases.
fn live(shown: Inode, key: &KeyBuffer, layers: &JobLayers) -> Result<Option<Inode>> {
    let is_live = |inode: &Inode| inode.entry != NameKind::Tombstone;
    if is_live(&shown) {
        return Ok(Some(shown));
    }
    for part in 0..layers.parts.len() {
        if let Some(inode) = layers.record_of_part(part, key)?.filter(is_live) {
            return Ok(Some(inode));
        }
    }
    Ok(layers.record_below(key)?.filter(is_live))
}
