// SPDX-License-Identifier: Apache-2.0
//! Finding the changes of a job's parts that may need a decision: keys that several parts have,
//! directories that moved, and names of files that have several.

use esker_base::Result;
use esker_table::block::DecodedBlock;
use esker_table::manifest::SetId;
use esker_table::merge::{LoneBlock, RecordMerge};
use esker_table::schema::{Key, KeyBuffer, Row};
use esker_table::tables::TableRuns;
use hashbrown::HashSet;

use super::file_names::FileNames;
use super::part_views::PartViews;
use super::resolve::JobLayers;
use super::same_file::InheritedFile;
use crate::inode::{DirId, FileId, FileKind, INODE, Inode, NameKind, column, key};
use crate::stack::layers::dir_of;

/// The number of entries that are directories.
pub(super) const DIRECTORY: u64 = NameKind::Is(FileKind::Directory).number();

/// A part's record of a key.
#[derive(Clone, Debug)]
pub(super) struct PartVersion {
    /// Index of the part.
    pub(super) part: usize,
    /// Its newest record.
    pub(super) inode: Inode,
    /// False if the part does not show the directory with the name.
    pub(super) is_seen: bool,
}

/// A directory at a different place from where it was made.
#[derive(Clone, Debug)]
pub(super) struct MovedDir {
    pub(super) part: usize,
    pub(super) key: KeyBuffer,
    pub(super) inode: Inode,
}

/// A name at which a part has something else, or nothing, where a directory was.
#[derive(Clone, Debug)]
pub(super) struct RemovedDir {
    pub(super) part: usize,
    pub(super) key: KeyBuffer,
    /// The kind and the identity of the new file or directory there, if the part made one.
    pub(super) made: Option<(NameKind, u128)>,
}

/// The record of a file with several names that a part has.
#[derive(Clone, Debug)]
pub(super) struct ChangedLinks {
    pub(super) part: usize,
    pub(super) inode: Inode,
}

/// The changes of all parts that may need a decision.
#[derive(Debug, Default)]
pub(super) struct PartFindings {
    /// Stands for the root's identity in those of directories made there.
    identity_root: DirId,
    /// Keys that several parts have, in order, each with the version of every such part.
    pub(super) shared: Vec<(KeyBuffer, Vec<PartVersion>)>,
    /// Directories that parts moved and, until [`PartFindings::keep_moves`], those that parts changed
    /// where a base had moved them.
    pub(super) moved: Vec<MovedDir>,
    /// Names of files with several names that parts made or changed: part, name and file.
    pub(super) links: Vec<(usize, KeyBuffer, u128)>,
    /// Records of files with several names.
    pub(super) changed_links: Vec<ChangedLinks>,
    /// Files of bases of which a part removed all names that it had, with the part: whatever it did
    /// to them before is gone.
    pub(super) removed_files: Vec<(usize, u128)>,
    /// Names at which there was a directory, perhaps of a base.
    pub(super) removed_dirs: Vec<RemovedDir>,
    /// Parts that removed directories, of bases or their own.
    pub(super) removers: HashSet<usize>,
    /// Records of files that a set other than the part made.
    pub(super) inherited: Vec<InheritedFile>,
}

/// Keeps the elements of `all` that `is_kept` accepts.
fn retain<T>(all: &mut Vec<T>, mut is_kept: impl FnMut(&T) -> Result<bool>) -> Result<()> {
    let mut kept = Vec::with_capacity(all.len());
    for own in std::mem::take(all) {
        if is_kept(&own)? {
            kept.push(own);
        }
    }
    *all = kept;
    Ok(())
}

/// Merges the records of all `parts`. Returns also the part of each of the merge's sources; those of
/// one part are adjacent, its newest run first.
pub(super) fn merge_of_parts(parts: &[TableRuns]) -> Result<(RecordMerge, Vec<usize>)> {
    let (mut cursors, mut part_of) = (Vec::new(), Vec::new());
    for (part, tables) in parts.iter().enumerate() {
        tables.cursors(&INODE, &Key::FIRST, &Key::LAST, &mut cursors);
        part_of.resize(cursors.len(), part);
    }
    Ok((RecordMerge::new(cursors, &Key::FIRST)?, part_of))
}

