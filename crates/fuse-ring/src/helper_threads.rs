// SPDX-License-Identifier: Apache-2.0
//! Helpers: threads that answer what may take long, so that no queue waits for it.
//!
//! Concurrency: the list of jobs is behind one lock, a leaf, held for a push or a pop. A queue gets its
//! slots back by a list of its own behind such a lock, and a descriptor that wakes its thread.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use crate::slot::Slot;
use crate::{Answerer, FollowUp};

/// What helpers do.
pub(crate) enum HelperJob {
    /// Answer the request in a slot, and give it back.
    Answer(SlotJob),
    /// Nobody waits for it.
    FollowUp(FollowUp),
}

/// A slot on its way through a helper.
pub(crate) struct SlotJob {
    /// Its place in the table of its queue's thread.
    pub(crate) index: usize,
    pub(crate) slot: Slot,
    pub(crate) answerer: Arc<dyn Answerer>,
    pub(crate) returned: Arc<ReturnedSlots>,
}

/// The threads, and what they have to do.
#[derive(Default)]
pub(crate) struct Helpers {
    jobs: Mutex<JobList>,
    is_there_one: Condvar,
    has_panicked: AtomicBool,
}

#[derive(Default)]
struct JobList {
    jobs: VecDeque<HelperJob>,
    /// How many helpers wait for one.
    idle: usize,
    /// Whether there will be no more.
    is_over: bool,
}

/// Slots that helpers give back to one queue's thread.
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

    /// Lets the threads end, once they have done what there is.
    pub(crate) fn end(&self) {
        self.jobs.lock().is_over = true;
        self.is_there_one.notify_all();
    }

    pub(crate) fn push(&self, job: HelperJob) {
        let mut list = self.jobs.lock();
        list.jobs.push_back(job);
        let is_idle = list.idle > 0;
        drop(list);
        if is_idle {
            self.is_there_one.notify_one();
        }
    }

    /// Whether an answerer panicked in a helper.
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
            self.is_there_one.wait(&mut list);
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
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
            self.has_panicked.store(true, Ordering::Relaxed);
        }
    }
}

impl ReturnedSlots {
    pub(crate) fn new() -> io::Result<Self> {
        let wakes = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { slots: Mutex::default(), wakes })
    }

    /// Gives a slot back, and wakes the queue's thread if it may not know of others yet.
    fn give_back(&self, index: usize, slot: Slot) {
        let mut slots = self.slots.lock();
        let is_first = slots.is_empty();
        slots.push((index, slot));
        drop(slots);
        if is_first {
            // Fails only if the counter is full: then the thread is being woken.
            let _ = rustix::io::write(&self.wakes, &1u64.to_ne_bytes());
        }
    }

    /// Moves the slots that were given back into `into`.
    pub(crate) fn take(&self, into: &mut Vec<(usize, Slot)>) {
        // Before they are taken: whoever comes later wakes again.
        let _ = rustix::io::read(&self.wakes, &mut [0; 8]);
        into.append(&mut self.slots.lock());
    }
}

impl AsFd for ReturnedSlots {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}
