// SPDX-License-Identifier: Apache-2.0
//! Reader: whole objects and ranges, of objects and of logs in pieces, with several requests at a
//! time.
//!
//! A name is first assumed to be an object, since most are; otherwise it may be a log. Listings of
//! logs are cached, since pieces never change; a read beyond the known end lists again.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error as S3Error, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt,
    Result as S3Result,
};
use quick_cache::sync::Cache;

use super::connection::S3Connection;
use super::pieces::{self, LogPieces};
use crate::store::{coalesce, over_limit};
use crate::{Error, Kind, Result};

/// Concurrent requests of one call: enough to fill a line with a round trip of some ten
/// milliseconds.
const REQUESTS_MAX: usize = 8;

/// A longer range is read in concurrent requests of this many bytes.
const REQUEST_BYTES_MAX: u64 = 16 << 20;

/// Number of attempts to read an object whose bytes stop arriving.
const BODIES_MAX: u32 = 3;

/// Maximum number of cached listings of logs.
const LOGS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct ObjectReader {
    connection: Arc<S3Connection>,
    logs: Cache<String, Arc<LogPieces>>,
}

impl ObjectReader {
    pub(super) fn new(connection: Arc<S3Connection>) -> Self {
        Self { connection, logs: Cache::new(LOGS_MAX) }
    }

    /// Drops the listing of a log that was deleted.
    pub(super) fn forget(&self, name: &str) {
        self.logs.remove(name);
    }

    /// Returns the size of an object or log.
    pub(super) async fn size(&self, name: &str) -> Result<u64> {
        match self.head(&self.connection.path(name)?).await {
            Ok(meta) => Ok(meta.size),
            Err(S3Error::NotFound { .. }) => Ok(self.log(name).await?.bytes()),
            Err(error) => Err(self.connection.failed("get", name, error)),
        }
    }

    /// Reads all bytes of an object or log; `TooLarge` if they are more than `bytes_max`.
    pub(super) async fn whole(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        let path = self.connection.path(name)?;
        let attempts = self.connection.attempts();
        let mut bodies = 0;
        loop {
            let get = || self.connection.client().get(&path);
            let result = match attempts.request(0, get).await {
                Ok(result) => result,
                Err(S3Error::NotFound { .. }) => {
                    let log = self.log(name).await?;
                    if log.bytes() > bytes_max {
                        return Err(over_limit(name, log.bytes(), bytes_max));
                    }
                    return self.range_of_log(name, &log, 0..log.bytes()).await;
                }
                Err(error) => return Err(self.connection.failed("get", name, error)),
            };
            let bytes = result.meta.size;
            if bytes > bytes_max {
                return Err(over_limit(name, bytes, bytes_max));
            }
            bodies += 1;
            match attempts.within(bytes, result.bytes()).await {
                Ok(found) if found.len() as u64 == bytes => return Ok(found),
                Ok(found) => {
                    return Err(coalesce::too_short(name, &(0..bytes), found.len() as u64));
                }
                Err(error) if bodies == BODIES_MAX => {
                    return Err(self.connection.failed("get", name, error));
                }
                Err(_) => {}
            }
        }
    }

    /// Reads each of `ranges` of an object or log; none may end before it starts.
    pub(super) async fn ranges(&self, name: &str, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        let furthest = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        if let Some(log) = self.logs.get(name)
            && furthest <= log.bytes()
        {
            if let Ok(found) = self.ranges_of_log(name, &log, &ranges).await {
                return Ok(found);
            }
            // Another process may have deleted it and written it again.
            self.forget(name);
        } else {
            match self.ranges_of_object(name, &ranges).await {
                Err(error) if error.kind() == Kind::NotFound => {}
                outcome => return outcome,
            }
        }
        let log = self.log(name).await?;
        self.logs.insert(name.into(), Arc::clone(&log));
        self.ranges_of_log(name, &log, &ranges).await
    }

    /// Reads `range` up to the end of the object or log, as far as that is known.
    pub(super) async fn range_within(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let known = self.logs.get(name).filter(|log| range.start < log.bytes());
        let is_known = known.is_some();
        let log = match known {
            Some(log) => Ok(log),
            None => self.log(name).await,
        };
        let log = match log {
            Ok(log) => log,
            Err(error) if error.kind() == Kind::NotFound => {
                let end = range.end.min(self.size_of_object(name).await?);
                let path = self.connection.path(name)?;
                let is_empty = range.start >= end;
                return match is_empty {
                    true => Ok(Bytes::new()),
                    false => self.range_of_object(name, path, range.start..end).await,
                };
            }
            Err(error) => return Err(error),
        };
        self.logs.insert(name.into(), Arc::clone(&log));
        let end = range.end.min(log.bytes());
        if range.start >= end {
            return Ok(Bytes::new());
        }
        match self.range_of_log(name, &log, range.start..end).await {
            // Another process may have deleted it and written it again.
            Err(_) if is_known => {
                self.forget(name);
                Box::pin(self.range_within(name, range)).await
            }
            read => read,
        }
    }

