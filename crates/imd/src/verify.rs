// SPDX-License-Identifier: Apache-2.0
//! Verify: reads all of an indexed directory and reports every damage with its partition.

use bytes::Bytes;
use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};

use crate::checksum::{LogChecksum, LogKind};
use crate::directory::PartitionTotals;
use crate::names;
use crate::read::counts::QueryCounts;
use crate::read::partition::PartitionReader;
use crate::reader::DirectoryReader;
use crate::record_layout::ValueFormat;
use crate::write::PAGE_BYTES;

/// Bytes read at once.
const PIECE_BYTES: u64 = 4 << 20;

/// Reads everything below `prefix` and reports damage to `tell`, at most one per log and epoch;
/// returns the number of bytes read.
///
/// # Errors
/// Those of the store; damage is not an error.
pub fn verify(store: &SharedStore, prefix: &str, tell: &mut dyn FnMut(Error)) -> Result<u64> {
    let mut counts = QueryCounts::default();
    let reader = match sort(DirectoryReader::open(store, prefix, 0), tell)? {
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
        let totals = reader.directory().map(|all| &all.partitions[partition as usize]);
        // An unfinished log may continue past its last epoch.
        let are_final = totals.is_some();
        let Some(lengths) = sort(log_lengths(&part, totals, &mut counts), tell)? else { continue };
        for (name, bytes) in lengths.logs(prefix, part.head().format, partition) {
            let checked = check_length(store, &name, bytes, are_final);
            sort(checked.map_err(|error| part.named(error)), tell)?;
        }
        for epoch in 0..part.epochs() {
            sort(check_slots(&part, epoch, &mut counts), tell)?;
            let scanned = part.scan(epoch, &mut counts);
            sort(scanned, tell)?;
            sort(check_auxiliary(store, prefix, &part, epoch, &mut counts), tell)?;
        }
        if reader.head().format == ValueFormat::Pointer {
            let checked = check_values(store, prefix, &part, lengths.value_bytes);
            let checked = checked.map_err(|error| part.named(error));
            values += sort(checked, tell)?.unwrap_or(0);
        }
    }
    Ok(counts.bytes() + values)
}

/// Reports damage, and passes on other errors of the store.
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

/// Verifies the slots of an epoch, a group of neighbours at a time.
fn check_slots(part: &PartitionReader, epoch: u32, counts: &mut QueryCounts) -> Result<()> {
    for group in &part.epoch(epoch, counts)?.clone().groups {
        let places: Vec<_> = (0..group.slot_ends.len()).map(|at| group.slot_range(at)).collect();
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
    counts: &mut QueryCounts,
) -> Result<()> {
    let name = names::auxiliary(prefix, part.partition);
    for place in &part.epoch(epoch, counts)?.clone().auxiliary {
        let bytes = store.get_range(&name, place.clone()).map_err(|error| part.named(error))?;
        counts.auxiliary_reads += 1;
        counts.auxiliary_bytes += bytes.len() as u64;
        part.parse_auxiliary(&bytes, place.start, &name)?;
    }
    Ok(())
}

/// Verifies the pages of the values that a rank kept, up to `bytes` or the end of the log; returns
/// the number of bytes they have.
fn check_values(
    store: &SharedStore,
    prefix: &str,
    part: &PartitionReader,
    bytes: u64,
) -> Result<u64> {
    let name = names::values(prefix, part.partition);
    let checksum = LogChecksum::new(part.head().directory, part.partition, LogKind::Values);
    if bytes == 0 {
        return Ok(0);
    }
    let bytes = bytes.min(store.size(&name)?);
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + PIECE_BYTES);
        let piece: Bytes = store.get_range(&name, at..end)?;
        for (page, start) in piece.chunks(PAGE_BYTES).zip((at..).step_by(PAGE_BYTES)) {
            checksum.open(page, start, &name)?;
        }
        at = end;
    }
    Ok(bytes)
}

/// The lengths of a partition's logs: from the root object, or from the partition's epochs in a
/// directory without one.
fn log_lengths(
    part: &PartitionReader,
    totals: Option<&PartitionTotals>,
    counts: &mut QueryCounts,
) -> Result<PartitionTotals> {
    if let Some(totals) = totals {
        return Ok(*totals);
    }
    let mut lengths =
        PartitionTotals { index_bytes: part.index_bytes(), ..PartitionTotals::default() };
    for number in 0..part.epochs() {
        let epoch = part.epoch(number, counts)?;
        (lengths.data_bytes, lengths.value_bytes) = (epoch.data_bytes, epoch.value_bytes);
        let auxiliary_end = epoch.auxiliary.last().map(|last| last.end);
        lengths.auxiliary_bytes = auxiliary_end.unwrap_or(lengths.auxiliary_bytes);
    }
    Ok(lengths)
}

fn check_length(store: &SharedStore, name: &str, expected: u64, is_final: bool) -> Result<()> {
    let bytes = match store.size(name) {
        // A dead writer may have left no trace of a log in which nothing was durable.
        Err(error) if error.kind() == Kind::NotFound && expected == 0 && !is_final => 0,
        bytes => bytes?,
    };
    if bytes < expected || is_final && bytes > expected {
        let what = format!("a log of {bytes} bytes, expected {expected}");
        return Err(Error::corrupt(name, bytes.min(expected), what));
    }
    Ok(())
}

impl PartitionReader {
    /// Reads and verifies all blocks of `epoch`.
    fn scan(&self, epoch: u32, counts: &mut QueryCounts) -> Result<()> {
        let layout = self.head().row_layout();
        let parts = std::sync::Arc::clone(self.epoch(epoch, counts)?);
        for table in parts.groups.iter().flat_map(|group| &group.tables) {
            let blocks: Vec<u32> = (0..table.blocks(layout)).collect();
            for blocks in blocks.chunks(256) {
                let places: Vec<_> =
                    blocks.iter().map(|&b| table.block_location(b, layout)).collect();
                let ranges: Vec<_> = places.iter().map(|place| place.bytes.clone()).collect();
                for (body, place) in self.blocks(&ranges, counts)?.iter().zip(&places) {
                    self.rows(body, place)?;
                }
            }
        }
        Ok(())
    }
}
