// SPDX-License-Identifier: Apache-2.0
//! Withdrawn records: records of a part that the job's set does not show, since they belong to a
//! removal of something that another part changed. The set shows the other parts' records, and
//! those of the bases where no other part has any.

use std::collections::BTreeMap;

use esker_base::Result;
use esker_table::manifest::SetId;
use esker_table::schema::KeyBuffer;

use super::conflict::ConflictKind;
use super::cover::{CoverSource, FileCover};
use super::find::{PartFindings, PartVersion};
use super::moved_files::MovedFiles;
use super::removed_trees::RemovedTrees;
use super::resolve::{DecidedKey, JobLayers, KeyDecisions, PartResolution, raise_generation};
use crate::inode::{Inode, NameKind};

/// A name at which records of parts are withdrawn.
#[derive(Debug)]
pub(super) struct WithdrawnRecord {
    /// The parts whose records are withdrawn.
    pub(super) parts: Vec<usize>,
    /// The part that changed what they removed.
    pub(super) winner: usize,
}

/// Withdrawn records, in key order.
#[derive(Debug, Default)]
pub(super) struct WithdrawnRecords(pub(super) BTreeMap<KeyBuffer, WithdrawnRecord>);

impl WithdrawnRecords {
    /// Adds the record of `part` at `key`, since `winner` changed what the part removed.
    pub(super) fn add(&mut self, key: KeyBuffer, part: usize, winner: usize) {
        let new = WithdrawnRecord { parts: Vec::new(), winner };
        let record = self.0.entry(key).or_insert(new);
        record.parts.push(part);
        record.winner = record.winner.min(winner);
    }
}

impl WithdrawnRecord {
    /// Returns the versions that are not withdrawn.
    pub(super) fn kept(&self, versions: &[PartVersion]) -> Vec<PartVersion> {
        let is_kept =
            |version: &&PartVersion| version.is_seen && !self.parts.contains(&version.part);
        versions.iter().filter(is_kept).cloned().collect()
    }

    /// Returns what is shown if all `versions` are withdrawn: the record of the bases unless what
    /// they have is elsewhere now, or a tombstone.
    pub(super) fn below(
        &self,
        base: Option<&Inode>,
        versions: &[PartVersion],
        moved: &MovedFiles,
    ) -> Inode {
        let is_here = |base: &&Inode| {
            let has_moved = |part: &usize| moved.has_file(*part, base.id);
            match base.is_directory() {
                true => moved.mover(base.id).is_none(),
                false => !self.parts.iter().any(has_moved),
            }
        };
        let changed_ns = versions.iter().map(|version| version.inode.ctime_ns).max();
        let seq = versions.iter().map(|version| version.inode.seq).max().unwrap_or(0);
        let missing = || Inode { seq, ..Inode::tombstone(0, changed_ns.unwrap_or(0)) };
        let mut shown = base.filter(is_here).cloned().unwrap_or_else(missing);
        if let Some(base) = base.filter(|_| shown.entry == NameKind::Tombstone) {
            shown.generation = shown.generation.max(base.next_generation());
        }
        shown
    }
}

impl PartResolution {
    /// Reports removed trees in which other parts changed something.
    pub(super) fn report_trees(&mut self, trees: &RemovedTrees, parts: &[SetId]) {
        for tree in trees.trees.iter().filter(|tree| !tree.changed_by.is_empty()) {
            let kind = match tree.made {
                None => ConflictKind::Removed,
                Some(_) => ConflictKind::SameName,
            };
            let (own, others) = (tree.part, &tree.changed_by[..]);
            let outcome = if tree.is_withdrawn { (others[0], &[own][..]) } else { (own, others) };
            self.conflicts.report(kind, &tree.key, outcome, parts);
        }
    }

    /// Shows what is below `withdrawn` records of names that no other part has, and the content of
    /// all files at withdrawn records as the bases or the winning part have it.
    pub(super) fn show_withdrawn(
        &mut self,
        withdrawn: &WithdrawnRecords,
        moved: &MovedFiles,
        found: &PartFindings,
        decided: &mut KeyDecisions,
        layers: &JobLayers,
    ) -> Result<()> {
        let mut shown = Vec::new();
        for (key, record) in &withdrawn.0 {
            if let Some((at, versions)) = found.versions(key) {
                let kept = record.kept(versions);
                let winner = decided.get(key).map_or(record.winner, |decided| decided.winner);
                let inode = self.top[at].1.clone();
                let part = (!kept.is_empty()).then_some(winner);
                self.cover_withdrawn(&inode, part, record, layers)?;
                continue;
            }
            let mut versions = Vec::with_capacity(record.parts.len());
            for &part in &record.parts {
                let inode = layers.record_of_part(part, key)?;
                versions.extend(inode.map(|inode| PartVersion { part, inode, is_seen: true }));
            }
            let base = layers.record_below(key)?;
            let mut inode = record.below(base.as_ref(), &versions, moved);
            raise_generation(&mut inode, &versions);
            decided.insert(key.clone(), DecidedKey::of(&inode, record.winner, true));
            self.cover_withdrawn(&inode, None, record, layers)?;
            shown.push((key.clone(), inode));
        }
        // Link counts of withdrawn records may have been corrected.
        self.top.retain(|(key, _)| found.versions(key).is_some() || !withdrawn.0.contains_key(key));
        self.top.extend(shown);
        Ok(())
    }

    /// Keeps segments of withdrawn parts out of the content of `inode`, which is that of `part` or
    /// that of the bases.
    fn cover_withdrawn(
        &mut self,
        inode: &Inode,
        part: Option<usize>,
        record: &WithdrawnRecord,
        layers: &JobLayers,
    ) -> Result<()> {
        if !inode.mapped {
            return Ok(());
        }
        let mut is_changed = part.is_none() && inode.branch.is_some();
        for &part in &record.parts {
            is_changed = is_changed || layers.has_content_of(part, inode.id)?;
        }
        if is_changed {
            let (file, size) = (inode.id, inode.size);
            let source = match part {
                None => CoverSource::Bases(Box::new(inode.clone())),
                Some(part) => CoverSource::Part { part, stored: file },
            };
            self.covers.push(FileCover { file, size, source });
        }
        Ok(())
    }
}
