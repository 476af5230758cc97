// SPDX-License-Identifier: Apache-2.0
//! Queue of directories to be imported, shared by the importing threads.
//!
//! Last in, first out, so that a tree is traversed depth first and few directories wait.
//! Concurrency: `take` waits while other threads may still put jobs; all return once no thread is
//! working.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::fs::Stat;

use super::ImportedName;
use crate::stack::dir::Dir;

/// A directory of the source and the target of its entries. Jobs of one directory share its handle,
/// so that each thread keeps at most as many open as the tree is deep.
#[derive(Debug)]
pub(super) struct ImportJob {
    /// The source directory that contains it, and its name there.
    pub(super) parent: Arc<OwnedFd>,
    pub(super) name: Vec<u8>,
    /// Path shown in errors.
    pub(super) path: PathBuf,
    /// Attributes when it was listed.
    pub(super) stat: Stat,
    pub(super) target: Dir,
    /// The name at which the target gets the directory's attributes at the end; `None` for the
    /// root.
    pub(super) made: Option<ImportedName>,
}

#[derive(Debug, Default)]
pub(super) struct ImportQueue {
    /// Guards the jobs and the number of threads that work on one.
    state: Mutex<ImportQueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ImportQueueState {
    jobs: Vec<ImportJob>,
    busy: usize,
    is_stopped: bool,
}

impl ImportQueue {
    pub(super) fn put(&self, job: ImportJob) {
        self.state.lock().jobs.push(job);
        self.changed.notify_one();
    }

    /// Returns the next job; `None` once all are done or the queue was stopped. The caller calls
    /// `done` after each job.
    pub(super) fn take(&self) -> Option<ImportJob> {
        let mut state = self.state.lock();
        loop {
            if state.is_stopped {
                return None;
            }
            if let Some(job) = state.jobs.pop() {
                state.busy += 1;
                return Some(job);
            }
            if state.busy == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    pub(super) fn done(&self) {
        let mut state = self.state.lock();
        state.busy -= 1;
        if state.busy == 0 {
            self.changed.notify_all();
        }
    }

    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
    }
}
