// SPDX-License-Identifier: Apache-2.0
//! Driver library: drivers of key-value stores that tests compile, each in a directory of its own.
//!
//! LevelDB's takes g++ and the package libleveldb-dev, which `scripts/setup.sh test` installs. If
//! either is missing, tests of LevelDB print that and pass, unless `ESKER_REQUIRE_LEVELDB` is set.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A compiled driver; removed when dropped.
pub struct DriverLibrary {
    directory: tempfile::TempDir,
    library: PathBuf,
}

impl DriverLibrary {
    /// Compiles LevelDB's driver by the rule of `peers/Makefile`, or prints why it cannot.
    pub fn leveldb() -> Option<Self> {
        let has_compiler = Command::new("g++").arg("--version").output().is_ok();
        if !has_compiler || !Path::new("/usr/include/leveldb/db.h").exists() {
            let what = "g++ or libleveldb-dev is missing: run scripts/setup.sh test";
            assert!(std::env::var_os("ESKER_REQUIRE_LEVELDB").is_none(), "{what}");
            println!("skipped: {what}");
            return None;
        }
        let directory = tempfile::tempdir().expect("temporary directory");
        let library = directory.path().join("libleveldb-driver.so");
        let made = Command::new("make")
            .arg("--no-print-directory")
            .arg("-C")
            .arg(sources())
            .arg(format!("target={}", directory.path().display()))
            .arg("CXXFLAGS=-O1")
            .arg(&library)
            .output()
            .expect("make runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(Self { directory, library })
    }

    /// The library.
    pub fn path(&self) -> &Path {
        &self.library
    }

    /// The target for a database in `directory`; `settings` begin with `?` or are empty.
    pub fn target(&self, directory: &Path, settings: &str) -> String {
        format!("driver:{}:{}{settings}", self.library.display(), directory.display())
    }

    /// A path beside the library where nothing is yet.
    pub fn new_directory(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// The directory of the header and of the sources of drivers.
pub fn sources() -> PathBuf {
    // From the directory of the workbench's crate, or of another beside it.
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../peers")
}
