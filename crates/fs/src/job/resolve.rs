// SPDX-License-Identifier: Apache-2.0
//! Resolving names that several parts of a job changed.
//!
//! Compatible changes are merged: times of a directory in which several parts made entries, names
//! of a file to which several made links, a removal by several. A change wins over a removal, also
//! of a tree (`removed_trees.rs`). Among other conflicting changes, the job's set shows the one with
//! the lowest sequence number, and among equals that of the lowest rank; the report names the
//! others. Comparison with the record below tells changed attributes from copied ones. Content is
//! not merged: if parts wrote ranges of one file, the content of one part is shown, even if the
//! ranges do not overlap, since nobody has ever seen the combination.

use std::borrow::Cow;
use std::collections::BTreeMap;

use esker_base::Result;
use esker_extent::{SegmentOverlay, SegmentTables};
use esker_table::manifest::{Manifest, SetId};
use esker_table::schema::{KeyBuffer, RowBuffer};
use esker_table::table::LookupKey;
use esker_table::tables::{TableRuns, TableSource};
use hashbrown::HashMap;

use super::WINDOW_BYTES;
use super::conflict::{ConflictKind, ConflictList};
use super::cover::FileCover;
use super::find::{MovedDir, PartFindings, PartVersion};
use super::lost_names::ChangedFiles;
use super::moved_files::MovedFiles;
use super::part_views::PartViews;
use super::removed_trees::RemovedTrees;
use crate::inode::{DirId, INODE, Inode, NameKind, key};
use crate::stack::dir_tree::DirTree;
use crate::stack::layers::{LayerStack, dir_of};

/// The parts of a job, and their bases.
pub(super) struct JobLayers<'a> {
    /// The parts' sets.
    pub(super) parts: &'a [SetId],
    /// Their tables.
    pub(super) tables: &'a [TableRuns],
    /// The stack below them.
    pub(super) below: &'a LayerStack,
    /// The parts' manifests.
    pub(super) manifests: &'a [Manifest],
    /// The source of tables.
    pub(super) source: &'a TableSource,
}

impl JobLayers<'_> {
    /// Returns the record of `key` below the parts.
    pub(super) fn record_below(&self, key: &KeyBuffer) -> Result<Option<Inode>> {
        let (key, mut row) = (key.key(), RowBuffer::default());
        let found = self.below.get(&key, false, true, &mut row)?;
        found.map(|layer| self.below.inode(layer, dir_of(&key), &row)).transpose()
    }

    /// Returns the record of `key` in one part.
    pub(super) fn record_of_part(&self, part: usize, key: &KeyBuffer) -> Result<Option<Inode>> {
        let (key, mut row) = (key.key(), RowBuffer::default());
        let wanted = LookupKey { digest: INODE.digest(&key), key };
        let is_found = self.tables[part].get(&wanted, true, &mut row)?;
        is_found.then(|| Inode::of_buffer(&row)).transpose()
    }

    /// Returns the directories that the bases show. Cost: a scan of them.
    pub(super) fn tree_below(&self) -> Result<DirTree> {
        let below: Vec<&TableRuns> = self.below.bases().iter().map(|base| &base.tables).collect();
        DirTree::of(&below, 1)
    }

    /// True if `inode`, the record of `part` for a file, or its content differs from `base` in more
    /// than times and the number of names.
    pub(super) fn is_changed(&self, part: usize, base: &Inode, inode: &Inode) -> Result<bool> {
        let counted = Inode { nlink: inode.nlink, ..base.clone() };
        Ok(!is_same_but_times(&counted, inode)
            || inode.mapped && self.has_content_of(part, inode.id)?)
    }

    /// True if a part has segments of `file`, because it wrote to the file or truncated it. Cost: a
    /// block read for each window of the file without any.
    pub(super) fn has_content_of(&self, part: usize, file: u128) -> Result<bool> {
        let tables = SegmentTables::new(&self.manifests[part].tables, self.source);
        let (mut at, mut window_bytes) = (0, WINDOW_BYTES as u64);
        while at < u64::MAX && !tables.sources().is_empty() {
            let end = at.saturating_add(window_bytes);
            let mut overlay = SegmentOverlay::new(file, at..end);
            overlay.add_tables(&tables)?;
            if !overlay.pieces().is_empty() {
                return Ok(true);
            }
            (at, window_bytes) = (end, window_bytes.saturating_mul(2));
        }
        Ok(false)
    }
}

