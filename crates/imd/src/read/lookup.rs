// SPDX-License-Identifier: Apache-2.0
//! Look-up: the values of some keys in some epochs of one partition.
//!
//! All slots that the keys need are fetched together, then all blocks. Neighbours become one
//! request; a store that supports concurrent requests gets them at once.

use std::ops::Range;

use bytes::Bytes;
use esker_base::fuse_filter;
use esker_base::wire::WireInput;
use esker_base::{Error, Result};
use hashbrown::HashMap;

use super::counts::QueryCounts;
use super::partition::PartitionReader;
use crate::block;
use crate::index::epoch::{BlockLocation, EpochTable, IndexGroup};
use crate::partition::{SLOT_HEADER_BYTES, key_prefix};
use crate::record_layout::RecordLayout;
use crate::slot;

/// A key to look up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedKey<'k> {
    /// Its number among the requested keys.
    pub(crate) number: usize,
    pub(crate) key: &'k [u8],
    pub(crate) hash: u64,
    /// Its place in the partition.
    pub(crate) place: u64,
}

/// A value found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundValue {
    /// Number of its key.
    pub(crate) number: usize,
    pub(crate) epoch: u32,
    pub(crate) value: Bytes,
}

/// Rows that may have a key.
struct CandidateRows<'a> {
    wanted: usize,
    epoch: u32,
    table: &'a EpochTable,
    rows: RowSelection,
}

enum RowSelection {
    /// Exactly these rows, by number in the table.
    Some(Range<u32>),
    /// Rows of these blocks, which are ordered by key.
    Blocks(Range<u32>),
}

/// Appends to `found` the values of `wanted` that `reader` has in `epochs`, in order of key, epoch
/// and arrival.
pub(crate) fn lookup_keys(
    reader: &PartitionReader,
    wanted: &[WantedKey<'_>],
    epochs: Range<u32>,
    counts: &mut QueryCounts,
    found: &mut Vec<FoundValue>,
) -> Result<()> {
    let epochs = epochs.start..epochs.end.min(reader.epochs());
    let candidates = candidates(reader, wanted, epochs, counts)?;
    counts.tables += candidates.len() as u64;
    let layout = reader.head().row_layout();
    let mut places: Vec<BlockLocation> = Vec::new();
    let mut numbers: HashMap<u64, usize> = HashMap::new();
    let mut spans = Vec::with_capacity(candidates.len());
    for CandidateRows { table, rows, .. } in &candidates {
        let blocks = match rows {
            RowSelection::Some(rows) => {
                table.block_of(rows.start, layout)..table.block_of(rows.end - 1, layout) + 1
            }
            RowSelection::Blocks(blocks) => blocks.clone(),
        };
        let mut span = Vec::with_capacity(blocks.len());
        for block in blocks {
            let place = table.block_location(block, layout);
            let number = *numbers.entry(place.bytes.start).or_insert_with(|| {
                places.push(place);
                places.len() - 1
            });
            span.push(number);
        }
        spans.push(span);
    }
    let ranges: Vec<Range<u64>> = places.iter().map(|place| place.bytes.clone()).collect();
    let bodies = reader.blocks(&ranges, counts)?;
    for (candidate, span) in candidates.iter().zip(spans) {
        let wanted = &wanted[candidate.wanted];
        for number in span {
            collect(reader, candidate, wanted, &places[number], &bodies[number], found)?;
        }
    }
    Ok(())
}

/// The rows that may have the keys.
fn candidates<'a>(
    reader: &'a PartitionReader,
    wanted: &[WantedKey<'_>],
    epochs: Range<u32>,
    counts: &mut QueryCounts,
) -> Result<Vec<CandidateRows<'a>>> {
    let mut places: Vec<Range<u64>> = Vec::new();
    let mut numbers: HashMap<u64, usize> = HashMap::new();
    let mut probes = Vec::new();
    for (index, wanted) in wanted.iter().enumerate() {
        for epoch in epochs.clone() {
            for group in &reader.epoch(epoch, counts)?.groups {
                for slot in slots_of(group, wanted) {
                    let place = group.slot_range(slot);
                    let number = *numbers.entry(place.start).or_insert_with(|| {
                        places.push(place);
                        places.len() - 1
                    });
                    probes.push((index, epoch, group, number));
                }
            }
        }
    }
    let bodies = reader.slots(&places, counts)?;
    let layout = reader.head().row_layout();
    let mut out = Vec::new();
    for (index, epoch, group, number) in probes {
        let body = &bodies[number];
        let probed = probe(group, layout, &wanted[index], body, |table, rows| {
            out.push(CandidateRows { wanted: index, epoch, table, rows });
        });
        probed.map_err(|what| {
            reader.named(Error::corrupt(&reader.log.name, places[number].start, what))
        })?;
    }
    Ok(out)
}

/// The slots of `group` that may have `wanted`.
fn slots_of(group: &IndexGroup, wanted: &WantedKey<'_>) -> Range<usize> {
    let keys = &group.slot_keys;
    if keys.is_empty() {
        let slot = slot::slot_of(wanted.place, group.slot_bits) as usize;
        return slot..slot + 1;
    }
    // Keys that share a prefix may continue from one slot into the next.
    let prefix = key_prefix(wanted.key);
    let first = keys.partition_point(|&key| key < prefix).saturating_sub(1);
    first..keys.partition_point(|&key| key <= prefix).max(first)
}

