// SPDX-License-Identifier: Apache-2.0
//! Identities of files: checks that each belongs to one name, or to links.
//!
//! A session gives a new identity to every file it makes, so only records of files of other sets
//! can share one. Those are remembered while tables are read. If several names in a stack have the
//! same one, the stack is merged once more to see whether it shows them.

use esker_base::Result;
use esker_table::manifest::SetId;
use esker_table::merge::RecordMerge;
use esker_table::schema::Key;
use esker_table::tables::TableRuns;
use hashbrown::{HashMap, HashSet};

use super::{Finding, LimitedFindings, Severity};
use crate::inode::{DirId, FileId, INODE, Inode, NameKind, column};
use crate::stack::dir_tree::DirTree;
use crate::stack::layers::dir_of;
use crate::stack::lineage::StackLineage;

/// Maximum number of names reported for one file.
const NAMES_MAX: usize = 4;

/// Named files of other sets, each with a digest of its key.
#[derive(Debug, Default)]
pub(super) struct InheritedFiles(Vec<(u128, u64)>);

impl InheritedFiles {
    /// Remembers the record `inode` at `key` of a table that `set` wrote, if it is such a file.
    pub(super) fn add(&mut self, set: SetId, key: &Key, inode: &Inode) {
        let is_file = matches!(inode.entry, NameKind::Is(_)) && !inode.is_directory();
        if is_file && dir_of(key) != DirId::LINKS && !FileId(inode.id).is_of(set) {
            let [high, low, hash] = [key.ints[0], key.ints[1], key.ints[2]];
            self.0.push((inode.id, esker_base::word_hash::mix(high ^ low.rotate_left(32)) ^ hash));
        }
    }

    /// Adds the files of another table.
    pub(super) fn extend(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    /// Returns the files that have several names in some layers.
    fn at_several_names(mut self) -> HashSet<u128> {
        self.0.sort_unstable();
        self.0.dedup();
        let of_files = self.0.chunk_by(|a, b| a.0 == b.0);
        of_files.filter(|names| names.len() > 1).map(|names| names[0].0).collect()
    }
}

/// A stack whose files are checked.
pub(super) struct StackOfTables<'a> {
    /// The sets, each with those that it builds on.
    pub(super) sets: &'a [(SetId, &'a [SetId])],
    /// Their tables.
    pub(super) layers: &'a [&'a TableRuns],
    /// Its directories.
    pub(super) tree: &'a DirTree,
}

/// Finds files that `stack` shows under several names that are not links. Cost: a merge of the
/// stack's records, if `inherited` files of its sets have several names.
pub(super) fn check(
    object: &str,
    stack: &StackOfTables,
    inherited: InheritedFiles,
    limited: &mut LimitedFindings,
) -> Result<()> {
    let suspects = inherited.at_several_names();
    if suspects.is_empty() {
        return Ok(());
    }
    let lineage = StackLineage::of(stack.sets);
    let (mut cursors, mut layer_of) = (Vec::new(), Vec::new());
    for (layer, tables) in stack.layers.iter().enumerate() {
        tables.cursors(&INODE, &Key::FIRST, &Key::LAST, &mut cursors);
        layer_of.resize(cursors.len(), layer);
    }
    let mut names: HashMap<u128, Vec<String>> = HashMap::new();
    let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
    while merge.advance()? {
        let mut row = merge.row();
        let key = INODE.key(&row);
        let dir = dir_of(&key);
        if dir == DirId::LINKS || !stack.tree.is_live(dir) {
            continue;
        }
        INODE.restore(&mut row.ints);
        let stored =
            u128::from(row.ints[column::ID_HIGH]) << 64 | u128::from(row.ints[column::ID_LOW]);
        let entry = NameKind::of_number(row.ints[column::ENTRY]);
        if !suspects.contains(&stored) || !matches!(entry, Some(NameKind::Is(_))) {
            continue;
        }
        let layer = layer_of[merge.versions()[0]];
        let shown = match lineage.is_branch(layer) {
            true => FileId(stored).of_branch(stack.sets[layer].0).0,
            false => stored,
        };
        let path = stack.tree.path(dir, key.string).unwrap_or_default();
        names.entry(shown).or_default().push(String::from_utf8_lossy(&path).into_owned());
    }
    let mut several: Vec<_> = names.into_iter().filter(|(_, names)| names.len() > 1).collect();
    several.sort_unstable();
    for (file, mut names) in several {
        names.sort_unstable();
        let count = names.len();
        names.truncate(NAMES_MAX);
        let expected = format!("one name of file {file:032x}, or links");
        let got = format!("{count} names that are no links: {}", names.join(", "));
        limited.push(Finding::new(Severity::Error, object, expected, got));
    }
    Ok(())
}