/// True if a block has no record of a directory.
pub(super) fn is_of_files(block: &DecodedBlock) -> bool {
    !block.values(column::ENTRY).contains(&DIRECTORY)
}

/// Returns the inode of a stored row.
pub(super) fn inode_of(row: &Row) -> Result<Inode> {
    let mut readable = *row;
    INODE.restore(&mut readable.ints);
    Inode::of_row(&readable)
}

impl PartFindings {
    /// Merges the keys of all `parts`, which are the tables of `sets`. Skips blocks that only one
    /// part has and that contain only files it made.
    pub(super) fn in_parts(
        parts: &[TableRuns],
        sets: &[SetId],
        identity_root: DirId,
    ) -> Result<Self> {
        const LINK: u64 = NameKind::Link.number();
        let is_plain = |block: &DecodedBlock, set: SetId| {
            let all_are = |column, value| block.values(column).iter().all(|own| *own == value);
            // The links directory sorts last.
            dir_of(&block.key(&INODE, block.rows() - 1)) != DirId::LINKS
                && is_of_files(block)
                && !block.values(column::ENTRY).contains(&LINK)
                && all_are(column::GENERATION, 0)
                && all_are(column::ID_HIGH, (set.0 >> 64) as u64)
        };
        let mut found = Self { identity_root, ..Self::default() };
        let (mut merge, part_of) = merge_of_parts(parts)?;
        let is_passed =
            |block: &LoneBlock| Ok(is_plain(block.records, sets[part_of[block.source]]));
        while merge.advance_past(is_passed)? {
            let versions = merge.versions();
            let first = part_of[versions[0]];
            if versions.iter().any(|&source| part_of[source] != first) {
                found.share(&merge, &part_of)?;
            }
            let mut last = None;
            for &source in merge.versions() {
                let part = part_of[source];
                let row = merge.version(source);
                if last != Some(part) {
                    match row.ints[column::ENTRY] {
                        DIRECTORY => found.add_dir(part, &row)?,
                        LINK => found.add_link(part, &row)?,
                        _ => found.add_file(part, sets[part], &row)?,
                    }
                }
                last = Some(part);
            }
        }
        Ok(found)
    }

    fn share(&mut self, merge: &RecordMerge, part_of: &[usize]) -> Result<()> {
        let mut versions: Vec<PartVersion> = Vec::new();
        for &source in merge.versions() {
            let part = part_of[source];
            if versions.last().is_none_or(|version| version.part != part) {
                let inode = inode_of(&merge.version(source))?;
                versions.push(PartVersion { part, inode, is_seen: true });
            }
        }
        self.shared.push((merge.key().into(), versions));
        Ok(())
    }

    fn add_dir(&mut self, part: usize, row: &Row) -> Result<()> {
        let key = INODE.key(row);
        let inode = inode_of(row)?;
        self.add_removed_dir(part, &key, &inode);
        let is_root = dir_of(&key) == DirId::ROOT && key.string.is_empty();
        let parent = match dir_of(&key) {
            DirId::ROOT => self.identity_root,
            dir => dir,
        };
        if !is_root && inode.dir_id() != DirId::child(parent, inode.generation, key.string) {
            self.moved.push(MovedDir { part, key: key.into(), inode });
        }
        Ok(())
    }

    fn add_link(&mut self, part: usize, row: &Row) -> Result<()> {
        let key = INODE.key(row);
        let inode = inode_of(row)?;
        self.add_removed_dir(part, &key, &inode);
        self.links.push((part, key.into(), inode.id));
        Ok(())
    }

    /// Adds the name of a record if it may have been that of a directory: every directory at a name
    /// raises the generation of the next record.
    fn add_removed_dir(&mut self, part: usize, key: &Key, inode: &Inode) {
        if inode.generation > 0 {
            let made = (inode.entry, inode.id);
            let made = Some(made).filter(|(entry, _)| *entry != NameKind::Tombstone);
            self.removed_dirs.push(RemovedDir { part, key: (*key).into(), made });
        }
    }

