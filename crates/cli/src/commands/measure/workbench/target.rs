// SPDX-License-Identifier: Apache-2.0
//! Targets of `esker workbench`: which service a user names.

use std::path::Path;
use std::sync::Arc;

use esker_base::clock::SystemClock;
use esker_base::store::{SharedStore, url};
use esker_base::{Error, Kind, Random, Result, shell_word};
use esker_workbench::backend::{
    Backend, DRIVER_PREFIX, IndexedDirectoryBackend, KeyValueBackend, KeyValueTarget,
    LibraryBackend, MPI_IO_PREFIX, NullBackend, ObjectStoreBackend, PosixBackend,
    SharedFileBackend,
};

use super::ranks::RankLaunch;
use crate::change::SessionSettings;
use crate::context::CommandContext;
use crate::interrupt::guarded;
#[cfg(not(feature = "mpi"))]
use crate::rank_transport::built_without_mpi;
use crate::usage;

/// What begins the targets that Esker's library serves in one process.
const LIBRARY_PREFIXES: [&str; 3] = ["esker:", "indexed:", "shared:"];

/// What begins all other targets that are neither directories nor databases.
const OTHER_PREFIXES: [&str; 5] = [DRIVER_PREFIX, MPI_IO_PREFIX, "null:", "store:", "s3://"];

/// What begins the targets that are databases.
const POSTGRESQL_SCHEMES: [&str; 2] = ["postgresql://", "postgres://"];
const MONGODB_SCHEMES: [&str; 2] = ["mongodb://", "mongodb+srv://"];
/// Connections by TLS are refused by name.
const REDIS_SCHEMES: [&str; 3] = ["redis://", "redis+unix://", "rediss://"];

/// Name of the working set in a store of Esker unless another is given.
const LIBRARY_NAME: &str = "workbench";

/// The help of commands that take a target.
pub const TARGETS: &str = "\
Targets:
  /scratch/bench     a directory of any file system; a new or an empty one
  esker:NAME         Esker's library on --store; --keep publishes the working set as NAME
  indexed:NAME       records of an indexed directory on --store, with --read-only
  shared:NAME        regions of a file that all ranks write, on --store, with --read-only
  s3://bucket/path   objects of a bucket; store:/path and store:memory: for other stores
  mpiio:/path        a directory whose files MPI-IO writes, reads and deletes
  postgresql://user@host:port/database
                     rows of a table in a schema of its own; PGPASSWORD has the password
  mongodb://user@host:port/database
                     documents of a collection; MONGODB_PASSWORD has the password
  redis://user@host:port/number
                     hashes of a Redis server; REDIS_PASSWORD has the password
  driver:LIBRARY:/scratch/db?options=tuned&durability=async
                     keys of a database in a directory; LIBRARY is a driver of LevelDB, RocksDB or
                     another key-value store, with a / in its path
  null:              nothing: the floor of the workbench itself";

/// True if `target` is the path of a directory.
pub fn is_directory(target: &str) -> bool {
    let databases = POSTGRESQL_SCHEMES.iter().chain(&MONGODB_SCHEMES).chain(&REDIS_SCHEMES);
    let mut others = LIBRARY_PREFIXES.iter().chain(&OTHER_PREFIXES).chain(databases);
    !others.any(|prefix| target.starts_with(prefix))
}

/// Checks that `ranks` processes can use `target`; opens nothing.
pub fn check_serves_processes(target: &str, ranks: u32) -> Result<()> {
    let owned = match target {
        _ if target.starts_with(DRIVER_PREFIX) => "the database is open in",
        _ if LIBRARY_PREFIXES.iter().any(|prefix| target.starts_with(prefix)) => {
            "a session of the library belongs to"
        }
        _ => return Ok(()),
    };
    let what = format!(
        "{target}: {owned} one process, so its ranks are threads; run \
         `esker workbench run {} -N {ranks}` without a launcher",
        shell_word(target.as_bytes())
    );
    Err(Error::new(Kind::Unsupported, what))
}