/// Result of resolving a job.
pub(super) struct PartResolution {
    /// Records that override the parts', in key order.
    pub(super) top: Vec<(KeyBuffer, Inode)>,
    /// Number of names with compatible changes of several parts.
    pub(super) merged: u64,
    pub(super) conflicts: ConflictList,
    /// True if link counts may differ from the names that are shown: records are withdrawn, which may
    /// be of names that parts counted.
    pub(super) are_counts_uncertain: bool,
    /// Files whose content is that of one part.
    pub(super) covers: Vec<FileCover>,
}

/// Decisions about shared keys, by key.
pub(super) type KeyDecisions = HashMap<KeyBuffer, DecidedKey>;

/// The decision about a key that several parts have.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecidedKey {
    /// The identity of the directory or file with several names; 0 for others.
    id: u128,
    /// The winning part.
    pub(super) winner: usize,
    /// True if another part's change is not shown.
    pub(super) is_contested: bool,
}

impl DecidedKey {
    pub(super) fn of(inode: &Inode, winner: usize, is_contested: bool) -> Self {
        let has_id = inode.is_directory() || inode.entry == NameKind::Link;
        Self { id: if has_id { inode.id } else { 0 }, winner, is_contested }
    }
}

/// Decision about a key.
struct KeyDecision {
    inode: Inode,
    winner: usize,
    /// The kind of conflict, and the parts whose changes are not shown.
    conflict: Option<(ConflictKind, Vec<usize>)>,
}

impl PartResolution {
    /// Decides every key that several parts have.
    pub(super) fn of(
        found: &PartFindings,
        changed: &ChangedFiles,
        views: &mut PartViews,
    ) -> Result<Self> {
        let layers = views.layers();
        let parts = layers.parts;
        let mut resolved = Self {
            top: Vec::new(),
            merged: 0,
            conflicts: ConflictList::default(),
            are_counts_uncertain: false,
            covers: Vec::new(),
        };
        let trees = RemovedTrees::of(found, changed, views)?;
        let withdrawn = trees.withdrawn(found, views)?;
        resolved.are_counts_uncertain = !withdrawn.0.is_empty();
        resolved.report_trees(&trees, parts);
        // The winning directories and files with several names, by key.
        let mut decided = KeyDecisions::new();
        let mut bases = Vec::with_capacity(found.shared.len());
        for (key, versions) in &found.shared {
            let base = layers.record_below(key)?;
            let record = withdrawn.0.get(key);
            let kept = record.map_or(Cow::Borrowed(&versions[..]), |own| own.kept(versions).into());
            let mut decision = match record.filter(|_| kept.is_empty()) {
                None => decide(key, &kept, &trees.moved, base.as_ref()),
                Some(record) => KeyDecision {
                    inode: record.below(base.as_ref(), versions, &trees.moved),
                    winner: record.winner,
                    conflict: None,
                },
            };
            raise_generation(&mut decision.inode, versions);
            // Several parts removed one name.
            resolved.are_counts_uncertain |=
                dir_of(&key.key()) == DirId::LINKS && count_of_names(&kept, base.as_ref()) < 1;
            // A conflict is reported at the name of the tree.
            decision.conflict.take_if(|_| trees.hides(dir_of(&key.key())));
            decide_content(&mut decision, &kept, base.as_ref(), layers)?;
            bases.push(base);
            let is_contested = record.is_some() || decision.conflict.is_some();
            let decided_key = DecidedKey::of(&decision.inode, decision.winner, is_contested);
            decided.insert(key.clone(), decided_key);
            match decision.conflict {
                None => resolved.merged += u64::from(kept.len() > 1),
                Some((kind, losers)) => {
                    resolved.conflicts.report(kind, key, (decision.winner, &losers), parts);
                }
            }
            resolved.top.push((key.clone(), decision.inode));
        }
        resolved.correct_link_counts(found, &bases, layers)?;
        resolved.show_withdrawn(&withdrawn, &trees.moved, found, &mut decided, layers)?;
        resolved.resolve_moves(found, &decided, parts);
        resolved.top.sort_by(|a, b| a.0.key().cmp(&b.0.key()));
        resolved.separate_files(found, &decided, &bases, layers)?;
        Ok(resolved)
    }

