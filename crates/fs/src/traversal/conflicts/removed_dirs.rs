// SPDX-License-Identifier: Apache-2.0
//! Directories that one base removed as a whole while another changed only their entries.
//!
//! The removal is one tombstone at the directory's name, or something else made there since, for
//! which the other base has no record of its own. This module scans the sets on which not all bases
//! build for such records. A directory that the base shows at another name was moved, and is the
//! same there. If any is left, it follows each directory that such a set changed up to the root: a
//! directory on that path may have been removed by a set that does not know of the change.
//! Cost: a scan for such records; only if a directory was removed, a read of the keys of these
//! sets, and memory for the directories that they changed.

use std::collections::{BTreeMap, BTreeSet};

use esker_base::Result;
use esker_table::manifest::SetId;
use esker_table::merge::RecordMerge;
use esker_table::schema::{Key, KeyBuffer};
use hashbrown::{HashMap, HashSet};

use super::{
    BaseConflict, ComposedBases, ConflictingVersion, DEPTH_MAX, DirectoryConflict, find_names,
    first_name, path_of_id, record,
};
use crate::inode::{DirId, FileKind, INODE, NameKind};
use crate::stack::dir_tree::visit_removed_dirs;
use crate::stack::layers::dir_of;

/// A directory that a base removed.
struct RemovedDirectory {
    key: KeyBuffer,
    /// Index of the layer that has the tombstone.
    layer: usize,
    removal: ConflictingVersion,
    /// The versions of other bases, which were made independently of the removal.
    kept: Vec<ConflictingVersion>,
}

impl ComposedBases {
    /// Returns the conflicts at directories that a base removed, with their keys. `is_apart[a][b]`
    /// is true if each of the two layers is in a base that lacks the other one.
    pub(super) fn conflicts_in_removed_dirs(
        &self,
        is_apart: &[Vec<bool>],
        memberships: &HashMap<SetId, HashSet<usize>>,
    ) -> Result<Vec<(KeyBuffer, BaseConflict)>> {
        let mut removed = self.removed_dirs(is_apart, memberships)?;
        self.leave_out_moved(&mut removed)?;
        if removed.is_empty() {
            return Ok(Vec::new());
        }
        let changed = self.changed_dirs(is_apart)?;
        let names = find_names(&self.composed, changed.keys().copied().collect(), 1)?;
        let layers = self.composed.layers().bases();
        // The bases that changed a removed directory's entries, by directory.
        let mut changing: BTreeMap<u128, BTreeSet<usize>> = BTreeMap::new();
        for (dir, changed_by) in &changed {
            let mut at = *dir;
            for _ in 0..DEPTH_MAX {
                for removed in removed.get(&at).into_iter().flatten() {
                    let remover = &memberships[&layers[removed.layer].set];
                    for layer in changed_by.iter().filter(|layer| is_apart[removed.layer][**layer])
                    {
                        let changer = &memberships[&layers[*layer].set];
                        // A base that builds on both has decided between them.
                        if changer.is_disjoint(remover) {
                            changing.entry(at).or_default().extend(changer);
                        }
                    }
                }
                let Some((parent, _)) = first_name(&names, at) else { break };
                at = parent.0;
            }
        }
        let mut found = Vec::new();
        for (dir, changing) in changing {
            // If several bases removed it, the first stands for all.
            let Some(removed) = removed[&dir].first() else { continue };
            let kept = removed.kept.iter().filter(|version| changing.contains(&version.base));
            let versions: Vec<_> = [&removed.removal].into_iter().chain(kept).cloned().collect();
            let name = removed.key.key().string.to_vec();
            let conflict = BaseConflict {
                path: None,
                name,
                is_linked: false,
                directory: Some(DirectoryConflict::Removed),
                versions,
                aspects: Vec::new(),
            };
            if conflict.versions.len() > 1 {
                found.push((removed.key.clone(), conflict));
            }
        }
        Ok(found)
    }

