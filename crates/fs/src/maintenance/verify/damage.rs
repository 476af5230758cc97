// SPDX-License-Identifier: Apache-2.0
//! Damage: which bytes and records cannot be read, and the paths of the files to which they belong.
//!
//! Paths are looked up only if something is damaged, in the tables that can be read. Files that
//! lost bytes of a log are found by merging the records of each stack. Lost records of a table have
//! no names any more, so the directories that contained them are reported.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use esker_base::{Kind, Result};
use esker_extent::{Segment, SegmentMerge, SegmentOverlay, SegmentTables};
use esker_table::manifest::{SetId, TableRef};
use esker_table::merge::RecordMerge;
use esker_table::schema::{Key, KeyBuffer};
use esker_table::tables::TableRuns;
use hashbrown::HashMap;

use super::{FINDINGS_PER_OBJECT_MAX, Finding, Verification};
use crate::inode::indexed;
use crate::inode::{DirId, FileKind, INODE, Inode, NameKind};
use crate::stack::dir_tree::DirTree;
use crate::stack::layers::dir_of;

/// Maximum number of paths in a finding.
const PATHS_MAX: usize = 8;

/// Subject of a finding: its object and offset.
type FindingKey = (String, Option<u64>);

/// Everything that cannot be read, with the findings that report it.
#[derive(Default)]
pub(super) struct DamagedObjects {
    /// Ranges of data logs.
    logs: BTreeMap<(SetId, u64), Vec<LostBytes>>,
    /// Indexed directories.
    indexed: BTreeMap<(SetId, u64), FindingKey>,
    /// Unreadable parts of tables.
    tables: BTreeMap<(SetId, u64), Vec<LostKeys>>,
    paths: BTreeMap<FindingKey, BTreeSet<String>>,
}

/// Bytes of a log that are missing or changed.
struct LostBytes {
    range: Range<u64>,
    finding: FindingKey,
}

/// Records of a table that cannot be read.
#[derive(Clone)]
struct LostKeys {
    schema: u16,
    first: KeyBuffer,
    last: KeyBuffer,
    finding: FindingKey,
}

impl LostKeys {
    /// True if they may include segments of `file`.
    fn may_have_segments(&self, file: u128) -> bool {
        let [first, last] = [&self.first, &self.last].map(|key| dir_of(&key.key()).0);
        self.schema != INODE.id && (first..=last).contains(&file)
    }
}

fn key_of(finding: &Finding) -> FindingKey {
    (finding.object.clone(), finding.offset)
}

impl DamagedObjects {
    /// Records that `finding` is about `range` of a data log.
    pub(super) fn add_log(&mut self, log: (SetId, u64), range: Range<u64>, finding: &Finding) {
        let ranges = self.logs.entry(log).or_default();
        if ranges.len() < FINDINGS_PER_OBJECT_MAX {
            ranges.push(LostBytes { range, finding: key_of(finding) });
        }
    }

    /// Records that `finding` is about an indexed directory.
    pub(super) fn add_indexed(&mut self, directory: (SetId, u64), finding: &Finding) {
        self.indexed.insert(directory, key_of(finding));
    }

    /// Records that the rows from `first` to `last` of `table` cannot be read, according to
    /// `finding`.
    pub(super) fn add_table(
        &mut self,
        table: &TableRef,
        (first, last): (KeyBuffer, KeyBuffer),
        finding: &Finding,
    ) {
        let lost = self.tables.entry((table.set, table.number)).or_default();
        if lost.len() < FINDINGS_PER_OBJECT_MAX {
            lost.push(LostKeys { schema: table.schema, first, last, finding: key_of(finding) });
        }
    }

    fn is_empty(&self) -> bool {
        self.logs.is_empty() && self.indexed.is_empty() && self.tables.is_empty()
    }

    /// Returns the findings about `range` of a log.
    fn of_log(&self, log: (SetId, u64), range: Range<u64>) -> impl Iterator<Item = &FindingKey> {
        let ranges = self.logs.get(&log).into_iter().flatten();
        let is_hit =
            move |lost: &&LostBytes| lost.range.start < range.end && range.start < lost.range.end;
        ranges.filter(is_hit).map(|lost| &lost.finding)
    }

