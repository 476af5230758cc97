// SPDX-License-Identifier: Apache-2.0
//! Merge: records of several sorted sources in key order, records with equal keys newest first.
//!
//! A cursor reads a source block by block, decoded column by column, so a merge of one source costs
//! little more than decoding it.

use std::cmp::Ordering;
use std::sync::Arc;
use std::vec;

use esker_base::{Bytes, Error, Kind, Result};

use crate::block::{Block, DecodedBlock};
use crate::schema::{KEY_INTS_MAX, Key, KeyBuffer, Row, Schema};
use crate::table::READ_AHEAD_BLOCKS;
use crate::tables::TableHandle;

/// The records of one sorted source, for a [`RecordMerge`].
#[derive(Debug)]
pub struct RecordCursor {
    schema: &'static Schema,
    source: RecordSource,
    decoded: DecodedBlock,
    /// The encoded form of the decoded block, if the source has one.
    encoded: Option<Bytes>,
    row: usize,
    /// Visible rows of the decoded block.
    rows: usize,
}

#[derive(Debug)]
enum RecordSource {
    /// Nothing beyond what is already decoded.
    Decoded,
    Blocks(vec::IntoIter<Arc<Block>>),
    Tables(Box<TablesSource>),
}

#[derive(Debug)]
struct TablesSource {
    tables: vec::IntoIter<Arc<TableHandle>>,
    table: Option<Arc<TableHandle>>,
    /// The next block of the table, and the end of its visible blocks.
    block: usize,
    blocks_end: usize,
    /// Blocks fetched ahead, the next one first.
    ahead: vec::IntoIter<Bytes>,
    /// Number of blocks to fetch next: few at first, since most groups are small.
    ahead_blocks: usize,
    from: KeyBuffer,
    to: KeyBuffer,
}

/// Blocks that a scan reads through the cache before it reads ahead around it.
const CACHED_BLOCKS: usize = 4;
const _: () = assert!(CACHED_BLOCKS <= READ_AHEAD_BLOCKS);

impl RecordCursor {
    /// Makes a cursor over `decoded` alone.
    #[must_use]
    pub(crate) fn over_decoded(schema: &'static Schema, decoded: DecodedBlock) -> Self {
        let rows = decoded.rows();
        Self { schema, source: RecordSource::Decoded, decoded, encoded: None, row: 0, rows }
    }

    /// Makes a cursor over the sorted blocks of a run in memory.
    #[must_use]
    pub(crate) fn over_blocks(schema: &'static Schema, blocks: Vec<Arc<Block>>) -> Self {
        let source = RecordSource::Blocks(blocks.into_iter());
        Self::new(schema, source)
    }

    /// Makes a cursor over sorted tables, each within its visible range, from `from` on and not
    /// much beyond `to`.
    #[must_use]
    pub(crate) fn over_tables(
        schema: &'static Schema,
        tables: Vec<Arc<TableHandle>>,
        from: &Key,
        to: &Key,
    ) -> Self {
        let source = TablesSource {
            tables: tables.into_iter(),
            table: None,
            block: 0,
            blocks_end: 0,
            ahead: Vec::new().into_iter(),
            ahead_blocks: 1,
            from: (*from).into(),
            to: (*to).into(),
        };
        Self::new(schema, RecordSource::Tables(Box::new(source)))
    }

    fn new(schema: &'static Schema, source: RecordSource) -> Self {
        Self { schema, source, decoded: DecodedBlock::default(), encoded: None, row: 0, rows: 0 }
    }

    /// Moves to the first record at or after `from`; call once, before reading.
    pub(crate) fn start(&mut self, from: &Key) -> Result<()> {
        if self.rows == 0 {
            self.next_block()?;
        }
        while self.rows > 0 {
            let bound = self.decoded.lower_bound(self.schema, from);
            if bound < self.rows {
                self.row = self.row.max(bound);
                return Ok(());
            }
            self.next_block()?;
        }
        Ok(())
    }

    /// Returns whether the cursor is at a record.
    #[inline]
    #[must_use]
    pub(crate) fn is_valid(&self) -> bool {
        self.row < self.rows
    }

