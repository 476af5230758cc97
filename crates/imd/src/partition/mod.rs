// SPDX-License-Identifier: Apache-2.0
//! Partition: the flattened tree of one range of keys, from a buffer in memory to two logs.
//!
//! ```text
//! caller:      append → buckets of chunks ─┐ full, or end of epoch
//! background:                 sort a bucket → blocks → piece ─→ another thread → data log
//!                                           → slots ┐ end of epoch
//!                                                   └→ index log
//! ```
//! The caller copies a record into the bucket of its place's high bits, so the first pass of the
//! sort costs nothing extra. The background thread sorts one bucket at a time within the
//! processor's cache and returns its chunks, so the caller fills the freed memory.
//! Source: DeltaFS thesis §5.3.1, with slots ([`crate::slot`]) in place of filters and block
//! indexes.

mod buffer;
mod flusher;
mod index_group;
mod pieces;
mod pool;
mod share;
mod sort;
mod writer;

pub(crate) use index_group::SLOT_HEADER_BYTES;
pub use share::MEMORY_BYTES_MIN;
pub(crate) use sort::prefix as key_prefix;
pub use writer::PartitionWriter;

use crate::record_layout::RecordLayout;

/// Parameters of a partition's writer.
#[derive(Clone, Copy, Debug)]
pub struct PartitionSetup {
    /// Id of the directory.
    pub directory: u128,
    /// Number of the partition.
    pub partition: u32,
    /// Number of partitions that share the hash space; 1 if this one has all of it.
    pub partitions: u32,
    /// The layout of the records.
    pub layout: RecordLayout,
    /// The order of the rows.
    pub row_order: RowOrder,
    /// True if it also keeps auxiliary tables.
    pub has_auxiliary: bool,
    /// Memory for records, pending writes, and the index of the current epoch.
    pub memory_bytes: u64,
}

/// A rank's state at the end of an epoch.
#[derive(Clone, Copy, Debug)]
pub struct EpochEnd {
    /// The epoch's step.
    pub step: u64,
    /// Bytes of the values that the rank has kept.
    pub value_bytes: u64,
}

/// Sort order of a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// The hash of the key, then arrival.
    Hash,
    /// The key, then arrival.
    Key,
}