    fn of_segment(&self, segment: &Segment) -> impl Iterator<Item = &FindingKey> {
        let place = segment.place.iter();
        place.flat_map(|place| {
            let range = place.offset..place.offset.saturating_add(segment.length);
            self.of_log((place.set, place.log), range)
        })
    }

    /// Returns the findings about the content of `inode`, given those about files in the extent
    /// table.
    fn of_inode(
        &self,
        inode: &Inode,
        mapped: &HashMap<u128, BTreeSet<FindingKey>>,
    ) -> BTreeSet<FindingKey> {
        if inode.mapped {
            return mapped.get(&inode.id).cloned().unwrap_or_default();
        }
        let Some(extent) = &inode.extent else { return BTreeSet::new() };
        if inode.kind() == Some(FileKind::Indexed) {
            let parts = indexed::parts_of(inode).into_iter();
            return parts.filter_map(|p| self.indexed.get(&(p.set, p.number)).cloned()).collect();
        }
        let written = extent.written.max(extent.length);
        let range = extent.offset..extent.offset.saturating_add(written);
        self.of_log((extent.set, extent.log), range).cloned().collect()
    }

    /// Returns the unreadable parts of `tables`.
    fn keys_lost_of(&self, tables: &BTreeSet<(SetId, u64)>) -> Vec<LostKeys> {
        let damaged = self.tables.iter().filter(|(table, _)| tables.contains(*table));
        damaged.flat_map(|(_, lost)| lost).cloned().collect()
    }

    fn add_path(&mut self, finding: FindingKey, path: String) {
        self.paths.entry(finding).or_default().insert(path);
    }
}

/// The readable part of a stack.
struct ReadableStack {
    /// Name of the stack in commands.
    name: String,
    tables: Vec<Vec<TableRef>>,
    layers: Vec<TableRuns>,
    tree: DirTree,
}

impl ReadableStack {
    fn show(&self, path: &[u8]) -> String {
        format!("{}:{}", self.name, String::from_utf8_lossy(path))
    }

    /// Returns the path of a directory, or what else is known about it.
    fn show_dir(&self, dir: DirId) -> String {
        if dir == DirId::ROOT {
            return self.show(b"/");
        }
        let dentry = self.tree.location(dir);
        let path = dentry.and_then(|dentry| self.tree.path(dentry.parent, &dentry.name));
        path.map_or_else(|| format!("{}: directory {dir}", self.name), |path| self.show(&path))
    }

    /// Passes every record that the stack shows to `take`.
    fn visit(&self, take: &mut dyn FnMut(&Key, Inode)) -> Result<()> {
        let mut cursors = Vec::new();
        for tables in &self.layers {
            tables.cursors(&INODE, &Key::FIRST, &Key::LAST, &mut cursors);
        }
        let mut merge = RecordMerge::new(cursors, &Key::FIRST)?;
        while merge.advance()? {
            let mut row = merge.row();
            let key = INODE.key(&row);
            INODE.restore(&mut row.ints);
            // Malformed records were found with their table.
            if let Ok(inode) = Inode::of_row(&row)
                && (dir_of(&key) == DirId::LINKS || self.tree.is_live(dir_of(&key)))
            {
                take(&key, inode);
            }
        }
        Ok(())
    }
}

