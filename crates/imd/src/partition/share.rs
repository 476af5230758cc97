//! Share: how a partition's memory is divided, so that its bound holds whatever records look like.
//!
//! ```text
//! index      1/8 of tables that are written, 1/16 of the one that is: limits its rows
//! sorting    1/16, of one bucket: limits a bucket's rows; more where a table is one bucket
//! slots      1/32, on their way to the index log
//! pieces     three of 1/64, and a block behind each
//! records    the rest
//! ```
//! A long record is in memory several times while it is written ([`LONG_COPIES`]); the pool keeps so
//! much of the records' share free once there was one. On top come some tens of kilobytes that depend
//! on nothing.

use esker_base::{Error, Kind, Result};

use super::pieces::PIECES_MAX;
use super::sort::ROW_SORT_BYTES;
use super::{Order, Setup};
use crate::block::BLOCK_BYTES;
use crate::shape::Shape;

/// The least memory that a partition can be given.
pub const MEMORY_BYTES_MIN: u64 = 256 << 10;

/// Blocks are handed to the store in pieces of this size, if memory permits.
const PIECE_BYTES: u64 = 1 << 20;

/// Index of a row, at most, on average: 13 lower bits and 2.5 above, or a filter's nine.
const ROW_INDEX_BYTES: u64 = 2;

/// Copies of a long record, or of two, that are in memory besides its chunk: in a block, in the piece
/// that is filled, which may be growing, and in two that are written.
pub(super) const LONG_COPIES: u64 = 6;

/// Records have at most this part of the records' share.
const RECORD_PART: u64 = LONG_COPIES + 2;

/// Numbers that divide a partition's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Of records that wait or are being written.
    pub(super) record_bytes: u64,
    /// Of the index of tables that are written.
    pub(super) index_bytes: u64,
    pub(super) piece_bytes: usize,
    /// Rows of a table.
    pub(super) table_rows_max: u64,
    /// Rows of one of its buckets.
    pub(super) bucket_rows_max: u64,
}

impl Share {
    /// That of a partition's memory.
    ///
    /// # Errors
    /// `Invalid` if there is too little of it for a record.
    pub(super) fn of(setup: &Setup) -> Result<Self> {
        let memory = setup.memory_bytes;
        let stride = setup.shape.stride().unwrap_or(1);
        let piece_bytes = (memory / 64).clamp(BLOCK_BYTES as u64, PIECE_BYTES);
        let pieces = (1 + PIECES_MAX as u64) * (piece_bytes + stride.max(BLOCK_BYTES as u64));
        let used = memory / 8 + memory / 16 + memory / 16 + memory / 32 + pieces;
        let mut record_bytes = memory.saturating_sub(used);
        let mut bucket_rows_max = memory / 16 / ROW_SORT_BYTES;
        if setup.order == Order::Key {
            // A whole table is sorted at once: that takes a part of the records' share.
            let with_sorting = record_bytes + memory / 16;
            (record_bytes, bucket_rows_max) = match setup.shape.stride() {
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

    /// Bytes of the longest record.
    pub(super) fn record_bytes_max(&self) -> u64 {
        self.record_bytes / RECORD_PART
    }
}

impl Shape {
    /// Bytes of every record, if all have the same.
    fn stride(self) -> Option<u64> {
        match self {
            Self::Fixed { key_bytes, value_bytes } => {
                Some(u64::from(key_bytes) + u64::from(value_bytes))
            }
            Self::Variable => None,
        }
    }
}
