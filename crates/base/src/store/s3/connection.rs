// SPDX-License-Identifier: Apache-2.0
//! Connection: the clients, the runtime that drives them, and the requests that objects and logs
//! share: conditional puts, listings, deletions.

use std::sync::Arc;
use std::sync::mpsc;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::aws::AmazonS3;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, Error as S3Error, GetOptions, ListResult, ObjectStore, PutMode,
    PutOptions, Result as S3Result,
};
use tokio::runtime::Runtime;

use super::attempts::RetryLimits;
use super::settings::ClientSettings;
use super::{failure, pieces};
use crate::store::name::{self, NAME_BYTES_MAX};
use crate::store::taken;
use crate::{Error, Kind, Random, Result};

/// Threads that drive the network: enough for TLS to overlap with copying.
const THREADS: usize = 2;

/// Maximum keys that one request deletes: the limit of S3.
const DELETIONS_MAX: usize = 1000;

/// The user metadata that holds an object's mark.
const MARK: &str = "esker-put";

#[derive(Debug)]
pub(super) struct S3Connection {
    client: AmazonS3,
    /// A client whose every request is conditional on the object being absent; for completing
    /// uploads.
    sealing: AmazonS3,
    /// `None` only while the connection is dropped.
    runtime: Option<Runtime>,
    attempts: RetryLimits,
    bucket: String,
    prefix: String,
    url: String,
}

/// A mark that is unique to one put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PutMark(String);

/// The owner of the object after a conditional write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    /// This write's own object.
    Ours,
    /// Another object.
    Taken,
}

impl S3Connection {
    pub(super) fn new(
        bucket: &str,
        prefix: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let url = match prefix {
            "" => format!("s3://{bucket}"),
            _ => format!("s3://{bucket}/{prefix}"),
        };
        let settings =
            ClientSettings::new(bucket, variables).map_err(|error| error.within(&url))?;
        let attempts = settings.attempts;
        let (client, sealing) = settings.clients().map_err(|error| {
            let what = format!("{url}: check the environment variables AWS_*");
            Error::new(Kind::Invalid, what).with_source(error)
        })?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("esker-s3")
            .enable_all()
            .build()
            .map_err(|error| Error::io(error, format!("start threads for {url}")))?;
        let (bucket, prefix) = (bucket.into(), prefix.into());
        Ok(Self { client, sealing, runtime: Some(runtime), attempts, bucket, prefix, url })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn client(&self) -> &AmazonS3 {
        &self.client
    }

    pub(super) fn sealing(&self) -> &AmazonS3 {
        &self.sealing
    }

    pub(super) fn attempts(&self) -> &RetryLimits {
        &self.attempts
    }

    /// Checks that `name` is valid, that it is not a piece of a log, and that it fits a key.
    pub(super) fn check(&self, name: &str) -> Result<()> {
        name::check(name)?;
        if pieces::log_of(name).is_some() {
            let what = format!("{name}: names of this form are pieces of logs: choose another");
            return Err(Error::new(Kind::Invalid, what));
        }
        if self.prefix.len() + 1 + name.len() + pieces::SUFFIX_BYTES > NAME_BYTES_MAX {
            let what = format!("{name}: over {NAME_BYTES_MAX} bytes with the store's prefix");
            return Err(Error::new(Kind::TooLarge, what));
        }
        Ok(())
    }

    /// Returns the key of `name`.
    pub(super) fn path(&self, name: &str) -> Result<Path> {
        let key = match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        };
        // Not `Path::from`, which would rewrite characters that other clients leave alone.
        Path::parse(&key).map_err(|error| Error::new(Kind::Invalid, key).with_source(error))
    }

