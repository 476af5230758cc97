// SPDX-License-Identifier: Apache-2.0
//! Slot: the buffers of one request and its answer, and the memory they are in.
//!
//! Invariants: (1) a slot belongs either to the kernel or to one thread of this process, and only
//! its owner reads or writes its buffers. The kernel owns it from its submission until its
//! completion; `queue` hands slots out and takes them back by these. (2) The memory stays mapped
//! while a slot of it exists, even if a helper holds that slot after the thread of its queue has
//! ended.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use fuser::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::IntoBytes;

use crate::abi::{InHeader, OutHeader, RingEntry, RingHeader};
use crate::operation::read;
use crate::{Answer, Answerer, FollowUp, Request, caught};

/// Bytes of a page. The header has a page of its own, so that the payload begins at a page.
const PAGE_BYTES: usize = 4096;
const _: () = assert!(size_of::<RingHeader>() <= PAGE_BYTES);

/// Memory for slots. The kernel allocates a page when it is first used.
#[derive(Debug)]
pub(crate) struct SlotMemory {
    start: NonNull<u8>,
    bytes: usize,
    payload_bytes: usize,
}

/// The buffers of one request.
#[derive(Debug)]
pub(crate) struct Slot {
    header: NonNull<RingHeader>,
    payload: NonNull<u8>,
    payload_bytes: usize,
    /// True if an answerer panicked.
    pub(crate) has_panicked: bool,
    /// Keeps the buffers mapped.
    _memory: Arc<SlotMemory>,
}

