// SPDX-License-Identifier: Apache-2.0
//! Upload: an object that fits in a part is put at once; a larger one is uploaded in parts while it
//! is still being written, and appears when they are joined, unless the name is taken by then.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, PutMultipartOptions};
use tokio::task::JoinHandle;

use super::connection::{PutMark, S3Connection, WriteOutcome};
use crate::store::{ObjectWriter, poisoned, taken};
use crate::{Error, Kind, Result};

/// Bytes of a part: S3 requires at least 5 MiB; larger parts save requests but cost memory.
pub(super) const PART_BYTES: usize = 8 << 20;

/// Concurrent parts of one object: enough to hide the round trips.
const PARTS_UNDER_WAY_MAX: usize = 4;

/// Number of parts after which their size doubles. S3 accepts 10,000 parts, so this allows 8 TiB.
const PARTS_OF_ONE_SIZE: usize = 1000;

pub(super) struct S3Writer {
    connection: Arc<S3Connection>,
    name: String,
    buffer: Vec<u8>,
    /// Starts when the buffer first overflows.
    upload: Option<MultipartUpload>,
    failed: bool,
}

struct MultipartUpload {
    connection: Arc<S3Connection>,
    path: Path,
    mark: PutMark,
    id: MultipartId,
    done: Vec<PartId>,
    under_way: VecDeque<JoinHandle<object_store::Result<PartId>>>,
    completed: bool,
}

impl S3Writer {
    pub(super) fn new(connection: Arc<S3Connection>, name: String) -> Self {
        Self { connection, name, buffer: Vec::new(), upload: None, failed: false }
    }

    fn push(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let parts = self.upload.as_ref().map_or(0, MultipartUpload::parts);
            let part_bytes = PART_BYTES << (parts / PARTS_OF_ONE_SIZE).min(9);
            if self.buffer.len() == part_bytes {
                self.flush_part()?;
                continue;
            }
            let now = bytes.len().min(part_bytes - self.buffer.len());
            self.buffer.extend_from_slice(&bytes[..now]);
            bytes = &bytes[now..];
        }
        Ok(())
    }

    fn flush_part(&mut self) -> Result<()> {
        let upload = match &mut self.upload {
            Some(upload) => upload,
            absent => absent.insert(MultipartUpload::begin(&self.connection, &self.name)?),
        };
        upload.put_part(&self.name, std::mem::take(&mut self.buffer).into())
    }
}

impl ObjectWriter for S3Writer {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        if self.failed {
            return Err(poisoned(&self.name));
        }
        let outcome = self.push(bytes);
        self.failed = outcome.is_err();
        outcome
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        if self.failed {
            return Err(poisoned(&self.name));
        }
        if self.upload.is_none() {
            return self.connection.put(&self.name, std::mem::take(&mut self.buffer).into());
        }
        if !self.buffer.is_empty() {
            self.flush_part()?;
        }
        match self.upload.take() {
            Some(upload) => upload.complete(&self.name),
            None => Ok(()),
        }
    }
}

impl MultipartUpload {
    fn begin(connection: &Arc<S3Connection>, name: &str) -> Result<Self> {
        let path = connection.path(name)?;
        let mark = PutMark::new();
        let attributes = mark.attributes();
        let id = connection.wait({
            let (connection, path, name) = (Arc::clone(connection), path.clone(), name.to_owned());
            async move {
                let begin = || {
                    let attributes = attributes.clone();
                    let options = PutMultipartOptions { attributes, ..Default::default() };
                    connection.client().create_multipart_opts(&path, options)
                };
                let begun = connection.attempts().request(0, begin).await;
                begun.map_err(|error| connection.failed("write", &name, error))
            }
        })?;
        Ok(Self {
            connection: Arc::clone(connection),
            path,
            mark,
            id,
            done: Vec::new(),
            under_way: VecDeque::new(),
            completed: false,
        })
    }

    fn parts(&self) -> usize {
        self.done.len() + self.under_way.len()
    }

    fn put_part(&mut self, name: &str, bytes: Bytes) -> Result<()> {
        while self.under_way.len() >= PARTS_UNDER_WAY_MAX {
            self.wait_for_one(name)?;
        }
        let number = self.parts();
        let (connection, path, id) =
            (Arc::clone(&self.connection), self.path.clone(), self.id.clone());
        self.under_way.push_back(self.connection.spawn(async move {
            let put = || connection.client().put_part(&path, &id, number, bytes.clone().into());
            connection.attempts().request(bytes.len() as u64, put).await
        }));
        Ok(())
    }

    fn wait_for_one(&mut self, name: &str) -> Result<()> {
        let Some(part) = self.under_way.pop_front() else { return Ok(()) };
        let (connection, name) = (Arc::clone(&self.connection), name.to_owned());
        let part = self.connection.wait(async move {
            match part.await {
                Ok(part) => part.map_err(|error| connection.failed("write", &name, error)),
                Err(error) => Err(Error::new(Kind::Closed, name).with_source(error)),
            }
        })?;
        self.done.push(part);
        Ok(())
    }

    fn complete(mut self, name: &str) -> Result<()> {
        while !self.under_way.is_empty() {
            self.wait_for_one(name)?;
        }
        let (connection, path, mark) =
            (Arc::clone(&self.connection), self.path.clone(), self.mark.clone());
        let (id, parts) = (self.id.clone(), std::mem::take(&mut self.done));
        let owned = name.to_owned();
        self.connection.wait(async move {
            let complete = || async {
                let complete = connection.sealing().complete_multipart(&path, &id, parts.clone());
                match connection.attempts().within(0, complete).await {
                    Ok(_) => Ok(WriteOutcome::Ours),
                    Err(error) => connection.resolve_write(&path, &mark, error).await,
                }
            };
            match connection.attempts().repeat(0, complete).await {
                Ok(WriteOutcome::Ours) => Ok(()),
                Ok(WriteOutcome::Taken) => Err(taken(&owned)),
                Err(error) => Err(connection.failed("put", &owned, error)),
            }
        })?;
        self.completed = true;
        Ok(())
    }
}

impl Drop for MultipartUpload {
    fn drop(&mut self) {
        if self.completed {
            return;
        }
        let (connection, path, id) =
            (Arc::clone(&self.connection), self.path.clone(), self.id.clone());
        let under_way = std::mem::take(&mut self.under_way);
        self.connection.spawn(async move {
            // A part that arrives after the upload is gone would stay behind.
            for part in under_way {
                drop(part.await);
            }
            // Parts that stay behind are left to the bucket's lifecycle rule.
            let abort = connection.client().abort_multipart(&path, &id);
            drop(connection.attempts().within(0, abort).await);
        });
    }
}
