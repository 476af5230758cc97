// SPDX-License-Identifier: Apache-2.0
//! Schema of inode records: their columns and their key, (directory, xxh3 of the name, name).
//!
//! Layout: docs/format/inode.md.

use esker_table::schema::{IntColumn, Key, Schema};

use super::DirId;

/// Columns of [`INODE`], in its order.
pub(crate) mod column {
    pub const HASH: usize = 2;
    pub const SEQ: usize = 3;
    pub const ENTRY: usize = 4;
    pub const GENERATION: usize = 5;
    pub const MODE: usize = 6;
    pub const UID: usize = 7;
    pub const GID: usize = 8;
    pub const NLINK: usize = 9;
    pub const RDEV: usize = 10;
    pub const SIZE: usize = 11;
    pub const MTIME: usize = 12;
    pub const CTIME: usize = 13;
    pub const ATIME: usize = 14;
    pub const ID_HIGH: usize = 15;
    pub const ID_LOW: usize = 16;
    pub const LOG_SET_HIGH: usize = 17;
    pub const LOG_SET_LOW: usize = 18;
    pub const LOG: usize = 19;
    pub const LOG_OFFSET: usize = 20;
    pub const LOG_LENGTH: usize = 21;
    pub const LOG_WRITTEN: usize = 22;
    pub const LOG_CHECKSUM: usize = 23;
    pub const NAME: usize = 0;
    pub const CONTENT: usize = 1;
    pub const XATTRS: usize = 2;
}

/// Returns the hash by which names are ordered within their directory; its high bits select a
/// partition.
#[must_use]
pub fn name_hash(name: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name)
}

/// The schema of inode records.
pub static INODE: Schema = Schema {
    id: 1,
    name: "inode",
    ints: &[
        IntColumn::plain("dir_high"),
        IntColumn::plain("dir_low"),
        IntColumn::plain("hash"),
        IntColumn::plain("seq"),
        IntColumn::plain("entry"),
        IntColumn::plain("generation"),
        IntColumn::plain("mode"),
        IntColumn::plain("uid"),
        IntColumn::plain("gid"),
        IntColumn::plain("nlink"),
        IntColumn::plain("rdev"),
        IntColumn::plain("size"),
        IntColumn::plain("mtime"),
        IntColumn::follows("ctime", column::MTIME),
        IntColumn::follows("atime", column::MTIME),
        IntColumn::plain("id_high"),
        IntColumn::follows("id_low", column::SEQ),
        IntColumn::plain("log_set_high"),
        IntColumn::plain("log_set_low"),
        IntColumn::plain("log"),
        IntColumn::plain("log_offset"),
        IntColumn::follows("log_length", column::SIZE),
        IntColumn::follows("log_written", column::LOG_LENGTH),
        IntColumn::plain("log_checksum"),
    ],
    strings: &["name", "content", "xattrs"],
    key_ints: 3,
    group_ints: 2,
    hash_of: Some(name_hash),
    has_filters: true,
};

/// Returns the key of `name` in `dir`.
#[inline]
#[must_use]
pub fn key(dir: DirId, name: &[u8]) -> Key<'_> {
    Key { ints: [(dir.0 >> 64) as u64, dir.0 as u64, name_hash(name)], string: name }
}
