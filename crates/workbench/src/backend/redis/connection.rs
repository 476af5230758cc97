// SPDX-License-Identifier: Apache-2.0
//! Connection: operations of a rank as commands.
//!
//! A list with attributes is one call for the names and one for all sizes; neither transfers
//! contents. `rename` is a read, an insert and a deletion, in this order: a crash between the last two
//! leaves both objects. A connection that has failed is replaced by the next call.

use esker_base::{Error, Kind, Result};
use redis::{Cmd, Connection, FromRedisValue, RedisError};

use super::failure::failed;
use super::key_of;
use super::target::RedisTarget;
use crate::backend::BackendConnection;
use crate::pattern::{DatasetId, ObjectId};

/// One rank's connection.
pub(super) struct RedisConnection<'a> {
    target: &'a RedisTarget,
    /// `None` once it has failed.
    open: Option<Connection>,
}

fn field_of(object: ObjectId) -> String {
    format!("object-{}", object.number)
}

/// The command `name` on `object`.
fn on(name: &str, object: ObjectId) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(key_of(object.dataset)).arg(field_of(object));
    command
}

impl<'a> RedisConnection<'a> {
    /// Connects.
    pub fn open(target: &'a RedisTarget) -> Result<Self> {
        Ok(Self { target, open: Some(target.open()?) })
    }

    /// Calls `ask` with the connection.
    fn with_connection<T>(
        &mut self,
        place: impl std::fmt::Display,
        ask: impl FnOnce(&mut Connection) -> std::result::Result<T, RedisError>,
    ) -> Result<T> {
        let mut connection = match self.open.take() {
            Some(connection) => connection,
            None => self.target.open()?,
        };
        let answer = ask(&mut connection);
        // What comes next on a connection that has failed may be the answer to this call.
        if answer
            .as_ref()
            .err()
            .is_none_or(|error| !error.is_unrecoverable_error() && !error.is_timeout())
        {
            self.open = Some(connection);
        }
        answer.map_err(|error| failed(&error, format_args!("{}/{place}", self.target.name())))
    }

    fn ask<T: FromRedisValue>(&mut self, object: ObjectId, command: &Cmd) -> Result<T> {
        self.with_connection(object, |connection| command.query(connection))
    }

    fn absent(&self, object: ObjectId) -> Error {
        Error::new(Kind::NotFound, format!("{}/{object}: no such field", self.target.name()))
    }

    fn content(&mut self, object: ObjectId) -> Result<Vec<u8>> {
        let found: Option<Vec<u8>> = self.ask(object, &on("HGET", object))?;
        found.ok_or_else(|| self.absent(object))
    }
}

impl BackendConnection for RedisConnection<'_> {
    fn mkdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn rmdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        match self.ask(object, on("HSETNX", object).arg(content))? {
            true => Ok(()),
            false => {
                let what = format!("{}/{object}: the field exists", self.target.name());
                Err(Error::new(Kind::Exists, what))
            }
        }
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        let bytes: u64 = self.ask(object, &on("HSTRLEN", object))?;
        // That of an absent field is 0, too.
        if bytes == 0 && !self.ask::<bool>(object, &on("HEXISTS", object))? {
            return Err(self.absent(object));
        }
        Ok(bytes)
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        *content = self.content(object)?;
        Ok(())
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        match self.ask(object, &on("HDEL", object))? {
            true => Ok(()),
            false => Err(self.absent(object)),
        }
    }

    fn list(&mut self, dataset: DatasetId, with_attributes: bool) -> Result<u64> {
        let key = key_of(dataset);
        self.with_connection(dataset, |connection| {
            let fields: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(&key).query(connection)?;
            if with_attributes && !fields.is_empty() {
                let mut sizes = redis::pipe();
                for field in &fields {
                    sizes.cmd("HSTRLEN").arg(&key).arg(field);
                }
                let _: Vec<u64> = sizes.query(connection)?;
            }
            Ok(fields.len() as u64)
        })
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        let content = self.content(old)?;
        self.create(new, &content)?;
        self.delete(old)
    }
}
