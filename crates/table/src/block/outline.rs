// SPDX-License-Identifier: Apache-2.0
//! Outline: everything needed to read one record of a block, apart from a few hundred of its bytes.
//!
//! Checking and parsing a block once leaves its outline: the positions of its columns, and a
//! checksum of each of its parts. Later reads find a key's row by the hash column, fetch the parts
//! that they need, some 256 bytes each, and check each part by its own checksum. A read of a block
//! that no cache holds therefore neither computes the checksum of the whole block nor parses it.
//! The properties that blocks of a table have in common, their form, are kept once.
//! Invariant: a reader uses a byte of a block only after it has copied the part that holds the
//! byte, and the copy has the checksum of the bytes that were parsed. The copy then equals the
//! parsed bytes, no matter which process writes to the file meanwhile. Only blocks whose keys are
//! of one group and in order of a hash have outlines.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use arrayvec::ArrayVec;
use esker_base::packed_bits;

use super::order_search;
use super::parsed::Block;
use crate::column::{ALPHABET_BYTES_MAX, OwnLengths, PackedInts, ParsedInts, StringsLayout};
use crate::schema::{INTS_MAX, Key, RowBuffer, Schema};

/// Maximum parts of a block. The bytes of one are the smallest power of two with which the parts
/// suffice.
const PARTS_MAX: usize = 22;
const PART_BYTES_MIN_LOG: u8 = 8;
const PART_BYTES_MAX_LOG: u8 = 10;
/// Larger blocks have no outline.
const OUTLINED_BYTES_MAX: usize = PARTS_MAX << PART_BYTES_MAX_LOG;
/// Bytes after a value that reading its bits may touch.
const SLACK_BYTES: usize = 16;
/// Maximum number of packed columns besides the hash.
const COLUMNS_MAX: usize = 4;
/// Rows from one known start of a name to the next.
const NAME_STEP: usize = 32;
const NAME_STARTS: usize = super::BLOCK_ROWS_MAX / NAME_STEP;
/// One in this many reads of a block goes through the cache of blocks, so that the cache gets the
/// blocks that are read often.
const READS_UNTIL_DUE: u8 = 64;
/// An outline takes at most this part of its block's memory besides its own size.
const MORE_BYTES_SHARE: usize = 8;
/// Bits of a symbol that stands for itself.
const PLAIN_WIDTH: u32 = 8;
const LINE_BYTES: usize = 64;

/// The positions of the columns of a block, and the checksums of its parts. Takes four lines of the
/// processor's cache, including the state that its table adds.
#[derive(Debug)]
pub(crate) struct Outline {
    order_bounds: (u64, u64),
    order: PackedInts,
    form: Arc<OutlineForm>,
    /// Columns whose values are encoded otherwise.
    others: Option<Box<OtherColumns>>,
    /// Packed columns besides the hash; only as many are valid as there are column numbers.
    columns: [PackedInts; COLUMNS_MAX],
    names: Names,
    sums: [u32; PARTS_MAX],
    rows: u16,
    bytes: u16,
    numbers: ColumnNumbers,
    part_bytes_log: u8,
    /// Reads so far, modulo 256.
    reads: AtomicU8,
}

const _: () = assert!(OUTLINED_BYTES_MAX <= u16::MAX as usize);

type ColumnNumbers = ArrayVec<u8, COLUMNS_MAX>;

#[derive(Debug)]
struct OtherColumns(Box<[(u8, ParsedInts)]>);

/// The positions of names.
#[derive(Debug)]
struct Names {
    /// Their lengths less the base, among the block's bytes; of width 0 if there are none.
    length_base: u32,
    lengths_at: u16,
    text_at: u16,
    /// The symbol with which the text of every [`NAME_STEP`]th row begins.
    starts: [u16; NAME_STARTS],
    length_width: u8,
}

/// The properties that outlines of a table have in common.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OutlineForm {
    /// Values of the columns in which all rows agree, except for the key's; 0 for others.
    constants: [u64; INTS_MAX],
    /// The prefix that all names share.
    shared: Box<[u8]>,
    /// Symbols of names, and the bits of one; [`PLAIN_WIDTH`] if names are not packed.
    symbols: Option<Box<[u8; ALPHABET_BYTES_MAX]>>,
    symbol_width: u32,
    /// True if there are strings besides the name.
    has_more_strings: bool,
}