// SAFETY: only this slot refers to its buffers.
unsafe impl Send for Slot {}
// SAFETY: shared owners compute addresses only; the last one unmaps, on any thread.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    /// Memory for `count` slots, each for requests of up to `payload_bytes`.
    pub(crate) fn new(count: usize, payload_bytes: usize) -> io::Result<Arc<Self>> {
        let payload_bytes = payload_bytes.next_multiple_of(PAGE_BYTES);
        let bytes = count * (PAGE_BYTES + payload_bytes);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, to which nothing else refers.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        let start = NonNull::new(start.cast()).expect("a mapping is never at 0");
        Ok(Arc::new(Self { start, bytes, payload_bytes }))
    }

    /// The slot at `index`. The caller takes each index at most once.
    pub(crate) fn slot(self: &Arc<Self>, index: usize) -> Slot {
        let offset = index * (PAGE_BYTES + self.payload_bytes);
        assert!(offset + PAGE_BYTES + self.payload_bytes <= self.bytes, "no slot {index}");
        // SAFETY: both are in the mapping, by the assertion.
        let (header, payload) =
            unsafe { (self.start.add(offset), self.start.add(offset + PAGE_BYTES)) };
        let (header, payload_bytes) = (header.cast(), self.payload_bytes);
        Slot { header, payload, payload_bytes, has_panicked: false, _memory: self.clone() }
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and no slot is left. A kernel that still has addresses
        // of it copies only in the thread of its ring, which has closed the ring (`QueueThread`).
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Slot {
    /// Addresses and lengths of the two buffers, as the kernel takes them (`struct iovec`).
    pub(crate) fn buffers(&self) -> [[usize; 2]; 2] {
        let header = [self.header.as_ptr().addr(), size_of::<RingHeader>()];
        [header, [self.payload.as_ptr().addr(), self.payload_bytes]]
    }

    /// The identifier by which the kernel recognizes the commit of this slot.
    pub(crate) fn commit_id(&self) -> u64 {
        self.header().entry.commit_id
    }

    /// The request in this slot; `None` if it is malformed.
    pub(crate) fn request(&self) -> Option<Request<'_>> {
        let RingHeader { in_out, op_in, entry } = self.header();
        let header: InHeader = read(in_out)?;
        Request::parse(&header, op_in, self.payload().get(..entry.payload_bytes as usize)?)
    }

    /// True if the calling thread may answer the request itself. After a panic a helper answers it.
    pub(crate) fn is_quick(&mut self, answerer: &Arc<dyn Answerer>) -> bool {
        let Some(request) = self.request() else { return true };
        let is_quick = caught(|| answerer.is_quick(&request));
        self.has_panicked |= is_quick.is_none();
        is_quick.unwrap_or(false)
    }

    /// Replaces the request by its answer; returns the work that follows once the answer is
    /// committed. The slot then holds an answer, even if the answerer panics.
    pub(crate) fn answer(&mut self, answerer: &Arc<dyn Answerer>) -> Option<FollowUp> {
        let Some(request) = self.request() else {
            self.reply(Err(Errno::EINVAL));
            return None;
        };
        let answer = caught(|| answerer.answer(&request));
        let follow_up = match &answer {
            Some(Ok(_)) => caught(|| answerer.follow_up(&request)),
            Some(Err(_)) | None => Some(None),
        };
        self.has_panicked |= answer.is_none() || follow_up.is_none();
        self.reply(answer.unwrap_or(Err(Errno::EIO)));
        follow_up.flatten()
    }

    fn reply(&mut self, answer: Result<Answer, Errno>) {
        let unique = read::<InHeader>(&self.header().in_out).map_or(0, |header| header.unique);
        let written = answer.and_then(|answer| answer.write(self.payload_mut()).ok_or(Errno::EIO));
        let (error, count) = match written {
            Ok(count) => (0, count),
            Err(errno) => (-i32::from(errno), 0),
        };
        let payload_bytes = u32::try_from(count).expect("payloads are small");
        let bytes = payload_bytes + const { size_of::<OutHeader>() as u32 };
        let commit_id = self.commit_id();
        let header = self.header_mut();
        let reply = OutHeader { bytes, error, unique };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(reply.as_bytes());
        header.entry = RingEntry { flags: 0, commit_id, payload_bytes, padding: 0, reserved: 0 };
    }

    fn header(&self) -> &RingHeader {
        // SAFETY: it is in the mapping and aligned to a page, any bytes are a valid header, and
        // nobody else writes it (invariant 1).
        unsafe { self.header.as_ref() }
    }

    fn header_mut(&mut self) -> &mut RingHeader {
        // SAFETY: as above.
        unsafe { self.header.as_mut() }
    }

    fn payload(&self) -> &[u8] {
        // SAFETY: as above; the mapping has `payload_bytes` bytes here, which are initially 0.
        unsafe { std::slice::from_raw_parts(self.payload.as_ptr(), self.payload_bytes) }
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.payload.as_ptr(), self.payload_bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operation;
    use crate::abi::opcode;

    /// Knows one name, and panics at others.
    struct OneName;

    impl Answerer for OneName {
        fn is_quick(&self, request: &Request<'_>) -> bool {
            assert!(request.operation != Operation::LookUp { name: b"bug before" });
            true
        }

        fn follow_up(&self, request: &Request<'_>) -> Option<FollowUp> {
            assert!(request.operation != Operation::LookUp { name: b"bug after" });
            None
        }

        fn answer(&self, request: &Request<'_>) -> Result<Answer, Errno> {
            match request.operation {
                Operation::LookUp { name: b"known" | b"bug before" | b"bug after" } => {
                    Ok(Answer::Size(5))
                }
                Operation::LookUp { name: b"bug" } => panic!("as a bug does"),
                _ => Err(Errno::ENOENT),
            }
        }

        fn forget(&self, _: u64, _: u64) {}
    }

    /// Puts a request into `slot` as the kernel does, and answers it; returns error and bytes.
    fn ask(slot: &mut Slot, payload: &[u8], payload_bytes: u32) -> (i32, u32) {
        request(slot, payload, payload_bytes);
        assert!(slot.answer(&answerer()).is_none());
        let reply: OutHeader = read(&slot.header().in_out).expect("a header");
        assert_eq!((reply.unique, slot.commit_id()), (77, 9));
        assert_eq!(reply.bytes, 16 + slot.header().entry.payload_bytes);
        (reply.error, slot.header().entry.payload_bytes)
    }

    fn answerer() -> Arc<dyn Answerer> {
        Arc::new(OneName)
    }

    fn request(slot: &mut Slot, payload: &[u8], payload_bytes: u32) {
        let (opcode, unique, node) = (opcode::LOOKUP, 77, 1);
        let (bytes, uid, gid, pid, extension_bytes) = (40, 0, 0, 1, 0);
        let request =
            InHeader { bytes, opcode, unique, node, uid, gid, pid, extension_bytes, padding: 0 };
        let header = slot.header_mut();
        header.in_out[..size_of::<InHeader>()].copy_from_slice(request.as_bytes());
        header.entry = RingEntry { flags: 0, commit_id: 9, payload_bytes, padding: 0, reserved: 0 };
        slot.payload_mut()[..payload.len()].copy_from_slice(payload);
    }

    #[test]
    fn answers_take_the_place_of_requests() {
        let memory = SlotMemory::new(2, 1 << 16).expect("memory");
        let mut slot = memory.slot(1);
        assert_eq!(ask(&mut slot, b"known\0", 6), (0, 8));
        assert_eq!(slot.payload()[..4], 5u32.to_ne_bytes());
        assert_eq!(ask(&mut slot, b"other\0", 6), (-2, 0));
        // No name ends within the stated length, or the stated length exceeds the buffer.
        assert_eq!(ask(&mut slot, b"known\0", 5), (-22, 0));
        assert_eq!(ask(&mut slot, b"known\0", u32::MAX), (-22, 0));
        assert!(!slot.has_panicked);
        assert_eq!(ask(&mut slot, b"bug\0", 4), (-5, 0));
        assert!(slot.has_panicked);
    }

    /// Symptom: a panic of `is_quick` or `follow_up` ended the thread of a ring, or lost the slot
    /// that a helper held, and programs waited for ever. Cause: only `answer` was caught.
    #[test]
    fn a_panic_beside_the_answer_leaves_the_answer() {
        let memory = SlotMemory::new(2, 1 << 16).expect("memory");
        let mut slot = memory.slot(0);
        request(&mut slot, b"bug before\0", 11);
        assert!(!slot.is_quick(&answerer()), "a helper answers it");
        assert!(slot.has_panicked);
        assert_eq!(ask(&mut slot, b"bug before\0", 11), (0, 8));
        let mut slot = memory.slot(1);
        assert_eq!(ask(&mut slot, b"bug after\0", 10), (0, 8));
        assert!(slot.has_panicked);
    }

    /// Symptom: a helper wrote its answer to memory that was unmapped, since the thread of the ring
    /// had ended. Cause: that thread alone owned the memory.
    #[test]
    fn a_slot_keeps_its_memory_mapped() {
        let memory = SlotMemory::new(1, 1 << 16).expect("memory");
        let mut slot = memory.slot(0);
        drop(memory);
        assert_eq!(ask(&mut slot, b"known\0", 6), (0, 8));
    }
}
