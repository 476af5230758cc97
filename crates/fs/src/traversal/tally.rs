// SPDX-License-Identifier: Apache-2.0
//! Tally: progress of a long operation, for display, and its problems.
//!
//! Concurrency: counters are atomics that threads add to while another reads them.

use std::sync::atomic::{AtomicU64, Ordering};

use esker_base::Error;
use parking_lot::Mutex;

/// Maximum number of problems kept, so that a hopeless tree cannot fill memory; all are counted.
pub const PROBLEMS_MAX: usize = 1000;

/// Something that was left out or done only in part, and why.
#[derive(Debug)]
pub struct TransferProblem {
    /// The path, starting as the user wrote it.
    pub path: Vec<u8>,
    /// The error that caused it.
    pub error: Error,
}

/// Progress of an import or export.
#[derive(Debug, Default)]
pub struct TransferTally {
    files: AtomicU64,
    directories: AtomicU64,
    symlinks: AtomicU64,
    links: AtomicU64,
    specials: AtomicU64,
    bytes: AtomicU64,
    owners_dropped: AtomicU64,
    attributes_dropped: AtomicU64,
    problem_count: AtomicU64,
    /// Guards the problems that are kept.
    problems: Mutex<Vec<TransferProblem>>,
}

/// Numbers of a [`TransferTally`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferCounts {
    /// Regular files, each once regardless of its number of names.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files with several.
    pub links: u64,
    /// Named pipes, sockets, devices.
    pub specials: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// Exported files whose owner only the superuser could set; exported without set-id bits.
    pub owners_dropped: u64,
    /// Extended attributes of exported files that only the superuser could set.
    pub attributes_dropped: u64,
    /// Problems.
    pub problems: u64,
}

impl TransferCounts {
    /// Total number of names.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.links + self.specials
    }
}

impl TransferTally {
    /// Returns the current numbers.
    #[must_use]
    pub fn counts(&self) -> TransferCounts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        TransferCounts {
            files: read(&self.files),
            directories: read(&self.directories),
            symlinks: read(&self.symlinks),
            links: read(&self.links),
            specials: read(&self.specials),
            bytes: read(&self.bytes),
            owners_dropped: read(&self.owners_dropped),
            attributes_dropped: read(&self.attributes_dropped),
            problems: read(&self.problem_count),
        }
    }

    /// Takes the first [`PROBLEMS_MAX`] problems out of the tally.
    #[must_use]
    pub fn take_problems(&self) -> Vec<TransferProblem> {
        std::mem::take(&mut self.problems.lock())
    }

    pub(crate) fn file(&self) {
        self.files.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn directory(&self) {
        self.directories.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn symlink(&self) {
        self.symlinks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn link(&self) {
        self.links.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn special(&self) {
        self.specials.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self, count: usize) {
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn owner_dropped(&self) {
        self.owners_dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn attributes_dropped(&self, count: u64) {
        self.attributes_dropped.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn problem(&self, path: &[u8], error: Error) {
        self.problem_count.fetch_add(1, Ordering::Relaxed);
        let mut problems = self.problems.lock();
        if problems.len() < PROBLEMS_MAX {
            problems.push(TransferProblem { path: path.to_vec(), error });
        }
    }
}
