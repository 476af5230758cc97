// SPDX-License-Identifier: Apache-2.0
//! Segments in a merge: those of all layers become one run without hidden parts; in a squash they
//! refer to where the new set has the bytes.

use esker_base::Result;
use esker_extent::{SEGMENT, Segment, SegmentMerge, SegmentSource};
use esker_table::key_ranges::RANGES_MAX;
use esker_table::manifest::TableRef;
use esker_table::run_writer::RunWriter;
use hashbrown::HashMap;

use super::file_data::{FileData, PlacedData};
use super::worker::{NUMBERS_PER_RANGE, SquashCounts, SquashJob};
use crate::inode::BranchContent;

/// The content of branches is looked up in ranges of this size, so that memory does not grow with a
/// file.
const WINDOW_BYTES: u64 = 64 << 20;

/// A file whose content is given by segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappedFile {
    /// Its identity in the set being written.
    pub(super) id: u128,
    /// Segments are shown up to this offset.
    pub(super) size: u64,
    /// Place of its segments, if it is shown as of a branch.
    pub(super) branch: Option<BranchContent>,
}

/// Shown size of each file's segments.
type ShownSizes = HashMap<u128, u64>;

/// Writer of one run of segments, which joins neighbours.
struct SegmentRunWriter<'a> {
    writer: RunWriter<'a>,
    pending: Option<Segment>,
    written: u64,
}

impl<'a> SegmentRunWriter<'a> {
    fn new(job: &SquashJob<'a>, run: u64, next_table: &'a mut u64) -> Self {
        let writer = RunWriter::new(&SEGMENT, job.store, job.set, run, next_table);
        Self { writer, pending: None, written: 0 }
    }

    fn push(&mut self, segment: Segment) -> Result<()> {
        if let Some(last) = self.pending.filter(|last| last.is_followed_by(&segment)) {
            self.pending = Some(last.joined(&segment));
        } else if let Some(last) = self.pending.replace(segment) {
            self.written += 1;
            self.writer.push(&last.row())?;
        }
        Ok(())
    }

    fn finish(mut self, counts: &mut SquashCounts) -> Result<Vec<TableRef>> {
        if let Some(last) = self.pending {
            self.written += 1;
            self.writer.push(&last.row())?;
        }
        counts.written += self.written;
        self.writer.finish()
    }
}

/// Result of a merge of segments.
#[derive(Default)]
pub(super) struct MergedSegments {
    /// Its tables, newest run first.
    pub(super) tables: Vec<TableRef>,
    pub(super) counts: SquashCounts,
    /// Places of the segments' bytes, in a squash.
    pub(super) data: PlacedData,
}

/// Merges the segments of `sources`, of which earlier ones win, as run `run`. A squash keeps only
/// those of the files `mapped`, and makes them refer to where the set has their bytes; files shown
/// as of branches become a run above.
pub(super) fn merge(
    job: &SquashJob,
    run: u64,
    sources: &[SegmentSource],
    mapped: Vec<MappedFile>,
) -> Result<MergedSegments> {
    let mut counts = SquashCounts::default();
    if sources.is_empty() {
        return Ok(MergedSegments::default());
    }
    // After the numbers of all ranges of records.
    let first_number = (job.epoch << 32) | (RANGES_MAX as u64 * NUMBERS_PER_RANGE);
    let mut next_table = first_number;
    let mut data = FileData::new(job.store, job.set, first_number, job.copies_data());
    let (branched, shared): (Vec<MappedFile>, Vec<MappedFile>) =
        mapped.into_iter().partition(|file| file.branch.is_some());
    let sizes: Option<ShownSizes> =
        job.squash.is_some().then(|| shared.iter().map(|file| (file.id, file.size)).collect());
    let mut writer = SegmentRunWriter::new(job, run, &mut next_table);
    let mut merge = SegmentMerge::new(sources, &|_| false)?;
    while let Some(segment) = merge.read()? {
        counts.read += 1;
        let Some(mut shown) = shown(&segment, job.bottom, sizes.as_ref()) else {
            counts.shadowed += 1;
            continue;
        };
        if let (Some(place), Some(_)) = (&mut shown.place, &sizes) {
            *place = data.move_bytes(*place, shown.length, shown.checksum)?;
        }
        writer.push(shown)?;
    }
    let mut tables = writer.finish(&mut counts)?;
    let mut writer = SegmentRunWriter::new(job, run + 1, &mut next_table);
    merge_branched(job, branched, &mut data, &mut writer)?;
    tables.splice(0..0, writer.finish(&mut counts)?);
    let data = data.finish()?;
    counts.data_bytes = data.copied_bytes;
    Ok(MergedSegments { tables, counts, data })
}

/// Writes the segments of files that are shown as of branches.
fn merge_branched(
    job: &SquashJob,
    mut files: Vec<MappedFile>,
    data: &mut FileData,
    writer: &mut SegmentRunWriter,
) -> Result<()> {
    files.sort_unstable_by_key(|file| file.id);
    for file in files {
        let (Some(squash), Some(branch)) = (&job.squash, &file.branch) else { continue };
        let mut at = 0;
        while at < file.size {
            let window = at..file.size.min(at.saturating_add(WINDOW_BYTES));
            at = window.end;
            for piece in squash.stack.branch_segments(branch, window)?.pieces() {
                let Some(place) = piece.place else { continue };
                let place = Some(data.move_bytes(place, piece.length, piece.checksum)?);
                writer.push(Segment { file: file.id, place, ..*piece })?;
            }
        }
    }
    Ok(())
}

/// Returns the part of a segment that is kept.
fn shown(segment: &Segment, bottom: bool, sizes: Option<&ShownSizes>) -> Option<Segment> {
    if bottom && segment.place.is_none() {
        return None;
    }
    let Some(sizes) = sizes else { return Some(*segment) };
    let end = segment.end().min(*sizes.get(&segment.file)?);
    (segment.offset < end).then(|| segment.part(segment.offset, end))
}
