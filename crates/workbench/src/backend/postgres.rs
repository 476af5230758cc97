// SPDX-License-Identifier: Apache-2.0
//! PostgreSQL: rows of one table, the mapping that md-workbench's plugin uses by default.
//!
//! ```text
//! esker_workbench.marker   content                            the marker, one row
//! esker_workbench.object   rank, dataset, number, content     an object; the first three are its key
//! ```
//! Datasets are prefixes of keys and cost nothing to make. Each call is one statement, which is its
//! own transaction: how durable it is when it returns depends on the server's settings, which
//! [`Backend::service`] states. Unlike md-workbench, a connection prepares its statements once, and
//! the key is three numbers instead of a path.
//! Concurrency: each rank has a connection of its own; calls of the backend itself open another.

use std::error::Error as _;
use std::fmt::Write as _;
use std::iter::successors;
use std::time::Duration;

use esker_base::{Error, Kind, Result};
use postgres::config::Host;
use postgres::error::SqlState;
use postgres::fallible_iterator::FallibleIterator;
use postgres::types::ToSql;
use postgres::{Client, Config, NoTls, Statement, Transaction};

use super::{Backend, BackendConnection, MARKER_BYTES_MAX};
use crate::pattern::{DatasetId, OBJECT_BYTES_MAX, ObjectId, WorkingSetSize};

/// Time for making a connection, unless the target states another.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const CREATE_TABLES: &str = "\
CREATE SCHEMA esker_workbench;
CREATE TABLE esker_workbench.marker (content bytea NOT NULL);
CREATE TABLE esker_workbench.object (
    rank bigint, dataset bigint, number bigint, content bytea NOT NULL,
    PRIMARY KEY (rank, dataset, number))";

/// Drops nothing that a working set does not have: other tables keep the schema from being dropped.
const DROP_TABLES: &str = "\
DROP TABLE esker_workbench.object, esker_workbench.marker RESTRICT;
DROP SCHEMA esker_workbench RESTRICT";

/// The settings that decide how durable a transaction is when it returns.
const DURABILITY_SETTINGS: &str = "\
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names',
               'wal_sync_method')
ORDER BY name";

/// A database of a PostgreSQL server.
#[derive(Debug)]
pub struct PostgresBackend {
    config: Config,
    /// The target without a password.
    target: String,
}

impl PostgresBackend {
    /// The working set in the database at `url`; `password` is used if `url` has none.
    ///
    /// # Errors
    /// `Invalid` for a bad URL. The server is not contacted yet.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self> {
        let mut config: Config = url.parse().map_err(|error: postgres::Error| {
            let what = "not a target: expected postgresql://user@host:port/database";
            Error::new(Kind::Invalid, what).with_source(error)
        })?;
        if config.get_hosts().is_empty() {
            let what = "postgresql: the target names no host: expected \
                        postgresql://user@host:port/database";
            return Err(Error::new(Kind::Invalid, what));
        }
        if let (None, Some(password)) = (config.get_password(), password) {
            config.password(password);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.application_name("esker workbench");
        Ok(Self { target: target_of(&config), config })
    }

    fn client(&self) -> Result<Client> {
        self.config.connect(NoTls).map_err(|error| failed(error, &self.target))
    }

    fn failed(&self, error: postgres::Error) -> Error {
        failed(error, &self.target)
    }

    /// The error for a schema that is not, or not only, a working set's.
    fn foreign_schema(&self) -> Error {
        let what = "the schema esker_workbench has tables or views that are not of a working set, \
                    which stay; use another database, or move them away";
        Error::new(Kind::NotEmpty, format!("{}: {what}", self.target))
    }

    /// The marker as `transaction` sees it.
    fn marker_in(&self, transaction: &mut Transaction<'_>) -> Result<Option<Vec<u8>>> {
        let failed = |error| self.failed(error);
        if !has_relation(transaction, "esker_workbench.marker").map_err(failed)? {
            return Ok(None);
        }
        // One byte more than a marker may have shows that it is too large.
        let bytes = MARKER_BYTES_MAX + 1;
        let query =
            format!("SELECT substring(content FOR {bytes}) FROM esker_workbench.marker LIMIT 1");
        let Some(row) = transaction.query_opt(&query, &[]).map_err(failed)? else {
            return Ok(None);
        };
        let marker: Vec<u8> = row.try_get(0).map_err(failed)?;
        if marker.len() as u64 > MARKER_BYTES_MAX {
            let what = format!("{}: esker_workbench.marker has no marker", self.target);
            return Err(Error::new(Kind::TooLarge, what));
        }
        Ok(Some(marker))
    }
}

