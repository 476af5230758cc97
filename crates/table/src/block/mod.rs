// SPDX-License-Identifier: Apache-2.0
//! Blocks: up to a few hundred sorted records of one table, stored column by column.
//!
//! Layout: docs/format/table.md, "Blocks". `builder` is the only encoder, `parsed` the only
//! decoder.
//! Invariants: (1) keys strictly ascend; (2) every column has the block's number of rows.
//! Source: MetaKV §III-A (columns compressed apart); PAX, Ailamaki et al. 2001.

pub(crate) mod builder;
pub(crate) mod decoded;
mod order_search;
mod outline;
pub(crate) mod parsed;

use crate::schema::ROW_TEXT_BYTES_MAX;

pub(crate) use builder::BlockBuilder;
pub use decoded::DecodedBlock;
pub(crate) use outline::{Outline, OutlineForm, PartsBuffer};
pub(crate) use parsed::Block;

/// Maximum rows of a block: a point read decodes only some of them, and fetches some kilobytes.
pub const BLOCK_ROWS_MAX: usize = 256;
/// A block whose strings reach this many bytes is closed.
pub const BLOCK_TEXT_BYTES_MIN: usize = 32 << 10;
/// Maximum bytes of a block; readers refuse larger ones.
pub const BLOCK_BYTES_MAX: usize = 32 << 20;
const _: () = assert!(BLOCK_BYTES_MAX > crate::column::TEXT_BYTES_MAX);
const _: () = assert!(BLOCK_TEXT_BYTES_MIN + ROW_TEXT_BYTES_MAX <= crate::column::TEXT_BYTES_MAX);
/// Bytes before the columns: checksum and number of rows.
pub(crate) const HEADER_BYTES: usize = 6;
/// Minimum bytes of a block: its header, two integer columns of two bytes and a string column of
/// four.
pub(crate) const BLOCK_BYTES_MIN: usize = HEADER_BYTES + 8;
