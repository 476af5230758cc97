//! Store: a flat namespace of immutable objects plus append logs; the only thing Esker writes to.
//!
//! Names are UTF-8 paths with `/` between components, without empty, `.` or `..` components.
//! Objects are immutable once put. `put_if_absent` is the only primitive that decides a race.
//! Concurrency: every method may be called from several threads at once.

mod coalesce;
#[doc(hidden)]
pub mod conformance;
mod counted;
mod fault;
pub mod identity;
mod memory;
pub mod name;
mod posix;
#[cfg(feature = "s3")]
mod s3;
pub mod url;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

pub use self::coalesce::{RUN_BYTES_MAX, runs};
pub use self::counted::{CountedStore, Counts};
pub use self::fault::{Effect, FaultStore};
pub use self::memory::MemoryStore;
pub use self::posix::PosixStore;
#[cfg(feature = "s3")]
pub use self::s3::S3Store;
use crate::{Error, Kind, Result};

/// An object as a listing shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its full name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was put, in nanoseconds since the Unix epoch, by the store's clock.
    pub modified_ns: u64,
}

/// Shared storage: a POSIX directory, memory, S3, or a wrapper that injects faults.
///
/// What a method has acknowledged survives power loss, except what an [`AppendLog`] holds unsynced.
pub trait Store: Send + Sync + Debug {
    /// The URL that opens this store again.
    fn url(&self) -> String;

    /// Puts an object of `bytes`, replacing none: of several racing puts of one name exactly one
    /// succeeds and the others get `Exists`. Durable when it returns. One write request.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Starts an object whose bytes arrive in pieces; it is visible only once finished.
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>>;

    /// The size of an object or append log in bytes, or `NotFound`. One request on objects.
    fn size(&self, name: &str) -> Result<u64>;

    /// All bytes of an object or append log; `TooLarge` if they are more than `bytes_max`.
    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes>;

    /// The bytes of `range`; `Corrupt` if the object ends before it does. One read request.
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes>;

    /// The bytes of each of `ranges`, in their order; neighbours closer than
    /// [`COALESCE_GAP_BYTES`] become one read request.
    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>>;

    /// Opens an append log for writing; `Exists` if it has been written before.
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>>;

    /// Objects and append logs whose names start with `prefix` (empty, or ending in `/`), sorted
    /// by name. An append log is listed once, under its own name.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// The names directly below `prefix`, each once, sorted: `a/b` and `a/c/d` below `a/` give
    /// `b` and `c`.
    fn list_names(&self, prefix: &str) -> Result<Vec<String>>;

    /// Removes an object or append log. Removing an absent one succeeds. Durable when it returns.
    fn delete(&self, name: &str) -> Result<()>;

    /// Removes what writers that died left of unfinished objects, if it was last written before
    /// `before_ns` since the Unix epoch; returns how many. A writer that has paused for longer
    /// loses its object too, so leave a day. A listing and a request for each; no-op where the
    /// store cleans up by itself.
    fn sweep_unfinished(&self, _before_ns: u64) -> Result<u64> {
        Ok(0)
    }
}

/// An object being written. Dropping it unfinished leaves no visible object.
pub trait ObjectWriter: Send {
    /// Adds `bytes` at the end. Buffered; large objects reach the store in parts.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Makes the object visible and durable, replacing none (`Exists`).
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A log that grows at its end: a file on POSIX, a run of numbered objects elsewhere.
///
/// After a failed append or sync the log is poisoned: every later call fails with `Closed`.
pub trait AppendLog: Send + Sync {
    /// Hands `bytes` to the store: they survive the death of this process on stores that can
    /// append (POSIX), and survive power loss only after [`AppendLog::sync`]. Returns the offset
    /// at which they start. Appends of several threads do not interleave.
    fn append(&self, bytes: &[u8]) -> Result<u64>;

    /// Returns once all bytes appended before the call survive power loss.
    fn sync(&self) -> Result<()>;

    /// Bytes appended so far.
    fn bytes(&self) -> u64;
}

/// A shared store.
pub type SharedStore = Arc<dyn Store>;

/// Ranges closer than this are fetched as one: about what a request costs in transfer time.
pub const COALESCE_GAP_BYTES: u64 = 64 << 10;

/// `Exists`: `name` was put, or written as a log, before.
fn taken(name: &str) -> Error {
    Error::new(Kind::Exists, format!("{name}: the name is taken, and objects are never replaced"))
}

/// `Closed`: an earlier append or sync of the log `name` failed.
fn poisoned(name: &str) -> Error {
    let what = "an earlier append or sync failed, so what it holds is uncertain: start another log";
    Error::new(Kind::Closed, format!("{name}: {what}"))
}

/// When a file was last written, in nanoseconds since the Unix epoch; 0 if before it.
fn modified_ns(stat: &rustix::fs::Stat) -> u64 {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec)
}

/// `TooLarge`: `name` has `bytes` and the caller takes `bytes_max`.
fn over_limit(name: &str, bytes: u64, bytes_max: u64) -> Error {
    let what = format!("{name}: {bytes} bytes, over the limit of {bytes_max} for reading it whole");
    Error::new(Kind::TooLarge, what)
}
