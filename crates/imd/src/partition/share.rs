// SPDX-License-Identifier: Apache-2.0
//! Share: divides a partition's memory so that its bound holds for any records.
//!
//! ```text
//! index      1/8 for written tables, 1/16 for the current one: limits its rows
//! sorting    1/16, for one bucket: limits a bucket's rows; more where a table is one bucket
//! slots      1/32, on their way to the index log
//! pieces     three of 1/64, and a block after each
//! records    the rest
//! ```
//! A long record is in memory several times while it is written ([`LONG_COPIES`]); after the first
//! such record the pool keeps that much of the records' share free. Some tens of kilobytes of fixed
//! overhead come on top.

use esker_base::{Error, Kind, Result};

use super::pieces::PIECES_MAX;
use super::sort::ROW_SORT_BYTES;
use super::{PartitionSetup, RowOrder};
use crate::block::BLOCK_BYTES;
use crate::record_layout::RecordLayout;

/// Minimum memory of a partition.
pub const MEMORY_BYTES_MIN: u64 = 256 << 10;

/// Size of the pieces in which blocks are written to the store, if memory permits.
const PIECE_BYTES: u64 = 1 << 20;

/// Maximum average index bytes of a row: 13 low bits and 2.5 above, or a filter's nine.
const ROW_INDEX_BYTES: u64 = 2;

/// Copies of one or two long records that are in memory besides the chunk: in a block, in the open
/// piece, which may be growing, and in two pieces that are being written.
pub(super) const LONG_COPIES: u64 = 6;

/// A record may take the records' share divided by this.
const RECORD_PART: u64 = LONG_COPIES + 2;

/// The shares of a partition's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryShare {
    /// Memory for records that wait or are being written.
    pub(super) record_bytes: u64,
    /// Memory for the index of written tables.
    pub(super) index_bytes: u64,
    pub(super) piece_bytes: usize,
    /// Maximum rows of a table.
    pub(super) table_rows_max: u64,
    /// Maximum rows of one of its buckets.
    pub(super) bucket_rows_max: u64,
}

impl MemoryShare {
    /// Divides the memory of `setup`.
    ///
    /// # Errors
    /// `Invalid` if it is too little for one record.
    pub(super) fn of(setup: &PartitionSetup) -> Result<Self> {
        let memory = setup.memory_bytes;
        let stride = setup.layout.stride().unwrap_or(1);
        let piece_bytes = (memory / 64).clamp(BLOCK_BYTES as u64, PIECE_BYTES);
        let pieces = (1 + PIECES_MAX as u64) * (piece_bytes + stride.max(BLOCK_BYTES as u64));
        let used = memory / 8 + memory / 16 + memory / 16 + memory / 32 + pieces;
        let mut record_bytes = memory.saturating_sub(used);
        let mut bucket_rows_max = memory / 16 / ROW_SORT_BYTES;
        if setup.row_order == RowOrder::Key {
            // A whole table is sorted at once, which takes a part of the records' share.
            let with_sorting = record_bytes + memory / 16;
            (record_bytes, bucket_rows_max) = match setup.layout.stride() {
                Some(stride) => (with_sorting / (stride + ROW_SORT_BYTES) * stride, u64::MAX),
                None => {
                    let sorting = memory / 4;
                    (with_sorting.saturating_sub(sorting), sorting / ROW_SORT_BYTES)
                }
            };
        }
        if memory < MEMORY_BYTES_MIN || record_bytes / RECORD_PART < stride {
            let what = format!(
                "{memory} bytes of memory for a partition: at least {MEMORY_BYTES_MIN} are needed, and \
                 for records of {stride} bytes some {}",
                stride * 2 * RECORD_PART
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        Ok(Self {
            record_bytes,
            index_bytes: memory / 8,
            piece_bytes: usize::try_from(piece_bytes).expect("at most a MiB"),
            table_rows_max: memory / 16 / ROW_INDEX_BYTES,
            bucket_rows_max,
        })
    }

    /// Maximum bytes of a record.
    pub(super) fn record_bytes_max(&self) -> u64 {
        self.record_bytes / RECORD_PART
    }
}

impl RecordLayout {
    /// Bytes of every record, if all have the same length.
    fn stride(self) -> Option<u64> {
        match self {
            Self::Fixed { key_bytes, value_bytes } => {
                Some(u64::from(key_bytes) + u64::from(value_bytes))
            }
            Self::Variable => None,
        }
    }
}