    /// Returns the directories, by identity, that some base removed and that another base shows
    /// without a record of its own.
    fn removed_dirs(
        &self,
        is_apart: &[Vec<bool>],
        memberships: &HashMap<SetId, HashSet<usize>>,
    ) -> Result<HashMap<u128, Vec<RemovedDirectory>>> {
        let layers = self.composed.layers().bases();
        let index_of: HashMap<SetId, usize> =
            layers.iter().enumerate().map(|(index, layer)| (layer.set, index)).collect();
        let mut removed: HashMap<u128, Vec<RemovedDirectory>> = HashMap::new();
        for (index, layer) in layers.iter().enumerate() {
            if !is_apart[index].contains(&true) {
                continue;
            }
            let mut keys: Vec<KeyBuffer> = Vec::new();
            for table in layer.tables.runs.iter().flat_map(|run| &run.tables) {
                visit_removed_dirs(table, &mut |key| keys.push((*key).into()))?;
            }
            for key in keys {
                let (mut removal, mut kept) = (None, HashMap::<u128, Vec<_>>::new());
                let mut made = None;
                for (base, namespace) in self.bases.iter().enumerate() {
                    let Some((set, inode)) = record(namespace, &key.key())? else { continue };
                    let is_dir = inode.entry == NameKind::Is(FileKind::Directory);
                    let is_removal = set == layer.set;
                    let is_kept = is_dir
                        && !memberships[&layer.set].contains(&base)
                        // `find_conflicts` compares two independent records of one name.
                        && !is_apart[index][index_of[&set]];
                    if !is_removal && !is_kept {
                        continue;
                    }
                    let (id, is_made) = (inode.id, inode.entry != NameKind::Tombstone);
                    let version =
                        ConflictingVersion::of_record(base, namespace, &key.key(), inode)?;
                    match is_removal {
                        true => {
                            made = is_made.then_some(id);
                            removal.get_or_insert(ConflictingVersion { inode: None, ..version });
                        }
                        false => kept.entry(id).or_default().push(version),
                    }
                }
                let Some(removal) = removal else { continue };
                for (id, kept) in kept.into_iter().filter(|(id, _)| made != Some(*id)) {
                    let (key, removal) = (key.clone(), removal.clone());
                    let removed_dir = RemovedDirectory { key, layer: index, removal, kept };
                    removed.entry(id).or_default().push(removed_dir);
                }
            }
        }
        Ok(removed)
    }

    /// Removes from `removed` the directories that the base which has the tombstone shows
    /// elsewhere.
    fn leave_out_moved(&self, removed: &mut HashMap<u128, Vec<RemovedDirectory>>) -> Result<()> {
        for (base, namespace) in self.bases.iter().enumerate() {
            let is_of_base = |removed: &RemovedDirectory| removed.removal.base == base;
            let ids = removed.iter().filter(|(_, removals)| removals.iter().any(is_of_base));
            let moved = find_names(namespace, ids.map(|(id, _)| *id).collect(), 1)?;
            // One that was moved into a removed directory is removed with that.
            let shown = |(id, _): &(&u128, &mut Vec<_>)| path_of_id(&moved, **id).is_some();
            for (_, removals) in removed.iter_mut().filter(shown) {
                removals.retain(|removed| !is_of_base(removed));
            }
        }
        removed.retain(|_, removals| !removals.is_empty());
        Ok(())
    }

    /// Returns the directories in which independent layers have records, with these layers.
    fn changed_dirs(&self, is_apart: &[Vec<bool>]) -> Result<HashMap<u128, BTreeSet<usize>>> {
        let mut changed: HashMap<u128, BTreeSet<usize>> = HashMap::new();
        for (index, layer) in self.composed.layers().bases().iter().enumerate() {
            if !is_apart[index].contains(&true) {
                continue;
            }
            let mut cursors = Vec::new();
            layer.tables.cursors(&INODE, &Key::FIRST, &Key::LAST, &mut cursors);
            let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
            let mut last = None;
            while merge.advance()? {
                let key = merge.key();
                let dir = dir_of(&key);
                // The root's own record has the empty name.
                let is_entry = dir != DirId::LINKS && !key.string.is_empty();
                if is_entry && last.replace(dir) != Some(dir) {
                    changed.entry(dir.0).or_default().insert(index);
                }
            }
        }
        Ok(changed)
    }
}
