// SPDX-License-Identifier: Apache-2.0
//! Store: a flat namespace of immutable objects plus append logs; the only thing Esker writes to.
//!
//! Names are UTF-8 paths with `/` between components, without empty, `.` or `..` components.
//! Objects are immutable once put. `put_if_absent` is the only primitive that decides a race.
//! Concurrency: every method may be called from several threads at once.

mod coalesce;
pub mod concurrent;
#[doc(hidden)]
pub mod conformance;
mod counted;
mod fault;
pub mod identity;
mod memory;
pub mod name;
mod own_object;
mod posix;
#[cfg(feature = "s3")]
mod s3;
pub mod url;

use std::fmt::Debug;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

pub use self::coalesce::{RUN_BYTES_MAX, runs};
pub use self::counted::{CountedStore, RequestCounts};
pub use self::fault::{FaultEffect, FaultStore};
pub use self::memory::MemoryStore;
pub use self::own_object::put_own;
pub use self::posix::{LocalFile, LocalFileStatus, PosixStore, StoreSharing};
#[cfg(feature = "s3")]
pub use self::s3::S3Store;
use crate::{Error, Kind, Result};

/// An object in a listing.
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
/// Everything that a method has acknowledged survives power loss, except unsynced bytes of an
/// [`AppendLog`]. A put, finish or delete that failed with any kind but `Exists` or `Invalid` may
/// have taken effect nevertheless: callers check before they repeat it.
///
/// # Errors
/// Besides those that each method names: `Invalid` for a bad name ([`name::check`]), `Denied`,
/// `NoSpace`, `ReadOnly` and `Unavailable` as the storage answers.
pub trait Store: Send + Sync + Debug {
    /// The URL that opens this store again.
    fn url(&self) -> String;

    /// Puts an object of `bytes` without replacing one: of several racing puts of one name exactly
    /// one succeeds. Durable when it returns. One write request.
    ///
    /// # Errors
    /// `Exists` if the name is taken.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Starts an object whose bytes arrive in pieces; it becomes visible only when finished.
    ///
    /// # Errors
    /// Those of every method. A taken name is reported only when the object is finished.
    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>>;

    /// The size of an object or append log in bytes. One request on objects.
    ///
    /// # Errors
    /// `NotFound` if there is neither.
    fn size(&self, name: &str) -> Result<u64>;

    /// All bytes of an object or append log. One read request on objects.
    ///
    /// # Errors
    /// `NotFound` if there is neither, `TooLarge` if they are more than `bytes_max`.
    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes>;

    /// The bytes of `range`. One read request. An object that this process has read before may stay
    /// readable after another process has deleted it; if a name may be put again, read the object
    /// whole.
    ///
    /// # Errors
    /// `NotFound` if there is no such object or log, `Corrupt` if it ends before `range` does,
    /// `Invalid` if `range` ends before it starts.
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes>;

    /// The bytes of each of `ranges`, in their order. Ranges closer together than
    /// [`COALESCE_GAP_BYTES`] become one read request ([`runs`]).
    ///
    /// # Errors
    /// As [`Store::get_range`].
    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>>;

    /// The files of the store; `None` unless it keeps each object and append log in a file of its
    /// own. No request.
    fn local_files(&self) -> Option<&dyn LocalFiles> {
        None
    }

    /// Opens an append log for writing. Its name is durable with its first sync.
    ///
    /// # Errors
    /// `Exists` if any process has opened it before, or it is an object.
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>>;

    /// Reads as [`Store::get_range`] does, but only up to the end of the object or log if that
    /// comes before the end of `range`; returns nothing if it comes before its start. Bytes
    /// appended to a log after this process last read it may be missing. One read request, and one
    /// more for the size if the store cannot tell otherwise.
    ///
    /// # Errors
    /// As [`Store::get_range`], without `Corrupt`.
    fn get_range_within(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let end = range.end.min(self.size(name)?);
        if range.start >= end { Ok(Bytes::new()) } else { self.get_range(name, range.start..end) }
    }

    /// Number of independent requests that are worth issuing concurrently ([`concurrent`]): 1
    /// unless each waits for a round trip to a server.
    fn requests_at_once(&self) -> usize {
        1
    }

    /// Maximum number of append logs that one writer should keep open, so that descriptors remain
    /// for everything else.
    fn open_logs_max(&self) -> usize {
        usize::MAX
    }

    /// Returns once the current bytes of an append log survive power loss, no matter which process
    /// appended them; that includes a writer that died before it synced them. No request where
    /// visible bytes always survive (S3).
    ///
    /// # Errors
    /// `NotFound` if there is no such log.
    fn sync_log(&self, name: &str) -> Result<()>;

    /// Objects and append logs whose names start with `prefix` (empty, or ending in `/`), sorted by
    /// name. An append log is listed once, under its own name. Objects put or deleted during the
    /// listing may or may not be included.
    ///
    /// # Errors
    /// `Invalid` for a prefix that is neither empty nor ends in `/`.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>>;

    /// The names directly below `prefix`, each once, sorted: `a/b` and `a/c/d` below `a/` give
    /// `b` and `c`.
    ///
    /// # Errors
    /// As [`Store::list`].
    fn list_names(&self, prefix: &str) -> Result<Vec<String>>;

