// SPDX-License-Identifier: Apache-2.0
//! Redis: a hash for each dataset.
//!
//! ```text
//! esker-workbench:marker         the marker, a string
//! esker-workbench:rank-0/set-1   a dataset, a hash: field "object-2" is the content of an object
//! ```
//! A hash is what Redis lists without reading all keys of the server. Datasets exist while they have
//! objects, and cost nothing to make. How durable an object is when a call returns depends on the
//! server's settings, which [`Backend::service`] states. Servers that are part of a cluster are
//! refused. Concurrency: each rank has a connection of its own.

mod connection;
mod failure;
mod target;

use esker_base::{Error, Kind, Result};
use redis::{Connection, FromRedisValue, RedisResult, Value};

use self::connection::RedisConnection;
use self::failure::failed;
use self::target::RedisTarget;
use super::{Backend, BackendConnection, MARKER_BYTES_MAX, is_numbered, taken};
use crate::pattern::{DatasetId, WorkingSetSize};

/// What begins all keys.
const PREFIX: &str = "esker-workbench:";

/// The key of the marker.
const MARKER_KEY: &str = "esker-workbench:marker";

/// Keys that one call looks through.
const SCAN_KEYS: u32 = 1_000;

/// A database of a Redis server.
#[derive(Debug)]
pub struct RedisBackend {
    target: RedisTarget,
}

fn key_of(dataset: DatasetId) -> String {
    format!("{PREFIX}{dataset}")
}

/// True for the key of a dataset.
fn is_dataset(key: &[u8]) -> bool {
    let Some(path) = key.strip_prefix(PREFIX.as_bytes()) else { return false };
    let mut parts = path.split(|byte| *byte == b'/');
    let mut next = |prefix| parts.next().is_some_and(|part| is_numbered(part, prefix));
    next("rank-") && next("set-") && parts.next().is_none()
}

