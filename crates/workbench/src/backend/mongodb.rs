// SPDX-License-Identifier: Apache-2.0
//! MongoDB: documents of one collection, the mapping that md-workbench's plugin uses by default.
//!
//! ```text
//! esker_workbench_marker    _id "working-set", content                      the marker, one document
//! esker_workbench_objects   _id "rank-0/set-1/object-2", size, content      an object
//! ```
//! The key is the path that results and messages show, so that the path in a report finds the
//! document of a slow call. Keys are strings, which the index on `_id` orders by their bytes: all
//! keys of a dataset are one range, and lists without attributes are answered from the index alone.
//! Datasets are prefixes of keys and cost nothing to make. How durable a document is when a call
//! returns depends on the write concern, which [`Backend::service`] states. Concurrency: each rank
//! has a client of its own with one connection, see [`database`].

mod connection;
mod database;
mod failure;
mod service;
mod target;

use esker_base::{Error, Kind, Result};
use mongodb::bson::{Binary, RawDocumentBuf, doc, spec::BinarySubtype};

use self::connection::MongoConnection;
use self::database::MongoDatabase;
use self::failure::failed;
use self::target::MongoTarget;
use super::{Backend, BackendConnection, MARKER_BYTES_MAX};
use crate::options::RunOptions;
use crate::pattern::WorkingSetSize;

/// The collection of the marker.
const MARKER_COLLECTION: &str = "esker_workbench_marker";

/// The collection of objects.
const OBJECT_COLLECTION: &str = "esker_workbench_objects";

/// The key of the marker.
const MARKER_KEY: &str = "working-set";

/// Keys of objects. Other documents are not of a working set.
const OBJECT_KEYS: &str = "^rank-(0|[1-9][0-9]*)/set-(0|[1-9][0-9]*)/object-(0|[1-9][0-9]*)$";

/// Largest content of an object. A document has at most 16 MiB; the rest of it takes less than the
/// difference.
const CONTENT_BYTES_MAX: u64 = (16 << 20) - 256;

/// A database of a MongoDB deployment.
#[derive(Debug)]
pub struct MongoBackend {
    target: MongoTarget,
}

impl MongoBackend {
    /// The working set in the database at `url`; `password` is used if `url` has a user and no
    /// password.
    ///
    /// # Errors
    /// `Invalid` for a bad URL, for one without a database and for writes that are not
    /// acknowledged; `Unavailable` if the hosts of a `mongodb+srv` URL are not found. The server is
    /// not contacted yet.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self> {
        MongoTarget::parse(url, password).map(|target| Self { target })
    }

    fn open(&self) -> Result<MongoDatabase> {
        MongoDatabase::open(&self.target)
    }

    fn failed(&self, error: mongodb::error::Error) -> Error {
        failed(error, self.target.name())
    }

    /// The error for a collection that has documents which are not of a working set.
    fn foreign_documents(&self, collection: &str) -> Error {
        let what = format!(
            "the collection {collection} has documents that are not of a working set, which stay; \
             use another database, or move them away"
        );
        Error::new(Kind::NotEmpty, format!("{}: {what}", self.target.name()))
    }

    fn marker_in(&self, database: &MongoDatabase) -> Result<Option<Vec<u8>>> {
        let markers = database.collection(MARKER_COLLECTION);
        let found = database.wait(markers.find_one(doc! { "_id": MARKER_KEY }));
        let Some(document) = found.map_err(|error| self.failed(error))? else { return Ok(None) };
        let content = document.get_binary("content").map(|content| content.bytes);
        match content {
            Ok(content) if content.len() as u64 <= MARKER_BYTES_MAX => Ok(Some(content.to_vec())),
            _ => {
                let what = format!("{MARKER_COLLECTION} has no marker");
                Err(Error::new(Kind::TooLarge, format!("{}: {what}", self.target.name())))
            }
        }
    }

    /// Fails with `NotEmpty` if `collection` has a document other than that of `key`.
    fn check_no_others(
        &self,
        database: &MongoDatabase,
        collection: &str,
        key: Option<&str>,
    ) -> Result<()> {
        let filter = key.map_or_else(|| doc! {}, |key| doc! { "_id": { "$ne": key } });
        let documents = database.collection(collection);
        let found = database.wait(documents.find_one(filter).projection(doc! { "_id": 1 }));
        match found.map_err(|error| self.failed(error))? {
            None => Ok(()),
            Some(_) => Err(self.foreign_documents(collection)),
        }
    }
}

impl Backend for MongoBackend {
    fn target(&self) -> String {
        self.target.name().to_owned()
    }

    fn kind(&self) -> &'static str {
        "mongodb"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        let database = self.open()?;
        // The first measured call finds a connection.
        database.wait(database.run(doc! { "ping": 1 })).map_err(|error| self.failed(error))?;
        Ok(Box::new(MongoConnection::new(database, self.target.name())))
    }

    fn check(&self, options: &RunOptions) -> Result<()> {
        let bytes = options.size.object_bytes;
        if bytes <= CONTENT_BYTES_MAX {
            return Ok(());
        }
        let what = format!(
            "{}: objects of {bytes} bytes: a document of MongoDB has at most 16 MiB with its key: use \
             -S {CONTENT_BYTES_MAX} or less",
            self.target.name()
        );
        Err(Error::new(Kind::Unsupported, what))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.marker_in(&self.open()?)
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let database = self.open()?;
        let markers = database.collection(MARKER_COLLECTION);
        let content = Binary { subtype: BinarySubtype::Generic, bytes: marker.to_vec() };
        // Each is one call, which the server makes whole or not at all.
        let written = if self.marker_in(&database)?.is_some() {
            let update = doc! { "$set": { "content": content } };
            database.wait(markers.update_one(doc! { "_id": MARKER_KEY }, update)).map(drop)
        } else {
            self.check_no_others(&database, MARKER_COLLECTION, None)?;
            self.check_no_others(&database, OBJECT_COLLECTION, None)?;
            let document = doc! { "_id": MARKER_KEY, "content": content };
            let document = RawDocumentBuf::try_from(&document).expect("keys without zero bytes");
            database.wait(markers.insert_one(document)).map(drop)
        };
        written.map_err(|error| self.failed(error))
    }

    fn clear(&self) -> Result<u64> {
        let database = self.open()?;
        if self.marker_in(&database)?.is_none() {
            let what = "there is no working set of the workbench";
            return Err(Error::new(Kind::NotFound, format!("{}: {what}", self.target.name())));
        }
        let failed = |error| self.failed(error);
        let objects = database.collection(OBJECT_COLLECTION);
        let keys = doc! { "_id": { "$regex": OBJECT_KEYS } };
        let deleted = database.wait(objects.delete_many(keys)).map_err(failed)?.deleted_count;
        self.check_no_others(&database, OBJECT_COLLECTION, None)?;
        self.check_no_others(&database, MARKER_COLLECTION, Some(MARKER_KEY))?;
        // Nothing is in the one collection and only the marker in the other, which goes last.
        database.wait(objects.drop()).map_err(failed)?;
        database.wait(database.collection(MARKER_COLLECTION).drop()).map_err(failed)?;
        Ok(deleted)
    }

    fn service(&self) -> Result<String> {
        service::describe(&self.open()?, self.target.options()).map_err(|error| self.failed(error))
    }
}
