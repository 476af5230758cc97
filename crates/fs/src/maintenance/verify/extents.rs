// SPDX-License-Identifier: Apache-2.0
//! File data: checks that every extent's log exists and is long enough, and that its bytes are
//! those written.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use esker_base::Result;
use esker_extent::{LogPlace, Segment};
use esker_table::manifest::SetId;
use esker_table::object_name::ObjectName;

use super::{Finding, Severity, Verification};
use crate::inode::Extent;
use crate::inode::indexed::{self, IndexedPart};
use crate::retention::dependency;

/// Bytes read together.
const BATCH_BYTES: u64 = 32 << 20;
/// Longer extents are read in pieces of this size.
const PIECE_BYTES: u64 = 4 << 20;

/// Extents to which records refer.
#[derive(Default)]
pub(super) struct ReferencedExtents {
    each: bool,
    all: Vec<Extent>,
    /// Bytes of segments, which files may share.
    segments: Vec<Extent>,
    /// The end of each log's referenced bytes, and the record that refers to it.
    reach: BTreeMap<(SetId, u64), (u64, String)>,
    /// Checksums of the roots of indexed directories, with the referring record.
    indexed: BTreeMap<(SetId, u64), (u32, String)>,
}

impl ReferencedExtents {
    /// Returns an empty collection; it keeps every extent if `each`, otherwise only how far
    /// references reach.
    pub(super) fn new(each: bool) -> Self {
        Self { each, ..Self::default() }
    }

    pub(super) fn add(&mut self, extent: &Extent, whose: impl Fn() -> String) {
        if self.each {
            self.all.push(*extent);
        }
        self.reach_to((extent.set, extent.log), extent.offset + extent.written, whose);
    }

    /// Like [`ReferencedExtents::add`], for a segment that is at `place`.
    pub(super) fn add_segment(
        &mut self,
        segment: &Segment,
        place: &LogPlace,
        whose: impl Fn() -> String,
    ) {
        if let Some(checksum) = segment.checksum.filter(|_| self.each) {
            let (set, log, offset, length) = (place.set, place.log, place.offset, segment.length);
            self.segments.push(Extent { set, log, offset, length, checksum, written: length });
        }
        self.reach_to((place.set, place.log), place.offset + segment.length, whose);
    }

    /// Adds a part of the indexed directory that a record represents.
    pub(super) fn add_indexed(&mut self, part: &IndexedPart, whose: String) {
        self.indexed.insert((part.set, part.number), (part.checksum, whose));
    }

    /// Records a reference to the bytes of `log` up to `end`.
    pub(super) fn reach_to(&mut self, log: (SetId, u64), end: u64, whose: impl Fn() -> String) {
        match self.reach.get_mut(&log) {
            Some(reach) if reach.0 >= end => {}
            Some(reach) => *reach = (end, whose()),
            None => drop(self.reach.insert(log, (end, whose()))),
        }
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.all.extend(other.all);
        self.segments.extend(other.segments);
        self.indexed.extend(other.indexed);
        for (log, (end, whose)) in other.reach {
            let reach = self.reach.entry(log).or_default();
            if end >= reach.0 {
                *reach = (end, whose);
            }
        }
    }

    /// Returns the data logs and indexed directories, each as a set and a number in it.
    fn logs(&self) -> BTreeSet<(SetId, u64)> {
        self.reach.keys().chain(self.indexed.keys()).copied().collect()
    }
}

