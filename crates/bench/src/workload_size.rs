// SPDX-License-Identifier: Apache-2.0
//! Workload size: the numbers of files, directories and ranks of a workload, and the names of its
//! files.
//!
//! File f is in directory `f mod directories` and has the name `file.mdtest.RANK.f`, as in mdtest;
//! insertion i with `P(i) = f`, of rank `i mod threads`, creates it. The size is stored with the
//! snapshot that a workload leaves, for the workloads that follow.

use std::collections::BTreeMap;

use esker_base::{Error, Kind, Result};

use crate::permutation::{Permutation, SEED_CREATE};

/// The published name under which a workload leaves its files.
pub const BENCH_NAME: &str = "bench";

/// The numbers of files, directories and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadSize {
    /// Files in all.
    pub files: u64,
    /// Number of directories, over which the files are spread.
    pub directories: u64,
    /// Number of threads that create them.
    pub threads: usize,
}

impl WorkloadSize {
    /// Returns an error if there is nothing to do.
    pub fn check(&self) -> Result<()> {
        if self.files == 0 || self.directories == 0 || self.threads == 0 {
            let context = "a workload needs at least one file, one directory and one thread";
            return Err(Error::new(Kind::Invalid, context));
        }
        Ok(())
    }

    /// The size as properties of a change set.
    #[must_use]
    pub fn properties(&self) -> BTreeMap<String, String> {
        [
            ("bench.files", self.files.to_string()),
            ("bench.directories", self.directories.to_string()),
            ("bench.threads", self.threads.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Parses the size from properties.
    pub fn of_properties(properties: &BTreeMap<String, String>) -> Result<Self> {
        let number = |name: &str| {
            properties.get(name).and_then(|value| value.parse::<u64>().ok()).ok_or_else(|| {
                let context = format!("not left by `esker bench create`: no property {name}");
                Error::new(Kind::Invalid, context)
            })
        };
        let threads = number("bench.threads")? as usize;
        let size = Self {
            files: number("bench.files")?,
            directories: number("bench.directories")?,
            threads,
        };
        size.check()?;
        Ok(size)
    }

    /// The order in which files are created.
    #[must_use]
    pub fn insertions(&self) -> Permutation {
        Permutation::new(self.files, SEED_CREATE)
    }

    /// The directory of file `file`.
    #[inline]
    #[must_use]
    pub fn directory(&self, file: u64) -> usize {
        (file % self.directories) as usize
    }

    /// Sets `name` to that of file `file`, created by insertion `insertion`.
    #[inline]
    pub fn set_name(&self, file: u64, insertion: u64, name: &mut Vec<u8>) {
        name.clear();
        name.extend_from_slice(b"file.mdtest.");
        push_number(insertion % self.threads as u64, name);
        name.push(b'.');
        push_number(file, name);
    }
}

/// Appends `number` in decimal. Formatting with `write!` would take a tenth of a create.
fn push_number(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// The name of directory `number`.
#[must_use]
pub fn directory_name(number: usize) -> Vec<u8> {
    format!("dir.mdtest.{number}").into_bytes()
}
