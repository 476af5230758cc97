// SPDX-License-Identifier: Apache-2.0
//! Indexed massive directories: every rank of a parallel job appends (key, value) pairs, and a
//! single core later finds a key's values without scanning.
//!
//! Keys are mapped to partitions by hash ([`hash`]); each [`partition`] is sorted and indexed while
//! it is written, in one pass.
//! Source: DeltaFS thesis, chapter 5.

pub mod auxiliary;
pub mod block;
pub mod checksum;
pub mod directory;
pub mod entry;
pub mod hash;
pub mod import;
pub mod index;
mod indexed_reader;
pub mod names;
pub mod partition;
pub mod read;
mod reader;
pub mod record_layout;
pub mod schema;
pub mod session_directory;
pub mod slot;
pub mod verify;
pub mod write;

pub use indexed_reader::IndexedReader;
pub use read::counts::QueryCounts;
pub use reader::{DirectoryReader, IndexedValue, KeyAnswer, KeyAnswers};
pub use record_layout::{RecordLayout, ValueFormat};
pub use schema::DirectorySchema;
pub use session_directory::SessionDirectory;
pub use verify::verify;
pub use write::{DirectoryOptions, DirectoryWriter, WriteSummary};