    /// Returns the name at `path`, if it is in this store.
    pub(super) fn name_of<'a>(&self, path: &'a Path) -> Option<&'a str> {
        match self.prefix.as_str() {
            "" => Some(path.as_ref()),
            prefix => path.as_ref().strip_prefix(prefix)?.strip_prefix('/'),
        }
    }

    /// Returns the error for an `action` on `name` that failed with `error`.
    pub(super) fn failed(&self, action: &str, name: &str, error: S3Error) -> Error {
        failure::failed(action, &format!("{}/{name}", self.url), &self.bucket, error)
    }

    /// Runs `future` on the store's runtime and waits; the caller may itself be on another runtime.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, outcome) = mpsc::sync_channel(1);
        self.spawn(async move {
            // The receiver is gone only if the waiting thread died.
            drop(done.send(future.await));
        });
        outcome.recv().unwrap_or_else(|_| {
            let what = format!("{}: the request was given up: open the store again", self.url);
            Err(Error::new(Kind::Closed, what))
        })
    }

    /// Runs `future` on the store's runtime.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.as_ref().expect("only taken when dropped").spawn(future)
    }

    /// Puts `bytes` as `name` without replacing an object.
    pub(super) fn put(self: &Arc<Self>, name: &str, bytes: Bytes) -> Result<()> {
        let (connection, name) = (Arc::clone(self), name.to_owned());
        self.wait(async move { connection.put_conditionally(&name, bytes).await })
    }

    /// Puts as [`S3Connection::put`] does, on the store's runtime.
    pub(super) async fn put_conditionally(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = self.path(name)?;
        let mark = PutMark::new();
        let bytes_count = bytes.len() as u64;
        let put = || async {
            let options = PutOptions {
                mode: PutMode::Create,
                attributes: mark.attributes(),
                ..PutOptions::default()
            };
            let put = self.client.put_opts(&path, bytes.clone().into(), options);
            match self.attempts.within(bytes_count, put).await {
                Ok(_) => Ok(WriteOutcome::Ours),
                Err(error) => self.resolve_write(&path, &mark, error).await,
            }
        };
        match self.attempts.repeat(bytes_count, put).await {
            Ok(WriteOutcome::Ours) => Ok(()),
            Ok(WriteOutcome::Taken) => Err(taken(name)),
            Err(error) => Err(self.failed("put", name, error)),
        }
    }

    /// Finds out the outcome of a conditional write at `path` that failed with `error`.
    ///
    /// # Errors
    /// `error` if there is no object. If that is unknown, an error that is not a refusal, since the
    /// refusal may be due to this write's own first attempt.
    pub(super) async fn resolve_write(
        &self,
        path: &Path,
        mark: &PutMark,
        error: S3Error,
    ) -> S3Result<WriteOutcome> {
        let head = GetOptions { head: true, ..GetOptions::default() };
        match self.attempts.within(0, self.client.get_opts(path, head)).await {
            Ok(found) if mark.is_on(&found.attributes) => Ok(WriteOutcome::Ours),
            Ok(_) => Ok(WriteOutcome::Taken),
            Err(unknown)
                if failure::is_refusal(&error) && !matches!(unknown, S3Error::NotFound { .. }) =>
            {
                Err(unknown)
            }
            Err(_) => Err(error),
        }
    }

    /// Passes the pages of a listing below `prefix` (empty, or ending in `/`) to `take`; each page
    /// is requested until it is complete. With a `delimiter`, deeper names are cut off after it.
    pub(super) async fn list(
        &self,
        prefix: &str,
        delimiter: Option<&'static str>,
        mut take: impl FnMut(ListResult),
    ) -> Result<()> {
        let failed = |error| self.failed("list", prefix, error);
        let key_prefix = match (self.prefix.as_str(), prefix) {
            ("", prefix) => prefix.to_owned(),
            (store, prefix) => format!("{store}/{prefix}"),
        };
        let below = (!key_prefix.is_empty()).then_some(key_prefix.as_str());
        let mut page_token = None;
        loop {
            let request = || {
                let options = PaginatedListOptions {
                    delimiter: delimiter.map(Into::into),
                    page_token: page_token.clone(),
                    ..PaginatedListOptions::default()
                };
                self.client.list_paginated(below, options)
            };
            let page = self.attempts.request(0, request).await.map_err(failed)?;
            take(page.result);
            if page.page_token.is_none() {
                return Ok(());
            }
            if page.page_token == page_token {
                let source = "the server gave the same page twice".into();
                return Err(failed(S3Error::Generic { store: "S3", source }));
            }
            page_token = page.page_token;
        }
    }

    /// Deletes the objects at `paths`; some of them may already be gone. `name` is for errors.
    pub(super) async fn delete(&self, name: &str, paths: &[Path]) -> Result<()> {
        for paths in paths.chunks(DELETIONS_MAX) {
            let request = || async {
                let paths: Vec<_> = paths.iter().cloned().map(Ok).collect();
                let paths = futures_util::stream::iter(paths).boxed();
                let outcomes: Vec<S3Result<Path>> =
                    self.client.delete_stream(paths).collect().await;
                let failed = |outcome: S3Result<Path>| outcome.err();
                let mut failures = outcomes.into_iter().filter_map(failed);
                // An attempt whose answer was lost may have deleted it.
                failures.find(|error| !failure::is_deleted(error)).map_or(Ok(()), Err)
            };
            let deleted = self.attempts.request(0, request).await;
            deleted.map_err(|error| self.failed("delete", name, error))?;
        }
        Ok(())
    }
}

impl Drop for S3Connection {
    fn drop(&mut self) {
        // Without waiting: the last owner may be a thread of another runtime, or of this one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl PutMark {
    pub(super) fn new() -> Self {
        Self(format!("{:032x}", Random::from_system().u128()))
    }

    pub(super) fn attributes(&self) -> Attributes {
        let mut attributes = Attributes::new();
        attributes.insert(Attribute::Metadata(MARK.into()), self.0.clone().into());
        attributes
    }

    fn is_on(&self, attributes: &Attributes) -> bool {
        attributes
            .get(&Attribute::Metadata(MARK.into()))
            .is_some_and(|value| value.as_ref() == self.0)
    }
}
