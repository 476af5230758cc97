// SPDX-License-Identifier: Apache-2.0
//! Settings: the server of a store, its user and the time limits, from the environment and the
//! files of the AWS command line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{ClientOptions, Error as S3Error, HeaderMap, HeaderValue, RetryConfig};

use super::attempts::{ATTEMPTS_MAX, RetryLimits, TIMEOUT};
use super::credential_process::ProcessCredentials;
use super::profile;
use crate::{Error, Kind, Result};

/// A connection that the server does not accept within this time is retried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Retries of requests for keys, which our own loop does not see.
const KEY_RETRIES_MAX: usize = 3;

/// The settings from which a store's clients are made.
pub(super) struct ClientSettings {
    builder: AmazonS3Builder,
    options: ClientOptions,
    pub(super) attempts: RetryLimits,
}

impl ClientSettings {
    /// Reads the settings of `bucket` from `variables` and the files that they select.
    ///
    /// # Errors
    /// `Invalid` if they are invalid; errors of reading the files.
    pub(super) fn new(
        bucket: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let mut variables: BTreeMap<String, String> = variables
            .into_iter()
            .filter(|(key, _)| key == "HOME" || key.starts_with("AWS_"))
            .collect();
        let given = variables.clone();
        let program = profile::complete(&mut variables)?;
        if let Some(endpoint) = variables.remove("AWS_EC2_METADATA_SERVICE_ENDPOINT") {
            // The name that the AWS command line uses.
            variables.entry("AWS_METADATA_ENDPOINT".into()).or_insert(endpoint);
        }
        let attempts = attempts_of(&mut variables)?;
        let mut options = ClientOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_timeout_disabled()
            .with_allow_http(allows_http(&variables)?);
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
        if let Some(words) = program {
            builder = builder.with_credentials(Arc::new(ProcessCredentials::new(words, given)));
        }
        variables.remove("AWS_ALLOW_HTTP");
        for (key, value) in variables {
            match key.to_ascii_lowercase().parse() {
                Ok(AmazonS3ConfigKey::Client(key)) => options = options.with_config(key, value),
                Ok(AmazonS3ConfigKey::Bucket) | Err(_) => {}
                Ok(key) => builder = builder.with_config(key, value),
            }
        }
        Ok(Self { builder, options, attempts })
    }

    /// Makes two clients: one for all requests, and one whose every request is conditional on the
    /// object being absent.
    pub(super) fn clients(self) -> Result<(AmazonS3, AmazonS3), S3Error> {
        let Self { builder, options, .. } = self;
        let retries = |max_retries| RetryConfig { max_retries, ..RetryConfig::default() };
        // Requests for keys use this client's retries; all others use ours (`attempts.rs`).
        let keys = builder.clone().with_retry(retries(KEY_RETRIES_MAX));
        let keys = keys.with_client_options(options.clone()).build()?;
        let builder =
            builder.with_retry(retries(0)).with_credentials(Arc::clone(keys.credentials()));
        let client = builder.clone().with_client_options(options.clone()).build()?;
        let absent = HeaderMap::from_iter([(
            "if-none-match".parse().expect("a header name"),
            HeaderValue::from_static("*"),
        )]);
        let options = options.with_default_headers(absent);
        Ok((client, builder.with_client_options(options).build()?))
    }
}

/// Takes `AWS_TIMEOUT` and `AWS_MAX_ATTEMPTS` from `variables`.
fn attempts_of(variables: &mut BTreeMap<String, String>) -> Result<RetryLimits> {
    let invalid = |name: &str, value: &str, expected: &str| {
        Error::new(Kind::Invalid, format!("{name}: expected {expected}, got {value:?}"))
    };
    let timeout = match variables.remove("AWS_TIMEOUT") {
        None => TIMEOUT,
        Some(value) => duration(&value)
            .ok_or_else(|| invalid("AWS_TIMEOUT", &value, "seconds: 30, 1.5s, 500ms or 2m"))?,
    };
    let attempts_max = match variables.remove("AWS_MAX_ATTEMPTS") {
        None => ATTEMPTS_MAX,
        Some(value) => (value.trim().parse().ok().filter(|attempts| *attempts > 0))
            .ok_or_else(|| invalid("AWS_MAX_ATTEMPTS", &value, "a number above 0"))?,
    };
    Ok(RetryLimits { timeout, attempts_max })
}

