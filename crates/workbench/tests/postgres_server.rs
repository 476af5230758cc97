// SPDX-License-Identifier: Apache-2.0
//! PostgreSQL server: a real server with data of its own, reached by a Unix socket.
//!
//! `scripts/setup.sh test` installs it. If it is missing, tests of PostgreSQL print that and pass,
//! unless `ESKER_REQUIRE_POSTGRESQL` is set. The server refuses to run as the superuser, so for the
//! superuser it runs as nobody.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The directory in which Debian installs the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

const NOBODY: u32 = 65_534;

/// A running server; stopped when dropped.
pub struct PostgresServer {
    process: Child,
    directory: tempfile::TempDir,
}

impl PostgresServer {
    /// Starts a server with an empty database, or prints why it cannot.
    pub fn start() -> Option<Self> {
        let Some(programs) = find_programs() else {
            let what = "PostgreSQL is missing: run scripts/setup.sh test";
            assert!(std::env::var_os("ESKER_REQUIRE_POSTGRESQL").is_none(), "{what}");
            println!("skipped: {what}");
            return None;
        };
        // The path of a socket has at most 107 bytes, so not below a long TMPDIR.
        let directory = tempfile::tempdir_in("/tmp").expect("temporary directory");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("chown");
        }
        let run = |program: &str| {
            let mut command = command_of_user(&programs.join(program));
            command.current_dir(directory.path()).stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let made = run("initdb")
            .args(["--pgdata=data", "--username=esker", "--auth=trust", "--no-sync"])
            .args(["--no-locale", "--encoding=UTF8"])
            .status();
        assert!(made.expect("initdb runs").success(), "initdb failed");
        let process = run("postgres")
            .args(["-D", "data", "-h", "", "-k"])
            .arg(directory.path())
            .stderr(Stdio::null())
            .spawn();
        let mut server = Self { process: process.expect("the server runs"), directory };
        for _ in 0..3_000 {
            let directory = server.directory.path();
            let mut asked = Command::new(programs.join("pg_isready"));
            asked.arg("-q").arg("-h").arg(directory).args(["-U", "esker", "-d", "postgres"]);
            if asked.status().expect("pg_isready runs").success() {
                return Some(server);
            }
            let ended = server.process.try_wait().expect("the server's state");
            assert!(ended.is_none(), "the server ended: {ended:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("the server does not answer");
    }

    /// The database as a target of the workbench.
    pub fn url(&self) -> String {
        let path = self.directory.path().to_str().expect("a path of ASCII");
        format!("postgresql://esker@{}/postgres", path.replace('/', "%2F"))
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // Ends all processes of the server at once, and releases their shared memory.
        let process = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process(process, rustix::process::Signal::QUIT);
        self.process.wait().expect("stop the server");
    }
}

/// A command that runs `program` as an ordinary user.
fn command_of_user(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    let user = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    command.args(user).args(["--clear-groups", "--"]).arg(program);
    command
}

/// The directory of the newest version's programs.
fn find_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir(VERSIONS).ok()?.filter_map(Result::ok);
    let programs = versions.filter_map(|version| {
        let number: u32 = version.file_name().to_str()?.parse().ok()?;
        let path = version.path().join("bin");
        let is_complete =
            ["initdb", "postgres", "pg_isready"].iter().all(|name| path.join(name).is_file());
        is_complete.then_some((number, path))
    });
    programs.max().map(|(_, path)| path)
}
