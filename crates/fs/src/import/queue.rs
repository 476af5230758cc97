//! Queue: directories that wait to be imported, shared by the threads that do it.
//!
//! Last in, first out, so that a tree is taken in depth first and few directories wait.
//! Concurrency: `take` waits while others may still put; all return once nobody is at work.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::fs::Stat;

use super::MadeName;
use crate::dir::Dir;

/// A directory of the source and the one that takes its entries. Jobs of one directory share its
/// handle, so that as many stay open as the tree is deep, for each thread.
#[derive(Debug)]
pub(super) struct Job {
    /// The directory of the source that it is in, and its name there.
    pub(super) parent: Arc<OwnedFd>,
    pub(super) name: Vec<u8>,
    /// What errors show.
    pub(super) path: PathBuf,
    /// What it was when it was listed.
    pub(super) stat: Stat,
    pub(super) target: Dir,
    /// Where the target gets the directory's attributes at the end; none for the root.
    pub(super) made: Option<MadeName>,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Guards the jobs and the number of threads that work on one.
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: Vec<Job>,
    busy: usize,
    is_stopped: bool,
}

impl Queue {
    pub(super) fn put(&self, job: Job) {
        self.state.lock().jobs.push(job);
        self.changed.notify_one();
    }

    /// The next job; none once all are done or the queue was stopped. Whoever took one says `done`.
    pub(super) fn take(&self) -> Option<Job> {
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