impl OutlineForm {
    /// Memory that it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.shared.len() + self.symbols.as_ref().map_or(0, |s| s.len())
    }
}

/// A buffer for the parts of a block that are being read.
pub(crate) type PartsBuffer = [u8; OUTLINED_BYTES_MAX + SLACK_BYTES];

/// Bytes of one block, of which those that were asked for have been fetched and checked.
struct CheckedParts<'a, F> {
    outline: &'a Outline,
    /// Copies a range of the block; false if it cannot be read.
    copy: F,
    buffer: &'a mut PartsBuffer,
    /// Parts that are good, as bits.
    good: u32,
}

impl<F: FnMut(Range<usize>, &mut [u8]) -> bool> CheckedParts<'_, F> {
    /// All bytes, of which those of `span` are good; `None` if they cannot be read or have changed.
    #[inline]
    fn good(&mut self, span: Range<usize>) -> Option<&[u8]> {
        let log = self.outline.part_bytes_log;
        let last = span.end.max(span.start + 1) - 1;
        for part in span.start >> log..=last >> log {
            if self.good.checked_shr(part as u32)? & 1 == 0 {
                self.fetch(part)?;
            }
        }
        Some(self.buffer)
    }

    fn fetch(&mut self, part: usize) -> Option<()> {
        let range = self.outline.part(part)?;
        let bytes = self.buffer.get_mut(range.clone())?;
        let is_good = (self.copy)(range, bytes) && crc32c::crc32c(bytes) == self.outline.sums[part];
        self.good |= u32::from(is_good) << part;
        is_good.then_some(())
    }
}

impl Outline {
    /// The outline of `block`, whose keys are all of the group `group`; `None` if it cannot have
    /// one. `share` returns a form that is equal to its argument, if there is room for it.
    pub(crate) fn of(
        block: &Block,
        group: &[u64],
        share: impl FnOnce(OutlineForm) -> Option<Arc<OutlineForm>>,
    ) -> Option<Self> {
        let (schema, bytes) = (block.schema, block.bytes());
        schema.hash_of?;
        let is_group = |(column, int): (usize, &u64)| block.constant(column) == Some(*int);
        if bytes.len() > OUTLINED_BYTES_MAX || !group.iter().enumerate().all(is_group) {
            return None;
        }
        let key_ints = schema.key_ints;
        let order = block.varying(key_ints - 1)?.packed()?;
        let (mut numbers, mut others) = (ColumnNumbers::new(), Vec::new());
        let mut columns = [order; COLUMNS_MAX];
        let mut constants = [0; INTS_MAX];
        let values = constants.iter_mut().take(schema.ints.len()).enumerate().skip(key_ints);
        for (column, value) in values {
            match block.varying(column) {
                None => *value = block.constant(column)?,
                Some(ints) => match ints.packed().filter(|_| !numbers.is_full()) {
                    Some(packed) => {
                        columns[numbers.len()] = packed;
                        numbers.push(column as u8);
                    }
                    None => others.push((column as u8, ints.clone())),
                },
            }
        }
        let more_bytes =
            |(_, ints): &(u8, ParsedInts)| size_of::<(u8, ParsedInts)>() + ints.heap_bytes();
        if others.iter().map(more_bytes).sum::<usize>() > bytes.len() / MORE_BYTES_SHARE {
            return None;
        }
        let layout = block.strings[0].layout(bytes)?;
        let names = Names::of(block, &layout)?;
        let form = OutlineForm {
            constants,
            shared: layout.shared.into(),
            symbols: layout.alphabet.map(|(symbols, _)| Box::new(*symbols)),
            symbol_width: layout.alphabet.map_or(PLAIN_WIDTH, |(_, width)| width),
            has_more_strings: block.strings[1..].iter().any(|strings| !strings.is_empty()),
        };
        let part_bytes_log = (PART_BYTES_MIN_LOG..=PART_BYTES_MAX_LOG)
            .find(|log| bytes.len().div_ceil(1 << log) <= PARTS_MAX)?;
        let mut sums = [0; PARTS_MAX];
        for (sum, part) in sums.iter_mut().zip(bytes.chunks(1 << part_bytes_log)) {
            *sum = crc32c::crc32c(part);
        }
        Some(Self {
            order_bounds: block.order_bounds,
            order,
            form: share(form)?,
            rows: u16::try_from(block.rows()).ok()?,
            bytes: u16::try_from(bytes.len()).ok()?,
            part_bytes_log,
            reads: AtomicU8::new(0),
            names,
            columns,
            others: (!others.is_empty()).then(|| Box::new(OtherColumns(others.into()))),
            numbers,
            sums,
        })
    }