/// The target as a URL that finds the same database, without the password.
fn target_of(config: &Config) -> String {
    let mut target = "postgresql://".to_owned();
    if let Some(user) = config.get_user() {
        target += &format!("{}@", percent_encoded(user.as_bytes()));
    }
    let ports = config.get_ports();
    for (index, host) in config.get_hosts().iter().enumerate() {
        let name = match host {
            Host::Tcp(name) => name.as_bytes(),
            Host::Unix(path) => path.as_os_str().as_encoded_bytes(),
        };
        // One port may serve all hosts.
        let port = ports.get(index).or(ports.first()).copied().unwrap_or(5432);
        let comma = if index == 0 { "" } else { "," };
        target += &format!("{comma}{}:{port}", percent_encoded(name));
    }
    if let Some(database) = config.get_dbname() {
        target += &format!("/{}", percent_encoded(database.as_bytes()));
    }
    if let Some(options) = config.get_options() {
        target += &format!("?options={}", percent_encoded(options.as_bytes()));
    }
    target
}

fn percent_encoded(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                text.push(char::from(*byte));
            }
            _ => write!(text, "%{byte:02X}").expect("strings grow"),
        }
    }
    text
}

fn failed(error: postgres::Error, what: impl std::fmt::Display) -> Error {
    let kind = error.code().map_or(Kind::Unavailable, kind_of);
    // The driver's own text for an error of the server is "db error".
    match error.as_db_error() {
        Some(said) => {
            let context = format!("{what}: {} (SQLSTATE {})", said.message(), said.code().code());
            Error::new(kind, context)
        }
        None => {
            // The driver's own text for a failed connection leaves out why.
            let causes = successors(error.source(), |cause| (*cause).source());
            let causes: String = causes.map(|cause| format!(": {cause}")).collect();
            Error::new(kind, format!("{what}{causes}")).with_source(error)
        }
    }
}

/// The kind of an error that the server returned; the first two characters of a code are its class.
fn kind_of(code: &SqlState) -> Kind {
    match code.code() {
        "23505" | "42P06" | "42P07" => Kind::Exists,
        "3D000" | "3F000" | "42P01" => Kind::NotFound,
        "2BP01" => Kind::NotEmpty,
        "42501" => Kind::Denied,
        "25006" => Kind::ReadOnly,
        "53100" => Kind::NoSpace,
        code => match &code[..code.len().min(2)] {
            "28" => Kind::Denied,
            "40" | "55" => Kind::Conflict,
            "08" | "53" | "57" => Kind::Unavailable,
            "54" => Kind::TooLarge,
            "58" => Kind::DeviceFailed,
            "XX" => Kind::Corrupt,
            _ => Kind::Invalid,
        },
    }
}

/// True if the table `name` exists.
fn has_relation(
    client: &mut impl postgres::GenericClient,
    name: &str,
) -> std::result::Result<bool, postgres::Error> {
    let query = format!("SELECT to_regclass('{name}') IS NOT NULL");
    client.query_one(&query, &[])?.try_get(0)
}

impl Backend for PostgresBackend {
    fn target(&self) -> String {
        self.target.clone()
    }

    fn kind(&self) -> &'static str {
        "postgresql"
    }

    fn connect(&self, _: u32, _: &WorkingSetSize) -> Result<Box<dyn BackendConnection + '_>> {
        let mut client = self.client()?;
        let has_tables = has_relation(&mut client, "esker_workbench.object");
        let has_tables = has_tables.map_err(|error| self.failed(error))?;
        let mut connection = PostgresConnection { client, target: &self.target, statements: None };
        if has_tables {
            connection.prepared()?;
        }
        Ok(Box::new(connection))
    }

    fn read_marker(&self) -> Result<Option<Vec<u8>>> {
        let mut client = self.client()?;
        let mut transaction = client.transaction().map_err(|error| self.failed(error))?;
        self.marker_in(&mut transaction)
    }

    fn write_marker(&self, marker: &[u8]) -> Result<()> {
        let mut client = self.client()?;
        let failed = |error| self.failed(error);
        let mut transaction = client.transaction().map_err(failed)?;
        let statement = match self.marker_in(&mut transaction)? {
            Some(_) => "UPDATE esker_workbench.marker SET content = $1",
            None => {
                let query = "SELECT 1 FROM pg_namespace WHERE nspname = 'esker_workbench'";
                if transaction.query_opt(query, &[]).map_err(failed)?.is_some() {
                    return Err(self.foreign_schema());
                }
                transaction.batch_execute(CREATE_TABLES).map_err(failed)?;
                "INSERT INTO esker_workbench.marker (content) VALUES ($1)"
            }
        };
        transaction.execute(statement, &[&marker]).map_err(failed)?;
        transaction.commit().map_err(failed)
    }

    fn clear(&self) -> Result<u64> {
        let mut client = self.client()?;
        let failed = |error| self.failed(error);
        // One transaction: after a crash everything is there, or nothing.
        let mut transaction = client.transaction().map_err(failed)?;
        if self.marker_in(&mut transaction)?.is_none() {
            let what = "there is no working set of the workbench";
            return Err(Error::new(Kind::NotFound, format!("{}: {what}", self.target)));
        }
        let query = "SELECT count(*) FROM esker_workbench.object";
        let row = transaction.query_one(query, &[]).map_err(failed)?;
        let objects: i64 = row.try_get(0).map_err(failed)?;
        transaction.batch_execute(DROP_TABLES).map_err(|error| match error.code() {
            Some(&SqlState::DEPENDENT_OBJECTS_STILL_EXIST) => self.foreign_schema(),
            _ => self.failed(error),
        })?;
        transaction.commit().map_err(failed)?;
        Ok(objects.cast_unsigned())
    }

    fn service(&self) -> Result<String> {
        let mut client = self.client()?;
        let failed = |error| self.failed(error);
        let row = client.query_one("SHOW server_version", &[]).map_err(failed)?;
        let mut service = format!("PostgreSQL {};", row.try_get::<_, &str>(0).map_err(failed)?);
        for row in client.query(DURABILITY_SETTINGS, &[]).map_err(failed)? {
            let name: &str = row.try_get(0).map_err(failed)?;
            let setting: &str = row.try_get(1).map_err(failed)?;
            write!(service, " {name}={setting}").expect("strings grow");
        }
        Ok(service)
    }
}