    /// The key of the record.
    #[inline]
    #[must_use]
    pub(crate) fn key(&self) -> Key<'_> {
        self.decoded.key(self.schema, self.row)
    }

    #[inline]
    fn key_ints(&self) -> [u64; KEY_INTS_MAX] {
        self.decoded.key_ints(self.schema, self.row)
    }

    /// The record, in stored form.
    #[inline]
    #[must_use]
    pub(crate) fn row(&self) -> Row<'_> {
        self.decoded.row(self.row)
    }

    /// Moves to the next record.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<()> {
        self.row += 1;
        if self.row < self.rows { Ok(()) } else { self.next_block() }
    }

    /// Returns the whole current block, if its first record is the current one, all of it is
    /// visible, and the source has it encoded.
    #[must_use]
    pub(crate) fn whole_block(&self) -> Option<(&Bytes, &DecodedBlock)> {
        let whole = self.row == 0 && self.rows == self.decoded.rows() && self.rows > 0;
        self.encoded.as_ref().filter(|_| whole).map(|encoded| (encoded, &self.decoded))
    }

    /// The last key of the current block.
    #[must_use]
    pub(crate) fn block_last(&self) -> Key<'_> {
        self.decoded.key(self.schema, self.rows - 1)
    }

    /// Moves past the current block.
    pub(crate) fn next_block(&mut self) -> Result<()> {
        (self.row, self.rows, self.encoded) = (0, 0, None);
        match &mut self.source {
            RecordSource::Decoded => {}
            RecordSource::Blocks(blocks) => {
                if let Some(block) = blocks.next() {
                    self.decoded.clear();
                    block.decode(&mut self.decoded);
                    self.encoded = Some(block.bytes().clone());
                    self.rows = self.decoded.rows();
                }
            }
            RecordSource::Tables(source) => {
                while let Some((block, table)) = source.next()? {
                    self.decoded.clear();
                    block.decode(&mut self.decoded);
                    let (first, last) = (table.reference.first.key(), table.reference.last.key());
                    // Rows outside the visible range must not be shown.
                    self.row = self.decoded.lower_bound(self.schema, &first);
                    self.rows = self.decoded.lower_bound(self.schema, &last);
                    self.rows += usize::from(
                        self.rows < self.decoded.rows()
                            && self.decoded.key(self.schema, self.rows) == last,
                    );
                    if self.row < self.rows {
                        self.encoded = Some(block.bytes().clone());
                        return Ok(());
                    }
                    (self.row, self.rows) = (0, 0);
                }
            }
        }
        Ok(())
    }
}

impl TablesSource {
    fn next(&mut self) -> Result<Option<(Arc<Block>, Arc<TableHandle>)>> {
        loop {
            if self.block == self.blocks_end {
                let Some(handle) = self.tables.next() else {
                    return Ok(None);
                };
                let index = handle.open()?.index();
                let first = self.from.key().max(handle.reference.first.key());
                self.block = index.block_of(&first);
                let last = self.to.key().min(handle.reference.last.key());
                self.blocks_end = index.block_of(&last) + 1;
                if self.block >= self.blocks_end {
                    return Err(Error::new(
                        Kind::Corrupt,
                        format!("{}: visible range outside it", handle.reference.name()),
                    ));
                }
                self.table = Some(handle);
                self.ahead = Vec::new().into_iter();
            }
            let handle = self.table.as_ref().expect("set with the block range");
            let table = handle.open()?;
            if let Some(bytes) = self.ahead.next() {
                let block = table.parse_block(self.block, bytes)?;
                self.block += 1;
                return Ok(Some((block, handle.clone())));
            }
            if self.ahead_blocks < CACHED_BLOCKS {
                self.ahead_blocks += 1;
                let block = table.block(self.block)?;
                self.block += 1;
                return Ok(Some((block, handle.clone())));
            }
            let end = self.blocks_end.min(self.block + self.ahead_blocks);
            self.ahead = table.read_ahead(self.block, end)?.into_iter();
            self.ahead_blocks = (self.ahead_blocks * 2).min(READ_AHEAD_BLOCKS);
        }
    }
}

/// A valid cursor that waits in the heap, and the integers of its key.
#[derive(Clone, Copy, Debug)]
struct MergeHead {
    ints: [u64; KEY_INTS_MAX],
    cursor: usize,
}

/// A block of one source of a merge, in whose range no other source has a key.
#[derive(Debug)]
pub struct LoneBlock<'a> {
    /// The index of the source.
    pub source: usize,
    /// The block as its table has it.
    pub encoded: &'a Bytes,
    /// Its records, in stored form.
    pub records: &'a DecodedBlock,
}

/// Records of several cursors in key order.
#[derive(Debug)]
pub struct RecordMerge {
    cursors: Vec<RecordCursor>,
    /// Valid cursors as a binary heap: the least key first, and among equal keys the newest source.
    heap: Vec<MergeHead>,
    /// Sources of the current key, the newest first.
    current: Vec<usize>,
}

impl RecordMerge {
    /// Merges `cursors`, newest source first, from `from` on. Call [`RecordMerge::advance`] to
    /// reach the first record.
    pub fn new(mut cursors: Vec<RecordCursor>, from: &Key) -> Result<Self> {
        for cursor in &mut cursors {
            cursor.start(from)?;
        }
        let mut merge = Self { cursors, heap: Vec::new(), current: Vec::new() };
        for index in 0..merge.cursors.len() {
            merge.push(index);
        }
        Ok(merge)
    }

    #[inline]
    fn head(&self, index: usize) -> MergeHead {
        MergeHead { ints: self.cursors[index].key_ints(), cursor: index }
    }

    /// Compares the keys of two heads.
    #[inline]
    fn compare(&self, a: &MergeHead, b: &MergeHead) -> Ordering {
        // Strings are compared only if the integers are equal.
        a.ints.cmp(&b.ints).then_with(|| {
            self.cursors[a.cursor].key().string.cmp(self.cursors[b.cursor].key().string)
        })
    }

