// SPDX-License-Identifier: Apache-2.0
//! Trees that one part removed and in which another part changed something.
//!
//! A removal of a directory of a base is a tombstone at its name; those of its entries may be
//! missing, and records that the part wrote there before remain. If another part changed something
//! in the tree (made, wrote or moved a file, moved a directory in or out), the removal is
//! withdrawn: the job's set shows what that part sees, as if the other had no records in the tree.
//! A file or directory that a part made in place of the tree conflicts with it, at its name.
//! Invariants: a removal never hides another part's change without a report; records of a part in
//! a directory that it does not show are never shown.
//! Cost: a look-up below for each name where a part removed a directory. If one is of a base: a
//! scan of all directories of the bases, and of the parts' records of directories and of names in
//! these trees.

use std::collections::BTreeMap;

use esker_base::Result;
use esker_table::block::DecodedBlock;
use esker_table::merge::RecordMerge;
use esker_table::schema::{Key, KeyBuffer};
use esker_table::tables::TableRuns;
use hashbrown::{HashMap, HashSet};

use super::file_names::FileNames;
use super::find::{
    ChangedLinks, DIRECTORY, PartFindings, RemovedDir, inode_of, is_of_files, merge_of_parts,
};
use super::lost_names::ChangedFiles;
use super::moved_files::MovedFiles;
use super::part_views::PartViews;
use super::resolve::{JobLayers, is_same_but_times, preferred};
use super::withdrawn::WithdrawnRecords;
use crate::inode::{DirId, FileKind, INODE, Inode, NameKind, column, key};
use crate::stack::layers::dir_of;

/// A tree that a part removed, by its topmost directory.
#[derive(Debug)]
pub(super) struct RemovedTree {
    /// The part that removed it.
    pub(super) part: usize,
    /// The name of the directory.
    pub(super) key: KeyBuffer,
    /// The directory.
    dir: DirId,
    /// The kind of file that the part made at the name instead, if any.
    pub(super) made: Option<NameKind>,
    /// The parts that changed something in the tree, in order.
    pub(super) changed_by: Vec<usize>,
    /// True if the removal is withdrawn, since another part changed something in the tree, unless
    /// another directory is shown in its place.
    pub(super) is_withdrawn: bool,
}

/// All removed trees of bases.
#[derive(Debug, Default)]
pub(super) struct RemovedTrees {
    pub(super) trees: Vec<RemovedTree>,
    /// The directories in them, each with the indices of trees that it is in, one a part.
    dirs: HashMap<DirId, Vec<usize>>,
    /// Directories and files that parts moved.
    pub(super) moved: MovedFiles,
}

impl RemovedTrees {
    /// Finds the removed trees, and who changed something in them.
    pub(super) fn of(
        found: &PartFindings,
        changed: &ChangedFiles,
        views: &mut PartViews,
    ) -> Result<Self> {
        let layers = views.layers();
        let mut trees = Self { moved: MovedFiles::of(found), ..Self::default() };
        let roots = trees.removed_roots(found, layers)?;
        if roots.is_empty() {
            return Ok(trees);
        }
        let base_tree = views.below()?;
        let children = base_tree.children();
        for (&(part, dir), removed) in &roots {
            let mut at = dir;
            let is_nested = loop {
                // A directory that its part moved away is in no tree above.
                match base_tree.location(at).filter(|_| !trees.moved.has(part, at.0)) {
                    Some(dentry) if roots.contains_key(&(part, dentry.parent)) => break true,
                    Some(dentry) => at = dentry.parent,
                    None => break false,
                }
            };
            if !is_nested {
                trees.add(dir, removed, &children);
            }
        }
        trees.find_changes(layers)?;
        trees.add_changed_files(found, changed, layers)?;
        for tree in &mut trees.trees {
            tree.changed_by.sort_unstable();
            tree.changed_by.dedup();
            tree.is_withdrawn =
                !tree.changed_by.is_empty() && !is_replaced(tree, found, &trees.moved);
        }
        Ok(trees)
    }