    /// Corrects link counts. Each part counts its own changes, but a name that several parts
    /// changed shows only one of them; two parts that moved the same name away both counted that.
    fn correct_link_counts(
        &mut self,
        found: &PartFindings,
        bases: &[Option<Inode>],
        layers: &JobLayers,
    ) -> Result<()> {
        let link_of = |inode: &Inode| (inode.entry == NameKind::Link).then_some(inode.id);
        // By file, the number of existing names that were not counted.
        let mut missing: BTreeMap<u128, i64> = BTreeMap::new();
        for (((_, versions), (_, shown)), base) in found.shared.iter().zip(&self.top).zip(bases) {
            let before = base.as_ref().and_then(link_of);
            // Turning the only name into a link, and moving it, is not counted anywhere.
            let only_name = base.as_ref().filter(|base| base.entry != NameKind::Link);
            let only_name = only_name.map(|base| base.id);
            let mut add = |file: Option<u128>, count: i64| {
                if let Some(file) = file.filter(|file| Some(*file) != only_name) {
                    *missing.entry(file).or_default() += count;
                }
            };
            for version in versions {
                add(link_of(&version.inode), -1);
                add(before, 1);
            }
            add(link_of(shown), 1);
            add(before, -1);
        }
        let mut uncontested = Vec::new();
        for (file, missing) in missing.into_iter().filter(|(_, missing)| *missing != 0) {
            let name = file.to_be_bytes();
            let key = KeyBuffer::from(key(DirId::LINKS, &name));
            let own = self.top.binary_search_by(|(top, _)| top.key().cmp(&key.key())).ok();
            let mut inode = own.map(|own| self.top[own].1.clone());
            for part in 0..layers.parts.len() {
                if inode.is_none() {
                    inode = layers.record_of_part(part, &key)?;
                }
            }
            if inode.is_none() {
                inode = layers.record_below(&key)?;
            }
            let Some(mut inode) = inode.filter(|inode| inode.entry != NameKind::Tombstone) else {
                continue;
            };
            let names = i64::from(inode.nlink).saturating_add(missing);
            inode.nlink = u32::try_from(names).unwrap_or(1).max(1);
            match own {
                Some(own) => self.top[own].1 = inode,
                None => uncontested.push((key, inode)),
            }
        }
        self.top.extend(uncontested);
        Ok(())
    }

    /// Keeps each directory that parts moved to different places at one of them.
    fn resolve_moves(&mut self, found: &PartFindings, decided: &KeyDecisions, parts: &[SetId]) {
        let mut places: BTreeMap<u128, Vec<&MovedDir>> = BTreeMap::new();
        for moved in &found.moved {
            let shown = decided.get(&moved.key);
            if shown.is_none_or(|shown| shown.id == moved.inode.id) {
                let all = places.entry(moved.inode.id).or_default();
                if !all.iter().any(|other| other.key == moved.key) {
                    all.push(moved);
                }
            }
        }
        for mut all in places.into_values().filter(|all| all.len() > 1) {
            all.sort_by_key(|moved| (moved.inode.seq, moved.part));
            for loser in &all[1..] {
                let next = loser.inode.next_generation();
                let mut tombstone =
                    Inode { seq: loser.inode.seq, ..Inode::tombstone(next, loser.inode.ctime_ns) };
                if let Some((_, versions)) = found.versions(&loser.key) {
                    raise_generation(&mut tombstone, versions);
                }
                self.top.retain(|(key, _)| *key != loser.key);
                self.top.push((loser.key.clone(), tombstone));
                let outcome = (all[0].part, &[loser.part][..]);
                self.conflicts.report(ConflictKind::MovedTwice, &loser.key, outcome, parts);
            }
        }
    }
}

/// Raises the generation of `inode` beyond those of `versions`: a directory made here later is newer
/// than any that a part has seen.
pub(super) fn raise_generation(inode: &mut Inode, versions: &[PartVersion]) {
    let next = versions.iter().map(|version| version.inode.next_generation()).max().unwrap_or(0);
    let is_directory = u64::from(inode.is_directory());
    inode.generation = inode.generation.max(next.saturating_sub(is_directory));
}

/// Returns the first of `versions`, by the rule, among those that `fits` accepts.
fn lowest(versions: &[PartVersion], fits: impl Fn(&PartVersion) -> bool) -> Option<&PartVersion> {
    let fitting = versions.iter().filter(|version| fits(version));
    fitting.min_by_key(|version| (version.inode.seq, version.part))
}

/// Returns the version that is shown of different files and directories at one name: a directory
/// that was moved there rather than one that was made there, and that rather than a file, so that
/// the least is hidden; then by the rule.
pub(super) fn preferred<'a>(
    versions: impl Iterator<Item = &'a PartVersion>,
    moved: &MovedFiles,
) -> Option<&'a PartVersion> {
    versions.min_by_key(|version| {
        let inode = &version.inode;
        let is_moved = inode.is_directory() && moved.has(version.part, inode.id);
        (!is_moved, !inode.is_directory(), inode.seq, version.part)
    })
}