/// Opens the target as the user names it, for ranks that were started as `launch` says, or only to
/// remove what is there.
pub fn open(
    context: &CommandContext,
    target: &str,
    launch: Option<&RankLaunch>,
) -> Result<Box<dyn Backend>> {
    if target == "null:" {
        return Ok(Box::new(NullBackend::default()));
    }
    for prefix in LIBRARY_PREFIXES {
        if let Some(name) = target.strip_prefix(prefix) {
            let name = library_name(name);
            let store = match launch {
                Some(_) => context.store_or_new()?,
                None => context.store()?,
            };
            return open_library(context, store, prefix, name);
        }
    }
    let store = target.strip_prefix("store:");
    if let Some(url) = store.or(target.starts_with("s3://").then_some(target)) {
        return Ok(Box::new(ObjectStoreBackend::new(guarded(url::connect(url)?))));
    }
    if let Some(path) = target.strip_prefix(MPI_IO_PREFIX) {
        return open_mpi_io(Path::new(path), launch.unwrap_or(&RankLaunch::Threads));
    }
    if POSTGRESQL_SCHEMES.iter().any(|scheme| target.starts_with(scheme)) {
        return open_postgresql(target);
    }
    if MONGODB_SCHEMES.iter().any(|scheme| target.starts_with(scheme)) {
        return open_mongodb(target);
    }
    if REDIS_SCHEMES.iter().any(|scheme| target.starts_with(scheme)) {
        return open_redis(target);
    }
    if target.starts_with(DRIVER_PREFIX) {
        return Ok(Box::new(KeyValueBackend::new(KeyValueTarget::parse(target)?)?));
    }
    check_is_path(target)?;
    Ok(Box::new(PosixBackend::new(Path::new(target))?))
}

/// Fails for what looks like a kind of target that does not exist: a directory must not be measured
/// in its place.
pub fn check_is_path(target: &str) -> Result<()> {
    let word = target.split_once(':').map_or("", |(word, _)| word);
    let is_kind = |letter: char| letter.is_ascii_alphanumeric() || letter == '+';
    if word.is_empty() || !word.chars().all(is_kind) {
        return Ok(());
    }
    let what = format!(
        "{target}: there is no kind of target {word}: (`esker workbench run --help` lists them); for a \
         directory of that name write {}",
        shell_word(format!("./{target}").as_bytes())
    );
    Err(Error::new(Kind::Invalid, what))
}

/// The name in a store of Esker that a target without one has.
pub fn library_name(name: &str) -> &str {
    let name = if name.is_empty() { LIBRARY_NAME } else { name };
    usage::check_name(name);
    name
}

/// Opens what Esker's library serves under one of [`LIBRARY_PREFIXES`].
fn open_library(
    context: &CommandContext,
    store: SharedStore,
    prefix: &str,
    name: &str,
) -> Result<Box<dyn Backend>> {
    let options = SessionSettings::for_few().options(context);
    let clock = Arc::new(SystemClock);
    Ok(match prefix {
        "indexed:" => {
            let random = Random::from_system();
            Box::new(IndexedDirectoryBackend::open(store, name, options, clock, random)?)
        }
        "shared:" => {
            let random = Random::from_system();
            Box::new(SharedFileBackend::open(store, name, options, clock, random)?)
        }
        _ => Box::new(LibraryBackend::open(store, name, options, clock)?),
    })
}

#[cfg(feature = "postgresql")]
fn open_postgresql(target: &str) -> Result<Box<dyn Backend>> {
    let password = std::env::var("PGPASSWORD").ok();
    let backend = esker_workbench::backend::PostgresBackend::new(target, password.as_deref())?;
    Ok(Box::new(backend))
}

#[cfg(not(feature = "postgresql"))]
fn open_postgresql(_: &str) -> Result<Box<dyn Backend>> {
    let what = "this build lacks PostgreSQL support: build with \
                `cargo build --release -p esker-cli --features postgresql`";
    Err(Error::new(Kind::Invalid, what))
}

#[cfg(feature = "mongodb")]
fn open_mongodb(target: &str) -> Result<Box<dyn Backend>> {
    let password = std::env::var("MONGODB_PASSWORD").ok();
    let backend = esker_workbench::backend::MongoBackend::new(target, password.as_deref())?;
    Ok(Box::new(backend))
}

#[cfg(not(feature = "mongodb"))]
fn open_mongodb(_: &str) -> Result<Box<dyn Backend>> {
    let what = "this build lacks MongoDB support: build with \
                `cargo build --release -p esker-cli --features mongodb`";
    Err(Error::new(Kind::Invalid, what))
}

#[cfg(feature = "redis")]
fn open_redis(target: &str) -> Result<Box<dyn Backend>> {
    let password = std::env::var("REDIS_PASSWORD").ok();
    let backend = esker_workbench::backend::RedisBackend::new(target, password.as_deref())?;
    Ok(Box::new(backend))
}

#[cfg(not(feature = "redis"))]
fn open_redis(_: &str) -> Result<Box<dyn Backend>> {
    let what = "this build lacks Redis support: build with \
                `cargo build --release -p esker-cli --features redis`";
    Err(Error::new(Kind::Invalid, what))
}

#[cfg(feature = "mpi")]
fn open_mpi_io(path: &Path, launch: &RankLaunch) -> Result<Box<dyn Backend>> {
    let process = launch.mpi_process()?;
    Ok(Box::new(esker_workbench::backend::MpiIoBackend::new(path, process)?))
}

#[cfg(not(feature = "mpi"))]
fn open_mpi_io(_: &Path, _: &RankLaunch) -> Result<Box<dyn Backend>> {
    Err(built_without_mpi())
}
