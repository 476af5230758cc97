// SPDX-License-Identifier: Apache-2.0
//! Names of a directory's objects, below its prefix.
//! Layout: docs/format/imd.md, "Objects".

use esker_base::Result;
use esker_base::store::SharedStore;

/// The partitions below `prefix` that have an index log, ascending. Cost: one listing.
///
/// # Errors
/// Those of the store.
pub fn partitions(store: &SharedStore, prefix: &str) -> Result<Vec<u32>> {
    let names = store.list_names(prefix)?;
    let numbers = names.iter().filter_map(|name| name.strip_suffix("-index"));
    Ok(numbers.filter_map(|number| u32::from_str_radix(number, 16).ok()).collect())
}

/// The index log of a partition.
#[must_use]
pub fn index(prefix: &str, partition: u32) -> String {
    format!("{prefix}{partition:08x}-index")
}

/// The data log of a partition.
#[must_use]
pub fn data(prefix: &str, partition: u32) -> String {
    format!("{prefix}{partition:08x}-data")
}

/// The log of values that a rank kept.
#[must_use]
pub fn values(prefix: &str, rank: u32) -> String {
    format!("{prefix}{rank:08x}-values")
}

/// The auxiliary tables of a partition.
#[must_use]
pub fn auxiliary(prefix: &str, partition: u32) -> String {
    format!("{prefix}{partition:08x}-aux")
}

/// The root object, which marks the directory as finished.
#[must_use]
pub fn root(prefix: &str) -> String {
    format!("{prefix}root")
}
