// SPDX-License-Identifier: Apache-2.0
//! Redis server: Debian's Redis with data of its own.
//!
//! `scripts/setup.sh test` installs it. If it is missing, tests of Redis print that and pass, unless
//! `ESKER_REQUIRE_REDIS` is set.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server that is stopped when dropped.
pub struct RedisServer {
    process: Child,
    directory: tempfile::TempDir,
}

impl RedisServer {
    /// Starts an empty server with these settings, or prints why it cannot.
    pub fn start(settings: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory");
        let spawned = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(directory.path().join("socket"))
            .arg("--dir")
            .arg(directory.path())
            .args(settings)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let Ok(process) = spawned else {
            let what = "Redis is missing: run scripts/setup.sh test";
            assert!(std::env::var_os("ESKER_REQUIRE_REDIS").is_none(), "{what}");
            println!("skipped: {what}");
            return None;
        };
        let server = Self { process, directory };
        for _ in 0..1_000 {
            if UnixStream::connect(server.directory.path().join("socket")).is_ok() {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the server does not listen");
    }

    /// A database as a target of the workbench.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.directory.path().join("socket").display())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.process.kill().expect("stop the server");
        self.process.wait().expect("stop the server");
    }
}
