//! Connection: the clients, the runtime that drives them, and the conditional put that both the
//! writer and the log are made of.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, ClientOptions, Error as S3Error, GetOptions, HeaderMap, HeaderValue,
    ObjectStore, PutMode, PutOptions, RetryConfig,
};
use tokio::runtime::Runtime;

use super::{failure, pieces};
use crate::store::name::{self, NAME_BYTES_MAX};
use crate::store::taken;
use crate::{Error, Kind, Random, Result};

/// Threads that drive the network: enough for TLS to overlap with copying.
const THREADS: usize = 2;

/// A request, with its body, may take so long: a part over a slow line.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(300);

/// Requests are tried again so often and for so long: a restart of a gateway.
const RETRIES_MAX: usize = 8;
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// A conditional put that was refused although the name is free (another was under way and came to
/// nothing) is tried again so often, the first time after this wait, then after twice as long.
const PUTS_MAX: u32 = 8;
const PUT_WAIT: Duration = Duration::from_millis(5);

/// The user metadata that holds an object's mark.
const MARK: &str = "esker-put";

#[derive(Debug)]
pub(super) struct Connection {
    client: AmazonS3,
    /// The same, but every request is conditional on the object being absent; for completing uploads.
    sealing: AmazonS3,
    /// Only `None` while it is dropped.
    runtime: Option<Runtime>,
    bucket: String,
    prefix: String,
    url: String,
}

/// A mark that no other put carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark(String);

/// What a conditional write that failed has come to.
pub(super) enum Settled {
    /// It came through all the same.
    Ours,
    /// The name is somebody else's.
    Taken,
    /// It was refused, but the name is free.
    Free(S3Error),
    /// It failed.
    Failed(S3Error),
}

impl Connection {
    pub(super) fn new(
        bucket: &str,
        prefix: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let url = match prefix {
            "" => format!("s3://{bucket}"),
            _ => format!("s3://{bucket}/{prefix}"),
        };
        let mut options = ClientOptions::new().with_timeout(REQUEST_TIMEOUT);
        let retry = RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_TIMEOUT,
            ..RetryConfig::default()
        };
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket).with_retry(retry);
        for (key, value) in variables {
            if !key.starts_with("AWS_") {
                continue;
            }
            match key.to_ascii_lowercase().parse() {
                Ok(AmazonS3ConfigKey::Client(key)) => options = options.with_config(key, value),
                Ok(AmazonS3ConfigKey::Bucket) | Err(_) => {}
                Ok(key) => builder = builder.with_config(key, value),
            }
        }
        let invalid = |error: S3Error| {
            let what = format!("{url}: check the environment variables AWS_*");
            Error::new(Kind::Invalid, what).with_source(error)
        };
        let client =
            builder.clone().with_client_options(options.clone()).build().map_err(invalid)?;
        let absent = HeaderMap::from_iter([(
            "if-none-match".parse().expect("a header name"),
            HeaderValue::from_static("*"),
        )]);
        let sealing = builder
            .with_credentials(Arc::clone(client.credentials()))
            .with_client_options(options.with_default_headers(absent))
            .build()
            .map_err(invalid)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("esker-s3")
            .enable_all()
            .build()
            .map_err(|error| Error::io(error, format!("start threads for {url}")))?;
        let (bucket, prefix) = (bucket.into(), prefix.into());
        Ok(Self { client, sealing, runtime: Some(runtime), bucket, prefix, url })
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

    /// Checks that `name` is one, that it is not a piece of a log, and that it fits a key.
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

    /// The key of `name`.
    pub(super) fn path(&self, name: &str) -> Result<Path> {
        let key = match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        };
        // Not `Path::from`: it would rewrite characters that other clients leave alone.
        Path::parse(&key).map_err(|error| Error::new(Kind::Invalid, key).with_source(error))
    }

    /// The key prefix of a listing below `prefix`; `None` is the whole bucket.
    pub(super) fn directory(&self, prefix: &str) -> Result<Option<Path>> {
        let path = self.path(prefix)?;
        Ok(if path.as_ref().is_empty() { None } else { Some(path) })
    }

    /// The name at `path`, if it lies in this store.
    pub(super) fn name_of<'a>(&self, path: &'a Path) -> Option<&'a str> {
        match self.prefix.as_str() {
            "" => Some(path.as_ref()),
            prefix => path.as_ref().strip_prefix(prefix)?.strip_prefix('/'),
        }
    }

    /// The error of `action` on `name` having failed with `error`.
    pub(super) fn failed(&self, action: &str, name: &str, error: S3Error) -> Error {
        failure::failed(action, &format!("{}/{name}", self.url), &self.bucket, error)
    }

    /// Runs `future` on the store's runtime and waits; the caller may itself be on another.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let (done, outcome) = mpsc::sync_channel(1);
        self.spawn(async move {
            // Nobody listens only if the waiting thread died.
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

    /// Puts `bytes` as `name`, replacing none.
    pub(super) fn put(self: &Arc<Self>, name: &str, bytes: Bytes) -> Result<()> {
        let (connection, name) = (Arc::clone(self), name.to_owned());
        self.wait(async move { connection.put_conditionally(&name, bytes).await })
    }

    async fn put_conditionally(&self, name: &str, bytes: Bytes) -> Result<()> {
        let path = self.path(name)?;
        let mark = Mark::new();
        let mut puts = 0;
        loop {
            let options = PutOptions {
                mode: PutMode::Create,
                attributes: mark.attributes(),
                ..PutOptions::default()
            };
            let outcome = self.client.put_opts(&path, bytes.clone().into(), options).await;
            let Err(error) = outcome else { return Ok(()) };
            puts += 1;
            match self.settle(&path, &mark, error).await {
                Settled::Ours => return Ok(()),
                Settled::Taken => return Err(taken(name)),
                Settled::Free(_) if puts < PUTS_MAX => {
                    tokio::time::sleep(PUT_WAIT * (1 << (puts - 1))).await;
                }
                Settled::Free(error) | Settled::Failed(error) => {
                    return Err(self.failed("put", name, error));
                }
            }
        }
    }

    /// Finds out what a conditional write at `path` that answered `error` has come to.
    pub(super) async fn settle(&self, path: &Path, mark: &Mark, error: S3Error) -> Settled {
        let refused = failure::is_refusal(&error);
        let head = GetOptions { head: true, ..GetOptions::default() };
        match self.client.get_opts(path, head).await {
            Ok(found) if mark.is_on(&found.attributes) => Settled::Ours,
            Ok(_) => Settled::Taken,
            Err(S3Error::NotFound { .. }) if refused => Settled::Free(error),
            Err(_) => Settled::Failed(error),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // Not by waiting: the last owner may be a thread of another runtime, or of this one.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Mark {
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
