// SPDX-License-Identifier: Apache-2.0
//! Servers for tests.

use std::sync::Arc;
use std::time::Duration;

use esker_base::Result;
use esker_base::clock::SystemClock;
use esker_base::store::{MemoryStore, SharedStore};
use esker_fs::repository::Repository;
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_live::client::LiveClientOptions;
use esker_live::proof::UserSecret;
use esker_live::{LiveServer, LiveServerOptions, LiveTree};
use esker_table::tree::{Durability, TreeOptions};

/// Name of the live namespace of a test.
pub const NAME: &str = "run";

/// A store with one live namespace.
pub struct LiveStore {
    pub store: SharedStore,
    pub repository: Repository,
}

impl LiveStore {
    /// A new store in memory.
    pub fn new() -> Self {
        Self::in_store(Arc::new(MemoryStore::new()))
    }

    /// The namespace in `store`, which is made if it is absent.
    pub fn in_store(store: SharedStore) -> Self {
        let repository = Repository::new(store.clone());
        let live = Self { store, repository };
        match live.repository.create_live(NAME, &[], 1, session_options()) {
            Err(error) if error.kind() == esker_base::Kind::Exists => {}
            made => drop(made.expect("a live namespace")),
        }
        live
    }

    /// A server, which takes over from any other.
    pub fn serve(&self) -> LiveServer {
        self.serve_with(server_options()).expect("a server")
    }

    pub fn serve_with(&self, options: LiveServerOptions) -> Result<LiveServer> {
        LiveServer::start(&self.repository, (NAME, 0), options)
    }

    /// A client.
    pub fn connect(&self) -> LiveTree {
        LiveTree::connect(&self.store, NAME, client_options()).expect("a connection")
    }
}

pub fn session_options() -> SessionOptions {
    let tree = TreeOptions { durability: Durability::Async, ..TreeOptions::default() };
    // Without a writer on record, a second server of this process takes over at once.
    SessionOptions { identity: Identity::of_process(), tree, heartbeat: None, ..Default::default() }
}

pub fn server_options() -> LiveServerOptions {
    LiveServerOptions::local(session_options(), Arc::new(SystemClock))
}

/// Settings of a server that accepts TCP connections of clients that know `secret`.
pub fn tcp_options(secret: &UserSecret) -> LiveServerOptions {
    LiveServerOptions {
        tcp: Some("127.0.0.1:0".parse().expect("an address")),
        host: "127.0.0.1".to_owned(),
        secret: Some(secret.clone()),
        ..server_options()
    }
}

pub fn client_options() -> LiveClientOptions {
    LiveClientOptions {
        identity: Identity::of_process(),
        secret: None,
        patience: Duration::from_secs(20),
        notice: None,
    }
}
