//! Queue: directories that wait to be imported, shared by the threads that do it.
//!
//! Last in, first out, so that a tree is taken in depth first and few directories wait.
//! Concurrency: `take` waits while others may still put; all return once nobody is at work.

use std::path::PathBuf;

use parking_lot::{Condvar, Mutex};

use crate::dir::Dir;

/// A directory of the source and the one that takes its entries.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) source: PathBuf,
    pub(super) target: Dir,
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
