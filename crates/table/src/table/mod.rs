//! Tables: immutable objects of sorted blocks with filters, an index of blocks and a fixed footer.
//!
//! Layout: docs/format/table.md. Blocks come first, then the tail: filters, index, footer. The
//! manifest knows the sizes of table and tail, so a cold point read takes two requests (tail,
//! block) and one once the tail is in memory.

mod footer;
mod index;
mod reader;
mod writer;

pub use footer::{FOOTER_BYTES, Footer};
pub use index::Index;
pub use reader::{Got, ReadCounters, Table, Wanted};
pub use writer::{TableSummary, TableWriter};

/// A table is closed once its blocks reach this many bytes: large enough for a store's bandwidth,
/// small enough to move between workers.
pub const TABLE_BYTES: u64 = 64 << 20;
/// A reader refuses larger tails, so that a hostile manifest cannot make it allocate more.
pub const TAIL_BYTES_MAX: u64 = 1 << 30;
