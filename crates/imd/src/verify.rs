//! Verify: reads all of an indexed directory and tells each damage by its partition.

use bytes::Bytes;
use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};

use crate::auxiliary;
use crate::block;
use crate::names;
use crate::read::counts::Counts;
use crate::read::partition::PartitionReader;
use crate::reader::Reader;
use crate::shape::Format;
use crate::write::PAGE_BYTES;

/// Bytes that are read at once.
const PIECE_BYTES: u64 = 4 << 20;

/// Reads everything below `prefix` and tells each damage to `tell`, one of each log and epoch;
/// returns how many bytes were read.
///
/// # Errors
/// What the store answers; damage is no error.
pub fn verify(store: &SharedStore, prefix: &str, tell: &mut dyn FnMut(Error)) -> Result<u64> {
    let mut counts = Counts::default();
    let reader = match sort(Reader::open(store, prefix, 0), tell)? {
        Some(reader) => reader,
        None => return Ok(0),
    };
    let mut values = 0;
    for partition in 0..reader.partitions() {
        let Some(part) = sort(reader.partition(partition, &mut counts), tell)? else { continue };
        if reader.directory().is_some() && !part.is_finished() {
            let (name, end) = (names::index(prefix, partition), part.index_bytes());
            let what = "no footer, though the directory was finished; its epochs are still read";
            tell(part.named(Error::corrupt(&name, end, what)));
        }
        if part.is_finished() {
            let checked = part.log.check_frames(&mut counts);
            sort(checked.map_err(|error| part.named(error)), tell)?;
        }
        for epoch in 0..part.epochs() {
            sort(check_slots(&part, epoch, &mut counts), tell)?;
            let scanned = part.scan(epoch, &mut counts);
            sort(scanned, tell)?;
            sort(check_auxiliary(store, prefix, &part, epoch, &mut counts), tell)?;
        }
        if reader.head().format == Format::Pointer {
            let name = names::values(prefix, partition);
            let checked = check_values(store, &name);
            let checked = checked.map_err(|error| error.within(format!("partition {partition}")));
            values += sort(checked, tell)?.unwrap_or(0);
        }
    }
    Ok(counts.bytes() + values)
}

/// Tells damage, and passes on what is an error of the store's.
fn sort<T>(done: Result<T>, tell: &mut dyn FnMut(Error)) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => {
            tell(error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Verifies the slots of an epoch, some neighbours at a time.
fn check_slots(part: &PartitionReader, epoch: u32, counts: &mut Counts) -> Result<()> {
    for segment in &part.epoch(epoch, counts)?.clone().segments {
        let places: Vec<_> =
            (0..segment.slot_ends.len()).map(|at| segment.slot_place(at)).collect();
        for places in places.chunks(64) {
            part.slots(places, counts)?;
        }
    }
    Ok(())
}

fn check_auxiliary(
    store: &SharedStore,
    prefix: &str,
    part: &PartitionReader,
    epoch: u32,
    counts: &mut Counts,
) -> Result<()> {
    let name = names::auxiliary(prefix, part.partition);
    for place in &part.epoch(epoch, counts)?.clone().auxiliary {
        let bytes = store.get_range(&name, place.clone()).map_err(|error| part.named(error))?;
        counts.auxiliary_reads += 1;
        counts.auxiliary_bytes += bytes.len() as u64;
        auxiliary::Reader::parse(bytes)
            .map_err(|damage| part.named(damage.of(&name, place.start)))?;
    }
    Ok(())
}

/// Verifies all pages of a log of values; returns how many bytes they have.
fn check_values(store: &SharedStore, name: &str) -> Result<u64> {
    let bytes = store.size(name)?;
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + PIECE_BYTES);
        let piece: Bytes = store.get_range(name, at..end)?;
        for (page, start) in piece.chunks(PAGE_BYTES).zip((at..).step_by(PAGE_BYTES)) {
            block::open(page, start, name)?;
        }
        at = end;
    }
    Ok(bytes)
}

impl PartitionReader {
    /// Reads and verifies all blocks of `epoch`.
    fn scan(&self, epoch: u32, counts: &mut Counts) -> Result<()> {
        let shape = self.head().row_shape();
        let parts = std::sync::Arc::clone(self.epoch(epoch, counts)?);
        for table in parts.segments.iter().flat_map(|segment| &segment.tables) {
            let blocks: Vec<u32> = (0..table.blocks(shape)).collect();
            for blocks in blocks.chunks(256) {
                let places: Vec<_> = blocks.iter().map(|&b| table.place(b, shape)).collect();
                let ranges: Vec<_> = places.iter().map(|place| place.bytes.clone()).collect();
                for (body, place) in self.blocks(&ranges, counts)?.iter().zip(&places) {
                    self.rows(body, place)?;
                }
            }
        }
        Ok(())
    }
}
