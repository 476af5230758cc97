// SPDX-License-Identifier: Apache-2.0
//! Queue: the thread of a processor, its ring and its slots.
//!
//! A turn of its loop is one system call: it commits the answers of the last turn, upon which the
//! kernel wakes the programs and may fill the slots again, and sleeps until requests arrive. The
//! loop ends once the kernel has returned all slots, as it does when the file system is unmounted
//! or its connection is aborted. An error that does not pass ends it too; the caller must then
//! abort the connection, since the programs of this processor would wait for ever.
//!
//! Concurrency: the ring belongs to this thread alone (`SINGLE_ISSUER`), and the kernel copies
//! requests into slots when this thread waits for them (`DEFER_TASKRUN`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use zerocopy::IntoBytes;

use crate::abi::{CMD_COMMIT_AND_FETCH, CMD_REGISTER, RingCommand};
use crate::helper_threads::{HelperJob, Helpers, ReturnedSlots, SlotJob};
use crate::processors::pin_to;
use crate::slot::{Slot, SlotMemory};
use crate::{Answerer, panicked};

/// `user_data` of the submission that waits for slots of helpers; other submissions have a slot's
/// index.
const WAKE: u64 = u64::MAX;
/// The only registered file of a ring: the mount's device.
const DEVICE: types::Fixed = types::Fixed(0);
/// Bytes of a command in a submission of 128 bytes.
const COMMAND_BYTES: usize = 80;
/// Offset of the count of buffers in a submission (`io_uring_sqe.len`).
const LENGTH_OFFSET: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);
/// Pause before a system call is repeated that failed for lack of memory.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);
/// Number of such pauses before the slots are given to the kernel; afterwards there is no limit.
const REGISTER_RETRIES_MAX: u32 = 1000;

/// The queues and buffers of a thread.
pub(crate) struct QueueSetup {
    pub(crate) processor: usize,
    pub(crate) queues: Vec<u16>,
    /// Slots of each queue.
    pub(crate) slots: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) helpers: Arc<Helpers>,
}

/// A ring and its slots.
pub(crate) struct QueueThread {
    /// Dropped first: the kernel copies nothing into slots of a closed ring.
    ring: IoUring<Entry128>,
    slots: Vec<QueueSlot>,
    /// Number of slots that the kernel has not returned for good.
    alive: usize,
    completed: Vec<(u64, i32)>,
    returned_slots: Vec<(usize, Slot)>,
    returned: Arc<ReturnedSlots>,
    helpers: Arc<Helpers>,
    has_panicked: bool,
}

struct QueueSlot {
    queue: u16,
    /// `None` while a helper has the slot.
    slot: Option<Slot>,
    buffers: Box<[[usize; 2]; 2]>,
}

impl QueueThread {
    /// Pins the calling thread, and makes its ring.
    pub(crate) fn new(setup: QueueSetup) -> io::Result<Self> {
        let QueueSetup { processor, queues, slots, payload_bytes, helpers } = setup;
        pin_to(processor)?;
        let count = queues.len() * slots;
        let entries = u32::try_from(count + 1).map_err(io::Error::other)?.next_power_of_two();
        let ring = IoUring::<Entry128>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .build(entries)?;
        let memory = SlotMemory::new(count, payload_bytes)?;
        let slots = (0..count).map(|index| {
            let slot = memory.slot(index);
            let buffers = Box::new(slot.buffers());
            QueueSlot { queue: queues[index / slots], slot: Some(slot), buffers }
        });
        Ok(Self {
            ring,
            slots: slots.collect(),
            alive: count,
            completed: Vec::with_capacity(2 * count),
            returned_slots: Vec::new(),
            returned: Arc::new(ReturnedSlots::new()?),
            helpers,
            has_panicked: false,
        })
    }

    /// Gives all slots to the kernel, which must accept at least one of each queue.
    pub(crate) fn register(&mut self, device: &OwnedFd) -> io::Result<()> {
        self.ring.submitter().register_files(&[device.as_fd().as_raw_fd()])?;
        for index in 0..self.slots.len() {
            let QueueSlot { queue, buffers, .. } = &self.slots[index];
            let command = RingCommand { flags: 0, commit_id: 0, queue: *queue, padding: [0; 6] };
            let addresses = (&raw const **buffers).addr() as u64;
            let mut entry = submission(CMD_REGISTER, index, command, Some(addresses));
            // SAFETY: the entry has 128 bytes; these are the count of buffers, for which the
            // library has no setter.
            unsafe {
                let length = (&raw mut entry).cast::<u8>().add(LENGTH_OFFSET);
                length.cast::<u32>().write_unaligned(2);
            }
            self.push(&entry);
        }
        self.push_wake();
        let mut retries = 0;
        while !self.ring.submission().is_empty() {
            if let Err(error) = self.ring.submit() {
                retries += 1;
                if !is_transient(&error) || retries > REGISTER_RETRIES_MAX {
                    return Err(error);
                }
                std::thread::sleep(RETRY_INTERVAL);
            }
            self.collect();
        }
        self.collect();
        self.check_registered()
    }