    /// Returns the directories of bases that parts removed, by part and identity.
    fn removed_roots<'f>(
        &self,
        found: &'f PartFindings,
        layers: &JobLayers,
    ) -> Result<BTreeMap<(usize, DirId), &'f RemovedDir>> {
        let mut roots = BTreeMap::new();
        for removed in &found.removed_dirs {
            let is_removed = |base: &Inode| {
                base.is_directory()
                    && removed.made.map(|(_, id)| id) != Some(base.id)
                    && !self.moved.has(removed.part, base.id)
            };
            if let Some(base) = layers.record_below(&removed.key)?.filter(is_removed) {
                roots.insert((removed.part, base.dir_id()), removed);
            }
        }
        Ok(roots)
    }

    /// Adds the tree of `dir`, without directories that its part moved out of it.
    fn add(&mut self, dir: DirId, removed: &RemovedDir, children: &HashMap<DirId, Vec<DirId>>) {
        let index = self.trees.len();
        self.trees.push(RemovedTree {
            part: removed.part,
            key: removed.key.clone(),
            dir,
            made: removed.made.map(|(entry, _)| entry),
            changed_by: Vec::new(),
            is_withdrawn: false,
        });
        let mut waiting = vec![dir];
        while let Some(dir) = waiting.pop() {
            self.dirs.entry(dir).or_default().push(index);
            let below = children.get(&dir).into_iter().flatten();
            let is_here = |child: &&DirId| !self.moved.has(removed.part, child.0);
            waiting.extend(below.filter(is_here));
        }
    }

    /// Returns the indices of the trees that contain `dir`.
    fn containing(&self, dir: DirId) -> &[usize] {
        self.dirs.get(&dir).map_or(&[], Vec::as_slice)
    }

    /// True if `part` removed `dir`.
    fn is_removed_by(&self, dir: DirId, part: usize) -> bool {
        self.containing(dir).iter().any(|&tree| self.trees[tree].part == part)
    }

    /// True if `dir` is in a tree that the job's set does not show.
    pub(super) fn hides(&self, dir: DirId) -> bool {
        self.containing(dir).iter().any(|&tree| !self.trees[tree].is_withdrawn)
    }

    /// Adds to each tree the parts that changed something in it, by their records of names.
    fn find_changes(&mut self, layers: &JobLayers) -> Result<()> {
        let mut changes: HashSet<(usize, usize)> = HashSet::new();
        let (mut merge, part_of) = merge_of_parts(layers.tables)?;
        while merge.advance_past(|block| Ok(self.is_elsewhere(block.records)))? {
            let mut last = None;
            for &source in merge.versions() {
                let part = part_of[source];
                if last.replace(part) == Some(part) {
                    continue;
                }
                let (key, row) = (merge.key(), merge.version(source));
                if self.dirs.contains_key(&dir_of(&key)) || row.ints[column::ENTRY] == DIRECTORY {
                    let changed = self.changed_trees(part, &key, &inode_of(&row)?, layers)?;
                    changes.extend(changed.into_iter().map(|tree| (tree, part)));
                }
            }
        }
        changes.into_iter().for_each(|(tree, part)| self.add_change(tree, part));
        Ok(())
    }

    fn add_change(&mut self, tree: usize, part: usize) {
        let tree = &mut self.trees[tree];
        if tree.part != part {
            tree.changed_by.push(part);
        }
    }

    /// True if a block has only records of files, in one directory that is in no tree.
    fn is_elsewhere(&self, block: &DecodedBlock) -> bool {
        let [first, last] = [0, block.rows() - 1].map(|row| dir_of(&block.key(&INODE, row)));
        first == last && !self.dirs.contains_key(&first) && is_of_files(block)
    }

    /// Returns the trees of which the record `inode` of `part` at `key` changes something.
    fn changed_trees(
        &self,
        part: usize,
        key: &Key,
        inode: &Inode,
        layers: &JobLayers,
    ) -> Result<Vec<usize>> {
        let dir = dir_of(key);
        if inode.entry == NameKind::Tombstone || self.is_removed_by(dir, part) {
            return Ok(Vec::new());
        }
        let of_dir = if inode.is_directory() { self.containing(inode.dir_id()) } else { &[] };
        let mut changed: Vec<usize> =
            self.containing(dir).iter().filter(|tree| !of_dir.contains(tree)).copied().collect();
        if !of_dir.is_empty() {
            let base = layers.record_below(&(*key).into())?;
            if base.is_none_or(|base| !is_same_but_times(&base, inode)) {
                changed.extend(of_dir);
            }
        }
        Ok(changed)
    }

    /// Adds to each tree the parts that changed a file of which the bases have a name in it.
    fn add_changed_files(
        &mut self,
        found: &PartFindings,
        changed: &ChangedFiles,
        layers: &JobLayers,
    ) -> Result<()> {
        let names = FileNames::of(&changed.keys().copied().collect(), found, layers)?;
        for (file, parts) in changed {
            for name in names.below(*file) {
                for tree in self.containing(dir_of(&name.key())).to_vec() {
                    parts.iter().for_each(|part| self.add_change(tree, *part));
                }
            }
        }
        Ok(())
    }

    /// Returns the records that are withdrawn: what is at the names of trees whose removal is
    /// withdrawn, what a part has in directories that it does not show, but others do, and those of
    /// files of which a part removed all names. Cost: a scan of the records that parts have in these
    /// directories.
    pub(super) fn withdrawn(
        &self,
        found: &PartFindings,
        views: &mut PartViews,
    ) -> Result<WithdrawnRecords> {
        let mut withdrawn = WithdrawnRecords::default();
        for tree in self.trees.iter().filter(|tree| tree.is_withdrawn) {
            withdrawn.add(tree.key.clone(), tree.part, tree.changed_by[0]);
        }
        let mut unseen: BTreeMap<(usize, DirId), usize> = BTreeMap::new();
        for (dir, trees) in &self.dirs {
            for tree in trees.iter().map(|&tree| &self.trees[tree]) {
                if let Some(&winner) = tree.changed_by.first() {
                    unseen.insert((tree.part, *dir), winner);
                }
            }
        }
        let shared = if found.removers.is_empty() { &[][..] } else { &found.shared[..] };
        for (key, versions) in shared {
            // The directories that parts have there, each with the first such part.
            let mut dirs: BTreeMap<DirId, usize> = BTreeMap::new();
            for version in versions.iter().filter(|version| version.inode.is_directory()) {
                dirs.entry(version.inode.dir_id()).or_insert(version.part);
            }
            for own in versions.iter().filter(|own| found.removers.contains(&own.part)) {
                for (dir, part) in &dirs {
                    if !views.shows(own.part, *dir)? {
                        unseen.insert((own.part, *dir), *part);
                    }
                }
                if !own.is_seen {
                    let others = versions.iter().find(|other| other.part != own.part);
                    let winner = others.map_or(own.part, |other| other.part);
                    withdrawn.add(key.clone(), own.part, winner);
                }
            }
        }
        if !unseen.is_empty() {
            self.withdraw_unseen_files(&mut withdrawn, found, views)?;
        }
        withdraw_removed_files(&mut withdrawn, found);
        for ((part, dir), winner) in unseen {
            for key in keys_in(&views.layers().tables[part], dir)? {
                withdrawn.add(key, part, winner);
            }
        }
        Ok(withdrawn)
    }

    /// Withdraws the records of files with several names of which their part shows none.
    fn withdraw_unseen_files(
        &self,
        withdrawn: &mut WithdrawnRecords,
        found: &PartFindings,
        views: &mut PartViews,
    ) -> Result<()> {
        let winners: HashMap<usize, usize> = self
            .trees
            .iter()
            .filter_map(|tree| Some((tree.part, *tree.changed_by.first()?)))
            .collect();
        let is_in_question = |link: &&ChangedLinks| {
            winners.contains_key(&link.part) && !self.moved.has_file(link.part, link.inode.id)
        };
        let links: Vec<&ChangedLinks> = found.changed_links.iter().filter(is_in_question).collect();
        let files = links.iter().map(|link| link.inode.id).collect();
        let names = FileNames::of(&files, found, views.layers())?;
        for link in links {
            if names.seen(link.part, link.inode.id, views)?.is_empty() {
                let name = link.inode.id.to_be_bytes();
                let key = key(DirId::LINKS, &name).into();
                withdrawn.add(key, link.part, winners[&link.part]);
            }
        }
        Ok(())
    }
}

