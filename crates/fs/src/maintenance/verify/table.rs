// SPDX-License-Identifier: Apache-2.0
//! One table: checks its tail, every block and record, and the manifests' statements about it.

use std::collections::{BTreeMap, BTreeSet};

use esker_base::Result;
use esker_extent::{NestedRun, RUN, SEGMENT, Segment};
use esker_table::block::DecodedBlock;
use esker_table::manifest::{SetId, TableRef};
use esker_table::schema::{Key, KeyBuffer, Row, Schema};
use esker_table::table::{ScannedBlock, TableScan};
use esker_table::tables::TableSource;
use hashbrown::HashMap;

use super::extents::ReferencedExtents;
use super::identities::InheritedFiles;
use super::{Finding, LimitedFindings, Severity};
use crate::inode::indexed;
use crate::inode::xattr;
use crate::inode::{DirId, FileKind, INODE, Inode, NameKind, column, name_hash};
use crate::stack::path::check_name;

/// Findings and content of one table.
pub(super) struct TableOutcome {
    pub(super) findings: Vec<Finding>,
    /// Key ranges whose records cannot be read, with the findings that report it.
    pub(super) unreadable: Vec<UnreadableKeys>,
    pub(super) records: u64,
    pub(super) bytes: u64,
    /// Sets that show it.
    pub(super) sets: BTreeSet<SetId>,
    /// Number of records other than tombstones, by directory.
    pub(super) dirs: HashMap<DirId, u64>,
    pub(super) extents: ReferencedExtents,
    pub(super) files: InheritedFiles,
    /// Names that are or were directories.
    pub(super) were_directories: Vec<KeyBuffer>,
}

/// First and last key of a range of a table whose records cannot be read, and the finding.
pub(super) type UnreadableKeys = (TableRef, (KeyBuffer, KeyBuffer), Finding);

struct TableCheck<'a> {
    name: String,
    shown: &'a [(SetId, TableRef)],
    limited: LimitedFindings,
    dirs: HashMap<DirId, u64>,
    extents: ReferencedExtents,
    files: InheritedFiles,
    were_directories: Vec<KeyBuffer>,
    unreadable: Vec<UnreadableKeys>,
    /// The last key so far.
    last: Option<KeyBuffer>,
    /// The file of the last segment, and its end.
    segment_end: Option<(u128, u64)>,
    rows: u64,
    seq_max: u64,
    is_whole: bool,
}

/// Verifies the table that each of `shown` refers to.
pub(super) fn check(
    source: &TableSource,
    shown: &[(SetId, TableRef)],
    each_extent: bool,
) -> Result<TableOutcome> {
    let reference = &shown[0].1;
    let mut check = TableCheck {
        name: reference.name(),
        shown,
        limited: LimitedFindings::new(),
        dirs: HashMap::new(),
        extents: ReferencedExtents::new(each_extent),
        files: InheritedFiles::default(),
        were_directories: Vec::new(),
        unreadable: Vec::new(),
        last: None,
        segment_end: None,
        rows: 0,
        seq_max: 0,
        is_whole: true,
    };
    if let Err(error) = check.run(source) {
        let finding = Finding::of_error(&check.name, error)?;
        for (_, shown) in shown {
            let keys = (shown.first.clone(), shown.last.clone());
            check.unreadable.push((shown.clone(), keys, finding.clone()));
        }
        check.find(finding);
    }
    Ok(TableOutcome {
        findings: check.limited.finish(&check.name),
        records: check.rows,
        bytes: reference.bytes,
        sets: shown.iter().map(|(set, _)| *set).collect(),
        dirs: check.dirs,
        files: check.files,
        extents: check.extents,
        were_directories: check.were_directories,
        unreadable: check.unreadable,
    })
}

