// SPDX-License-Identifier: Apache-2.0
//! Trace: the calls of an application, as one table in an Arrow IPC file.
//!
//! `writer` and `reader` are its encoder and decoder, in batches with bounded memory; importers of
//! other tracers' logs write one, as `pattern` does. `feature_pass` reads one once and computes the
//! features for the models. Layout: docs/format/advisor-trace.md. Source: Kougkas et al.,
//! Rethinking key–value store for parallel I/O optimization, 2016, §4.1.1.

mod batch;
pub mod darshan;
mod decimal_seconds;
mod feature_pass;
mod file_selection;
mod flat_table;
mod import_summary;
mod join;
mod operation;
pub mod page;
mod page_samples;
mod path_text;
mod rank_numbers;
mod reader;
mod record;
pub mod recorder;
pub mod recording;
mod size_counts;
pub mod strace;
mod trace_columns;
mod trace_source;
mod writer;

pub use self::batch::TraceBatch;
pub use self::feature_pass::{FeaturePass, features};
pub use self::import_summary::ImportSummary;
pub use self::join::join_traces;
pub use self::operation::TraceOperation;
pub use self::path_text::path_text;
pub use self::reader::{ColumnSelection, TraceReader};
pub use self::record::{TraceFile, TraceRecord};
pub use self::size_counts::SizeCounts;
pub use self::trace_columns::TraceOrigin;
pub use self::trace_source::TraceSource;
pub use self::writer::TraceWriter;

/// Longest path, in bytes of its text: Linux takes 4,096, each of which may become `\xNN`.
pub const PATH_BYTES_MAX: usize = 4 * 4_096;

/// Bytes of all paths of a trace. A reader has them in memory.
pub const PATHS_BYTES_MAX: u64 = 1 << 30;

/// Records of one batch that a reader accepts: 60 MB in memory.
pub const BATCH_ROWS_MAX: usize = 1 << 20;