/// The statements of a connection, prepared by the server.
struct ObjectStatements {
    create: Statement,
    stat: Statement,
    read: Statement,
    delete: Statement,
    list: Statement,
    list_attributes: Statement,
    rename: Statement,
}

impl ObjectStatements {
    fn prepare(client: &mut Client) -> std::result::Result<Self, postgres::Error> {
        let key = "rank = $1 AND dataset = $2 AND number = $3";
        let set = "rank = $1 AND dataset = $2";
        let table = "esker_workbench.object";
        Ok(Self {
            create: client.prepare(&format!("INSERT INTO {table} VALUES ($1, $2, $3, $4)"))?,
            stat: client
                .prepare(&format!("SELECT octet_length(content) FROM {table} WHERE {key}"))?,
            read: client.prepare(&format!("SELECT content FROM {table} WHERE {key}"))?,
            delete: client.prepare(&format!("DELETE FROM {table} WHERE {key}"))?,
            list: client.prepare(&format!("SELECT number FROM {table} WHERE {set}"))?,
            list_attributes: client.prepare(&format!(
                "SELECT number, octet_length(content) FROM {table} WHERE {set}"
            ))?,
            rename: client.prepare(&format!("UPDATE {table} SET number = $4 WHERE {key}"))?,
        })
    }
}

struct PostgresConnection<'a> {
    client: Client,
    target: &'a str,
    /// `None` while the tables do not exist.
    statements: Option<ObjectStatements>,
}

/// A key of the table; numbers of objects are far below 2^63.
fn key(object: ObjectId) -> [i64; 3] {
    let dataset = object.dataset;
    [i64::from(dataset.rank), i64::from(dataset.number), object.number.cast_signed()]
}

impl PostgresConnection<'_> {
    /// The client and its statements, which are prepared now if they were not yet.
    fn prepared(&mut self) -> Result<(&mut Client, &ObjectStatements)> {
        if self.statements.is_none() {
            let prepared = ObjectStatements::prepare(&mut self.client);
            self.statements = Some(prepared.map_err(|error| failed(error, self.target))?);
        }
        Ok((&mut self.client, self.statements.as_ref().expect("prepared above")))
    }

    fn failed(&self, error: postgres::Error, object: ObjectId) -> Error {
        failed(error, format_args!("{}/{object}", self.target))
    }

    fn absent(&self, object: ObjectId) -> Error {
        Error::new(Kind::NotFound, format!("{}/{object}: no such row", self.target))
    }

    /// Fails with `NotFound` unless a statement changed the row of `object`.
    fn changed(
        &self,
        rows: std::result::Result<u64, postgres::Error>,
        object: ObjectId,
    ) -> Result<()> {
        match rows {
            Ok(0) => Err(self.absent(object)),
            Ok(_) => Ok(()),
            Err(error) => Err(self.failed(error, object)),
        }
    }
}