    /// Memory that it takes besides its own size and its form.
    pub(crate) fn more_bytes(&self) -> usize {
        self.others().map(|(_, ints)| size_of::<(u8, ParsedInts)>() + ints.heap_bytes()).sum()
    }

    fn others(&self) -> impl Iterator<Item = &(u8, ParsedInts)> {
        self.others.iter().flat_map(|others| others.0.iter())
    }

    /// The packed columns besides the hash, and their numbers.
    fn columns(&self) -> impl Iterator<Item = (&PackedInts, &u8)> {
        self.columns.iter().zip(&self.numbers)
    }

    /// Returns whether this read should go through the cache of blocks.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        // Concurrent readers may count as one read; an approximate number suffices.
        let reads = self.reads.load(Ordering::Relaxed).wrapping_add(1);
        self.reads.store(reads, Ordering::Relaxed);
        reads.is_multiple_of(READS_UNTIL_DUE)
    }

    /// The bytes of `part`.
    fn part(&self, part: usize) -> Option<Range<usize>> {
        let (start, bytes) = (part << self.part_bytes_log, usize::from(self.bytes));
        (start < bytes).then(|| start..bytes.min(start + (1 << self.part_bytes_log)))
    }

    /// Calls `prefetch` with the offsets of the lines that a read of the record with `order`
    /// probably needs.
    #[inline]
    pub(crate) fn prefetch(&self, order: u64, prefetch: impl Fn(usize)) {
        let (below, above) = self.order_bounds;
        if order <= below || order > above {
            return;
        }
        let row = order_search::guess(self.rows.into(), self.order_bounds, order);
        let part_of = |at: usize| {
            let start = at >> self.part_bytes_log << self.part_bytes_log;
            (start..start + (1 << self.part_bytes_log)).step_by(LINE_BYTES).for_each(&prefetch);
        };
        part_of(self.order.span(row).start);
        self.columns().for_each(|(packed, _)| part_of(packed.span(row).start));
        part_of(self.names.lengths().span(row).start);
        let symbol = usize::from(self.names.starts[row / NAME_STEP]);
        let text_at = usize::from(self.names.text_at);
        part_of(text_at + symbol * self.form.symbol_width as usize / 8);
    }

    /// Reads the record of `key`, which is of the block's group, into `out`, its strings only if
    /// `with_strings`; returns whether there is one. Returns `None` if a part that it needs cannot
    /// be read or has changed; `out` is then arbitrary. `copy` copies a range of the block.
    pub(crate) fn get(
        &self,
        schema: &Schema,
        key: &Key,
        (with_strings, out): (bool, &mut RowBuffer),
        (copy, buffer): (impl FnMut(Range<usize>, &mut [u8]) -> bool, &mut PartsBuffer),
    ) -> Option<bool> {
        if with_strings && self.form.has_more_strings {
            return None;
        }
        let mut parts = CheckedParts { outline: self, copy, buffer, good: 0 };
        let Some(row) = self.find(&mut parts, schema.last_key_int(&key.ints), key.string)? else {
            return Some(false);
        };
        out.ints = self.form.constants;
        out.ints[..schema.key_ints].copy_from_slice(&key.ints[..schema.key_ints]);
        for (packed, column) in self.columns() {
            out.ints[usize::from(*column)] = packed.get(parts.good(packed.span(row))?, row);
        }
        for (column, ints) in self.others() {
            if let Some(span) = ints.span(row) {
                parts.good(span)?;
            }
            out.ints[usize::from(*column)] = ints.get(parts.buffer, row);
        }
        schema.restore(&mut out.ints);
        if with_strings {
            out.strings.iter_mut().for_each(Vec::clear);
            out.strings[0].extend_from_slice(key.string);
        }
        Some(true)
    }

    /// The row of the key with `order` and `name`.
    #[inline]
    fn find<F: FnMut(Range<usize>, &mut [u8]) -> bool>(
        &self,
        parts: &mut CheckedParts<F>,
        order: u64,
        name: &[u8],
    ) -> Option<Option<usize>> {
        let (rows, (below, above)) = (usize::from(self.rows), self.order_bounds);
        if order < below || order > above {
            return Some(None);
        }
        let mut row = 0;
        if order > below {
            let guess = order_search::guess(rows, self.order_bounds, order);
            let value = |row| self.order_at(parts, row);
            row = order_search::lower_bound(rows, guess, order, value)?;
        }
        while row < rows && self.order_at(parts, row)? == order {
            if self.has_name(parts, row, name)? {
                return Some(Some(row));
            }
            row += 1;
        }
        Some(None)
    }

    #[inline]
    fn order_at<F: FnMut(Range<usize>, &mut [u8]) -> bool>(
        &self,
        parts: &mut CheckedParts<F>,
        row: usize,
    ) -> Option<u64> {
        Some(self.order.get(parts.good(self.order.span(row))?, row))
    }

    /// Returns whether `name` is that of `row`.
    #[inline]
    fn has_name<F: FnMut(Range<usize>, &mut [u8]) -> bool>(
        &self,
        parts: &mut CheckedParts<F>,
        row: usize,
        name: &[u8],
    ) -> Option<bool> {
        let Some(own) = name.strip_prefix(&*self.form.shared) else { return Some(false) };
        let (lengths, step) = (self.names.lengths(), row / NAME_STEP);
        let mut start = usize::from(self.names.starts[step]);
        if lengths.width == 0 {
            start += (row - step * NAME_STEP) * lengths.base as usize;
            if own.len() as u64 != lengths.base {
                return Some(false);
            }
        } else {
            let span = lengths.span(step * NAME_STEP).start..lengths.span(row).end;
            let bytes = parts.good(span)?;
            let before = (step * NAME_STEP..row).map(|row| lengths.get(bytes, row));
            start += before.sum::<u64>() as usize;
            if lengths.get(bytes, row) != own.len() as u64 {
                return Some(false);
            }
        }
        let (at, width) = (usize::from(self.names.text_at), self.form.symbol_width as usize);
        let end = start + own.len();
        let bytes = parts.good(at + start * width / 8..at + (end * width).div_ceil(8))?;
        let Some(symbols) = &self.form.symbols else {
            return Some(bytes.get(at + start..at + end)? == own);
        };
        let symbol = |index| symbols[packed_bits::get(&bytes[at..], index, width as u32) as usize];
        Some((start..end).zip(own).all(|(index, byte)| symbol(index) == *byte))
    }
}

impl Names {
    /// `None` if a number does not fit.
    fn of(block: &Block, layout: &StringsLayout) -> Option<Self> {
        let lengths = match layout.lengths {
            OwnLengths::Packed(lengths) => lengths,
            OwnLengths::Even(length) => PackedInts { base: length as u64, at: 0, width: 0 },
        };
        let mut starts = [0; NAME_STARTS];
        for (start, row) in starts.iter_mut().zip((0..block.rows()).step_by(NAME_STEP)) {
            *start = u16::try_from(block.strings[0].own_start(row)).ok()?;
        }
        Some(Self {
            length_base: u32::try_from(lengths.base).ok()?,
            lengths_at: u16::try_from(lengths.at).ok()?,
            text_at: u16::try_from(layout.text_at).ok()?,
            starts,
            length_width: lengths.width,
        })
    }

    fn lengths(&self) -> PackedInts {
        let (base, at) = (self.length_base.into(), self.lengths_at.into());
        PackedInts { base, at, width: self.length_width }
    }
}

#[cfg(test)]
mod tests;
