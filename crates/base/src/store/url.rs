// SPDX-License-Identifier: Apache-2.0
//! URLs of stores: how a user names a store.
//!
//! | URL | store |
//! |---|---|
//! | a path, `file:///path` | a directory |
//! | `s3://bucket/prefix` | S3, found by the standard AWS environment variables (feature `s3`) |
//! | `memory:`, `memory:name` | memory of this process, shared by all users of the same name |

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::identity::StoreIdentity;
use super::name::UNFINISHED;
use super::posix::check_file_system;
use super::{MemoryStore, PosixStore, SharedStore, Store, StoreSharing};
use crate::{Error, Kind, Random, Result, shell_word};

const MEMORY: &str = "memory:";
const FILE: &str = "file://";
const S3: &str = "s3://";

/// Entries that a file system creates in an empty directory on its own.
const OF_THE_FILE_SYSTEM: &[&str] = &["lost+found", UNFINISHED];

/// Opens the store at `url`. One read request.
///
/// # Errors
/// `NotFound` if nothing is there or it is not a store, `NotADirectory` if it is a file, `Invalid`
/// for a URL that names no kind of store or a store of a newer format, `Denied` and `Unavailable`
/// as the store answers.
///
/// # Examples
/// ```
/// let store = esker_base::store::url::init("memory:example")?;
/// store.put_if_absent("greeting", b"hello")?;
/// let same = esker_base::store::url::open("memory:example")?;
/// assert_eq!(same.get("greeting", 100)?, "hello");
/// # Ok::<(), esker_base::Error>(())
/// ```
pub fn open(url: &str) -> Result<SharedStore> {
    let store = connect(url)?;
    StoreIdentity::read(&*store)?;
    Ok(store)
}

/// Connects to `url` without checking that it is a store: [`StoreIdentity::read`] does that. No
/// request; a directory is opened.
///
/// # Errors
/// As [`open`], as far as they show without a request.
pub fn connect(url: &str) -> Result<SharedStore> {
    Ok(match StoreLocation::parse(url)? {
        StoreLocation::Directory(path) => {
            Arc::new(PosixStore::new(&path).map_err(|error| match error.kind() {
                Kind::NotFound => {
                    let what = "does not exist: make a store with `esker init --store";
                    let word = shell_word(url.as_bytes());
                    Error::new(Kind::NotFound, format!("{} {what} {word}`", path.display()))
                }
                _ => error,
            })?)
        }
        StoreLocation::Memory(name) => memory(&name),
        StoreLocation::S3 { bucket, prefix } => s3(&bucket, &prefix)?,
    })
}

/// Makes a store at `url` and opens it. Creates the directory if it is absent. Survives power loss
/// once it returns. Two write requests, a read and a listing and, in a directory, some thirty
/// requests that test its file system.
///
/// # Errors
/// `Exists` if there already is a store, `NotEmpty` if there is something else, `Unsupported` if
/// the file system lacks what a store needs, `Invalid` for a URL that names no kind of store,
/// `Denied` and `Unavailable` as the store answers.
pub fn init(url: &str) -> Result<SharedStore> {
    make(url, None)
}

/// Makes a store as [`init`] does, in a directory that the directory's group reads and writes,
/// regardless of its members' umasks.
///
/// # Errors
/// As [`init`]; `Invalid` for a store that is not a directory, `Denied` if this user is in another
/// group than an existing directory.
pub fn init_shared(url: &str, sharing: StoreSharing) -> Result<SharedStore> {
    make(url, Some(sharing))
}

fn make(url: &str, sharing: Option<StoreSharing>) -> Result<SharedStore> {
    let location = StoreLocation::parse(url)?;
    if sharing.is_some() && !matches!(location, StoreLocation::Directory(_)) {
        let what = "only a directory can be shared with a group; the owner of a bucket controls \
                    access to it";
        return Err(Error::new(Kind::Invalid, format!("share {url}: {what}")));
    }
    let store: SharedStore = match location {
        StoreLocation::Directory(path) => {
            make_durable(&path)?;
            refuse_marked(&PosixStore::new(&path)?)?;
            refuse_used_directory(&path)?;
            check_file_system(&path)?;
            sharing.map_or(Ok(()), |sharing| sharing.give_to(&path))?;
            Arc::new(PosixStore::new(&path)?)
        }
        StoreLocation::Memory(name) => memory(&name),
        StoreLocation::S3 { bucket, prefix } => s3(&bucket, &prefix)?,
    };
    refuse_marked(&*store)?;
    if let Some(name) = store.list_names("")?.first() {
        return Err(not_empty(&store.url(), name));
    }
    let mut random = Random::from_system();
    StoreIdentity::create(&*store, &mut random)?;
    // Storage that only pretends to refuse would lose data later, when two writers race.
    match StoreIdentity::create(&*store, &mut random) {
        Err(error) if error.kind() == Kind::Exists => Ok(store),
        Err(error) => Err(error),
        Ok(_) => {
            let what =
                "lets one writer overwrite another's object: use one with conditional writes";
            Err(Error::new(Kind::Invalid, format!("{} {what}", store.url())))
        }
    }
}

