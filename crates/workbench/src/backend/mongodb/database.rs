// SPDX-License-Identifier: Apache-2.0
//! Database: a client of the driver that runs in the thread of its rank.
//!
//! The driver is asynchronous. Its blocking interface hands each call to threads that all clients
//! share, which costs tens of microseconds a call, more on a busy machine. Here the calling thread
//! runs the driver itself, as in the blocking driver of PostgreSQL. The driver's monitors of the
//! deployment make progress while a call waits, so a server that stops answering fails the call.
//! Concurrency: one thread at a time. A client has one connection for calls and one that monitors.

use std::future::IntoFuture;
use std::time::Duration;

use esker_base::{Error, Result};
use mongodb::action::RunCommand;
use mongodb::bson::{Document, RawDocumentBuf};
use mongodb::{Client, Collection, Database};
use tokio::runtime::{Builder, Runtime};

use super::failure::failed;
use super::target::MongoTarget;

/// Time for ending the sessions of a client, which the server else does later.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// The database of a target, through a client of its own.
pub(super) struct MongoDatabase {
    runtime: Runtime,
    /// `None` once dropped.
    client: Option<Client>,
    database: Database,
    admin: Database,
}

/// A runtime of the calling thread.
pub(super) fn runtime() -> Result<Runtime> {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io(error, "mongodb: start the driver"))
}

impl MongoDatabase {
    /// Makes a client; it connects when it is first used.
    pub fn open(target: &MongoTarget) -> Result<Self> {
        let runtime = runtime()?;
        let client = {
            let _inside = runtime.enter();
            Client::with_options(target.options().clone())
                .map_err(|error| failed(error, target.name()))?
        };
        let database = client.database(target.database());
        let admin = client.database("admin");
        Ok(Self { runtime, client: Some(client), database, admin })
    }

    /// Runs `action` until it has answered.
    pub fn wait<A: IntoFuture>(&self, action: A) -> A::Output {
        self.runtime.block_on(async { action.await })
    }

    /// The collection `name`.
    pub fn collection(&self, name: &str) -> Collection<RawDocumentBuf> {
        self.database.collection(name)
    }

    /// A command on the database.
    pub fn run(&self, command: Document) -> RunCommand<'_> {
        self.database.run_command(command)
    }

    /// A command on the database of the deployment itself.
    pub fn run_as_admin(&self, command: Document) -> RunCommand<'_> {
        self.admin.run_command(command)
    }
}

impl Drop for MongoDatabase {
    fn drop(&mut self) {
        let _inside = self.runtime.enter();
        if let Some(client) = self.client.take() {
            let shutdown = async { client.shutdown().immediate(true).await };
            let bounded = async { tokio::time::timeout(SHUTDOWN_TIMEOUT, shutdown).await };
            let _ = self.runtime.block_on(bounded);
        }
    }
}
