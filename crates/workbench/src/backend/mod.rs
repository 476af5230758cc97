// SPDX-License-Identifier: Apache-2.0
//! Backend: a service that keeps datasets and objects, as the workbench calls it.
//!
//! Contract, the same for all backends and tested by [`conformance`]:
//! 1. a created object is found by every rank with its content once `create` returns, and no longer
//!    once `delete` returns;
//! 2. of racing creates of one object exactly one succeeds, and the others fail with `Exists`;
//! 3. everything that a working set has put is removed by [`Backend::clear`], also after a kill at
//!    any time, and nothing else is.
//!
//! A *write-once* backend ([`Backend::is_write_once`]) differs in 1 and 2: objects are found once
//! all ranks have called [`BackendConnection::flush`], no object is created twice or later, and
//! only `clear` deletes objects, all of them.
//!
//! Concurrency: a backend is shared by all ranks; each rank has a connection of its own.

pub mod conformance;
mod indexed_directory;
mod key_value;
mod library;
mod library_session;
#[cfg(feature = "mongodb")]
mod mongodb;
#[cfg(feature = "mpi")]
mod mpi_file;
#[cfg(feature = "mpi")]
mod mpi_io;
mod null;
mod object_store;
pub mod page_cache;
mod posix;
#[cfg(feature = "postgresql")]
mod postgres;
mod rank_transports;
#[cfg(feature = "redis")]
mod redis;
mod shared_file;

use std::path::Path;

use esker_base::{Error, Kind, Result};

pub use self::indexed_directory::IndexedDirectoryBackend;
pub use self::key_value::{DRIVER_PREFIX, KeyValueBackend, KeyValueDurability, KeyValueTarget};
pub use self::library::LibraryBackend;
#[cfg(feature = "mongodb")]
pub use self::mongodb::MongoBackend;
#[cfg(feature = "mpi")]
pub use self::mpi_file::{MpiFailure, MpiFile, MpiFileAccess, MpiFiles};
#[cfg(feature = "mpi")]
pub use self::mpi_io::MpiIoBackend;
pub use self::null::NullBackend;
pub use self::object_store::ObjectStoreBackend;
pub use self::posix::PosixBackend;
#[cfg(feature = "postgresql")]
pub use self::postgres::PostgresBackend;
pub use self::rank_transports::RankTransports;
#[cfg(feature = "redis")]
pub use self::redis::RedisBackend;
pub use self::shared_file::SharedFileBackend;
use crate::options::RunOptions;
use crate::pattern::{DatasetId, ObjectId, WorkingSetSize};

/// Begins targets that are directories whose files MPI writes and reads.
pub const MPI_IO_PREFIX: &str = "mpiio:";

/// Largest marker of a working set, in bytes.
pub(crate) const MARKER_BYTES_MAX: u64 = 64 << 10;

/// True for `prefix` and a number as the workbench writes it: only such names are of a working set.
fn is_numbered(name: &[u8], prefix: &str) -> bool {
    let number = name.strip_prefix(prefix.as_bytes()).unwrap_or_default();
    let is_decimal = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    // Neither leading zeros nor more digits than a number can have.
    is_decimal
        && std::str::from_utf8(number)
            .is_ok_and(|text| text.parse::<u64>().is_ok_and(|number| number.to_string() == text))
}

/// A service, and the working set in it.
pub trait Backend: Send + Sync {
    /// The target as the user names it.
    fn target(&self) -> String;

    /// The kind of service, as results and reports name it: `posix`, `postgresql` and so on.
    fn kind(&self) -> &'static str;

    /// A connection for `rank` of a run on a working set of `size`. A write-once backend has one
    /// connection per rank at a time, which lives until no rank waits for another.
    ///
    /// # Errors
    /// As the service answers.
    fn connect(&self, rank: u32, size: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>>;

    /// Checks that the service supports the operations that a run requires.
    ///
    /// # Errors
    /// `Unsupported` names the operation that it lacks.
    fn check(&self, _options: &RunOptions) -> Result<()> {
        Ok(())
    }

    /// True if ranks can be processes; false if they must be threads of this one.
    fn serves_processes(&self) -> bool {
        true
    }

    /// True if objects are created in the first phase of a working set only and read in later ones.
    fn is_write_once(&self) -> bool {
        false
    }

    /// True if connections made after a flush read the objects that others have created; false if
    /// only connections that were there do.
    fn is_read_by_later_connections(&self) -> bool {
        true
    }

    /// The marker of the working set; `None` if there is no working set.
    ///
    /// # Errors
    /// As the service answers; `TooLarge` for something that is not a marker.
    fn read_marker(&self) -> Result<Option<Vec<u8>>>;

    /// Replaces the marker; makes the target if it is absent. A crash leaves the old marker or the
    /// new one.
    ///
    /// # Errors
    /// `NotEmpty` if the target has something else, so that it cannot be a new working set.
    fn write_marker(&self, marker: &[u8]) -> Result<()>;

    /// Makes the marker of a new working set.
    ///
    /// # Errors
    /// `Conflict` if there is a working set meanwhile; as [`Backend::write_marker`].
    fn create_marker(&self, marker: &[u8]) -> Result<()> {
        if self.read_marker()?.is_some() {
            return Err(taken(&self.target()));
        }
        self.write_marker(marker)
    }

    /// The kind of service that can use the working set.
    fn working_set_kind(&self) -> &'static str {
        self.kind()
    }