impl Verification<'_> {
    /// Names the paths of affected files in each root's stack. Cost: nothing if nothing is damaged;
    /// otherwise up to two reads of the stacks' tables.
    pub(super) fn name_paths_of_damage(&mut self) -> Result<()> {
        if self.damage.is_empty() {
            return Ok(());
        }
        let mut damage = std::mem::take(&mut self.damage);
        for root in self.roots.clone() {
            match self.add_paths(root, &mut damage) {
                // There is new or further damage; the finding stays without paths.
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => {}
                added => added?,
            }
        }
        for finding in &mut self.report.findings {
            if let Some(paths) = damage.paths.get(&key_of(finding)) {
                finding.paths = paths.iter().take(PATHS_MAX).cloned().collect();
                finding.more_paths = paths.len().saturating_sub(PATHS_MAX);
            }
        }
        Ok(())
    }

    fn add_paths(&self, root: SetId, damage: &mut DamagedObjects) -> Result<()> {
        let Some(stack) = self.readable_stack(root, damage)? else { return Ok(()) };
        let lost = damage.keys_lost_of(&self.shown_tables(root));
        for LostKeys { first, last, finding, .. } in
            lost.iter().filter(|lost| lost.schema == INODE.id)
        {
            let [first, last] = [first, last].map(|key| stack.show_dir(dir_of(&key.key())));
            let path = match first == last {
                true => format!("names in {first}"),
                false => format!("names in directories from {first} to {last}"),
            };
            damage.add_path(finding.clone(), path);
        }
        let mapped = self.damaged_files(&stack, damage)?;
        let mut hits: Vec<(FindingKey, String)> = Vec::new();
        let mut linked: HashMap<u128, BTreeSet<FindingKey>> = HashMap::new();
        stack.visit(&mut |key, inode| {
            let mut findings = damage.of_inode(&inode, &mapped);
            if inode.mapped {
                let lost = lost.iter().filter(|lost| lost.may_have_segments(inode.id));
                findings.extend(lost.map(|lost| lost.finding.clone()));
            }
            if findings.is_empty() {
                return;
            }
            if dir_of(key) == DirId::LINKS {
                linked.insert(inode.id, findings);
            } else if let Some(path) = stack.tree.path(dir_of(key), key.string) {
                let path = stack.show(&path);
                hits.extend(findings.into_iter().map(|finding| (finding, path.clone())));
            }
        })?;
        if !linked.is_empty() {
            stack.visit(&mut |key, inode| {
                let findings = linked.get(&inode.id).filter(|_| inode.entry == NameKind::Link);
                let path = stack.tree.path(dir_of(key), key.string);
                if let (Some(findings), Some(path)) = (findings, path) {
                    let path = stack.show(&path);
                    hits.extend(findings.iter().map(|finding| (finding.clone(), path.clone())));
                }
            })?;
        }
        hits.into_iter().for_each(|(finding, path)| damage.add_path(finding, path));
        Ok(())
    }

    /// Returns the stack of `root` without damaged tables; `None` if a manifest cannot be read.
    fn readable_stack(
        &self,
        root: SetId,
        damage: &DamagedObjects,
    ) -> Result<Option<ReadableStack>> {
        let Some(sets) = self.stack(root) else { return Ok(None) };
        let is_readable =
            |table: &&TableRef| !damage.tables.contains_key(&(table.set, table.number));
        let tables: Vec<Vec<TableRef>> = sets
            .iter()
            .map(|set| self.manifests[set].tables.iter().filter(is_readable).cloned().collect())
            .collect();
        let layers: Vec<TableRuns> =
            tables.iter().map(|tables| TableRuns::new(tables, &INODE, &self.source)).collect();
        let all: Vec<&TableRuns> = layers.iter().collect();
        let tree = DirTree::of(&all, self.options.threads)?;
        let name = self.shown_name(root);
        Ok(Some(ReadableStack { name, tables, layers, tree }))
    }

    fn shown_tables(&self, root: SetId) -> BTreeSet<(SetId, u64)> {
        let sets = self.stack(root).unwrap_or_default();
        let tables = sets.iter().flat_map(|set| &self.manifests[set].tables);
        tables.map(|table| (table.set, table.number)).collect()
    }

    /// Returns the files for which the extent table of `stack` shows damaged bytes.
    fn damaged_files(
        &self,
        stack: &ReadableStack,
        damage: &DamagedObjects,
    ) -> Result<HashMap<u128, BTreeSet<FindingKey>>> {
        let mut files: HashMap<u128, BTreeSet<FindingKey>> = HashMap::new();
        let layers: Vec<SegmentTables> =
            stack.tables.iter().map(|tables| SegmentTables::new(tables, &self.source)).collect();
        for layer in &layers {
            let mut merge = SegmentMerge::new(layer.sources(), &|_| false)?;
            while let Some(segment) = merge.read()? {
                if damage.of_segment(&segment).next().is_none() {
                    continue;
                }
                // Layers above may show other bytes there.
                let mut overlay = SegmentOverlay::new(segment.file, segment.offset..segment.end());
                layers.iter().try_for_each(|above| overlay.add_tables(above))?;
                let shown = overlay.pieces().iter().flat_map(|piece| damage.of_segment(piece));
                let shown: Vec<FindingKey> = shown.cloned().collect();
                if !shown.is_empty() {
                    files.entry(segment.file).or_default().extend(shown);
                }
            }
        }
        Ok(files)
    }
}
