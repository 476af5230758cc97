// SPDX-License-Identifier: Apache-2.0
//! Target: the database of a URL, and the URL without secrets.
//!
//! The driver parses URLs. Its messages may repeat parts of them, and are never shown.

use std::time::Duration;

use esker_base::{Error, Kind, Result, without_password};
use redis::{Client, Connection, IntoConnectionInfo};

use super::failure::failed;

const EXPECTED: &str = "expected redis://user@host:port/number, or redis+unix:///path?db=number; \
                        REDIS_PASSWORD has the password; connections by TLS (rediss:) are not supported";

/// Options of URLs; the driver passes over all others, such as a misspelt database.
const OPTIONS: [&str; 4] = ["db", "user", "pass", "protocol"];

/// Time for making a connection, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A database of a server.
pub(super) struct RedisTarget {
    client: Client,
    name: String,
}

impl std::fmt::Debug for RedisTarget {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RedisTarget").field(&self.name).finish()
    }
}

impl RedisTarget {
    /// Parses `url`; `password` is used if `url` has none.
    pub fn parse(url: &str, password: Option<&str>) -> Result<Self> {
        let wrong = || Error::new(Kind::Invalid, format!("not a target: {EXPECTED}"));
        let (place, options) = url.split_once('?').unwrap_or((url, ""));
        // A password with such characters would be taken for a host or an option, and shown.
        if place.matches('@').count() > 1 || options.contains('@') || url.contains('#') {
            return Err(wrong());
        }
        let name = without_password(url);
        let options = options.split('&');
        let names = options.map(|option| option.split('=').next().unwrap_or_default());
        if names.filter(|name| !name.is_empty()).any(|name| !OPTIONS.contains(&name)) {
            let what = format!("{name}: the options of a URL are {}", OPTIONS.join(", "));
            return Err(Error::new(Kind::Invalid, what));
        }
        let info = url.into_connection_info().map_err(|_| wrong())?;
        let settings = info.redis_settings().clone();
        let info = match (settings.password(), password) {
            (None, Some(password)) => info.set_redis_settings(settings.set_password(password)),
            _ => info,
        };
        let client = Client::open(info).map_err(|_| wrong())?;
        Ok(Self { client, name })
    }

    /// The URL without secrets.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A new connection.
    pub fn open(&self) -> Result<Connection> {
        let connect = || -> redis::RedisResult<Connection> {
            let connection = self.client.get_connection_with_timeout(TIMEOUT)?;
            connection.set_read_timeout(Some(TIMEOUT))?;
            connection.set_write_timeout(Some(TIMEOUT))?;
            Ok(connection)
        };
        connect().map_err(|error| failed(&error, &self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_no_secrets() {
        for (url, shown) in [
            ("redis://host", "redis://host"),
            ("redis://user:secret@host:7000/3", "redis://user@host:7000/3"),
            ("redis://:secret@host/3?protocol=resp3", "redis://host/3?protocol=resp3"),
            ("redis+unix:///run/r?db=2&pass=secret&user=u", "redis+unix:///run/r?db=2&user=u"),
        ] {
            let target = RedisTarget::parse(url, Some("other secret")).expect(url);
            assert_eq!(target.name(), shown);
            assert!(!format!("{target:?}").contains("secret"), "{target:?}");
        }
        for url in [
            "redis://user:sec@ret@host/0",
            "redis://user:secret#@host",
            "redis://",
            "redis",
            "rediss://user:secret@host",
            "redis://:secret@host/none",
            "redis://user:secret@host:port",
            "redis+unix:///run/r?dbx=2&pass=secret",
        ] {
            let error = RedisTarget::parse(url, None).expect_err(url);
            assert_eq!(error.kind(), Kind::Invalid, "{url}");
            assert!(!error.to_string().contains("sec"), "{error}");
        }
    }

    #[test]
    fn a_password_of_the_url_comes_first() {
        let password = |url| {
            let target = RedisTarget::parse(url, Some("given")).expect(url);
            target.client.get_connection_info().redis_settings().password().map(str::to_owned)
        };
        assert_eq!(password("redis://user@host").as_deref(), Some("given"));
        assert_eq!(password("redis://user:own@host").as_deref(), Some("own"));
    }
}
