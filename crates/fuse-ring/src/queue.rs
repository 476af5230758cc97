// SPDX-License-Identifier: Apache-2.0
//! Queue: the thread of a processor, its ring and its slots.
//!
//! A turn of its loop is one system call: it commits the answers of the last turn, by which the kernel
//! wakes those who asked and may fill the slots again, and sleeps until there are requests. It ends
//! when the kernel has given up all slots, as it does when the file system is unmounted.
//!
//! Concurrency: the ring belongs to this thread alone (`SINGLE_ISSUER`), and the kernel copies requests
//! into slots when this thread waits for them (`DEFER_TASKRUN`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};
use zerocopy::IntoBytes;

use crate::Answerer;
use crate::abi::{CMD_COMMIT_AND_FETCH, CMD_REGISTER, RingCommand};
use crate::helper_threads::{HelperJob, Helpers, ReturnedSlots, SlotJob};
use crate::processors::pin_to;
use crate::slot::{Slot, SlotMemory};

/// `user_data` of the submission that waits for slots of helpers; others are places of slots.
const WAKE: u64 = u64::MAX;
/// The only file that a ring knows: the mount's device.
const DEVICE: types::Fixed = types::Fixed(0);
/// Bytes of a command in a submission of 128 bytes.
const COMMAND_BYTES: usize = 80;
/// Where a submission has the count of its buffers (`io_uring_sqe.len`).
const LENGTH_OFFSET: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);

/// What a thread serves.
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
    /// Closed before the memory of its slots goes.
    ring: IoUring<Entry128>,
    slots: Vec<QueueSlot>,
    /// How many slots are not given up.
    alive: usize,
    completed: Vec<(u64, i32)>,
    given_back: Vec<(usize, Slot)>,
    returned: Arc<ReturnedSlots>,
    helpers: Arc<Helpers>,
    has_panicked: bool,
    _memory: SlotMemory,
}

struct QueueSlot {
    queue: u16,
    /// None while a helper has it.
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
            given_back: Vec::new(),
            returned: Arc::new(ReturnedSlots::new()?),
            helpers,
            has_panicked: false,
            _memory: memory,
        })
    }

    /// Gives all slots to the kernel. It need not take all of a queue, but one.
    pub(crate) fn register(&mut self, device: &OwnedFd) -> io::Result<()> {
        self.ring.submitter().register_files(&[device.as_fd().as_raw_fd()])?;
        for index in 0..self.slots.len() {
            let QueueSlot { queue, buffers, .. } = &self.slots[index];
            let command = RingCommand { flags: 0, commit_id: 0, queue: *queue, padding: [0; 6] };
            let addresses = (&raw const **buffers).addr() as u64;
            let mut entry = submission(CMD_REGISTER, index, command, Some(addresses));
            // SAFETY: the entry has 128 bytes, of which these are the count of buffers, that the crate
            // has no name for.
            unsafe {
                let length = (&raw mut entry).cast::<u8>().add(LENGTH_OFFSET);
                length.cast::<u32>().write_unaligned(2);
            }
            self.push(&entry);
        }
        self.push_wake();
        self.ring.submit()?;
        self.collect();
        self.check_registered()
    }

    /// Fails if the kernel refuses all slots of a queue; less than all will do. It answers at once only
    /// if it refuses, or has a request already.
    fn check_registered(&mut self) -> io::Result<()> {
        let mut taken = BTreeMap::<u16, usize>::new();
        for slot in &self.slots {
            *taken.entry(slot.queue).or_default() += 1;
        }
        let mut refusal = Ok(());
        for (index, result) in self.completed.extract_if(.., |(_, result)| *result < 0) {
            self.alive -= 1;
            let of_queue = taken.get_mut(&self.slots[index as usize].queue).expect("counted above");
            *of_queue -= 1;
            if *of_queue == 0 {
                refusal = Err(io::Error::from_raw_os_error(-result));
            }
        }
        refusal
    }

    /// Answers requests until the kernel has given up all slots.
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
            match self.ring.submit_and_wait(1) {
                Err(error) if error.raw_os_error() != Some(INTERRUPTED) => return Err(error),
                _ => self.collect(),
            }
        }
        match self.has_panicked {
            true => Err(io::Error::other("a thread panicked")),
            false => Ok(()),
        }
    }

    /// Answers the request in the slot at `index`, or lets a helper do so.
    fn answer(&mut self, index: usize, answerer: &Arc<dyn Answerer>) {
        let place = &mut self.slots[index].slot;
        let mut slot = place.take().expect("the kernel has given it back");
        let is_quick = slot.request().is_none_or(|request| answerer.is_quick(&request));
        if !is_quick {
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

    /// Commits what helpers have answered.
    fn take_back(&mut self) {
        let mut given_back = std::mem::take(&mut self.given_back);
        self.returned.take(&mut given_back);
        for (index, slot) in given_back.drain(..) {
            self.commit(index, slot);
        }
        self.given_back = given_back;
        self.push_wake();
    }

    /// Gives the slot at `index` to the kernel again, with its answer.
    fn commit(&mut self, index: usize, slot: Slot) {
        let QueueSlot { queue, .. } = self.slots[index];
        let commit_id = slot.commit_id();
        let command = RingCommand { flags: 0, commit_id, queue, padding: [0; 6] };
        self.slots[index].slot = Some(slot);
        self.push(&submission(CMD_COMMIT_AND_FETCH, index, command, None));
    }

    /// Lets the ring wait for slots of helpers.
    fn push_wake(&mut self) {
        let wakes = types::Fd(self.returned.as_fd().as_raw_fd());
        let readable = rustix::event::PollFlags::IN.bits().into();
        let entry = opcode::PollAdd::new(wakes, readable).build().user_data(WAKE);
        self.push(&entry.into());
    }

    fn push(&mut self, entry: &Entry128) {
        // SAFETY: buffers that it names are those of a slot, which live as long as the ring.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.expect("there is an entry for each slot and one more");
    }

    fn collect(&mut self) {
        let completions = self.ring.completion();
        self.completed.extend(completions.map(|one| (one.user_data(), one.result())));
    }
}

/// `EINTR`.
const INTERRUPTED: i32 = 4;

fn submission(command: u32, index: usize, body: RingCommand, buffers: Option<u64>) -> Entry128 {
    let mut bytes = [0; COMMAND_BYTES];
    bytes[..size_of::<RingCommand>()].copy_from_slice(body.as_bytes());
    let built = opcode::UringCmd80::new(DEVICE, command).cmd(bytes).addr(buffers).build();
    built.user_data(index as u64)
}