/// Returns the parts except the `winner` of versions that `are` accepts.
fn others(
    versions: &[PartVersion],
    winner: usize,
    are: impl Fn(&PartVersion) -> bool,
) -> Vec<usize> {
    let lost = versions.iter().filter(|version| version.part != winner && are(version));
    lost.map(|version| version.part).collect()
}

fn decide(
    key: &KeyBuffer,
    versions: &[PartVersion],
    moved: &MovedFiles,
    base: Option<&Inode>,
) -> KeyDecision {
    // A directory that one part moved stays moved.
    let is_left = |version: &PartVersion| {
        let inode = &version.inode;
        inode.is_directory()
            && moved.mover(inode.id).is_some()
            && !moved.has(version.part, inode.id)
    };
    let first = lowest(versions, |_| true).expect("a shared key has versions");
    let same = |a: &Inode, b: &Inode| a.entry == b.entry && a.id == b.id;
    let is_one = versions.iter().all(|version| same(&version.inode, &first.inode));
    // A directory's times change with each removal of an entry.
    let is_touched = |version: &PartVersion| {
        let is_same = |base: &Inode| is_same_but_times(base, &version.inode);
        !is_one && version.inode.is_directory() && base.is_some_and(is_same)
    };
    let (mut left, mut rest) = (Vec::new(), Vec::new());
    if !is_one || is_left(first) {
        let is_unwanted = |version: &PartVersion| is_left(version) || is_touched(version);
        (left, rest) = versions.iter().cloned().partition(is_unwanted);
    }
    if let [first, ..] = &left[..] {
        let losers = left.iter().filter(|version| is_left(version)).map(|version| version.part);
        let losers: Vec<usize> = losers.collect();
        let mut decision = if rest.is_empty() {
            let tombstone = Inode::tombstone(first.inode.next_generation(), first.inode.ctime_ns);
            let inode = Inode { seq: first.inode.seq, ..tombstone };
            let winner = moved.mover(first.inode.id).unwrap_or(first.part);
            KeyDecision { inode, winner, conflict: None }
        } else {
            decide(key, &rest, moved, base)
        };
        if !losers.is_empty() {
            let (_, all) = decision.conflict.get_or_insert((ConflictKind::Moved, Vec::new()));
            all.extend(losers);
        }
        return decision;
    }
    let is_gone = |version: &PartVersion| version.inode.entry == NameKind::Tombstone;
    if versions.iter().all(is_gone) {
        // Where one part moved a directory that another removed, the removal is withdrawn.
        KeyDecision { inode: first.inode.clone(), winner: first.part, conflict: None }
    } else if dir_of(&key.key()) == DirId::LINKS {
        decide_links(versions, base)
    } else if versions.iter().any(is_gone) {
        decide_removed(versions, moved, base)
    } else if is_one {
        decide_changed(versions, base)
    } else {
        different(versions, moved)
    }
}

/// If all parts' records of a file fit together, of which one is mapped, selects the content of one
/// part that wrote to it, by the rule; otherwise the file would mix segments of all of them. A write
/// to a mapped file changes no record.
fn decide_content(
    decision: &mut KeyDecision,
    versions: &[PartVersion],
    base: Option<&Inode>,
    layers: &JobLayers,
) -> Result<()> {
    let is_content = |(kind, _): &(ConflictKind, Vec<usize>)| *kind != ConflictKind::SameFile;
    let is_mapped = versions.iter().any(|version| version.inode.mapped);
    if decision.conflict.as_ref().is_some_and(is_content) || !is_mapped {
        return Ok(());
    }
    let is_rewritten = |inode: &Inode| {
        let content = |inode: &Inode| (inode.size, inode.mapped, inode.extent);
        base.is_some_and(|base| content(base) != content(inode) || base.content != inode.content)
    };
    let is_same = |version: &&PartVersion| version.inode.id == decision.inode.id;
    let mut writers = Vec::new();
    for version in versions.iter().filter(is_same) {
        let has_segments = || layers.has_content_of(version.part, version.inode.id);
        if is_rewritten(&version.inode) || has_segments()? {
            writers.push(version.clone());
        }
    }
    if let Some(first) = lowest(&writers, |_| true)
        && writers.len() > 1
    {
        decision.winner = first.part;
        let Inode { size, mapped, extent, content, branch, .. } = first.inode.clone();
        let metadata = decision.inode.clone();
        decision.inode = Inode { size, mapped, extent, content, branch, ..metadata };
        let losers = others(&writers, first.part, |_| true);
        decision.conflict = Some((ConflictKind::SameFile, losers));
    }
    Ok(())
}

