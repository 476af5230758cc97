// SPDX-License-Identifier: Apache-2.0
//! File data: bytes in data logs, or in the inode if they are few.
//!
//! `set/<id>/data/<epoch>-<n>` holds the bytes of many small files back to back, or of one large
//! file. Compaction moves only inode records, never these bytes (IndexFS "column-style", TableFS
//! §3).

mod file_log;
mod garbage;
mod read;
mod read_ahead;
mod write;

pub(crate) use file_log::FileLog;
pub(crate) use garbage::{
    GARBAGE_BYTES_HARD, GARBAGE_BYTES_SOFT, GarbageEstimate, LIVE_SHARE_MIN, MOVED_BYTES_MAX,
};
pub(crate) use read::PIECE_BYTES;
pub(crate) use read::{has_checksum, read_all_with, read_with};
pub use read::{read_all, read_mapped};
pub(crate) use read_ahead::ReadAhead;
pub use write::{DataLogs, LARGE_FILE_BYTES, LOG_BYTES};

/// Files of at most this many bytes are stored in their inode record: about the size of an extent
/// there.
pub const INLINE_BYTES_MAX: usize = 256;