impl BackendConnection for PostgresConnection<'_> {
    fn add_rank(&mut self, _: u32) -> Result<()> {
        self.prepared().map(drop)
    }

    fn mkdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn rmdir(&mut self, _: DatasetId) -> Result<()> {
        Ok(())
    }

    fn create(&mut self, object: ObjectId, content: &[u8]) -> Result<()> {
        let [rank, dataset, number] = key(object);
        let (client, statements) = self.prepared()?;
        let rows = client.execute(&statements.create, &[&rank, &dataset, &number, &content]);
        rows.map(drop).map_err(|error| self.failed(error, object))
    }

    fn stat(&mut self, object: ObjectId) -> Result<u64> {
        let [rank, dataset, number] = key(object);
        let (client, statements) = self.prepared()?;
        let found = client
            .query_opt(&statements.stat, &[&rank, &dataset, &number])
            .and_then(|row| row.map(|row| row.try_get::<_, i32>(0)).transpose());
        let bytes = found.map_err(|error| self.failed(error, object))?;
        bytes.map(|bytes| u64::from(bytes.unsigned_abs())).ok_or_else(|| self.absent(object))
    }

    fn read(&mut self, object: ObjectId, content: &mut Vec<u8>) -> Result<()> {
        let [rank, dataset, number] = key(object);
        let (client, statements) = self.prepared()?;
        let row = client.query_opt(&statements.read, &[&rank, &dataset, &number]);
        let Some(row) = row.map_err(|error| self.failed(error, object))? else {
            return Err(self.absent(object));
        };
        let bytes: &[u8] = row.try_get(0).map_err(|error| self.failed(error, object))?;
        if bytes.len() as u64 > OBJECT_BYTES_MAX {
            let what = format!("{}/{object} has {} bytes", self.target, bytes.len());
            return Err(Error::new(Kind::TooLarge, what));
        }
        content.clear();
        content.extend_from_slice(bytes);
        Ok(())
    }

    fn delete(&mut self, object: ObjectId) -> Result<()> {
        let [rank, dataset, number] = key(object);
        let (client, statements) = self.prepared()?;
        let rows = client.execute(&statements.delete, &[&rank, &dataset, &number]);
        self.changed(rows, object)
    }

    fn list(&mut self, dataset: DatasetId, with_attributes: bool) -> Result<u64> {
        let (rank, number) = (i64::from(dataset.rank), i64::from(dataset.number));
        let (client, statements) = self.prepared()?;
        let statement =
            if with_attributes { &statements.list_attributes } else { &statements.list };
        let key: [&(dyn ToSql + Sync); 2] = [&rank, &number];
        // Row by row: the client need not hold the whole dataset.
        let counted = client.query_raw(statement, key).and_then(FallibleIterator::count);
        let counted = counted.map(|count| count as u64);
        counted.map_err(|error| failed(error, format_args!("{}/{dataset}", self.target)))
    }

    fn rename(&mut self, old: ObjectId, new: ObjectId) -> Result<()> {
        let [rank, dataset, number] = key(old);
        let new_number = new.number.cast_signed();
        let (client, statements) = self.prepared()?;
        let rows = client.execute(&statements.rename, &[&rank, &dataset, &number, &new_number]);
        self.changed(rows, old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_without_passwords_and_find_the_same_database() {
        let urls = [
            "postgresql://user:se/cret@host:5433/data",
            "postgres://%2Ftmp%2Fserver:6000/data?user=a%40b&password=secret",
            "postgresql://user:secret@[::1]/data",
            "postgresql://user:secret@a:1,b:2/my%20data",
        ];
        for url in urls {
            let backend = PostgresBackend::new(url, Some("other")).expect("a target");
            let target = backend.target();
            assert!(!target.contains("cret") && !target.contains("other"), "{target}");
            let again = PostgresBackend::new(&target, Some("other")).expect("a target");
            assert_eq!(again.target(), target);
            let (a, b) = (&backend.config, &again.config);
            assert_eq!((a.get_user(), a.get_dbname()), (b.get_user(), b.get_dbname()));
            assert_eq!(a.get_hosts(), b.get_hosts());
            assert_ne!(a.get_password(), Some(&b"other"[..]), "the URL's own password counts");
            assert_eq!(b.get_password(), Some(&b"other"[..]));
        }
        for url in ["postgresql://user@host:port/data", "postgresql:///data"] {
            assert_eq!(PostgresBackend::new(url, None).expect_err(url).kind(), Kind::Invalid);
        }
    }

    #[test]
    fn codes_have_kinds() {
        for (code, kind) in [
            ("23505", Kind::Exists),
            ("28P01", Kind::Denied),
            ("53300", Kind::Unavailable),
            ("53100", Kind::NoSpace),
            ("22003", Kind::Invalid),
        ] {
            assert_eq!(kind_of(&SqlState::from_code(code)), kind, "{code}");
        }
    }
}
