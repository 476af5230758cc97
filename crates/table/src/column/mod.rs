// SPDX-License-Identifier: Apache-2.0
//! Columns: many values of one attribute, stored together and encoded separately from other
//! columns.
//!
//! Layout: docs/format/table.md, "Integer columns" and "String columns". Source: MetaKV §III-A
//! (each column of a block is compressed separately; regularly varying sequences by their deltas).

mod ints;
mod strings;

pub(crate) use ints::PackedInts;
pub use ints::ParsedInts;
pub(crate) use strings::{ALPHABET_BYTES_MAX, OwnLengths, StringsLayout};
pub use strings::{ParsedStrings, StringsBuilder, TEXT_BYTES_MAX};
