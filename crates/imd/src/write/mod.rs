// SPDX-License-Identifier: Apache-2.0
//! Writing: every rank appends, and each record travels to its partition.
//!
//! | format | what moves to the key's partition | what stays with the rank |
//! |---|---|---|
//! | base | key and value | |
//! | pointer | key and a pointer to the value | values, in the order of appends |
//! | lossy, static | the key's hash; the partition notes its rank | records, as the rank's own partition |
//! | ordered | key and value, by the key's range | |
//!
//! Ranks and partitions correspond: rank r writes partition r.
//! Concurrency: all ranks make the collective calls ([`DirectoryWriter::create`],
//! [`DirectoryWriter::epoch_flush`], [`DirectoryWriter::finish`]) in the same order; any rank may
//! call [`DirectoryWriter::append`] at any time.
//! Source: DeltaFS thesis §5.2.2, §5.3.2 and §5.3.3.

mod bounds;
mod directory_options;
mod directory_writer;
mod local_partition;
mod values;

pub use directory_options::DirectoryOptions;
pub use directory_writer::{DirectoryWriter, WriteSummary};
pub(crate) use values::pages_of;
pub use values::{LONG_POINTER_BYTES, PAGE_BYTES, PAGE_VALUE_BYTES, POINTER_BYTES, ValuePointer};
