// SPDX-License-Identifier: Apache-2.0
//! Connection: operations of a rank as calls of the driver.
//!
//! `stat` and `list` never transfer contents: documents have a field `size`. `rename` is a read, an
//! insert and a delete, in this order, as keys cannot change: a crash between the last two leaves
//! both documents.

use esker_base::{Error, Kind, Result};
use mongodb::bson::raw::{RawBinaryRef, cstr};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Document, RawDocumentBuf, doc};
use mongodb::{Collection, Cursor};

use super::database::MongoDatabase;
use super::failure::failed;
use super::{CONTENT_BYTES_MAX, OBJECT_COLLECTION};
use crate::backend::BackendConnection;
use crate::pattern::{DatasetId, ObjectId};

/// One rank's client.
pub(super) struct MongoConnection<'a> {
    objects: Collection<RawDocumentBuf>,
    target: &'a str,
    database: MongoDatabase,
}

fn key_of(object: ObjectId) -> Document {
    doc! { "_id": object.to_string() }
}

/// All keys of a dataset, and no others: they begin with its name and a slash, which zero follows
/// in the order of bytes.
fn keys_of(dataset: DatasetId) -> Document {
    doc! { "_id": { "$gte": format!("{dataset}/"), "$lt": format!("{dataset}0") } }
}

fn document_of(object: ObjectId, content: &[u8]) -> RawDocumentBuf {
    let mut document = RawDocumentBuf::new();
    document.append(cstr!("_id"), object.to_string());
    document.append(cstr!("size"), content.len() as i64);
    let content = RawBinaryRef { subtype: BinarySubtype::Generic, bytes: content };
    document.append(cstr!("content"), content);
    document
}

impl<'a> MongoConnection<'a> {
    pub fn new(database: MongoDatabase, target: &'a str) -> Self {
        Self { objects: database.collection(OBJECT_COLLECTION), target, database }
    }

    fn failed(&self, error: mongodb::error::Error, object: ObjectId) -> Error {
        failed(error, format_args!("{}/{object}", self.target))
    }

    fn absent(&self, object: ObjectId) -> Error {
        Error::new(Kind::NotFound, format!("{}/{object}: no such document", self.target))
    }

    fn damaged(&self, object: ObjectId, what: &str) -> Error {
        Error::new(Kind::Corrupt, format!("{}/{object}: the document {what}", self.target))
    }

    fn insert(&self, object: ObjectId, content: &[u8]) -> Result<()> {
        let inserted = self.database.wait(self.objects.insert_one(document_of(object, content)));
        inserted.map(drop).map_err(|error| self.failed(error, object))
    }

    /// The document of `object`, with the fields that `projection` names.
    fn find(&self, object: ObjectId, projection: Document) -> Result<RawDocumentBuf> {
        let found = self.objects.find_one(key_of(object)).projection(projection);
        let found = self.database.wait(found).map_err(|error| self.failed(error, object))?;
        found.ok_or_else(|| self.absent(object))
    }

    /// Hands the content of `object` to `take`.
    fn find_content<R>(&self, object: ObjectId, take: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let document = self.find(object, doc! { "_id": 0, "content": 1 })?;
        let Ok(content) = document.get_binary("content") else {
            return Err(self.damaged(object, "has no content"));
        };
        if content.bytes.len() as u64 > CONTENT_BYTES_MAX {
            return Err(self.damaged(object, "is larger than any of a working set"));
        }
        Ok(take(content.bytes))
    }

    async fn count(mut documents: Cursor<RawDocumentBuf>) -> mongodb::error::Result<u64> {
        let mut count = 0;
        // Batch by batch: the client need not hold the whole dataset.
        while documents.advance().await? {
            count += 1;
        }
        Ok(count)
    }
}

impl BackendConnection for MongoConnection<'_> {
    fn mkdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn rmdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        self.insert(object, content)
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        let document = self.find(object, doc! { "_id": 0, "size": 1 })?;
        let bytes = document.get_i64("size").ok().and_then(|bytes| u64::try_from(bytes).ok());
        bytes.ok_or_else(|| self.damaged(object, "has no size"))
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        self.find_content(object, |bytes| {
            content.clear();
            content.extend_from_slice(bytes);
        })
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        let deleted = self.database.wait(self.objects.delete_one(key_of(object)));
        match deleted.map_err(|error| self.failed(error, object))?.deleted_count {
            0 => Err(self.absent(object)),
            _ => Ok(()),
        }
    }

    fn list(&mut self, dataset: DatasetId, with_attributes: bool) -> Result<u64> {
        let projection = if with_attributes {
            doc! { "_id": 1, "size": 1 }
        } else {
            doc! { "_id": 1 }
        };
        let found = self.objects.find(keys_of(dataset)).projection(projection);
        let counted = self.database.wait(async { Self::count(found.await?).await });
        counted.map_err(|error| failed(error, format_args!("{}/{dataset}", self.target)))
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        let content = self.find_content(old, <[u8]>::to_vec)?;
        self.insert(new, &content)?;
        self.delete(old)
    }
}
