// SPDX-License-Identifier: Apache-2.0
//! Runs the binary on a separate store.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A store in a temporary directory.
pub struct Esker {
    directory: TempDir,
}

impl Esker {
    /// An empty directory without a store.
    pub fn without_store() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory") }
    }

    /// An empty store.
    pub fn new() -> Self {
        let esker = Self::without_store();
        esker.ok(["init"]);
        esker
    }

    /// A path in the directory beside the store.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Path of the store.
    pub fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// The command with `arguments`, with the directory as working directory.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_esker"));
        command.current_dir(self.directory.path()).args(arguments);
        command.env("ESKER_STORE", self.store()).stdin(Stdio::null());
        // Logs of mounts are deleted with the directory.
        command.env("XDG_STATE_HOME", self.path("state"));
        command
    }

    /// Runs the command, whatever its outcome.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }

    /// Runs the command, which must succeed; returns its output.
    pub fn ok<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "exit {:?}: {said}{printed}", output.status.code());
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Runs the command, which must succeed and print JSON; returns one value per line.
    pub fn json<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Vec<Value> {
        let mut all: Vec<_> = arguments.into_iter().map(|a| a.as_ref().to_owned()).collect();
        all.push("--json".into());
        let printed = self.ok(all);
        printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Runs the command, which must fail with `code`; returns its error output.
    pub fn fails<A: AsRef<OsStr>>(
        &self,
        code: i32,
        arguments: impl IntoIterator<Item = A>,
    ) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    }

    /// Runs the command, which must succeed, with `input` on standard input.
    pub fn pipe<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>, input: &[u8]) {
        let mut command = self.command(arguments);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("the binary runs");
        child.stdin.take().expect("piped").write_all(input).expect("the binary reads");
        assert!(child.wait().expect("it ends").success());
    }

    /// Publishes `name` with `files`, each a path and its content.
    pub fn publish(&self, name: &str, files: &[(&str, &str)]) {
        let tree = self.path(format!("tree-{name}"));
        std::fs::create_dir(&tree).expect("a new directory");
        for (path, content) in files {
            let path = tree.join(path);
            std::fs::create_dir_all(path.parent().expect("has one")).expect("directories");
            std::fs::write(path, content).expect("a file");
        }
        self.ok([OsStr::new("import"), tree.as_os_str(), OsStr::new(name)]);
    }
}
