//! Partition: the flattened tree of one range of keys, from a buffer in memory to two logs.
//!
//! ```text
//! caller:      append → buckets of chunks ─┐ full, or end of epoch
//! background:                 sort a bucket → blocks → piece ─→ another thread → data log
//!                                           → slots ┐ end of epoch
//!                                                   └→ index log
//! ```
//! The caller copies a record into the bucket of its place's high bits, so the first pass of the
//! sort costs nothing more. The background thread sorts bucket after bucket within the processor's
//! cache and gives their chunks back, so that the caller fills the memory that is freed.
//! Source: DeltaFS thesis §5.3.1, with slots ([`crate::slot`]) in place of filters and block
//! indexes.

mod buffer;
mod flusher;
mod pieces;
mod pool;
mod segment;
mod share;
mod sort;
mod writer;

pub(crate) use segment::SLOT_HEADER_BYTES;
pub use share::MEMORY_BYTES_MIN;
pub(crate) use sort::prefix as key_prefix;
pub use writer::PartitionWriter;

use crate::shape::Shape;

/// What a partition's writer must know.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The directory that it is of.
    pub directory: u128,
    /// Its number.
    pub partition: u32,
    /// How many there are that share the hashes of keys: 1 if it has all of them.
    pub partitions: u32,
    /// What records look like.
    pub shape: Shape,
    /// How rows are ordered.
    pub order: Order,
    /// Whether it also keeps auxiliary tables.
    pub has_auxiliary: bool,
    /// Memory for records, what is being written, and the index of the running epoch.
    pub memory_bytes: u64,
}

/// What a rank knows when an epoch ends.
#[derive(Clone, Copy, Debug)]
pub struct EpochEnd {
    /// The epoch's step.
    pub step: u64,
    /// Bytes of values that the rank has kept.
    pub value_bytes: u64,
}

/// What the rows of a table are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The hash of the key, then arrival.
    Hash,
    /// The key, then arrival.
    Key,
}