/// Passes the rows of each table that may have `wanted`, according to its slot `body`, to `take`.
fn probe<'a>(
    group: &'a IndexGroup,
    layout: RecordLayout,
    wanted: &WantedKey<'_>,
    body: &[u8],
    mut take: impl FnMut(&'a EpochTable, RowSelection),
) -> Result<(), &'static str> {
    let mut rest = body;
    for table in &group.tables {
        let Some((header, bits)) = rest.split_first_chunk::<SLOT_HEADER_BYTES>() else {
            return Err("a slot without a header");
        };
        let (first, rows) = header.split_at(4);
        let first = u32::from_le_bytes(first.try_into().expect("four bytes"));
        let rows = u32::from_le_bytes(rows.try_into().expect("four bytes"));
        if first.checked_add(rows).is_none_or(|end| end > table.rows) {
            return Err("a slot of more rows than the table has");
        }
        if !group.slot_keys.is_empty() {
            let blocks = probe_by_key(wanted, bits, first, table, layout)?;
            if !blocks.is_empty() {
                take(table, RowSelection::Blocks(blocks));
            }
            return Ok(());
        }
        let bytes = usize::try_from(slot::bytes(rows, table.low_bits)).unwrap_or(usize::MAX);
        let Some((bits, behind)) = bits.split_at_checked(bytes) else {
            return Err("a slot that ends too early");
        };
        let found = slot::find(bits, rows, group.slot_bits, table.low_bits, wanted.place);
        if !found.is_empty() {
            take(table, RowSelection::Some(first + found.start..first + found.end));
        }
        rest = behind;
    }
    if rest.is_empty() { Ok(()) } else { Err("bytes after the slots") }
}

/// The first block of a slot ordered by key, with the slot's header, and the prefixes of the
/// blocks' first keys.
pub(crate) fn first_keys<'b>(
    body: &'b [u8],
    table: &EpochTable,
    layout: RecordLayout,
) -> Result<(u32, &'b [[u8; 8]]), &'static str> {
    let Some((header, bytes)) = body.split_first_chunk::<SLOT_HEADER_BYTES>() else {
        return Err("a slot without a header");
    };
    let first = u32::from_le_bytes(*header.first_chunk().expect("four bytes of eight"));
    parse_key_slot(bytes, first, table, layout).map(|(block, firsts, _)| (block, firsts))
}

/// A slot ordered by key: its first block, the prefixes of the blocks' first keys, and the filter.
type KeySlot<'b> = (u32, &'b [[u8; 8]], &'b [u8]);

fn parse_key_slot<'b>(
    bytes: &'b [u8],
    first_row: u32,
    table: &EpochTable,
    layout: RecordLayout,
) -> Result<KeySlot<'b>, &'static str> {
    const BAD: &str = "a damaged slot of a table ordered by key";
    let mut input = WireInput::new(bytes);
    let count = input.varint_max(bytes.len() / 8, BAD).map_err(|_| BAD)?;
    let firsts = input.take(count * 8).map_err(|_| BAD)?;
    let bits = input.take(input.left()).map_err(|_| BAD)?;
    fuse_filter::check(bits).map_err(|_| BAD)?;
    let first_block = table.block_of(first_row, layout);
    let end = u32::try_from(count).ok().and_then(|count| first_block.checked_add(count));
    if end.is_none_or(|end| end > table.blocks(layout)) {
        return Err(BAD);
    }
    Ok((first_block, firsts.as_chunks().0, bits))
}

/// The blocks of a slot ordered by key that may have `wanted`.
fn probe_by_key(
    wanted: &WantedKey<'_>,
    bytes: &[u8],
    first_row: u32,
    table: &EpochTable,
    layout: RecordLayout,
) -> Result<Range<u32>, &'static str> {
    let (first_block, firsts, bits) = parse_key_slot(bytes, first_row, table, layout)?;
    if !fuse_filter::may_contain(bits, wanted.hash) {
        return Ok(0..0);
    }
    let prefix = key_prefix(wanted.key);
    let from = firsts.partition_point(|first| u64::from_le_bytes(*first) < prefix);
    let to = firsts.partition_point(|first| u64::from_le_bytes(*first) <= prefix);
    let at = |index: usize| first_block + index as u32;
    Ok(at(from.saturating_sub(1))..at(to))
}

/// Adds the values of `wanted` among the candidate's rows in one block.
fn collect(
    reader: &PartitionReader,
    candidate: &CandidateRows<'_>,
    wanted: &WantedKey<'_>,
    place: &BlockLocation,
    body: &Bytes,
    found: &mut Vec<FoundValue>,
) -> Result<()> {
    let rows = reader.rows(body, place)?;
    let first = place.rows.start;
    let range = match &candidate.rows {
        RowSelection::Some(rows) => {
            rows.start.max(first) - first..rows.end.min(place.rows.end) - first
        }
        RowSelection::Blocks(_) => equal_rows(&rows, wanted.key),
    };
    for row in range {
        if rows.key(row) == wanted.key {
            let value = body.slice_ref(rows.value(row));
            found.push(FoundValue { number: wanted.number, epoch: candidate.epoch, value });
        }
    }
    Ok(())
}

/// The rows with `key` in a block ordered by key.
fn equal_rows(rows: &block::BlockRows<'_>, key: &[u8]) -> Range<u32> {
    let point = |before: &dyn Fn(&[u8]) -> bool| {
        let (mut low, mut high) = (0, rows.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if before(rows.key(middle)) { low = middle + 1 } else { high = middle }
        }
        low
    };
    point(&|other| other < key)..point(&|other| other <= key)
}
