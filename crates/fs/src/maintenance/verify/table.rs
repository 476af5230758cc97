// SPDX-License-Identifier: Apache-2.0
//! One table: checks its tail, every block and record, and the manifests' statements about it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use esker_base::{Bytes, Kind, Result};
use esker_extent::{NestedRun, RUN, SEGMENT, Segment};
use esker_table::block::{Block, DecodedBlock};
use esker_table::manifest::{SetId, TableRef};
use esker_table::schema::{Key, KeyBuffer, Row, Schema};
use esker_table::table::Table;
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
        let table = Table::open(
            source.store.clone(),
            self.name.clone(),
            schema,
            (reference.bytes, reference.tail_bytes),
            source.cache.clone(),
            source.counters.clone(),
        )?;
        let blocks = table.index().blocks();
        let mut decoded = DecodedBlock::default();
        let mut number = 0;
        while number < blocks {
            let end = blocks.min(number + 64);
            for (at, bytes) in self.read(&table, number, end)? {
                if let Some(block) = self.parse(&table, at, bytes)? {
                    decoded.clear();
                    block.decode(&mut decoded);
                    self.check_block(&table, schema, at, &decoded);
                } else {
                    self.is_whole = false;
                }
            }
            number = end;
        }
        self.check_totals(&table);
        Ok(())
    }

    /// Reads blocks together, or one by one if that fails.
    fn read(&mut self, table: &Table, from: usize, end: usize) -> Result<Vec<(usize, Bytes)>> {
        match table.read_ahead(from, end) {
            // A request may return fewer; the caller's step is that of one request.
            Ok(read) if read.len() == end - from => Ok((from..end).zip(read).collect()),
            Ok(_) | Err(_) => {
                let mut blocks = Vec::new();
                for number in from..end {
                    match table.read_ahead(number, number + 1) {
                        Ok(read) => blocks.extend(read.into_iter().map(|bytes| (number, bytes))),
                        Err(error) => {
                            self.is_whole = false;
                            let offset = table.index().block_range(number).start;
                            let finding = Finding::of_error(&self.name, error)?.at(offset);
                            self.lose_block(table, number, &finding);
                            self.find(finding);
                        }
                    }
                }
                Ok(blocks)
            }
        }
    }

    /// Records that `finding` is about all records of a block.
    fn lose_block(&mut self, table: &Table, number: usize, finding: &Finding) {
        let next = number + 1;
        let end = if next < table.index().blocks() {
            table.index().first(next)
        } else {
            table.index().last().into()
        };
        let keys = (table.index().first(number), end);
        self.unreadable.push((self.shown[0].1.clone(), keys, finding.clone()));
    }

    fn parse(&mut self, table: &Table, number: usize, bytes: Bytes) -> Result<Option<Arc<Block>>> {
        match table.parse_scanned(number, bytes) {
            Ok(block) => Ok(Some(block)),
            Err(error) if error.kind() == Kind::Corrupt => {
                let finding = Finding::of_error(&self.name, error)?;
                self.lose_block(table, number, &finding);
                self.find(finding);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn check_block(
        &mut self,
        table: &Table,
        schema: &'static Schema,
        number: usize,
        block: &DecodedBlock,
    ) {
        let offset = table.index().block_range(number).start;
        let from = table.index().first(number);
        let to = (number + 1 < table.index().blocks()).then(|| table.index().first(number + 1));
        if block.key(schema, 0) < from.key() {
            self.wrong(offset, "no key before the index's of the block", "one");
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
            if to.as_ref().is_some_and(|to| key >= to.key()) {
                self.wrong(offset, "keys before the next block's", format!("row {row} after it"));
            }
            if !table.may_contain(number, schema.digest(&key)) {
                self.wrong(offset, "a filter that has every key", format!("row {row} not in it"));
            }
            let mut readable = block.row(row);
            self.rows += 1;
            self.seq_max = self.seq_max.max(readable.ints[schema.seq()]);
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

    fn check_totals(&mut self, table: &Table) {
        let footer = table.footer();
        let end = self.shown[0].1.bytes;
        let index_last: KeyBuffer = table.index().last().into();
        if self.is_whole {
            if self.rows != footer.rows {
                self.wrong(end, format!("{} records", footer.rows), self.rows.to_string());
            }
            if self.seq_max != footer.seq_max {
                let expected = format!("sequence numbers up to {}", footer.seq_max);
                self.wrong(end, expected, self.seq_max.to_string());
            }
            if self.last.as_ref() != Some(&index_last) {
                self.wrong(end, "the last key that the index gives", "another");
            }
        }
        let mut said: BTreeMap<String, &'static str> = BTreeMap::new();
        for (set, reference) in self.shown {
            let object = format!("manifest of {set}");
            if (reference.rows, reference.seq_max) != (footer.rows, footer.seq_max) {
                said.insert(object.clone(), "the table's records and sequence numbers");
            }
            let first = table.index().first(0);
            if reference.first.key() < first.key() || reference.last.key() > index_last.key() {
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
