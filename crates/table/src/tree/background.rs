// SPDX-License-Identifier: Apache-2.0
//! Threads of a tree: one writes frozen memtables to tables, one writes the log at intervals, and
//! one sends heartbeats.

use std::sync::Arc;
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

use esker_base::{Error, Kind, Result};

use super::heartbeat::{Heartbeat, beat_loop};
use super::no_space::is_full;
use super::{Durability, TreeShared};

/// The threads; dropping them stops and joins them.
pub(super) struct BackgroundThreads {
    inner: Arc<TreeShared>,
    handles: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for BackgroundThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.handles.len()).finish()
    }
}

impl BackgroundThreads {
    /// Starts the threads that the options ask for.
    pub(super) fn start(inner: &Arc<TreeShared>, heartbeat: Option<Heartbeat>) -> Result<Self> {
        let mut threads = Self { inner: inner.clone(), handles: Vec::new() };
        if inner.options.background {
            threads.spawn("esker-flush", flush_loop)?;
        }
        if let (Durability::Async, Some(interval)) =
            (inner.options.durability, inner.options.log_interval)
        {
            threads.spawn("esker-log", move |inner| log_loop(inner, interval))?;
        }
        if let Some(heartbeat) = heartbeat
            && let Some(interval) = heartbeat.interval
        {
            threads.spawn("esker-beat", move |inner| beat_loop(inner, &heartbeat, interval))?;
        }
        Ok(threads)
    }

    fn spawn(&mut self, name: &str, run: impl FnOnce(&TreeShared) + Send + 'static) -> Result<()> {
        let inner = self.inner.clone();
        let handle = Builder::new().name(name.to_owned()).spawn(move || {
            let _guard = FailOnPanic(&inner);
            run(&inner);
        });
        self.handles
            .push(handle.map_err(|error| Error::io(error, format!("start thread {name}")))?);
        Ok(())
    }
}

/// Guard of a thread: turns its panic into the tree's failure, since no other thread would finish
/// the work that writers wait for.
pub(super) struct FailOnPanic<'a>(pub(super) &'a TreeShared);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let context =
                format!("a thread that writes change set {} panicked; reopen the set", self.0.set);
            self.0.fail(&Error::new(Kind::Closed, context));
        }
    }
}

impl Drop for BackgroundThreads {
    fn drop(&mut self) {
        self.inner.pending.lock().stopping = true;
        self.inner.work.notify_all();
        self.inner.stopped.notify_all();
        for handle in self.handles.drain(..) {
            // A panic in the thread has already been reported there.
            let _ = handle.join();
        }
    }
}

/// The next work of the flushing thread.
enum FlusherWork {
    Flush,
    /// Merge the runs that reads have paid for.
    Merge,
}

fn flush_loop(inner: &TreeShared) {
    while let Some(work) = wait_for_work(inner) {
        match work {
            FlusherWork::Flush => {
                let flushed = inner.flush_frozen();
                if flushed.is_err() && !is_full(&flushed) {
                    // It is recorded as the tree's failure, which writers report.
                    return;
                }
            }
            // Reads of the same tables, or the next commit, report what is wrong. A commit of
            // unknown outcome is recorded as the tree's failure.
            FlusherWork::Merge => {
                let _ = inner.merge_paid_runs();
            }
        }
    }
}

/// Blocks until there is work to do now; returns `None` when the thread must stop.
fn wait_for_work(inner: &TreeShared) -> Option<FlusherWork> {
    let mut pending = inner.pending.lock();
    while !pending.stopping {
        let (wait, work) = match &pending.stall {
            None if !pending.frozen.is_empty() => return Some(FlusherWork::Flush),
            None => (inner.merge_wait(&mut pending), FlusherWork::Merge),
            Some(stall) => (Some(stall.wait(&*inner.clock)), FlusherWork::Flush),
        };
        match wait {
            None => inner.work.wait(&mut pending),
            Some(wait) if wait.is_zero() => return Some(work),
            Some(wait) => {
                inner.work.wait_for(&mut pending, wait);
            }
        }
    }
    None
}

fn log_loop(inner: &TreeShared, interval: Duration) {
    loop {
        let mut pending = inner.pending.lock();
        if !pending.stopping {
            inner.work.wait_for(&mut pending, interval);
        }
        if pending.stopping {
            return;
        }
        drop(pending);
        match inner.write_log(false) {
            Ok(_) => {}
            // The next change reports it, or finds room again.
            Err(error) if error.kind() == Kind::NoSpace => {}
            Err(error) => return inner.fail(&error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use esker_base::store::{MemoryStore, SharedStore};

    use super::*;
    use crate::manifest::{Manifest, SetId};
    use crate::tree::Tree;
    use crate::tree::test_setup::setup;

    /// Symptom: occasionally a writer waited forever after a flush had failed.
    /// Cause: the failure was set, and waiters woken, without the lock under which waiters check
    /// for it, so it could occur between the check and the wait.
    /// Fix: a failure is set and announced under that lock.
    #[test]
    fn a_failure_wakes_those_who_wait() -> Result<()> {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let setup = setup(&store, Durability::None);
        let tree = Tree::create(setup, SetId(1), Manifest::new(vec![], 0))?;
        let inner = tree.inner.clone();
        let (sender, receiver) = mpsc::channel();
        // Taken before the failure is set, which then has to wait for this lock.
        let mut pending = inner.pending.lock();
        let failing = tree.inner.clone();
        let thread = thread::spawn(move || {
            failing.fail(&Error::new(Kind::Unavailable, "no answer"));
            sender.send(()).expect("the test waits");
        });
        // The failure must wait for the lock; else it could be announced before this thread waits.
        let is_through = receiver.recv_timeout(Duration::from_millis(100)).is_ok();
        assert!(!is_through, "the failure was announced without the lock");
        while inner.failure.get().is_none() {
            let waited = inner.done.wait_for(&mut pending, Duration::from_secs(60));
            assert!(!waited.timed_out(), "nobody said that the flush failed");
        }
        drop(pending);
        receiver.recv().expect("the thread sends");
        thread.join().expect("no panic");
        Ok(())
    }
}