/// Withdraws the records of files of which their part removed all names, but others have some.
fn withdraw_removed_files(withdrawn: &mut WithdrawnRecords, found: &PartFindings) {
    if found.removed_files.is_empty() {
        return;
    }
    let records = found.changed_links.iter().map(|link| (link.part, link.inode.id));
    let mut owners: HashMap<u128, Vec<usize>> = HashMap::new();
    for (part, file) in records.chain(found.links.iter().map(|(part, _, file)| (*part, *file))) {
        owners.entry(file).or_default().push(part);
    }
    for (part, file) in &found.removed_files {
        let others = owners.get(file).into_iter().flatten().copied();
        if let Some(winner) = others.filter(|other| other != part).min() {
            withdrawn.add(key(DirId::LINKS, &file.to_be_bytes()).into(), *part, winner);
        }
    }
}

/// True if another directory is shown in place of a tree in which a part changed something.
fn is_replaced(tree: &RemovedTree, found: &PartFindings, moved: &MovedFiles) -> bool {
    let Some((_, versions)) = found.versions(&tree.key) else {
        return tree.made == Some(NameKind::Is(FileKind::Directory));
    };
    let seen = versions.iter().filter(|version| version.is_seen);
    let shown = preferred(seen, moved).map(|shown| &shown.inode);
    shown.is_some_and(|shown| shown.is_directory() && shown.dir_id() != tree.dir)
}

/// Returns the keys of all records that `tables` have in `dir`.
fn keys_in(tables: &TableRuns, dir: DirId) -> Result<Vec<KeyBuffer>> {
    let from = KeyBuffer { ints: [(dir.0 >> 64) as u64, dir.0 as u64, 0], string: Vec::new() };
    let to = INODE.group_last(&from.key());
    let mut cursors = Vec::new();
    tables.cursors(&INODE, &from.key(), &to, &mut cursors);
    let mut merge = RecordMerge::new(cursors, &from.key())?;
    let mut keys = Vec::new();
    while merge.advance()? && dir_of(&merge.key()) == dir {
        keys.push(merge.key().into());
    }
    Ok(keys)
}