    /// Removes an object or append log. Removing an absent one succeeds. Durable when it returns.
    ///
    /// # Errors
    /// Those of every method.
    fn delete(&self, name: &str) -> Result<()>;

    /// Bytes that this process can still store; `None` if the store cannot tell. A hint: a quota
    /// may leave less, and other writers take their share. No store request.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Sets some room aside, unless this user has already done so, so that a full store can be
    /// emptied: deletions write a little before they free anything. Best effort; does nothing where
    /// stores do not fill up (S3, memory). Cost: one look-up if there is room set aside.
    fn keep_reserve(&self) {}

    /// Gives back a part of the room that this user has set aside; returns false if none is left.
    fn release_reserve(&self) -> bool {
        false
    }

    /// Removes unfinished objects of dead writers that were last written before `before_ns` since
    /// the Unix epoch, and returns their number. A live writer that has paused for longer loses its
    /// object too, so allow at least a day. With `dry_run` only counts them. One listing, and one
    /// request for each object; does nothing if the store cleans up on its own (memory) or by a
    /// rule of its own (S3 buckets).
    ///
    /// # Errors
    /// Those of every method.
    fn sweep_unfinished(&self, _before_ns: u64, _dry_run: bool) -> Result<u64> {
        Ok(0)
    }
}

/// An object being written. Dropping it unfinished leaves no visible object.
///
/// After a failed write every later call fails with `Closed`.
pub trait ObjectWriter: Send {
    /// Adds `bytes` at the end. Buffered; large objects reach the store in parts.
    ///
    /// # Errors
    /// `NoSpace`, and others as the storage answers.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Makes the object visible and durable, without replacing one. One write request, or one for
    /// each part and one to join them.
    ///
    /// # Errors
    /// `Exists` if the name was taken meanwhile; else as [`Store::put_if_absent`].
    fn finish(self: Box<Self>) -> Result<()>;
}

/// A log that grows at its end: a file on POSIX, a run of numbered objects elsewhere.
///
/// After a failed append or sync the log is poisoned: every later call fails with `Closed`. The
/// exception is an append that failed with `NoSpace` and was taken back whole: the log is as it was
/// before, and continues once there is room.
pub trait AppendLog: Send + Sync {
    /// Passes `bytes` to the store and returns the offset at which they start. On POSIX they
    /// survive the death of this process; on S3 they gather in memory, and only a sync, or some
    /// megabytes of appends, makes a request. They survive power loss only after
    /// [`AppendLog::sync`]. Appends of several threads do not interleave.
    ///
    /// # Errors
    /// `NoSpace`, and others as the storage answers; `Closed` once poisoned.
    fn append(&self, bytes: &[u8]) -> Result<u64>;

    /// Returns once all bytes appended before the call survive power loss. One write request, or
    /// none if another thread's sync covered them.
    ///
    /// # Errors
    /// As [`AppendLog::append`]. `Conflict` if another process wrote to the log.
    fn sync(&self) -> Result<()>;

    /// Bytes appended so far.
    fn bytes(&self) -> u64;
}

/// Access to the files of a store that keeps each object and append log in a file of its own.
pub trait LocalFiles {
    /// Opens the file that holds exactly the bytes of an object or append log, for reading. One
    /// open.
    ///
    /// # Errors
    /// `NotFound` if there is neither.
    fn open(&self, name: &str) -> Result<File>;

    /// Opens an append log as [`Store::append_log`] does, for callers that write its file directly,
    /// at any offset. Nothing may be appended, and a sync covers the writes to the file before it.
    ///
    /// # Errors
    /// As [`Store::append_log`].
    fn create_log(&self, name: &str) -> Result<InPlaceLog>;
}

/// A log that is written in place, and its file.
pub type InPlaceLog = (Box<dyn AppendLog>, LocalFile);

/// A shared store.
pub type SharedStore = Arc<dyn Store>;

/// Ranges closer than this are fetched together: the transfer time of about one request.
pub const COALESCE_GAP_BYTES: u64 = 64 << 10;

/// Returns `Exists`: `name` was already put, or written as a log.
fn taken(name: &str) -> Error {
    Error::new(Kind::Exists, format!("{name}: the name is taken, and objects are never replaced"))
}

/// Returns `Closed`: an earlier write or sync of the object or log `name` failed.
fn poisoned(name: &str) -> Error {
    let what = "an earlier write or sync failed, so its contents are uncertain: start another";
    Error::new(Kind::Closed, format!("{name}: {what}"))
}

/// The time of the last write to a file, in nanoseconds since the Unix epoch; 0 if earlier.
fn modified_ns(stat: &rustix::fs::Stat) -> u64 {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec)
}

/// Returns `TooLarge`: `name` has `bytes`, more than the `bytes_max` that the caller accepts.
fn over_limit(name: &str, bytes: u64, bytes_max: u64) -> Error {
    let what = format!("{name}: {bytes} bytes, over the limit of {bytes_max} for reading it whole");
    Error::new(Kind::TooLarge, what)
}
