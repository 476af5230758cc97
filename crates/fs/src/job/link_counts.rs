// SPDX-License-Identifier: Apache-2.0
//! Link counts of the job's set: each part counts the names that it sees, but a directory with
//! names of files may not be shown, or be shown again.

use esker_base::Result;
use esker_table::schema::{KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::TableRuns;

use crate::inode::{DirId, INODE, Inode, key};
use crate::stack::dir_tree::DirTree;

/// Returns records for the files with several names whose count in the tables `joined` differs from
/// the number of names in `tree`, in key order. Leaves alone those without any name. Cost: a
/// look-up for each file with several names.
pub(super) fn corrected_counts(
    tree: &DirTree,
    joined: &TableRuns,
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
        let inode = Inode::of_buffer(&row)?;
        if inode.kind().is_some() && inode.nlink != names {
            corrected.push((KeyBuffer::from(key), Inode { nlink: names, ..inode }));
        }
    }
    corrected.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(corrected)
}
