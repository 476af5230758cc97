// SPDX-License-Identifier: Apache-2.0
//! Mounts as users create them: in the background, ended by a command, a signal or a crash.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::esker::Esker;

/// Options for all writing mounts, each with its value if it has one: `scripts/mount_matrix.sh`
/// runs the suites in every mode. A test that chooses a mode itself keeps that mode.
const OPTIONS: &str = "ESKER_TEST_MOUNT_OPTIONS";

/// A store, and a directory for a mount of it.
pub struct Mounted {
    pub esker: Esker,
    at: PathBuf,
}

/// True if mounts work here; prints a message if not.
pub fn can_mount() -> bool {
    let can = esker_fuse::is_supported();
    if !can {
        println!("skipped: this machine has no /dev/fuse, or it may not be used");
    }
    can
}

impl Mounted {
    /// Creates an empty store with nothing mounted.
    pub fn new() -> Self {
        Self::of(Esker::new())
    }

    /// Uses the store of `esker`, with nothing mounted.
    pub fn of(esker: Esker) -> Self {
        let at = esker.path("at");
        std::fs::create_dir(&at).expect("a new directory");
        Self { esker, at }
    }

    /// Mounts a session on top of `bases` that will be published as `name`.
    pub fn writing(name: &str, bases: &[&str]) -> Self {
        let mounted = Self::new();
        mounted.write(name, bases);
        mounted
    }

    /// Mounts a session on top of `bases` that will be published as `name`.
    pub fn write(&self, name: &str, bases: &[&str]) {
        let mut arguments = vec!["mount", "--write", name];
        bases.iter().for_each(|base| arguments.extend(["--base", base]));
        self.mount(&arguments);
    }

    /// Mounts in the directory with `arguments`.
    pub fn mount(&self, arguments: &[&str]) {
        let log = self.esker.path("log");
        let options = std::env::var(OPTIONS).unwrap_or_default();
        let mut all: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        if arguments.contains(&"--write") {
            all.extend(options_beside(arguments, &options).into_iter().map(OsStr::new));
        }
        all.extend([OsStr::new("--log"), log.as_os_str(), self.at.as_os_str()]);
        self.esker.ok(all);
    }

    /// The log of the background process.
    pub fn log(&self) -> String {
        let log = std::fs::read_to_string(self.esker.path("log")).unwrap_or_default();
        let is_transport = |line: &&str| line.starts_with("esker: requests come by ");
        log.split_inclusive('\n').filter(|line| !is_transport(line)).collect()
    }

    /// The path of `name` in the mount.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.at.join(name)
    }

    /// The mount point.
    pub fn root(&self) -> &Path {
        &self.at
    }

    /// The process that serves the mount.
    pub fn pid(&self) -> i32 {
        let status = esker_fuse::status_of(&self.at).expect("it runs");
        i32::try_from(status.pid).expect("a process id")
    }

    /// Ends the mount by command; returns the output. A program that has just ended may still hold
    /// the mount for a moment.
    pub fn end(&self) -> String {
        for _ in 0..50 {
            let output = self.esker.run([OsStr::new("umount"), self.at.as_os_str()]);
            if output.status.success() {
                return String::from_utf8(output.stdout).expect("UTF-8");
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(said.contains("is in use"), "{said}{}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("the mount stays in use");
    }

    /// Kills the process that serves the mount, and unmounts the remains.
    pub fn crash(&self) {
        let pid = self.pid();
        let process = rustix::process::Pid::from_raw(pid).expect("a process");
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it is ours");
        wait_for_end(pid);
    }

    /// As [`Mounted::crash`]; then compacts the session, which frees overwritten data.
    pub fn crash_and_compact(&self) {
        let set = esker_fuse::status_of(&self.at).expect("it runs").set.expect("a session");
        self.crash();
        self.esker.ok(["compact", &format!("@{set}")]);
    }

    /// Mounts the session that a crash has left.
    pub fn resume(&self, name: &str) {
        self.mount(&["mount", "--write", name, "--resume"]);
    }
}

/// The part of `options` that `arguments` do not choose.
fn options_beside<'a>(arguments: &[&str], options: &'a str) -> Vec<&'a str> {
    let mut is_kept = true;
    let is_beside = |word: &&str| {
        if word.starts_with("--") {
            is_kept = !arguments.contains(word);
        }
        is_kept
    };
    options.split_whitespace().filter(is_beside).collect()
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

/// Waits until process `pid` is gone, or is a zombie.
pub fn wait_for_end(pid: i32) {
    let is_zombie = |stat: &str| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z"));
    while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !is_zombie(&stat)) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program, which must succeed; returns its output.
pub fn run<A: AsRef<OsStr>>(directory: &Path, program: &str, arguments: &[A]) -> String {
    let output = try_run(directory, program, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let shown: Vec<_> = arguments.iter().map(|argument| argument.as_ref().to_owned()).collect();
    assert!(output.status.success(), "{program} {shown:?}: {:?}\n{said}\n{told}", output.status);
    told
}

/// Runs a program, whatever its outcome.
pub fn try_run<A: AsRef<OsStr>>(directory: &Path, program: &str, arguments: &[A]) -> Output {
    let mut command = Command::new(program);
    command.current_dir(directory).args(arguments).env("GIT_CONFIG_NOSYSTEM", "1");
    // Isolates git from the settings of the user who runs the tests.
    command.env("HOME", directory).env("GIT_AUTHOR_NAME", "a").env("GIT_AUTHOR_EMAIL", "a@a");
    command.env("GIT_COMMITTER_NAME", "a").env("GIT_COMMITTER_EMAIL", "a@a");
    command.output().unwrap_or_else(|error| {
        panic!("{program}: {error}; run `scripts/setup.sh test`, which installs it")
    })
}
