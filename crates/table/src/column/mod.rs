//! Columns: many values of one attribute, stored together and encoded separately from other
//! columns.
//!
//! Layout: docs/format/table.md, "Columns". Source: MetaKV §III-A (each column of a block is
//! compressed separately; regularly varying sequences by their deltas).

pub mod bits;
mod ints;
mod strings;

pub use ints::Ints;
pub(crate) use ints::PackedInts;
pub(crate) use strings::{ALPHABET_BYTES_MAX, OwnLengths, StringsLayout};
pub use strings::{Strings, StringsBuilder, TEXT_BYTES_MAX};
