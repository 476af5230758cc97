// SPDX-License-Identifier: Apache-2.0
//! Compressed run: a frozen memtable in memory as encoded blocks, found by key range.
//!
//! Encoded, structured records take a small fraction of their memtable's memory, so many more of
//! them can be sorted in memory before anything is written. When the buffer of runs is full, only
//! blocks that overlap are decoded and merged. The blocks of a run do not overlap, so a sorted
//! array is its search tree. Source: MetaKV §III-A.

use std::sync::Arc;

use crate::block::Block;
use crate::merge::RecordCursor;
use crate::schema::{Key, KeyBuffer, RowBuffer, Schema};

/// A run stays in memory if encoding makes it at least this many times smaller than its memtable.
/// Otherwise its memory buys little order, and it becomes a table at once.
pub const SHRINK_MIN: usize = 16;
/// Blocks that are encoded to estimate the ratio.
pub const SAMPLE_BLOCKS: usize = 32;

/// Encoded blocks of one frozen memtable.
#[derive(Debug)]
pub struct CompressedRun {
    schema: &'static Schema,
    /// The last key of each block, and the block.
    blocks: Vec<(KeyBuffer, Arc<Block>)>,
    bytes: usize,
}

impl CompressedRun {
    /// Makes a run of `blocks`, each with its last key, in key order.
    #[must_use]
    pub fn new(schema: &'static Schema, blocks: Vec<(KeyBuffer, Arc<Block>)>) -> Self {
        let bytes = blocks.iter().map(|(_, block)| block.memory_bytes()).sum();
        Self { schema, blocks, bytes }
    }

    /// Memory that the run takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the record of `key` into `out`; returns false if there is none.
    #[must_use]
    pub fn get(&self, key: &Key, with_strings: bool, out: &mut RowBuffer) -> bool {
        let at = self.blocks.partition_point(|(last, _)| last.key() < *key);
        let Some((_, block)) = self.blocks.get(at) else {
            return false;
        };
        let row = block.find(key);
        if let Some(row) = row {
            block.read(row, with_strings, out);
        }
        row.is_some()
    }

    /// Returns a cursor over the records from `from` on.
    #[must_use]
    pub fn cursor(&self, from: &Key) -> RecordCursor {
        let at = self.blocks.partition_point(|(last, _)| last.key() < *from);
        let blocks = self.blocks[at..].iter().map(|(_, block)| block.clone()).collect();
        RecordCursor::over_blocks(self.schema, blocks)
    }
}