    /// Removes the working set with its marker, which goes last, and returns the number of objects
    /// that were left. May be repeated after a crash.
    ///
    /// # Errors
    /// `NotFound` if there is no working set; `NotEmpty` for things that no working set has, which
    /// stay.
    fn clear(&self) -> Result<u64>;

    /// Ends a run. Makes the working set available to later runs if `keep`.
    ///
    /// # Errors
    /// As the service answers.
    fn finish(&self, _keep: bool) -> Result<()> {
        Ok(())
    }

    /// False if the service does not keep the content of objects, so that it cannot be verified.
    fn keeps_content(&self) -> bool {
        true
    }

    /// The directory whose file system is measured.
    fn directory(&self) -> Option<&Path> {
        None
    }

    /// Takes the working set out of the kernel's page cache, as far as it is in files of this machine,
    /// and out of the memory of a database that this process has open.
    ///
    /// # Errors
    /// As the service answers.
    fn drop_caches(&self) -> Result<()> {
        self.directory().map_or(Ok(()), page_cache::drop_directory)
    }

    /// The service's version and the settings that decide how durable its answers are, as it states
    /// them; empty if the target says all.
    ///
    /// # Errors
    /// As the service answers.
    fn service(&self) -> Result<String> {
        Ok(String::new())
    }
}

/// One rank's connection to a backend.
///
/// # Errors
/// Every method fails as the service answers: `NotFound` for absent objects and datasets, `Exists`
/// where something must be new, `NotEmpty` for datasets with objects. `Unsupported` for operations
/// that a write-once backend lacks.
pub trait BackendConnection {
    /// Prepares for datasets of `rank`; not measured. Succeeds if that is done already.
    fn add_rank(&mut self, _rank: u32) -> Result<()> {
        Ok(())
    }

    /// Removes what [`BackendConnection::add_rank`] made; not measured.
    fn remove_rank(&mut self, _rank: u32) -> Result<()> {
        Ok(())
    }

    /// Makes an empty dataset.
    fn mkdir(&mut self, _dataset: DatasetId) -> Result<()> {
        Err(unsupported("datasets"))
    }

    /// Removes an empty dataset.
    fn rmdir(&mut self, _dataset: DatasetId) -> Result<()> {
        Err(unsupported("datasets"))
    }

    /// Creates an object, which must not exist.
    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()>;

    /// The size of an object.
    fn stat(&mut self, object: ObjectId) -> Result<u64>;

    /// Reads an object whole into `content`, which is overwritten.
    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()>;

    /// Deletes an object.
    fn delete(&mut self, _object: ObjectId) -> Result<()> {
        Err(unsupported("deletion of single objects"))
    }

    /// Lists a dataset, with the attributes of each object or without; returns the number of
    /// objects.
    fn list(&mut self, _dataset: DatasetId, _with_attributes: bool) -> Result<u64> {
        Err(unsupported("datasets"))
    }

    /// Renames an object to `new`, which does not exist, in the same dataset.
    fn rename(&mut self, _old: ObjectId, _new: ObjectId) -> Result<()> {
        Err(unsupported("renaming"))
    }

    /// Makes the objects that this rank has created visible to all ranks. Only of write-once
    /// backends; all ranks call it.
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    /// Waits until all ranks have called it, and answers them meanwhile; not measured.
    fn wait_for_ranks(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The error for a target at which another run has begun a working set.
fn taken(target: &str) -> Error {
    let what = "another run has begun a working set there meanwhile; use another target";
    Error::new(Kind::Conflict, format!("{target}: {what}"))
}

fn unsupported(what: &str) -> Error {
    Error::new(Kind::Unsupported, format!("a write-once backend has no {what}"))
}