/// Returns the URL of the directory at the absolute `path`.
pub(super) fn of_path(path: &Path) -> String {
    if let Some(path) = path.to_str() {
        return path.into();
    }
    let mut url = String::from(FILE);
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => url.push(char::from(*byte)),
            _ if byte.is_ascii_alphanumeric() => url.push(char::from(*byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

#[derive(Debug, PartialEq, Eq)]
enum StoreLocation {
    Directory(PathBuf),
    Memory(String),
    S3 { bucket: String, prefix: String },
}

impl StoreLocation {
    fn parse(url: &str) -> Result<Self> {
        let invalid = |what: &str| Err(Error::new(Kind::Invalid, format!("store {url:?}: {what}")));
        if url.is_empty() {
            return invalid("expected a directory, s3://bucket/prefix or memory:name");
        }
        if let Some(name) = url.strip_prefix(MEMORY) {
            return Ok(Self::Memory(name.into()));
        }
        if let Some(rest) = url.strip_prefix(FILE) {
            let path = rest.strip_prefix("localhost").unwrap_or(rest);
            if !path.starts_with('/') {
                return invalid("a file URL has three slashes: file:///path");
            }
            return match percent_decode(path) {
                Some(path) => Ok(Self::Directory(path)),
                None => invalid("`%` is not followed by two hexadecimal digits"),
            };
        }
        if let Some(rest) = url.strip_prefix(S3) {
            let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
            if bucket.is_empty() {
                return invalid("expected s3://bucket/prefix");
            }
            let prefix = prefix.trim_end_matches('/');
            if !prefix.is_empty() {
                // Below a prefix, unlike below a store, any first component is allowed.
                super::name::check(&format!("s3/{prefix}"))?;
            }
            return Ok(Self::S3 { bucket: bucket.into(), prefix: prefix.into() });
        }
        if let Some(known) = known_scheme(url) {
            return invalid(&format!(
                "expected {known}; if it is the name of a directory, give it as ./{url}"
            ));
        }
        if url.split_once("://").is_some_and(|(scheme, _)| !scheme.contains('/')) {
            return invalid(
                "unknown kind of store: expected a directory, file:///path, s3://bucket/prefix \
                 or memory:name",
            );
        }
        Ok(Self::Directory(url.into()))
    }
}

/// Returns the form of the URLs of a known kind of store with whose scheme `url` begins. The caller
/// has excluded valid ones.
fn known_scheme(url: &str) -> Option<&'static str> {
    let (scheme, _) = url.split_once(':')?;
    match scheme.to_ascii_lowercase().as_str() {
        "s3" => Some("s3://bucket/prefix"),
        "file" => Some("file:///path"),
        "memory" => Some("memory:name"),
        _ => None,
    }
}

fn percent_decode(text: &str) -> Option<PathBuf> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            let value = digit(bytes.next())? << 4 | digit(bytes.next())?;
            decoded.push(u8::try_from(value).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    Some(OsString::from_vec(decoded).into())
}

fn memory(name: &str) -> SharedStore {
    /// Guards the stores of this process by name.
    static STORES: Mutex<BTreeMap<String, Arc<MemoryStore>>> = Mutex::new(BTreeMap::new());
    let mut stores = STORES.lock();
    let store = stores
        .entry(name.into())
        .or_insert_with(|| Arc::new(MemoryStore::named(format!("{MEMORY}{name}"))));
    Arc::<MemoryStore>::clone(store)
}

#[cfg(feature = "s3")]
fn s3(bucket: &str, prefix: &str) -> Result<SharedStore> {
    Ok(Arc::new(super::S3Store::from_env(bucket, prefix)?))
}

#[cfg(not(feature = "s3"))]
fn s3(bucket: &str, prefix: &str) -> Result<SharedStore> {
    let what = "this build lacks S3 support: build with `cargo build --release --features s3`";
    Err(Error::new(Kind::Invalid, format!("s3://{bucket}/{prefix}: {what}")))
}

/// Makes the directory `path` and its ancestors, and syncs the parents of those it made.
fn make_durable(path: &Path) -> Result<()> {
    let failure = |error| Error::io(error, format!("make the directory {}", path.display()));
    let path = std::path::absolute(path).map_err(failure)?;
    let absent: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
    std::fs::create_dir_all(&path).map_err(failure)?;
    for made in absent {
        let above = made.parent().unwrap_or(Path::new("/"));
        std::fs::File::open(above).and_then(|above| above.sync_all()).map_err(failure)?;
    }
    Ok(())
}

fn refuse_marked(store: &dyn Store) -> Result<()> {
    match StoreIdentity::read(store) {
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(Error::new(Kind::Exists, format!("{} is already a store", store.url()))),
    }
}

/// Checked directly, since a listing shows only entries that can be objects, and a directory in use
/// may hold others.
fn refuse_used_directory(path: &Path) -> Result<()> {
    let failure = |error| Error::io(error, format!("list {}", path.display()));
    for entry in std::fs::read_dir(path).map_err(failure)? {
        let name = entry.map_err(failure)?.file_name();
        if !OF_THE_FILE_SYSTEM.iter().any(|ours| name == *ours) {
            return Err(not_empty(&path.display().to_string(), &name.to_string_lossy()));
        }
    }
    Ok(())
}

fn not_empty(place: &str, name: &str) -> Error {
    let what = format!("{place} holds {name:?} and is not a store: give an empty or new location");
    Error::new(Kind::NotEmpty, what)
}

#[cfg(test)]
mod tests;
