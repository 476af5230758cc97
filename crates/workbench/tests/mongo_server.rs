// SPDX-License-Identifier: Apache-2.0
//! MongoDB server: mongo-java-server with data of its own, and the deployment that `MONGODB_URL`
//! names.
//!
//! `scripts/setup.sh test` installs mongo-java-server. If it is missing, tests of MongoDB print
//! that and pass, unless `ESKER_REQUIRE_MONGODB` is set. It speaks MongoDB's protocol and keeps
//! documents in a file of H2, but it is not MongoDB: it has neither users nor replica sets.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The version that `scripts/install-mongo-server.sh` installs.
const DIRECTORY: &str = "esker/mongo-java-server-1.46.0";

/// Taken while a test uses the database that `MONGODB_URL` names.
static NAMED_DATABASE: Mutex<()> = Mutex::new(());

/// A server that tests may use; one of the tests' own is stopped when dropped.
pub enum MongoServer {
    Started { process: Child, port: u16, _directory: tempfile::TempDir },
    Named { url: String, _turn: MutexGuard<'static, ()> },
}

impl MongoServer {
    /// Starts a server with an empty database, or prints why it cannot.
    pub fn start() -> Option<Self> {
        let root = cache().map(|cache| cache.join(DIRECTORY));
        let Some(root) = root.filter(|root| root.join("MongoFileServer.class").is_file()) else {
            let what = "mongo-java-server is missing: run scripts/setup.sh test";
            assert!(std::env::var_os("ESKER_REQUIRE_MONGODB").is_none(), "{what}");
            println!("skipped: {what}");
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let mut process = Command::new("java")
            // Starts sooner, and takes less of a small machine.
            .args(["-XX:TieredStopAtLevel=1", "-Xmx256m", "-XX:+UseSerialGC", "-cp"])
            .arg(format!("{0}:{0}/lib/*", root.display()))
            .arg("MongoFileServer")
            .arg(directory.path().join("data.mv"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server runs");
        let mut line = String::new();
        let output = process.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("the server's output");
        let port = line.trim().parse().expect("the server prints its port");
        Some(Self::Started { process, port, _directory: directory })
    }

    /// All servers that a test can use, one after the other.
    pub fn each(mut test: impl FnMut(&Self)) {
        if let Some(server) = Self::start() {
            test(&server);
        }
        if let Ok(url) = std::env::var("MONGODB_URL") {
            let turn = NAMED_DATABASE.lock().unwrap_or_else(PoisonError::into_inner);
            test(&Self::Named { url, _turn: turn });
        }
    }

    /// The database as a target of the workbench.
    pub fn url(&self) -> String {
        match self {
            Self::Started { port, .. } => format!("mongodb://127.0.0.1:{port}/bench"),
            Self::Named { url, .. } => url.clone(),
        }
    }

    /// The process of a server of the tests' own.
    pub fn process(&self) -> &Child {
        match self {
            Self::Started { process, .. } => process,
            Self::Named { .. } => panic!("a deployment that is not the test's"),
        }
    }
}

impl Drop for MongoServer {
    fn drop(&mut self) {
        if let Self::Started { process, .. } = self {
            process.kill().expect("stop the server");
            process.wait().expect("stop the server");
        }
    }
}

/// The directory in which users keep files that can be fetched again.
fn cache() -> Option<PathBuf> {
    let of_user = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(of_user)
}
