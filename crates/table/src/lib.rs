// SPDX-License-Identifier: Apache-2.0
//! The table engine: sorted records of any schema, in immutable columnar tables on a store.
//!
//! `schema → column → block → table` is the format; `wal → memtable → run → table` is the path of a
//! write; `tree` ties them together, and hosts a `family` of records of another kind. Nothing here
//! knows about files or directories.

pub mod block;
mod cache;
mod cluster;
pub mod column;
pub mod family;
pub mod filter;
pub mod manifest;
mod memory;
mod memtable;
pub mod merge;
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
pub mod wal;

pub use memtable::{SHARD_BYTES_MAX, SHARDS};
