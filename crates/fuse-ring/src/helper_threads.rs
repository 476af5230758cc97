// SPDX-License-Identifier: Apache-2.0
//! Helper threads: answer requests which may take long, so that no queue waits for them.
//!
//! Concurrency: the list of jobs is behind one lock, a leaf, held for a push or a pop. Each queue
//! takes its slots back from a list of its own behind such a lock; a descriptor wakes its thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use crate::slot::Slot;
use crate::{Answerer, FollowUp, caught};

/// Work for a helper.
pub(crate) enum HelperJob {
    /// Answer the request in a slot, and return the slot.
    Answer(SlotJob),
    /// Work for which no program waits.
    FollowUp(FollowUp),
}

/// A slot on its way through a helper.
pub(crate) struct SlotJob {
    /// Its index in the table of its queue's thread.
    pub(crate) index: usize,
    pub(crate) slot: Slot,
    pub(crate) answerer: Arc<dyn Answerer>,
    pub(crate) returned: Arc<ReturnedSlots>,
}

/// The threads, and their jobs.
#[derive(Default)]
pub(crate) struct Helpers {
    jobs: Mutex<JobList>,
    has_job: Condvar,
    has_panicked: AtomicBool,
}

#[derive(Default)]
struct JobList {
    jobs: VecDeque<HelperJob>,
    /// Number of helpers that wait for a job.
    idle: usize,
    /// True if no more jobs will come.
    is_over: bool,
}

/// Slots that helpers return to one queue's thread.
#[derive(Debug)]
pub(crate) struct ReturnedSlots {
    slots: Mutex<Vec<(usize, Slot)>>,
    wakes: OwnedFd,
}

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helpers").finish_non_exhaustive()
    }
}

impl Helpers {
    /// Starts `count` threads.
    pub(crate) fn start(count: usize) -> io::Result<Arc<Self>> {
        let helpers = Arc::new(Self::default());
        for number in 0..count {
            let shared = helpers.clone();
            let thread = std::thread::Builder::new().name(format!("fuse-help-{number}"));
            let started = thread.spawn(move || {
                while let Some(job) = shared.next() {
                    shared.work(job);
                }
            });
            started.inspect_err(|_| helpers.end())?;
        }
        Ok(helpers)
    }

    /// Lets the threads end once they have done all jobs.
    pub(crate) fn end(&self) {
        self.jobs.lock().is_over = true;
        self.has_job.notify_all();
    }

    pub(crate) fn push(&self, job: HelperJob) {
        let mut list = self.jobs.lock();
        list.jobs.push_back(job);
        let is_idle = list.idle > 0;
        drop(list);
        if is_idle {
            self.has_job.notify_one();
        }
    }

    /// True if an answerer panicked in a helper.
    pub(crate) fn has_panicked(&self) -> bool {
        self.has_panicked.load(Ordering::Relaxed)
    }

    fn next(&self) -> Option<HelperJob> {
        let mut list = self.jobs.lock();
        loop {
            if let Some(job) = list.jobs.pop_front() {
                return Some(job);
            }
            if list.is_over {
                return None;
            }
            list.idle += 1;
            self.has_job.wait(&mut list);
            list.idle -= 1;
        }
    }

    fn work(&self, job: HelperJob) {
        match job {
            HelperJob::Answer(SlotJob { index, mut slot, answerer, returned }) => {
                let follow_up = slot.answer(&answerer);
                if slot.has_panicked {
                    self.has_panicked.store(true, Ordering::Relaxed);
                }
                returned.give_back(index, slot);
                follow_up.into_iter().for_each(|work| self.follow(work));
            }
            HelperJob::FollowUp(work) => self.follow(work),
        }
    }

    fn follow(&self, work: FollowUp) {
        if caught(work).is_none() {
            self.has_panicked.store(true, Ordering::Relaxed);
        }
    }
}

impl ReturnedSlots {
    pub(crate) fn new() -> io::Result<Self> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { slots: Mutex::default(), wakes })
    }

    /// Returns a slot, and wakes the queue's thread unless an earlier slot already does.
    fn give_back(&self, index: usize, slot: Slot) {
        let mut slots = self.slots.lock();
        let is_first = slots.is_empty();
        slots.push((index, slot));
        drop(slots);
        if is_first {
            // This fails only if the counter is full; then the thread is being woken anyway.
            let _ = rustix::io::write(&self.wakes, &1u64.to_ne_bytes());
        }
    }

    /// Moves the returned slots into `into`.
    pub(crate) fn take(&self, into: &mut Vec<(usize, Slot)>) {
        // Before the slots are taken, so that a later one wakes the thread again.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        into.append(&mut self.slots.lock());
    }
}

impl AsFd for ReturnedSlots {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}
