// SPDX-License-Identifier: Apache-2.0
//! Reading: selects the partition, the slots of its index, and the blocks that a query needs.
//!
//! ```text
//! key → partition → index log's end: root, epochs           (kept)
//!     → slot of each index group of each epoch: which rows   (1 read an epoch, or none)
//!     → blocks of those rows                                 (1 read an epoch and key)
//! ```
//! A query reads small index logs whole, as in the thesis, and only the needed parts of larger
//! ones.
//! Concurrency: readers are shared freely; caches have their own locks.
//! Source: DeltaFS thesis §5.2.3, §5.3.1.

pub mod cache;
pub mod counts;
mod find;
pub(crate) mod lookup;
pub(crate) mod open;
pub mod partition;
pub(crate) mod pointers;
mod range;
pub mod scan;
mod share;
mod whole;

use esker_base::{Error, Kind};

/// Converts the failure to read the log `name`, which the directory must have: a missing log is
/// damage, not the absence of something that a caller asked for.
pub(crate) fn lost(name: &str, error: Error) -> Error {
    match error.kind() {
        Kind::NotFound => Error::corrupt(name, 0, "nothing: the log is missing").with_source(error),
        _ => error,
    }
}
