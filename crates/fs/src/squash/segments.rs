//! Segments in a merge: those of all layers become one run, in which nothing is hidden; the bytes
//! of a squash are copied.

use esker_base::Result;
use esker_table::manifest::TableRef;
use esker_table::merge::Cursor;
use esker_table::run_writer::RunWriter;
use esker_table::schema::Key;
use esker_table::segment::{SEGMENT, Segment, SegmentMerge};
use esker_table::tables::Tables;
use hashbrown::HashMap;

use super::copy::DataCopy;
use super::worker::{Counts, Job, NUMBERS_PER_RANGE};

/// What of a file's segments is shown: up to its size.
pub(super) type Sizes = HashMap<u128, u64>;

/// Merges the segments of `layers`, of which earlier ones win, as run `run`. With `sizes` only
/// those of the files it has are kept, and their bytes are copied into the set's own logs.
pub(super) fn merge(
    job: &Job,
    run: u64,
    layers: &[&Tables],
    sizes: Option<&Sizes>,
) -> Result<(Vec<TableRef>, Counts)> {
    let runs = layers.iter().flat_map(|tables| &tables.runs);
    let cursors: Vec<Cursor> =
        runs.map(|run| run.cursor(&SEGMENT, &Key::FIRST, &Key::LAST)).collect();
    let mut counts = Counts::default();
    if cursors.is_empty() {
        return Ok((Vec::new(), counts));
    }
    // Behind the numbers of all ranges of records.
    let first_number = (job.epoch << 32) | (super::ranges::RANGES_MAX as u64 * NUMBERS_PER_RANGE);
    let mut next_table = first_number;
    let mut writer = RunWriter::new(&SEGMENT, job.store, job.set, run, &mut next_table);
    let mut copy = DataCopy::new(job.store, job.set, first_number);
    let mut merge = SegmentMerge::new(cursors)?;
    while let Some(segment) = merge.read()? {
        counts.read += 1;
        let Some(mut shown) = shown(&segment, job.bottom, sizes) else {
            counts.shadowed += 1;
            continue;
        };
        if let (Some(place), Some(_)) = (&mut shown.place, sizes) {
            *place = copy.place_bytes(*place, shown.length, shown.checksum)?;
        }
        counts.written += 1;
        writer.push(&shown.row())?;
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