impl TableCheck<'_> {
    fn find(&mut self, finding: Finding) {
        self.limited.push(finding);
    }

    fn wrong(&mut self, offset: u64, expected: impl Into<String>, got: impl Into<String>) {
        self.find(Finding::new(Severity::Error, self.name.clone(), expected, got).at(offset));
    }

    fn run(&mut self, source: &TableSource) -> Result<()> {
        let reference = &self.shown[0].1;
        let bytes = source.store.size(&self.name)?;
        if bytes != reference.bytes {
            let (expected, got) = (format!("{} bytes", reference.bytes), format!("{bytes} bytes"));
            self.wrong(bytes, expected, got);
        }
        let known =
            [&INODE, &SEGMENT, &RUN].into_iter().find(|schema| schema.id == reference.schema);
        let Some(schema) = known else {
            let got = format!("a table of schema {}", reference.schema);
            let expected = "a table of inodes or segments";
            self.find(Finding::new(Severity::Warning, &*self.name, expected, got));
            return Ok(());
        };
        let mut scan = TableScan::open(reference, schema, source)?;
        let last = scan.last.clone();
        while let Some(block) = scan.next_block() {
            match block.records {
                Ok(records) => self.check_block(&block, schema, records),
                Err(error) => {
                    self.is_whole = false;
                    let mut finding = Finding::of_error(&self.name, error)?;
                    finding.offset.get_or_insert(block.offset);
                    let keys = (block.first, block.next.unwrap_or_else(|| last.clone()));
                    self.unreadable.push((self.shown[0].1.clone(), keys, finding.clone()));
                    self.find(finding);
                }
            }
        }
        self.check_totals(&scan);
        Ok(())
    }

    fn check_block(
        &mut self,
        scanned: &ScannedBlock,
        schema: &'static Schema,
        block: &DecodedBlock,
    ) {
        let offset = scanned.offset;
        if block.key(schema, 0) < scanned.first.key() {
            self.wrong(offset, "no key before the index's of the block", "one");
        }
        if let Some(row) = scanned.row_missing_in_filter {
            self.wrong(offset, "a filter that has every key", format!("row {row} not in it"));
        }
        for row in 0..block.rows() {
            let key = block.key(schema, row);
            if self.last.as_ref().is_some_and(|last| last.key() >= key) {
                self.wrong(
                    offset,
                    "keys that ascend",
                    format!("row {row} not over the one before"),
                );
            }
            let last = self.last.get_or_insert_default();
            last.ints = key.ints;
            last.string.clear();
            last.string.extend_from_slice(key.string);
            if scanned.next.as_ref().is_some_and(|next| key >= next.key()) {
                self.wrong(offset, "keys before the next block's", format!("row {row} after it"));
            }
            let mut readable = block.row(row);
            self.rows += 1;
            self.seq_max = self.seq_max.max(readable.ints[schema.key_ints]);
            schema.restore(&mut readable.ints);
            let checked = match schema.id {
                id if id == SEGMENT.id => self.check_segment(&readable),
                id if id == RUN.id => self.check_run(&readable),
                _ => self.check_record(&key, &readable),
            };
            if let Err(wrong) = checked {
                self.wrong(offset, wrong, format!("the record at row {row}, {}", shown(&key)));
            }
        }
    }

    /// Checks one record; returns the violated expectation if there is one.
    fn check_record(&mut self, key: &Key, row: &Row) -> Result<(), String> {
        let dir = DirId(u128::from(key.ints[0]) << 64 | u128::from(key.ints[1]));
        let inode = Inode::of_row(row).map_err(|error| error.context().to_owned())?;
        if key.ints[2] != name_hash(key.string) {
            return Err("the hash of its name".into());
        }
        let is_root = dir == DirId::ROOT && key.string.is_empty();
        if dir == DirId::LINKS {
            if key.string.len() != 16 {
                return Err("a file id of 16 bytes as its name".into());
            }
        } else if !is_root && check_name(key.string).is_err() {
            return Err("a name that a file can have".into());
        }
        if inode.mode != row.ints[column::MODE] as u32 {
            return Err("permission bits".into());
        }
        xattr::decode(&inode.xattrs).map_err(|_| "extended attributes".to_owned())?;
        if inode.next_generation() > 0 && !is_root && dir != DirId::LINKS {
            self.were_directories.push((*key).into());
        }
        if inode.entry == NameKind::Tombstone {
            return Ok(());
        }
        *self.dirs.entry(dir).or_default() += 1;
        self.files.add(self.shown[0].1.set, key, &inode);
        if inode.kind() == Some(FileKind::Symlink) && inode.content.len() as u64 != inode.size {
            return Err("a link's target as long as its size".into());
        }
        if inode.content.len() as u64 > inode.size {
            return Err("no more content than its size".into());
        }
        if inode.is_directory() && !is_root && (inode.id == 0 || inode.id == DirId::LINKS.0) {
            return Err("a directory's identity".into());
        }
        if dir != DirId::LINKS && inode.entry != NameKind::Link && inode.nlink != 1 {
            return Err("one name counted of what is no link".into());
        }
        if let Some(extent) = &inode.extent {
            let whose = || format!("{} of {}", shown(key), self.name);
            if inode.kind() == Some(FileKind::Indexed) {
                for part in indexed::parts_of(&inode) {
                    self.extents.add_indexed(&part, whose());
                }
                return Ok(());
            }
            if inode.kind() != Some(FileKind::File) || !inode.content.is_empty() {
                return Err("content in one place".into());
            }
            self.extents.add(extent, whose);
        }
        Ok(())
    }

    /// Like [`TableCheck::check_record`], for a segment.
    fn check_segment(&mut self, row: &Row) -> Result<(), String> {
        let segment = Segment::of_row(row).map_err(|error| error.context().to_owned())?;
        let starts_after = self
            .segment_end
            .is_none_or(|(file, end)| file != segment.file || end <= segment.offset);
        self.segment_end = Some((segment.file, segment.end()));
        if let Some(place) = &segment.place {
            let whose = || format!("bytes {} on of file {:032x}", segment.offset, segment.file);
            self.extents.add_segment(&segment, place, whose);
        }
        if starts_after { Ok(()) } else { Err("segments that do not overlap".into()) }
    }

    /// Like [`TableCheck::check_record`], for a run of segments.
    fn check_run(&mut self, row: &Row) -> Result<(), String> {
        let nested = NestedRun::of_row(row).map_err(|error| error.context().to_owned())?;
        let first = &nested.run.first;
        if let Some((set, log, end)) = nested.log_end() {
            let whose = || format!("bytes {} on of file {:032x}", first.offset, first.file);
            self.extents.reach_to((set, log), end, whose);
        }
        Ok(())
    }

    fn check_totals(&mut self, scan: &TableScan) {
        let end = self.shown[0].1.bytes;
        if self.is_whole {
            if self.rows != scan.rows {
                self.wrong(end, format!("{} records", scan.rows), self.rows.to_string());
            }
            if self.seq_max != scan.seq_max {
                let expected = format!("sequence numbers up to {}", scan.seq_max);
                self.wrong(end, expected, self.seq_max.to_string());
            }
            if self.last.as_ref() != Some(&scan.last) {
                self.wrong(end, "the last key that the index gives", "another");
            }
        }
        let mut said: BTreeMap<String, &'static str> = BTreeMap::new();
        for (set, reference) in self.shown {
            let object = format!("manifest of {set}");
            if (reference.rows, reference.seq_max) != (scan.rows, scan.seq_max) {
                said.insert(object.clone(), "the table's records and sequence numbers");
            }
            if reference.first < scan.first || reference.last > scan.last {
                said.insert(object, "a visible range within the table");
            }
        }
        for (object, expected) in said {
            let got = format!("another for {}", self.name);
            self.find(Finding::new(Severity::Error, object, expected, got));
        }
    }
}

fn shown(key: &Key) -> String {
    let dir = u128::from(key.ints[0]) << 64 | u128::from(key.ints[1]);
    format!("{:?} in directory {dir:032x}", String::from_utf8_lossy(key.string))
}
