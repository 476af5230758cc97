// SPDX-License-Identifier: Apache-2.0
//! Tables: immutable objects of sorted blocks with filters, an index of blocks and a fixed footer.
//!
//! Layout: docs/format/table.md. Blocks come first, then the tail: filters, index, footer. The
//! manifest records the sizes of table and tail, so a cold point read takes two requests (tail,
//! block), and one once the tail is in memory.

pub(crate) mod footer;
mod group_blocks;
mod index;
mod outlines;
mod pinned_blocks;
mod queue;
pub(crate) mod reader;
mod scan;
pub(crate) mod writer;

use crate::block::BLOCK_BYTES_MAX;

#[cfg(test)]
pub(crate) use group_blocks::GroupBlocks;
pub(crate) use group_blocks::NearBlocks;
pub(crate) use reader::READ_AHEAD_BLOCKS;
pub use reader::{LookupKey, ReadCounters};
pub(crate) use reader::{Table, TableProbe};
pub use scan::{ScannedBlock, TableScan};
pub(crate) use writer::TableWriter;

/// Neighbouring blocks that one filter partition covers.
const FILTER_BLOCKS: usize = 256;
/// Bytes of blocks at which a table is closed: large enough for a store's bandwidth, small enough
/// to move between workers.
pub const TABLE_BYTES: u64 = 64 << 20;
/// Maximum bytes of a table's blocks, and so of their number, which keeps the index in proportion;
/// readers refuse more. The last block of our own tables may begin just before [`TABLE_BYTES`].
pub const TABLE_DATA_BYTES_MAX: u64 = 2 * TABLE_BYTES;
const _: () = assert!(TABLE_BYTES + 2 * BLOCK_BYTES_MAX as u64 <= TABLE_DATA_BYTES_MAX);
/// Maximum bytes of a tail; readers refuse more, so that a hostile manifest cannot make them
/// allocate it.
pub const TAIL_BYTES_MAX: u64 = 1 << 30;
const _: () = assert!(4 * TABLE_BYTES < TAIL_BYTES_MAX);