    /// Adds a record, neither a directory nor a link, of the part `set`.
    fn add_file(&mut self, part: usize, set: SetId, row: &Row) -> Result<()> {
        let key = INODE.key(row);
        let inode = inode_of(row)?;
        self.add_removed_dir(part, &key, &inode);
        if inode.entry != NameKind::Tombstone {
            if !FileId(inode.id).is_of(set) {
                let (file, key) = (inode.id, key.into());
                self.inherited.push(InheritedFile { file, part, key, is_seen: true });
            }
            if dir_of(&key) == DirId::LINKS {
                self.changed_links.push(ChangedLinks { part, inode });
            }
        }
        Ok(())
    }

    /// Forgets directories that parts only changed: the bases have them at the same name.
    pub(super) fn keep_moves(&mut self, layers: &JobLayers) -> Result<()> {
        retain(&mut self.moved, |own| {
            let base = layers.record_below(&own.key)?;
            Ok(base.is_none_or(|base| !base.is_directory() || base.id != own.inode.id))
        })
    }

    /// Moves files with several names of which a part removed all from `changed_links` to
    /// `removed_files`. Cost: a look-up for each record of such a file and, if a part removed a
    /// name, that of [`FileNames::of`].
    pub(super) fn forget_removed_files(&mut self, views: &mut PartViews) -> Result<()> {
        let layers = views.layers();
        let has_fewer_names = |link: &ChangedLinks| -> Result<bool> {
            let name = link.inode.id.to_be_bytes();
            let base = layers.record_below(&key(DirId::LINKS, &name).into())?;
            // Without a record below, the file had one name.
            Ok(link.inode.nlink < base.map_or(1, |base| base.nlink))
        };
        let mut files = HashSet::new();
        for link in &self.changed_links {
            if has_fewer_names(link)? {
                files.insert(link.inode.id);
            }
        }
        let names = FileNames::of(&files, self, layers)?;
        let mut removed = Vec::new();
        let mut is_kept = |link: &ChangedLinks| -> Result<bool> {
            let (part, file) = (link.part, link.inode.id);
            let is_removed = files.contains(&file) && names.seen(part, file, views)?.is_empty();
            removed.extend(is_removed.then_some((part, file)));
            Ok(!is_removed)
        };
        retain(&mut self.changed_links, &mut is_kept)?;
        self.removed_files = removed;
        Ok(())
    }

    /// Forgets records in directories that their part does not show, since it removed a directory
    /// above. Marks the versions of shared keys.
    pub(super) fn forget_unseen(&mut self, views: &mut PartViews) -> Result<()> {
        let moved: HashSet<(usize, u128)> =
            self.moved.iter().map(|moved| (moved.part, moved.inode.id)).collect();
        for removed in &self.removed_dirs {
            let base = views.layers().record_below(&removed.key)?;
            // A tombstone where a directory was that the part moved is no removal.
            let is_move = base.is_some_and(|base| moved.contains(&(removed.part, base.id)));
            if !(is_move && removed.made.is_none()) {
                self.removers.insert(removed.part);
            }
        }
        if self.removers.is_empty() {
            return Ok(());
        }
        let mut sees = |part: usize, key: &KeyBuffer| {
            Ok(!self.removers.contains(&part) || views.shows(part, dir_of(&key.key()))?)
        };
        retain(&mut self.moved, |own| sees(own.part, &own.key))?;
        retain(&mut self.links, |(part, key, _)| sees(*part, key))?;
        retain(&mut self.removed_dirs, |own| sees(own.part, &own.key))?;
        for own in &mut self.inherited {
            own.is_seen = sees(own.part, &own.key)?;
        }
        for (key, versions) in &mut self.shared {
            for version in versions {
                version.is_seen = sees(version.part, key)?;
            }
        }
        Ok(())
    }

    /// Returns the index and the versions of a key that several parts have.
    pub(super) fn versions(&self, key: &KeyBuffer) -> Option<(usize, &[PartVersion])> {
        let at = self.shared.binary_search_by(|(shared, _)| shared.cmp(key)).ok()?;
        Some((at, &self.shared[at].1))
    }

    /// True if several parts moved directories, which together may form a loop.
    pub(super) fn has_moves_of_several_parts(&self) -> bool {
        self.moved.iter().any(|moved| moved.part != self.moved[0].part)
    }

    /// Returns every moved directory once.
    pub(super) fn moved_dirs(&self) -> Vec<&MovedDir> {
        let mut seen = HashSet::new();
        self.moved.iter().filter(|moved| seen.insert(moved.inode.id)).collect()
    }
}
