// SPDX-License-Identifier: Apache-2.0
//! Users that run the command: each with a home, a umask, and groups.
//!
//! If the suite runs as the superuser, commands run as other users by `setpriv`; otherwise all run
//! as the user of the suite.

use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The user that runs the command if the suite's user is the superuser.
const NOBODY: u32 = 65_534;

/// A user with a home.
pub struct User {
    home: TempDir,
    pub uid: u32,
    pub gid: u32,
    groups: Vec<u32>,
    umask: &'static str,
    store: PathBuf,
}

impl User {
    /// An ordinary user, if the suite can switch to one, with a store in the user's home.
    pub fn ordinary(umask: &'static str) -> Self {
        if is_root() {
            return Self::new(NOBODY, vec![], umask);
        }
        Self::of_suite(umask)
    }

    /// The user of the suite.
    pub fn of_suite(umask: &'static str) -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let user = Self::at_home(uid, gid, vec![], umask);
        user.move_in();
        user
    }

    /// The user with number `uid`, a group of the same number and further `groups`. Needs the
    /// superuser.
    pub fn new(uid: u32, groups: Vec<u32>, umask: &'static str) -> Self {
        let user = Self::at_home(uid, uid, groups, umask);
        user.move_in();
        chown(user.home.path(), Some(uid), Some(uid)).expect("the superuser gives it away");
        user
    }

    fn at_home(uid: u32, gid: u32, groups: Vec<u32>, umask: &'static str) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let store = home.path().join("store");
        Self { home, uid, gid, groups, umask, store }
    }

    /// Copies the program to the home, since the build directory may be closed to other users.
    fn move_in(&self) {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.home.path(), mode).expect("mode");
        self.bring("esker", env!("CARGO_BIN_EXE_esker"));
    }

    /// Copies the program of `esker bench` to the home, too.
    pub fn bring_benchmarks(&self) {
        self.bring("esker-bench", env!("CARGO_BIN_EXE_esker-bench"));
    }

    fn bring(&self, name: &str, built: &str) {
        let program = self.path(name);
        std::fs::copy(built, &program).expect("room for a copy");
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(program, mode).expect("mode");
    }

    /// Makes the user work in the store at `path`.
    pub fn with_store(self, path: &Path) -> Self {
        Self { store: path.to_owned(), ..self }
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.home.path().join(name)
    }

    pub fn store(&self) -> &Path {
        &self.store
    }

    /// A program run by the user, in the user's home.
    pub fn command(&self, program: &str) -> Command {
        let mut command = if is_root() && self.uid != 0 {
            let mut command = Command::new("setpriv");
            command.arg(format!("--reuid={}", self.uid)).arg(format!("--regid={}", self.gid));
            let groups: Vec<_> = self.groups.iter().map(u32::to_string).collect();
            if groups.is_empty() {
                command.arg("--clear-groups");
            } else {
                command.arg(format!("--groups={}", groups.join(",")));
            }
            command.args(["--", program]);
            command
        } else {
            Command::new(program)
        };
        command.env("ESKER_STORE", &self.store).env("HOME", self.home.path());
        command.current_dir(self.home.path()).stdin(Stdio::null());
        command
    }

    /// Runs `line` in a shell of the user.
    pub fn shell(&self, line: &str) -> Output {
        let mut command = self.command("sh");
        command.arg("-c").arg(format!("umask {}; {line}", self.umask));
        command.output().expect("a shell; run `scripts/setup.sh test`, which installs setpriv")
    }

    /// Runs `line`, which must succeed; returns its output.
    pub fn does(&self, line: &str) -> String {
        let output = self.shell(line);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {:?}: {said}", output.status.code());
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// True if the user may mount.
    pub fn can_mount(&self) -> bool {
        let can = "test -r /dev/fuse -a -w /dev/fuse && \
                   { test $(id -u) = 0 || command -v fusermount3; }";
        self.shell(can).status.success()
    }

    pub fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        let quoted = arguments.into_iter().map(|argument| {
            let argument = argument.as_ref().to_str().expect("UTF-8").to_owned();
            format!(" '{argument}'")
        });
        self.shell(&format!("exec ./esker{}", quoted.collect::<String>()))
    }

    pub fn ok<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let output = self.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "exit {:?}: {said}", output.status.code());
        String::from_utf8(output.stdout).expect("UTF-8")
    }

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

    pub fn stat(&self, location: &str) -> Value {
        serde_json::from_str(&self.ok(["stat", "--json", location])).expect("JSON")
    }

    /// Fails unless `location` belongs to the user and has `mode`.
    pub fn assert_owned(&self, location: &str, mode: &str) {
        let stat = self.stat(location);
        assert_eq!((&stat["uid"], &stat["gid"]), (&self.uid.into(), &self.gid.into()), "{stat}");
        assert_eq!(stat["mode"], mode, "{stat}");
    }
}

/// True if the suite runs as the superuser.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