/// Returns whether an endpoint without encryption may be used: if the endpoint is one, unless that
/// is forbidden.
fn allows_http(variables: &BTreeMap<String, String>) -> Result<bool> {
    let names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
    let endpoint = names.into_iter().find_map(|name| Some((name, variables.get(name)?)));
    let allowed = variables.get("AWS_ALLOW_HTTP").map(|value| value.to_ascii_lowercase());
    let is_forbidden = matches!(allowed.as_deref(), Some("false" | "0" | "no" | "off"));
    match endpoint {
        Some((name, url)) if !is_endpoint(url) => {
            let what = format!("{name}: expected http://HOST:PORT or https://HOST, got {url:?}");
            Err(Error::new(Kind::Invalid, what))
        }
        Some((name, url)) if url.starts_with("http://") && is_forbidden => {
            let what =
                format!("{name} is {url} and AWS_ALLOW_HTTP forbids it: use https, or unset it");
            Err(Error::new(Kind::Invalid, what))
        }
        Some((_, url)) => Ok(url.starts_with("http://")),
        None => Ok(false),
    }
}

/// Returns whether `url` can be a server's: it has a scheme and a host, and no characters that URLs
/// exclude.
fn is_endpoint(url: &str) -> bool {
    let rest = ["http://", "https://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    rest.is_some_and(|rest| {
        !rest.is_empty()
            && !rest.starts_with('/')
            && rest.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

/// Parses a duration, in seconds unless it has a unit; at most a day.
fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let number_bytes = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_bytes);
    let unit_s = match unit.trim() {
        "" | "s" | "seconds" => 1.0,
        "ms" => 0.001,
        "m" | "minutes" => 60.0,
        _ => return None,
    };
    let seconds = number.parse::<f64>().ok()? * unit_s;
    (0.001..=86_400.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<ClientSettings> {
        let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        ClientSettings::new("bucket", variables)
    }

    #[test]
    fn an_endpoint_is_a_url() {
        for url in ["localhost:9000", "http://bad host", "http://", "ftp://host", "http:///x", ""] {
            let error = settings(&[("AWS_ENDPOINT_URL", url)]).err().expect(url);
            assert!(error.to_string().contains("http://HOST:PORT"), "{error}");
        }
        for url in ["http://localhost:9000", "https://s3.example.org/base"] {
            assert!(settings(&[("AWS_ENDPOINT_URL", url)]).is_ok(), "{url}");
        }
    }

    #[test]
    fn times_and_attempts_are_options() {
        let default = settings(&[]).expect("no variables").attempts;
        assert_eq!(default, RetryLimits { timeout: TIMEOUT, attempts_max: ATTEMPTS_MAX });
        for (value, ms) in [("5", 5_000), ("1.5s", 1_500), ("20ms", 20), ("2 m", 120_000)] {
            let given = settings(&[("AWS_TIMEOUT", value), ("AWS_MAX_ATTEMPTS", "3")]);
            let expected = RetryLimits { timeout: Duration::from_millis(ms), attempts_max: 3 };
            assert_eq!(given.expect(value).attempts, expected, "{value}");
        }
        for (name, value) in [
            ("AWS_TIMEOUT", "0"),
            ("AWS_TIMEOUT", "soon"),
            ("AWS_TIMEOUT", "1e9"),
            ("AWS_MAX_ATTEMPTS", "0"),
            ("AWS_MAX_ATTEMPTS", "-1"),
        ] {
            let error = settings(&[(name, value)]).err().expect(value);
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }

    #[test]
    fn an_endpoint_without_encryption_is_used_unless_that_is_forbidden() {
        let plain = ("AWS_ENDPOINT_URL", "http://127.0.0.1:9000");
        let allows = |variables: &[(&str, &str)]| {
            let variables =
                variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            allows_http(&variables)
        };
        assert!(allows(&[plain]).expect("allowed"));
        assert!(allows(&[plain, ("AWS_ALLOW_HTTP", "true")]).expect("allowed"));
        assert!(!allows(&[("AWS_ENDPOINT_URL", "https://a")]).expect("not needed"));
        assert!(!allows(&[]).expect("not needed"));
        let error = allows(&[plain, ("AWS_ALLOW_HTTP", "false")]).expect_err("forbidden");
        assert!(error.to_string().contains("AWS_ALLOW_HTTP"), "{error}");
    }
}
