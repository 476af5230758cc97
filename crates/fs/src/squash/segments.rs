//! Segments in a merge: those of all layers become one run, in which nothing is hidden; the bytes
//! of a squash are copied.

use esker_base::Result;
use esker_table::manifest::TableRef;
use esker_table::run_writer::RunWriter;
use esker_table::segment::{SEGMENT, Segment, SegmentMerge, SegmentSource};
use hashbrown::HashMap;

use super::copy::DataCopy;
use super::worker::{Counts, Job, NUMBERS_PER_RANGE};

/// What of a file's segments is shown: up to its size.
pub(super) type Sizes = HashMap<u128, u64>;

/// Merges the segments of `sources`, of which earlier ones win, as run `run`. With `sizes` only
/// those of the files it has are kept, and their bytes are copied into the set's own logs.
pub(super) fn merge(
    job: &Job,
    run: u64,
    sources: &[SegmentSource],
    sizes: Option<&Sizes>,
) -> Result<(Vec<TableRef>, Counts)> {
    let mut counts = Counts::default();
    if sources.is_empty() {
        return Ok((Vec::new(), counts));
    }
    // Behind the numbers of all ranges of records.
    let first_number = (job.epoch << 32) | (super::ranges::RANGES_MAX as u64 * NUMBERS_PER_RANGE);
    let mut next_table = first_number;
    let mut writer = RunWriter::new(&SEGMENT, job.store, job.set, run, &mut next_table);
    let mut copy = DataCopy::new(job.store, job.set, first_number);
    // Copied side by side, neighbours become one.
    let mut pending: Option<Segment> = None;
    let mut merge = SegmentMerge::new(sources, &|_| false)?;
    while let Some(segment) = merge.read()? {
        counts.read += 1;
        let Some(mut shown) = shown(&segment, job.bottom, sizes) else {
            counts.shadowed += 1;
            continue;
        };
        if let (Some(place), Some(_)) = (&mut shown.place, sizes) {
            *place = copy.place_bytes(*place, shown.length, shown.checksum)?;
        }
        if let Some(last) = pending.filter(|last| last.is_followed_by(&shown)) {
            pending = Some(last.joined(&shown));
        } else if let Some(last) = pending.replace(shown) {
            counts.written += 1;
            writer.push(&last.row())?;
        }
    }
    if let Some(last) = pending {
        counts.written += 1;
        writer.push(&last.row())?;
    }
    counts.data_bytes = copy.finish()?;
    Ok((writer.finish()?, counts))
}

/// What of a segment stays.
fn shown(segment: &Segment, bottom: bool, sizes: Option<&Sizes>) -> Option<Segment> {
    if bottom && segment.place.is_none() {
        return None;
    }
    let Some(sizes) = sizes else { return Some(*segment) };
    let end = segment.end().min(*sizes.get(&segment.file)?);
    (segment.offset < end).then(|| segment.part(segment.offset, end))
}