    #[inline]
    fn before(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.heap[a], &self.heap[b]);
        self.compare(a, b).then(a.cursor.cmp(&b.cursor)).is_lt()
    }

    fn push(&mut self, index: usize) {
        if !self.cursors[index].is_valid() {
            return;
        }
        self.heap.push(self.head(index));
        let mut child = self.heap.len() - 1;
        while child > 0 {
            let parent = (child - 1) / 2;
            if !self.before(child, parent) {
                break;
            }
            self.heap.swap(child, parent);
            child = parent;
        }
    }

    fn sink_first(&mut self) {
        let mut parent = 0;
        loop {
            let mut least = parent;
            for child in [2 * parent + 1, 2 * parent + 2] {
                if child < self.heap.len() && self.before(child, least) {
                    least = child;
                }
            }
            if least == parent {
                return;
            }
            self.heap.swap(parent, least);
            parent = least;
        }
    }

    fn pop(&mut self) -> MergeHead {
        let first = self.heap.swap_remove(0);
        self.sink_first();
        first
    }

    /// Moves to the next key; false at the end.
    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        if let [only] = self.current[..] {
            self.cursors[only].advance()?;
            if self.cursors[only].is_valid() {
                return Ok(self.go_on(only));
            }
        } else {
            for at in 0..self.current.len() {
                let index = self.current[at];
                self.cursors[index].advance()?;
                self.push(index);
            }
        }
        self.current.clear();
        if self.heap.is_empty() {
            return Ok(false);
        }
        let first = self.pop();
        self.gather(first);
        Ok(true)
    }

    /// Finishes [`RecordMerge::advance`] where one cursor was the only source and is still valid.
    #[inline]
    fn go_on(&mut self, only: usize) -> bool {
        let Some(&next) = self.heap.first() else {
            // Only one source is left: nothing to compare with.
            return true;
        };
        let head = self.head(only);
        let order = self.compare(&head, &next);
        if order.is_lt() {
            return true;
        }
        self.current.clear();
        if order.is_eq() && only < next.cursor {
            self.gather(head);
        } else {
            self.heap[0] = head;
            self.sink_first();
            self.gather(next);
        }
        true
    }

    /// Makes `first`, which precedes the whole heap, current, together with all heads of the same
    /// key.
    #[inline]
    fn gather(&mut self, first: MergeHead) {
        self.current.push(first.cursor);
        while let Some(next) = self.heap.first() {
            if self.compare(&first, next).is_ne() {
                break;
            }
            let next = self.pop();
            self.current.push(next.cursor);
        }
    }

    /// The current key.
    #[must_use]
    pub fn key(&self) -> Key<'_> {
        self.cursors[self.current[0]].key()
    }

    /// The newest record of the current key, in stored form.
    #[inline]
    #[must_use]
    pub fn row(&self) -> Row<'_> {
        self.cursors[self.current[0]].row()
    }

    /// The decoded block and row of the newest record of the current key.
    #[inline]
    #[must_use]
    pub fn newest_record(&self) -> (&DecodedBlock, usize) {
        let cursor = &self.cursors[self.current[0]];
        (&cursor.decoded, cursor.row)
    }

    /// Sources that have the current key, newest first.
    #[must_use]
    pub fn versions(&self) -> &[usize] {
        &self.current
    }

    /// The record of the current key in one of the sources of [`RecordMerge::versions`], in stored
    /// form.
    #[must_use]
    pub fn version(&self, source: usize) -> Row<'_> {
        self.cursors[source].row()
    }

    /// Moves to the next key as [`RecordMerge::advance`] does, but past whole blocks in which only
    /// one source has keys, and which `is_passed` accepts.
    ///
    /// # Errors
    /// Errors of `is_passed`; as [`RecordMerge::advance`].
    pub fn advance_past(
        &mut self,
        mut is_passed: impl FnMut(&LoneBlock) -> Result<bool>,
    ) -> Result<bool> {
        let mut more = self.advance()?;
        while more
            && let Some(block) = self.lone_block()
            && is_passed(&block)?
        {
            more = self.skip_block()?;
        }
        Ok(more)
    }

    /// The current block of the only source of the current key, if no other source has a key in its
    /// range: the caller can pass it on without encoding it again.
    #[must_use]
    fn lone_block(&self) -> Option<LoneBlock<'_>> {
        let [source] = self.current[..] else {
            return None;
        };
        let cursor = &self.cursors[source];
        let (encoded, records) = cursor.whole_block()?;
        let last = cursor.block_last();
        let alone = self.heap.first().is_none_or(|next| self.cursors[next.cursor].key() > last);
        alone.then_some(LoneBlock { source, encoded, records })
    }

    /// Moves past the block of [`RecordMerge::lone_block`]; false at the end.
    fn skip_block(&mut self) -> Result<bool> {
        let only = self.current.pop().expect("a lone block is current");
        self.current.clear();
        self.cursors[only].next_block()?;
        self.push(only);
        self.advance()
    }
}
