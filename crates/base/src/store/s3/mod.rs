// SPDX-License-Identifier: Apache-2.0
//! S3 store: a bucket, or a prefix in one, on any server that speaks S3 with conditional writes.
//!
//! ```text
//! <prefix>/<name>                        an object
//! <prefix>/<log>/_<8 digits>.log         a piece of an append log, numbered from 0
//! ```
//! Races are decided by `If-None-Match: *`, including the completion of an upload in parts.
//! Requests that fail on the way are retried (`attempts.rs`). A retried conditional write may be
//! refused because the first attempt succeeded, so every object carries in its metadata a mark that
//! identifies its put.
//! Invariants: (1) nothing is overwritten; (2) pieces of a log are numbered without gaps.
//! Limits: a put does not check whether a log has its name, and a log does not check twice whether
//! an object has; names of objects and logs are disjoint by the layout of change sets. Leftovers of
//! abandoned uploads cost space until a lifecycle rule of the bucket removes them. A request that a
//! network delays for longer than its retries may still arrive: a put may bring back an object that
//! was deleted meanwhile, and a deletion may remove one that was put meanwhile under the same name.
//! Concurrency: any number of threads, processes and machines. Calls block; a runtime of two
//! threads that belongs to this store drives the network, so callers may or may not have one.

mod attempts;
mod connection;
mod credential_process;
mod failure;
mod log;
mod pieces;
mod profile;
mod read;
mod settings;
mod upload;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::try_join;
use object_store::{ListResult, ObjectMeta};

use self::connection::S3Connection;
use self::log::S3Log;
use self::read::ObjectReader;
use self::upload::{PART_BYTES, S3Writer};
use super::{AppendLog, ObjectInfo, ObjectWriter, Store, coalesce, name};
use crate::Result;

/// Maximum requests under way at once: as many as servers accept from one client without slowing it
/// down.
const REQUESTS_MAX: usize = 64;

/// A store in an S3 bucket.
#[derive(Debug)]
pub struct S3Store {
    connection: Arc<S3Connection>,
    reader: Arc<ObjectReader>,
}

impl S3Store {
    /// Opens the store below `prefix` (empty: everything) of `bucket`, configured by the standard
    /// AWS environment variables: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    /// `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_PROFILE` and the files that it
    /// selects from, web identities, roles of containers and instances, and the output of a
    /// profile's `credential_process` or of the AWS command line itself. Makes no request.
    ///
    /// A request is given up after `AWS_TIMEOUT` (30 s), including all retries that
    /// `AWS_MAX_ATTEMPTS` allows; large ones get extra time for their bytes at 1 MiB/s.
    ///
    /// # Errors
    /// `Invalid` if the variables or the profile are invalid; errors of reading the profile.
    pub fn from_env(bucket: &str, prefix: &str) -> Result<Self> {
        let variables = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)));
        Self::with_variables(bucket, prefix, variables)
    }

    /// Opens the store as [`S3Store::from_env`] does, with `variables` instead of the environment.
    ///
    /// # Errors
    /// `Invalid` if the variables are invalid.
    pub fn with_variables(
        bucket: &str,
        prefix: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let connection = Arc::new(S3Connection::new(bucket, prefix, variables)?);
        let reader = Arc::new(ObjectReader::new(Arc::clone(&connection)));
        Ok(Self { connection, reader })
    }
}

impl Store for S3Store {
    fn url(&self) -> String {
        self.connection.url().into()
    }

    /// One request; one more if the name is taken; several parts if the object is large.
    fn put_if_absent(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.connection.check(name)?;
        if bytes.len() > PART_BYTES {
            let mut writer = self.create(name)?;
            writer.write(bytes)?;
            return writer.finish();
        }
        self.connection.put(name, Bytes::copy_from_slice(bytes))
    }

    fn create(&self, name: &str) -> Result<Box<dyn ObjectWriter>> {
        self.connection.check(name)?;
        Ok(Box::new(S3Writer::new(Arc::clone(&self.connection), name.into())))
    }

    /// One request for an object, two for a log or an absent name.
    fn size(&self, name: &str) -> Result<u64> {
        self.connection.check(name)?;
        let (reader, name) = (Arc::clone(&self.reader), name.to_owned());
        self.connection.wait(async move { reader.size(&name).await })
    }

