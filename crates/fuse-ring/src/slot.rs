// SPDX-License-Identifier: Apache-2.0
//! Slot: the buffers of one request and its answer, and the memory they are in.
//!
//! Invariant: a slot is either with the kernel or with a thread of this process, and only that one
//! reads or writes its buffers. The kernel has it from a submission of it until its completion; `queue`
//! gives slots out and takes them back by these.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use fuser::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use zerocopy::IntoBytes;

use crate::abi::{InHeader, OutHeader, RingEntry, RingHeader};
use crate::operation::read;
use crate::{Answer, Answerer, FollowUp, Request, answer_or_eio};

/// Bytes of a page: the header has one for itself, so that the payload begins at a page.
const PAGE_BYTES: usize = 4096;
const _: () = assert!(size_of::<RingHeader>() <= PAGE_BYTES);

/// Memory for slots. Pages that no request needs are never there.
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
    /// Whether an answerer panicked.
    pub(crate) has_panicked: bool,
}

// SAFETY: a slot is the only one in this process that refers to its buffers.
unsafe impl Send for Slot {}

impl SlotMemory {
    /// Memory for `count` slots of which each takes requests of `payload_bytes`.
    pub(crate) fn new(count: usize, payload_bytes: usize) -> io::Result<Self> {
        let payload_bytes = payload_bytes.next_multiple_of(PAGE_BYTES);
        let bytes = count * (PAGE_BYTES + payload_bytes);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, which nobody else refers to.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        let start = NonNull::new(start.cast()).expect("a mapping is never at 0");
        Ok(Self { start, bytes, payload_bytes })
    }

    /// The slot at `index`; each must be taken once.
    pub(crate) fn slot(&self, index: usize) -> Slot {
        let offset = index * (PAGE_BYTES + self.payload_bytes);
        assert!(offset + PAGE_BYTES + self.payload_bytes <= self.bytes, "no slot {index}");
        // SAFETY: both are in the mapping, by the assertion.
        let (header, payload) =
            unsafe { (self.start.add(offset), self.start.add(offset + PAGE_BYTES)) };
        let (header, payload_bytes) = (header.cast(), self.payload_bytes);
        Slot { header, payload, payload_bytes, has_panicked: false }
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        // SAFETY: this mapping is of `new`. Slots are gone by now, or with a kernel that has given up
        // their requests (`QueueThread`).
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Slot {
    /// Addresses and lengths of the two buffers, as the kernel takes them (`struct iovec`).
    pub(crate) fn buffers(&self) -> [[usize; 2]; 2] {
        let header = [self.header.as_ptr().addr(), size_of::<RingHeader>()];
        [header, [self.payload.as_ptr().addr(), self.payload_bytes]]
    }

    /// What the kernel wants to be told when this is committed.
    pub(crate) fn commit_id(&self) -> u64 {
        self.header().entry.commit_id
    }

    /// The request in it; none if it makes no sense.
    pub(crate) fn request(&self) -> Option<Request<'_>> {
        let RingHeader { in_out, op_in, entry } = self.header();
        let header: InHeader = read(in_out)?;
        Request::parse(&header, op_in, self.payload().get(..entry.payload_bytes as usize)?)
    }

    /// Replaces the request by its answer; returns what is to be done once that is given.
    pub(crate) fn answer(&mut self, answerer: &Arc<dyn Answerer>) -> Option<FollowUp> {
        let Some(request) = self.request() else {
            self.reply(Err(Errno::EINVAL));
            return None;
        };
        let (answer, has_panicked) = answer_or_eio(answerer, &request);
        let follow_up = answer.is_ok().then(|| answerer.follow_up(&request)).flatten();
        self.has_panicked |= has_panicked;
        self.reply(answer);
        follow_up
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
        // SAFETY: in the mapping, aligned to a page, any bytes are a header, and nobody else writes it
        // (the invariant above).
        unsafe { self.header.as_ref() }
    }

    fn header_mut(&mut self) -> &mut RingHeader {
        // SAFETY: as above.
        unsafe { self.header.as_mut() }
    }

    fn payload(&self) -> &[u8] {
        // SAFETY: as above; the mapping has so many bytes, which are 0 at first.
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

    /// Knows one name, and panics at another.
    struct OneName;

    impl Answerer for OneName {
        fn is_quick(&self, _: &Request<'_>) -> bool {
            true
        }

        fn answer(&self, request: &Request<'_>) -> Result<Answer, Errno> {
            match request.operation {
                Operation::LookUp { name: b"known" } => Ok(Answer::Size(5)),
                Operation::LookUp { name: b"bug" } => panic!("as a bug does"),
                _ => Err(Errno::ENOENT),
            }
        }

        fn forget(&self, _: u64, _: u64) {}
    }

    /// Puts a request into `slot` as the kernel does, and has it answered; returns error and bytes.
    fn ask(slot: &mut Slot, payload: &[u8], payload_bytes: u32) -> (i32, u32) {
        let answerer: Arc<dyn Answerer> = Arc::new(OneName);
        let (opcode, unique, node) = (opcode::LOOKUP, 77, 1);
        let (bytes, uid, gid, pid, extension_bytes) = (40, 0, 0, 1, 0);
        let request =
            InHeader { bytes, opcode, unique, node, uid, gid, pid, extension_bytes, padding: 0 };
        let header = slot.header_mut();
        header.in_out[..size_of::<InHeader>()].copy_from_slice(request.as_bytes());
        header.entry = RingEntry { flags: 0, commit_id: 9, payload_bytes, padding: 0, reserved: 0 };
        slot.payload_mut()[..payload.len()].copy_from_slice(payload);
        assert!(slot.answer(&answerer).is_none());
        let reply: OutHeader = read(&slot.header().in_out).expect("a header");
        assert_eq!((reply.unique, slot.commit_id()), (77, 9));
        assert_eq!(reply.bytes, 16 + slot.header().entry.payload_bytes);
        (reply.error, slot.header().entry.payload_bytes)
    }

    #[test]
    fn answers_take_the_place_of_requests() {
        let memory = SlotMemory::new(2, 1 << 16).expect("memory");
        let mut slot = memory.slot(1);
        assert_eq!(ask(&mut slot, b"known\0", 6), (0, 8));
        assert_eq!(slot.payload()[..4], 5u32.to_ne_bytes());
        assert_eq!(ask(&mut slot, b"other\0", 6), (-2, 0));
        // No name ends within what the kernel says that there is, or there cannot be as much.
        assert_eq!(ask(&mut slot, b"known\0", 5), (-22, 0));
        assert_eq!(ask(&mut slot, b"known\0", u32::MAX), (-22, 0));
        assert!(!slot.has_panicked);
        assert_eq!(ask(&mut slot, b"bug\0", 4), (-5, 0));
        assert!(slot.has_panicked);
    }
}
