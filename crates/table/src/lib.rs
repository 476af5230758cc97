// SPDX-License-Identifier: Apache-2.0
//! The table engine: sorted records of any schema, in immutable columnar tables on a store.
//!
//! `schema → column → block → table` is the format; `wal → memtable → run → table` is the path of a
//! write; `tree` ties them together, and hosts a `family` of records of another kind. Nothing here
//! knows about files or directories.

pub mod block;
mod cache;
mod cluster;
mod column;
pub mod column_sizes;
pub mod family;
pub mod key_ranges;
pub mod manifest;
mod memory;
mod memtable;
pub mod merge;
pub mod object_name;
mod pace;
mod presence;
mod row_cache;
mod run;
pub mod run_writer;
pub mod schema;
pub mod set_writer;
pub mod table;
pub mod tables;
pub mod tree;
mod wal;

pub use memtable::SHARD_BYTES_MAX;
pub use wal::{LOG_MAGIC, LogContent, LogId, decode_log};

/// Encoders and decoders of parts of tables and logs, for fuzz targets and tests of the formats. No
/// stable interface.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::block::builder::BlockBuilder;
    pub use crate::block::decoded::decoded_block;
    pub use crate::block::parsed::Block;
    pub use crate::column::{ParsedInts, StringsBuilder};
    pub use crate::manifest::encoding::{
        decode_manifest, encode_manifest, encode_manifest_unchecked,
    };
    pub use crate::memtable::SHARDS;
    pub use crate::table::footer::{FOOTER_BYTES, TableFooter};
    pub use crate::table::reader::Table;
    pub use crate::table::writer::TableWriter;
    pub use crate::wal::{ChunkOrigin, LogBlock, ShardLog, prefix_end};
}