    /// Fails if the kernel refuses all slots of a queue. A slot completes at once only if the
    /// kernel refuses it, or already has a request.
    fn check_registered(&mut self) -> io::Result<()> {
        let mut taken = BTreeMap::<u16, usize>::new();
        for slot in &self.slots {
            *taken.entry(slot.queue).or_default() += 1;
        }
        let mut refusal = Ok(());
        let is_refused = |(index, result): &mut (u64, i32)| *index != WAKE && *result < 0;
        for (index, result) in self.completed.extract_if(.., is_refused) {
            self.alive -= 1;
            let of_queue = taken.get_mut(&self.slots[index as usize].queue).expect("counted above");
            *of_queue -= 1;
            if *of_queue == 0 {
                refusal = Err(io::Error::from_raw_os_error(-result));
            }
        }
        refusal
    }

    /// Answers requests until the kernel has returned all slots.
    ///
    /// # Errors
    /// Those of the ring that do not pass, and at the end an error if the answerer panicked.
    pub(crate) fn serve(&mut self, answerer: &Arc<dyn Answerer>) -> io::Result<()> {
        loop {
            let mut completed = std::mem::take(&mut self.completed);
            for (index, result) in completed.drain(..) {
                match usize::try_from(index) {
                    _ if index == WAKE => self.take_back(),
                    Ok(index) if result >= 0 => self.answer(index, answerer),
                    // The file system is unmounted, or the connection was aborted.
                    _ => self.alive -= 1,
                }
            }
            self.completed = completed;
            if self.alive == 0 {
                break;
            }
            if let Err(error) = self.ring.submit_and_wait(1) {
                if !is_transient(&error) {
                    return Err(error);
                }
                // Without the pause a lack of memory would keep the processor busy.
                if self.ring.completion().is_empty() {
                    std::thread::sleep(RETRY_INTERVAL);
                }
            }
            self.collect();
        }
        if self.has_panicked { Err(panicked()) } else { Ok(()) }
    }

    /// Answers the request in the slot at `index`, or passes it to a helper.
    fn answer(&mut self, index: usize, answerer: &Arc<dyn Answerer>) {
        let place = &mut self.slots[index].slot;
        let mut slot = place.take().expect("the kernel has returned it");
        if !slot.is_quick(answerer) {
            let (answerer, returned) = (answerer.clone(), self.returned.clone());
            self.helpers.push(HelperJob::Answer(SlotJob { index, slot, answerer, returned }));
            return;
        }
        let follow_up = slot.answer(answerer);
        self.has_panicked |= slot.has_panicked;
        self.commit(index, slot);
        if let Some(work) = follow_up {
            self.helpers.push(HelperJob::FollowUp(work));
        }
    }

    /// Commits the answers of helpers.
    fn take_back(&mut self) {
        let mut returned_slots = std::mem::take(&mut self.returned_slots);
        self.returned.take(&mut returned_slots);
        for (index, slot) in returned_slots.drain(..) {
            self.commit(index, slot);
        }
        self.returned_slots = returned_slots;
        self.push_wake();
    }

    /// Returns the slot at `index` to the kernel, with its answer.
    fn commit(&mut self, index: usize, slot: Slot) {
        let QueueSlot { queue, .. } = self.slots[index];
        let commit_id = slot.commit_id();
        let command = RingCommand { flags: 0, commit_id, queue, padding: [0; 6] };
        self.slots[index].slot = Some(slot);
        self.push(&submission(CMD_COMMIT_AND_FETCH, index, command, None));
    }

    /// Makes the ring wait for slots of helpers.
    fn push_wake(&mut self) {
        let wakes = types::Fd(self.returned.as_fd().as_raw_fd());
        let readable = rustix::event::PollFlags::IN.bits().into();
        let entry = opcode::PollAdd::new(wakes, readable).build().user_data(WAKE);
        self.push(&entry.into());
    }

    fn push(&mut self, entry: &Entry128) {
        // SAFETY: the buffers in it are those of a slot, which `slots` or a helper keeps mapped.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("there is an entry for each slot and one more");
    }

    fn collect(&mut self) {
        let completions = self.ring.completion();
        self.completed.extend(completions.map(|one| (one.user_data(), one.result())));
    }
}

/// True if the same call may succeed later: a signal came, the kernel lacked memory, or completions
/// must be collected first.
fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    error.raw_os_error().map(Errno::from_raw_os_error).is_some_and(|errno| {
        matches!(errno, Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM)
    })
}

fn submission(command: u32, index: usize, body: RingCommand, buffers: Option<u64>) -> Entry128 {
    let mut bytes = [0; COMMAND_BYTES];
    bytes[..size_of::<RingCommand>()].copy_from_slice(body.as_bytes());
    let built = opcode::UringCmd80::new(DEVICE, command).cmd(bytes).addr(buffers).build();
    built.user_data(index as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: programs of a processor waited for ever after the kernel had lacked memory for a
    /// moment. Cause: the thread of the ring ended at any error but EINTR.
    #[test]
    fn a_lack_of_memory_does_not_end_a_ring() {
        for errno in [4, 11, 12, 16] {
            assert!(is_transient(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
        for errno in [9, 95] {
            assert!(!is_transient(&io::Error::from_raw_os_error(errno)), "{errno}");
        }
        assert!(!is_transient(&panicked()));
    }
}