impl RedisBackend {
    /// The working set in the database at `url`; `password` is used if `url` has none.
    ///
    /// # Errors
    /// `Invalid` for a bad URL. The server is not contacted yet.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self> {
        RedisTarget::parse(url, password).map(|target| Self { target })
    }

    /// Runs `command`.
    fn ask<T: FromRedisValue>(
        &self,
        connection: &mut Connection,
        command: &redis::Cmd,
    ) -> Result<T> {
        command.query(connection).map_err(|error| failed(&error, self.target.name()))
    }

    fn marker_in(&self, connection: &mut Connection) -> Result<Option<Vec<u8>>> {
        let bytes: u64 = self.ask(connection, redis::cmd("STRLEN").arg(MARKER_KEY))?;
        if bytes > MARKER_BYTES_MAX {
            let what = format!("{}: {MARKER_KEY} has something else", self.target.name());
            return Err(Error::new(Kind::TooLarge, what));
        }
        self.ask(connection, redis::cmd("GET").arg(MARKER_KEY))
    }

    /// Calls `visit` with all keys that begin with [`PREFIX`], until it returns false. A key may come
    /// more than once.
    fn for_each_key(
        &self,
        connection: &mut Connection,
        visit: &mut dyn FnMut(&mut Connection, &[u8]) -> Result<bool>,
    ) -> Result<()> {
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(format!("{PREFIX}*")).arg("COUNT").arg(SCAN_KEYS);
            let (next, keys): (u64, Vec<Vec<u8>>) = self.ask(connection, &scan)?;
            for key in &keys {
                if !visit(connection, key)? {
                    return Ok(());
                }
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Removes the dataset at `key`, and returns the number of its objects; `None` for something else,
    /// which stays.
    fn remove_dataset(&self, connection: &mut Connection, key: &[u8]) -> Result<Option<u64>> {
        if !is_dataset(key) {
            return Ok(None);
        }
        let kind: String = self.ask(connection, redis::cmd("TYPE").arg(key))?;
        if kind != "hash" {
            return Ok((kind == "none").then_some(0));
        }
        let fields: Vec<Vec<u8>> = self.ask(connection, redis::cmd("HKEYS").arg(key))?;
        if !fields.iter().all(|field| is_numbered(field, "object-")) {
            return Ok(None);
        }
        let _: u64 = self.ask(connection, redis::cmd("UNLINK").arg(key))?;
        Ok(Some(fields.len() as u64))
    }
}

impl Backend for RedisBackend {
    fn target(&self) -> String {
        self.target.name().to_owned()
    }

    fn kind(&self) -> &'static str {
        "redis"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        Ok(Box::new(RedisConnection::open(&self.target)?))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        self.marker_in(&mut self.target.open()?)
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let mut connection = self.target.open()?;
        let mut set = redis::cmd("SET");
        set.arg(MARKER_KEY).arg(marker);
        if self.marker_in(&mut connection)?.is_some() {
            return self.ask::<()>(&mut connection, &set);
        }
        let mut is_empty = true;
        self.for_each_key(&mut connection, &mut |_, _| {
            is_empty = false;
            Ok(false)
        })?;
        if !is_empty {
            let what = format!(
                "{}: keys that begin with {PREFIX} are there already; use another database, or remove \
                 them",
                self.target.name()
            );
            return Err(Error::new(Kind::NotEmpty, what));
        }
        match self.ask(&mut connection, set.arg("NX"))? {
            Value::Nil => Err(taken(self.target.name())),
            _ => Ok(()),
        }
    }

    fn clear(&self) -> Result<u64> {
        let mut connection = self.target.open()?;
        if self.marker_in(&mut connection)?.is_none() {
            let what = "there is no working set of the workbench";
            return Err(Error::new(Kind::NotFound, format!("{}: {what}", self.target.name())));
        }
        let (mut objects, mut foreign) = (0, None);
        self.for_each_key(&mut connection, &mut |connection, key| {
            if key != MARKER_KEY.as_bytes() {
                match self.remove_dataset(connection, key)? {
                    Some(removed) => objects += removed,
                    None => foreign = Some(String::from_utf8_lossy(key).into_owned()),
                }
            }
            Ok(true)
        })?;
        if let Some(key) = foreign {
            let what = format!(
                "{}: the key {key} is not of a working set, and stays; use another database, or remove \
                 it",
                self.target.name()
            );
            return Err(Error::new(Kind::NotEmpty, what));
        }
        let _: u64 = self.ask(&mut connection, redis::cmd("DEL").arg(MARKER_KEY))?;
        Ok(objects)
    }

    fn service(&self) -> Result<String> {
        let mut connection = self.target.open()?;
        let info: String = self.ask(&mut connection, redis::cmd("INFO").arg("server"))?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        let mut service = format!("Redis {}", version.unwrap_or("of an unknown version").trim());
        for name in ["appendonly", "appendfsync", "save", "maxmemory-policy"] {
            // Users often may not read the settings.
            let found: RedisResult<Vec<String>> =
                redis::cmd("CONFIG").arg("GET").arg(name).query(&mut connection);
            let value = found.ok().and_then(|pair| pair.into_iter().nth(1));
            let value = value.map_or_else(|| "?".to_owned(), |value| value.replace(' ', ","));
            service += &format!(" {name}={value}");
        }
        Ok(service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_are_known_by_their_keys() {
        let own = key_of(DatasetId { rank: 10, number: 0 });
        assert_eq!(own, "esker-workbench:rank-10/set-0");
        assert!(is_dataset(own.as_bytes()));
        for other in
            ["marker", "rank-1", "rank-1/set-", "rank-01/set-1", "rank-1/set-1/object-1", ""]
        {
            assert!(!is_dataset(format!("{PREFIX}{other}").as_bytes()), "{other}");
        }
        assert!(!is_dataset(b"rank-1/set-1"));
    }
}