    fn get(&self, name: &str, bytes_max: u64) -> Result<Bytes> {
        self.connection.check(name)?;
        let (reader, name) = (Arc::clone(&self.reader), name.to_owned());
        self.connection.wait(async move { reader.whole(&name, bytes_max).await })
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.connection.check(name)?;
        coalesce::check_range(name, &range)?;
        let (reader, name) = (Arc::clone(&self.reader), name.to_owned());
        self.connection.wait(async move {
            let mut pieces = reader.ranges(&name, vec![range]).await?;
            Ok(pieces.pop().expect("one range gives one piece"))
        })
    }

    fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.connection.check(name)?;
        coalesce::read(name, ranges, |runs| {
            let (reader, name) = (Arc::clone(&self.reader), name.to_owned());
            self.connection.wait(async move { reader.ranges(&name, runs).await })
        })
    }

    /// Treats a log as one at once, since its pieces must be listed in any case.
    fn get_range_within(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        self.connection.check(name)?;
        coalesce::check_range(name, &range)?;
        let (reader, name) = (Arc::clone(&self.reader), name.to_owned());
        self.connection.wait(async move { reader.range_within(&name, range).await })
    }

    fn requests_at_once(&self) -> usize {
        REQUESTS_MAX
    }

    /// Two concurrent requests: one checks whether an object has the name, the other puts the empty
    /// first piece, which decides races.
    fn append_log(&self, name: &str) -> Result<Box<dyn AppendLog>> {
        self.connection.check(name)?;
        Ok(Box::new(S3Log::create(Arc::clone(&self.connection), name)?))
    }

    /// No request: bytes that are visible always survive.
    fn sync_log(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// One request for each thousand objects and pieces of logs.
    fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        name::check_prefix(prefix)?;
        let (connection, below) = (Arc::clone(&self.connection), prefix.to_owned());
        let metas: Vec<ObjectMeta> = self.connection.wait(async move {
            let mut metas = Vec::new();
            connection.list(&below, None, |page| metas.extend(page.objects)).await?;
            Ok(metas)
        })?;
        let mut found: BTreeMap<String, ObjectInfo> = BTreeMap::new();
        for meta in &metas {
            let Some(name) = self.connection.name_of(&meta.location) else { continue };
            let name = pieces::log_of(name).unwrap_or(name);
            if !name.starts_with(prefix) || name::check(name).is_err() {
                continue;
            }
            let info = found.entry(name.into()).or_insert_with(|| ObjectInfo {
                name: name.into(),
                bytes: 0,
                modified_ns: 0,
            });
            info.bytes += meta.size;
            info.modified_ns = info.modified_ns.max(pieces::modified_ns(meta));
        }
        Ok(found.into_values().collect())
    }

    fn list_names(&self, prefix: &str) -> Result<Vec<String>> {
        name::check_prefix(prefix)?;
        let (connection, below) = (Arc::clone(&self.connection), prefix.to_owned());
        let paths = self.connection.wait(async move {
            let mut paths = Vec::new();
            let take = |page: ListResult| {
                paths.extend(page.objects.into_iter().map(|meta| meta.location));
                paths.extend(page.common_prefixes);
            };
            connection.list(&below, Some("/"), take).await?;
            Ok(paths)
        })?;
        let mut names: Vec<String> = paths
            .iter()
            .filter_map(|path| self.connection.name_of(path))
            .filter(|name| pieces::log_of(name).is_none() && name::check(name).is_ok())
            .filter_map(|name| name.strip_prefix(prefix))
            .map(str::to_owned)
            .collect();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Two concurrent requests for an object; for a log, then two more for each thousand pieces.
    fn delete(&self, name: &str) -> Result<()> {
        self.connection.check(name)?;
        let (reader, connection) = (Arc::clone(&self.reader), Arc::clone(&self.connection));
        let name = name.to_owned();
        self.connection.wait(async move {
            let object = [connection.path(&name)?];
            let deleted = connection.delete(&name, &object);
            let ((), pieces) = try_join(deleted, reader.list_pieces(&name)).await?;
            reader.forget(&name);
            // The first piece last: while it exists the name is taken.
            let paths: Vec<_> = pieces.into_iter().map(|piece| piece.location).collect();
            if let Some((first, rest)) = paths.split_first() {
                connection.delete(&name, rest).await?;
                connection.delete(&name, std::slice::from_ref(first)).await?;
            }
            Ok(())
        })
    }
}