impl Verification<'_> {
    /// Checks that `set` keeps the logs to which its records refer: by keeping whole sets, or
    /// single logs that its manifest, or that of a set it needs, lists.
    pub(super) fn check_closure(&mut self, set: SetId, extents: &ReferencedExtents) {
        let mut wanted = extents.logs();
        let (mut waiting, mut seen) = (vec![set], BTreeSet::new());
        while let Some(reached) = waiting.pop() {
            wanted.retain(|(other, _)| *other != reached);
            if wanted.is_empty() {
                return;
            }
            if seen.insert(reached)
                && let Some(manifest) = self.manifests.get(&reached)
            {
                let needed = dependency::of(reached, manifest).into_iter();
                let whole = needed.filter(|needed| needed.holder.keeps_tables());
                waiting.extend(whole.map(|needed| needed.set));
                wanted.retain(|(other, log)| {
                    dependency::referenced_logs(manifest, *other)
                        .is_none_or(|numbers| !numbers.contains(*log))
                });
            }
        }
        // Parts of one job may have each other's data: they are published together.
        let manifests = &self.manifests;
        let job = |set: SetId| manifests.get(&set)?.job.map(|membership| membership.job);
        let own_job = job(set);
        wanted.retain(|(other, _)| own_job.is_none() || job(*other) != own_job);
        let sets: BTreeSet<SetId> = wanted.into_iter().map(|(other, _)| other).collect();
        for other in sets {
            let got = format!("file data in set {other}, which it does not hold");
            self.find(Finding::new(
                Severity::Error,
                format!("set {set}"),
                "data only of sets it builds on",
                got,
            ));
        }
    }

    /// Checks logs and, if requested, every byte to which a record refers.
    pub(super) fn check_extents(&mut self, mut extents: ReferencedExtents) -> Result<()> {
        self.check_indexed(&extents)?;
        let mut short = BTreeSet::new();
        for ((set, log), (end, whose)) in &extents.reach {
            let name = ObjectName::Data(*set, *log).to_string();
            let mut kept_bytes = 0;
            let finding = match self.source.store.size(&name) {
                Ok(bytes) if bytes >= *end => continue,
                Ok(bytes) => {
                    kept_bytes = bytes;
                    let expected = format!("{end} bytes, for {whose}");
                    Finding::new(Severity::Error, &*name, expected, bytes.to_string()).at(bytes)
                }
                Err(error) => {
                    let missing = Finding::of_error(&name, error)?;
                    Finding { expected: format!("data for {whose}"), ..missing }
                }
            };
            short.insert((*set, *log));
            self.damage.add_log((*set, *log), kept_bytes..u64::MAX, &finding);
            self.find(finding);
        }
        let all = &mut extents.all;
        let place = |extent: &Extent| (extent.set, extent.log, extent.offset, extent.written);
        all.sort_unstable_by_key(|extent| (place(extent), extent.checksum));
        // Truncation changes what is visible, not what is stored.
        all.dedup_by_key(|extent| (place(extent), extent.checksum));
        for pair in all.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            if (a.set, a.log) == (b.set, b.log) && a.offset + a.written > b.offset {
                let name = ObjectName::Data(b.set, b.log).to_string();
                let finding =
                    Finding::new(Severity::Error, name, "bytes of one file", "of two").at(b.offset);
                self.report.findings.push(finding);
            }
        }
        all.append(&mut extents.segments);
        all.sort_unstable_by_key(|extent| (place(extent), extent.checksum));
        all.dedup_by_key(|extent| (place(extent), extent.checksum));
        // The data's size is known only once the tables are read: the total grows by it.
        let tables = self.report.table_bytes;
        let total = all.iter().fold(tables, |sum, extent| sum.saturating_add(extent.written));
        let (mut at, mut done) = (0, tables);
        while at < all.len() {
            let log = (all[at].set, all[at].log);
            let (mut end, mut bytes) = (at, 0);
            while end < all.len() && (all[end].set, all[end].log) == log && bytes < BATCH_BYTES {
                bytes += all[end].written;
                end += 1;
            }
            self.check_batch(&all[at..end], short.contains(&log))?;
            done = done.saturating_add(bytes);
            if let Some(progress) = &self.options.progress {
                progress(done, total);
            }
            at = end;
        }
        Ok(())
    }

    /// Checks that indexed directories are complete and, if requested, all of their content.
    fn check_indexed(&mut self, extents: &ReferencedExtents) -> Result<()> {
        let store = self.source.store.clone();
        for ((set, number), (checksum, whose)) in &extents.indexed {
            let name = indexed::root(*set, *number);
            match store.get(&name, indexed::ROOT_BYTES_MAX) {
                Ok(root) if indexed::checksum(&root) == *checksum => {}
                Ok(_) => {
                    let expected = format!("the root of an indexed directory, for {whose}");
                    let finding = Finding::new(Severity::Error, &*name, expected, "another");
                    self.damage.add_indexed((*set, *number), &finding);
                    self.find(finding);
                    continue;
                }
                Err(error) => {
                    let missing = Finding::of_error(&name, error)?;
                    let finding = Finding { expected: format!("a root for {whose}"), ..missing };
                    self.damage.add_indexed((*set, *number), &finding);
                    self.find(finding);
                    continue;
                }
            }
            let Some(check) = self.options.indexed.clone().filter(|_| self.options.data) else {
                continue;
            };
            let prefix = indexed::prefix(*set, *number);
            let mut findings = Vec::new();
            self.report.data_bytes += check(&store, &prefix, &mut |error| findings.push(error))?;
            for error in findings {
                let expected = format!("records as they were written, for {whose}");
                let finding = Finding::new(Severity::Error, &*prefix, expected, error.to_string());
                self.damage.add_indexed((*set, *number), &finding);
                self.find(finding);
            }
        }
        Ok(())
    }

    /// Reads and checks neighbouring extents of one log, which may be missing or too short.
    fn check_batch(&mut self, batch: &[Extent], is_short: bool) -> Result<()> {
        let name = ObjectName::Data(batch[0].set, batch[0].log).to_string();
        if let [only] = batch
            && !is_short
        {
            return self.check_long(&name, only);
        }
        let range = |extent: &Extent| extent.offset..extent.offset + extent.written;
        let ranges: Vec<Range<u64>> = batch.iter().map(range).collect();
        let read =
            if is_short { Ok(Vec::new()) } else { self.source.store.get_ranges(&name, &ranges) };
        match read {
            Ok(read) if read.len() == batch.len() => {
                for (extent, bytes) in batch.iter().zip(read) {
                    self.check_bytes(&name, extent, crc32c::crc32c(&bytes));
                }
            }
            _ => {
                for extent in batch {
                    self.check_long(&name, extent)?;
                }
            }
        }
        Ok(())
    }

    fn check_long(&mut self, name: &str, extent: &Extent) -> Result<()> {
        let end = extent.offset + extent.written;
        let (mut at, mut checksum) = (extent.offset, 0);
        while at < end {
            let stop = end.min(at + PIECE_BYTES);
            match self.source.store.get_range(name, at..stop) {
                Ok(bytes) => checksum = crc32c::crc32c_append(checksum, &bytes),
                Err(error) => {
                    let finding = Finding::of_error(name, error)?.at(extent.offset);
                    let expected = format!("{} bytes of a file", extent.written);
                    self.find_lost(extent, Finding { expected, ..finding });
                    return Ok(());
                }
            }
            at = stop;
        }
        self.check_bytes(name, extent, checksum);
        Ok(())
    }

    fn check_bytes(&mut self, name: &str, extent: &Extent, checksum: u32) {
        self.report.data_bytes += extent.written;
        if checksum != extent.checksum {
            let expected =
                format!("{} bytes with checksum {:08x}", extent.written, extent.checksum);
            let got = format!("{checksum:08x}");
            let finding = Finding::new(Severity::Error, name, expected, got).at(extent.offset);
            self.find_lost(extent, finding);
        }
    }

    /// Adds a finding about the bytes of `extent`.
    fn find_lost(&mut self, extent: &Extent, finding: Finding) {
        let range = extent.offset..extent.offset + extent.written;
        self.damage.add_log((extent.set, extent.log), range, &finding);
        self.find(finding);
    }
}