    /// Returns the size of an object.
    async fn size_of_object(&self, name: &str) -> Result<u64> {
        let meta = self.head(&self.connection.path(name)?).await;
        meta.map(|meta| meta.size).map_err(|error| self.connection.failed("get", name, error))
    }

    /// Returns the pieces of a log, in order; none if there is no such log.
    pub(super) async fn list_pieces(&self, name: &str) -> Result<Vec<ObjectMeta>> {
        let mut pieces = Vec::new();
        let below = format!("{name}/");
        self.connection.list(&below, Some("/"), |page| pieces.extend(page.objects)).await?;
        pieces.retain(|meta| pieces::log_of(meta.location.as_ref()).is_some());
        pieces.sort_unstable_by(|a, b| a.location.cmp(&b.location));
        Ok(pieces)
    }

    async fn log(&self, name: &str) -> Result<Arc<LogPieces>> {
        let listed = self.list_pieces(name).await?;
        if listed.is_empty() {
            let what = format!("{name}: no such object in this store");
            return Err(Error::new(Kind::NotFound, what));
        }
        Ok(Arc::new(LogPieces::new(name, &listed)?))
    }

    async fn ranges_of_object(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let path = self.connection.path(name)?;
        let read = |range: Range<u64>| self.range_of_object(name, path.clone(), range);
        futures_util::stream::iter(ranges.to_vec())
            .map(read)
            .buffered(REQUESTS_MAX)
            .try_collect()
            .await
    }

    async fn ranges_of_log(
        &self,
        name: &str,
        log: &LogPieces,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let mut found = Vec::with_capacity(ranges.len());
        for range in ranges {
            found.push(self.range_of_log(name, log, range.clone()).await?);
        }
        Ok(found)
    }

    async fn range_of_log(&self, name: &str, log: &LogPieces, range: Range<u64>) -> Result<Bytes> {
        if range.end > log.bytes() {
            return Err(coalesce::too_short(name, &range, log.bytes()));
        }
        self.gather(name, log.cover(&range)).await
    }

    async fn range_of_object(&self, name: &str, path: Path, range: Range<u64>) -> Result<Bytes> {
        if !range.is_empty() && range.end - range.start <= REQUEST_BYTES_MAX {
            return self.request(name, path, range).await;
        }
        // Check that the object is that large before any buffer is sized by a range.
        let bytes = self.size_of_object(name).await?;
        if range.end > bytes {
            return Err(coalesce::too_short(name, &range, bytes));
        }
        let mut parts = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + REQUEST_BYTES_MAX);
            parts.push((path.clone(), start..end));
            start = end;
        }
        self.gather(name, parts).await
    }

    /// Reads `parts` and concatenates their bytes.
    async fn gather(&self, name: &str, parts: Vec<(Path, Range<u64>)>) -> Result<Bytes> {
        let read = |(path, range)| self.request(name, path, range);
        let mut found: Vec<Bytes> = futures_util::stream::iter(parts)
            .map(read)
            .buffered(REQUESTS_MAX)
            .try_collect()
            .await?;
        if found.len() == 1 {
            return Ok(found.remove(0));
        }
        let mut whole = BytesMut::with_capacity(found.iter().map(Bytes::len).sum());
        for piece in found {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// Reads `range`, not empty, of the object at `path` in one request.
    async fn request(&self, name: &str, path: Path, range: Range<u64>) -> Result<Bytes> {
        let get = || async {
            let bounded = Some(GetRange::Bounded(range.clone()));
            let options = GetOptions { range: bounded, ..GetOptions::default() };
            let result = self.connection.client().get_opts(&path, options).await?;
            let (found, bytes) = (result.range.clone(), result.meta.size);
            if found != range {
                return Ok(Err(bytes));
            }
            result.bytes().await.map(Ok)
        };
        let attempts = self.connection.attempts();
        let bytes = match attempts.request(range.end - range.start, get).await {
            Ok(Ok(bytes)) => bytes,
            Ok(Err(bytes)) => return Err(coalesce::too_short(name, &range, bytes)),
            Err(error @ S3Error::NotFound { .. }) => {
                return Err(self.connection.failed("get", name, error));
            }
            // One possible cause: the object ends before the range starts.
            Err(error) => {
                return match self.head(&path).await {
                    Ok(meta) if meta.size < range.end => {
                        Err(coalesce::too_short(name, &range, meta.size))
                    }
                    _ => Err(self.connection.failed("get", name, error)),
                };
            }
        };
        if bytes.len() as u64 != range.end - range.start {
            return Err(coalesce::too_short(name, &range, range.start + bytes.len() as u64));
        }
        Ok(bytes)
    }

    async fn head(&self, path: &Path) -> S3Result<ObjectMeta> {
        let head = || self.connection.client().head(path);
        self.connection.attempts().request(0, head).await
    }
}
