//! File data: bytes in data logs, or in the inode where they are few.
//!
//! `set/<id>/data/<epoch>-<n>` holds the bytes of many small files packed one after the other, or
//! of one large file. Compaction moves inode records only, never these bytes
//! (IndexFS "column-style", TableFS §3).

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
pub use read::{read_all, read_mapped};
pub(crate) use read::{read_all_with, read_with};
pub(crate) use read_ahead::ReadAhead;
pub use write::{DataLogs, LARGE_FILE_BYTES, LOG_BYTES};

use esker_table::manifest::SetId;

/// Files of at most this many bytes live in their inode record: about what an extent costs there.
pub const INLINE_BYTES_MAX: usize = 256;

/// The folder of a set's data logs.
pub(crate) fn folder(set: SetId) -> String {
    format!("set/{set}/data/")
}

/// The name of data log `number` of `set`; the number's high half is the writer's epoch.
pub(crate) fn log_name(set: SetId, number: u64) -> String {
    format!("{}{:08x}-{:08x}", folder(set), number >> 32, number as u32)
}
