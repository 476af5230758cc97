// SPDX-License-Identifier: Apache-2.0
//! Store: the place where a repository keeps its objects, chosen by URL.

use std::sync::Arc;

use esker_base::store::{SharedStore, StoreSharing, url};
use esker_base::{Kind, Result};

use crate::backend::ObjectStore;

/// The place where a repository keeps its objects: a directory, a bucket, or memory.
///
/// | URL | place |
/// |---|---|
/// | `/path`, `file:///path` | a directory, also of a parallel file system |
/// | `s3://bucket/prefix` | a bucket, with credentials from the AWS environment variables (feature `s3`) |
/// | `memory:`, `memory:name` | memory of this process, shared by all users of the same name |
///
/// Any other place works that implements [`ObjectStore`]: see [`crate::backend`]. Clones and
/// threads share one connection.
///
/// # Examples
/// ```
/// use esker::{Kind, Store};
///
/// let store = Store::create("memory:stores")?;
/// assert_eq!(store.url(), "memory:stores");
/// assert_eq!(Store::create("memory:stores").unwrap_err().kind(), Kind::Exists);
/// Store::open("memory:stores")?;
/// # Ok::<(), esker::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Store {
    objects: SharedStore,
}

impl Store {
    /// Opens the store at `url`. Cost: one read.
    ///
    /// # Errors
    /// `NotFound` if there is no store, `Invalid` for a URL of no known kind or a store of a newer
    /// format, `Denied` and `Unavailable` as the store answers.
    pub fn open(url: &str) -> Result<Self> {
        url::open(url).map(|objects| Self { objects })
    }

    /// Makes a store at `url`, and its directory if that is absent. Survives power loss once it
    /// returns. Cost: two writes, a read and a listing; in a directory also some thirty system
    /// calls that test its file system.
    ///
    /// # Errors
    /// `Exists` if there is a store already, `NotEmpty` if there is something else, `Unsupported`
    /// if the file system lacks what a store needs; as [`Store::open`].
    pub fn create(url: &str) -> Result<Self> {
        url::init(url).map(|objects| Self { objects })
    }

    /// Makes a store in a directory that its group reads and writes, independent of the umasks of
    /// the group's members.
    ///
    /// # Errors
    /// As [`Store::create`]; `Invalid` for a store that is not a directory.
    pub fn create_shared(url: &str, sharing: StoreSharing) -> Result<Self> {
        url::init_shared(url, sharing).map(|objects| Self { objects })
    }

    /// Opens the store at `url`, or makes it if there is none. If several processes do so at the
    /// same time, one of them makes it.
    ///
    /// # Errors
    /// As [`Store::open`] and [`Store::create`].
    pub fn open_or_create(url: &str) -> Result<Self> {
        match Self::open(url) {
            Err(error) if error.kind() == Kind::NotFound => match Self::create(url) {
                Err(error) if error.kind() == Kind::Exists => Self::open(url),
                made => made,
            },
            opened => opened,
        }
    }

    /// Uses `objects`, an object store of the caller's own, which must pass
    /// [`crate::backend::conformance`].
    #[must_use]
    pub fn of_backend(objects: impl ObjectStore + 'static) -> Self {
        Self { objects: Arc::new(objects) }
    }

    /// Like [`Store::of_backend`], for an object store that the caller keeps using.
    #[must_use]
    pub fn of_shared(objects: SharedStore) -> Self {
        Self { objects }
    }

    /// The URL that opens this store again.
    #[must_use]
    pub fn url(&self) -> String {
        self.objects.url()
    }

    /// The objects themselves, for programs that use the engine below this crate.
    #[must_use]
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }
}