/// Decides about a key whose file or directory some parts removed, and others changed or made: a
/// change wins over a removal. A part that removed only what it had made has removed nothing.
fn decide_removed(
    versions: &[PartVersion],
    moved: &MovedFiles,
    base: Option<&Inode>,
) -> KeyDecision {
    let is_gone = |version: &PartVersion| version.inode.entry == NameKind::Tombstone;
    let (gone, changed): (Vec<_>, Vec<_>) = versions.iter().cloned().partition(is_gone);
    let [first, ..] = &changed[..] else { panic!("one of the versions is no tombstone") };
    let is_same = |version: &PartVersion| {
        (version.inode.entry, version.inode.id) == (first.inode.entry, first.inode.id)
    };
    let mut decision = if changed.iter().all(is_same) {
        let decision = decide_changed(&changed, base);
        let conflict = decision.conflict.map(|(_, losers)| (ConflictKind::Removed, losers));
        KeyDecision { conflict, ..decision }
    } else {
        different(&changed, moved)
    };
    if base.is_some_and(|base| base.entry != NameKind::Tombstone) {
        let (_, losers) = decision.conflict.get_or_insert((ConflictKind::Removed, Vec::new()));
        losers.extend(gone.iter().map(|version| version.part));
    }
    decision
}

/// Decides about a key at which parts have different files or directories.
fn different(versions: &[PartVersion], moved: &MovedFiles) -> KeyDecision {
    let shown = preferred(versions.iter(), moved).expect("a shared key has versions");
    let is_other = |version: &PartVersion| {
        (version.inode.entry, version.inode.id) != (shown.inode.entry, shown.inode.id)
    };
    let conflict = Some((ConflictKind::SameName, others(versions, shown.part, is_other)));
    KeyDecision { inode: shown.inode.clone(), winner: shown.part, conflict }
}

/// True if the attributes that users set are the same; times and counts may differ.
pub(super) fn is_same_but_times(a: &Inode, b: &Inode) -> bool {
    (a.entry, a.id, a.mode, a.uid, a.gid, a.rdev, a.size)
        == (b.entry, b.id, b.mode, b.uid, b.gid, b.rdev, b.size)
        && (a.mapped, a.extent, &a.content, &a.xattrs)
            == (b.mapped, b.extent, &b.content, &b.xattrs)
}

/// Decides about a key at which all parts have the same file or directory.
fn decide_changed(versions: &[PartVersion], base: Option<&Inode>) -> KeyDecision {
    let is_changed =
        |version: &PartVersion| base.is_none_or(|base| !is_same_but_times(&version.inode, base));
    let first = lowest(versions, is_changed).or_else(|| lowest(versions, |_| true));
    let first = first.expect("a shared key has versions");
    let losers = others(versions, first.part, |version| {
        is_changed(version) && !is_same_but_times(&version.inode, &first.inode)
    });
    let mut inode = first.inode.clone();
    for version in versions {
        inode.mtime_ns = inode.mtime_ns.max(version.inode.mtime_ns);
        inode.ctime_ns = inode.ctime_ns.max(version.inode.ctime_ns);
    }
    let conflict = (!losers.is_empty()).then_some((ConflictKind::SameFile, losers));
    KeyDecision { inode, winner: first.part, conflict }
}

/// Decides about a file with several names.
fn decide_links(versions: &[PartVersion], base: Option<&Inode>) -> KeyDecision {
    let live: Vec<PartVersion> =
        versions.iter().filter(|v| v.inode.entry != NameKind::Tombstone).cloned().collect();
    let mut decision = decide_changed(&live, base);
    // At least one part has a name for it; which names win elsewhere is not known here.
    decision.inode.nlink = u32::try_from(count_of_names(versions, base)).unwrap_or(1).max(1);
    decision
}

/// The number of names of a file that has several, if no two parts changed the same one: each part's
/// count is relative to the record below.
fn count_of_names(versions: &[PartVersion], base: Option<&Inode>) -> i64 {
    // Before its second name was made, the file had one, in a record elsewhere.
    let before = base.map_or(1, |base| i64::from(base.nlink));
    versions.iter().fold(before, |names, version| {
        let own = if version.inode.entry == NameKind::Tombstone { 0 } else { version.inode.nlink };
        names + i64::from(own) - before
    })
}
