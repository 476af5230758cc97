// SPDX-License-Identifier: Apache-2.0
//! Log writer: takes slots of the log and fills them.
//!
//! The log is mapped when the first call is made, and further parts of it when they are needed. Processes share it
//! with their children, so a forked child goes on in it; a child of `vfork` also has its parent's memory, which
//! it must not change.

use core::ffi::{CStr, c_int};
use core::hint::black_box;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::call_slot::{
    CALL_BEGUN, CALL_RETURNED, CallSlot, ENDED_AT, FIRST_SLOT, LOST_AT, MAGIC, NEXT_AT, PROCESS,
    READY_AT, SLOT_BYTES, SLOTS_MAX, TEXT, TEXT_BYTES_MAX, text_slots,
};
use super::settings::{MARK, SETTINGS_BYTES};
use super::{kernel, streams};

const fn blank_settings() -> [u8; SETTINGS_BYTES] {
    let mut bytes = [0; SETTINGS_BYTES];
    let mut at = 0;
    while at < MARK.len() {
        bytes[at] = MARK[at];
        at += 1;
    }
    bytes
}

/// The recorder writes its settings here, in the file of the library.
static SETTINGS: [u8; SETTINGS_BYTES] = blank_settings();

/// The variables by which programs that start ranks say a rank's number.
const RANK_VARIABLES: [&CStr; 4] =
    [c"ESKER_RANK", c"OMPI_COMM_WORLD_RANK", c"PMI_RANK", c"SLURM_PROCID"];

/// Milliseconds for which a call waits for room: a recorder that lives makes some in a few.
const ROOM_MILLISECONDS: u32 = 1_000;

/// Slots that are mapped at once, 64 MiB; those of a text are in one such window.
const WINDOW_SLOTS: u64 = 1 << 20;
const WINDOWS_MAX: usize = (SLOTS_MAX / WINDOW_SLOTS) as usize;
const WINDOW_BYTES: usize = WINDOW_SLOTS as usize * SLOT_BYTES;

const UNOPENED: u32 = 0;
const OPENING: u32 = 1;
const OPEN: u32 = 2;
const STOPPED: u32 = 3;

static PHASE: AtomicU32 = AtomicU32::new(UNOPENED);
/// The parts of the log that are mapped.
static WINDOWS: [AtomicPtr<u8>; WINDOWS_MAX] =
    [const { AtomicPtr::new(ptr::null_mut()) }; WINDOWS_MAX];
/// The process that the static memory belongs to; 0 in a child that was just forked.
static OWNER: AtomicPtr<u32> = AtomicPtr::new(ptr::null_mut());

/// The log of this process, which is open.
#[derive(Clone, Copy)]
pub struct LogWriter {
    log: *mut u8,
    process: u32,
}

/// The slot of a call that has begun.
#[derive(Clone, Copy)]
pub struct BegunCall {
    slot: *mut CallSlot,
    operation: u32,
    begin_ns: u64,
}

/// Maps a window of the log, which the process then has until its end.
fn map_window(window: usize) -> Option<*mut u8> {
    // The compiler knows other bytes than those in the file.
    let path = black_box(&SETTINGS).as_ptr().wrapping_add(MARK.len());
    let mapped = kernel::map_shared(path, window * WINDOW_BYTES, WINDOW_BYTES)?;
    let none = ptr::null_mut();
    match WINDOWS[window].compare_exchange(none, mapped, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(mapped),
        Err(first) => {
            kernel::unmap(mapped, WINDOW_BYTES);
            Some(first)
        }
    }
}

/// The process that the memory of the library belongs to.
fn owner() -> &'static AtomicU32 {
    // SAFETY: the page is mapped before the log is open, for as long as the process lives.
    unsafe { AtomicU32::from_ptr(OWNER.load(Ordering::Relaxed)) }
}

impl LogWriter {
    /// The log; `None` while it is being opened, and if there is none.
    pub fn get() -> Option<Self> {
        match PHASE.load(Ordering::Acquire) {
            OPEN => {}
            UNOPENED => Self::open()?,
            _ => return None,
        }
        let log = WINDOWS[0].load(Ordering::Relaxed);
        let process = owner().load(Ordering::Relaxed);
        if process != 0 {
            return Some(Self { log, process });
        }
        let writer = Self { log, process: kernel::process() };
        owner().store(writer.process, Ordering::Relaxed);
        kernel::forget_thread();
        writer.put_process();
        Some(writer)
    }

    /// False in a child of `vfork`, which must not change the memory of its parent.
    pub fn owns_memory(&self) -> bool {
        kernel::process() == self.process
    }

    /// Opens the log; one thread does, and calls that others make meanwhile are not recorded.
    fn open() -> Option<()> {
        PHASE.compare_exchange(UNOPENED, OPENING, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let opened = map_window(0).zip(kernel::map_page_wiped_by_fork());
        let opened = opened.filter(|(log, _)| {
            // SAFETY: a log has a header.
            unsafe { log.cast::<u64>().read() == MAGIC }
        });
        let Some((_, owner)) = opened else {
            PHASE.store(STOPPED, Ordering::Release);
            return None;
        };
        OWNER.store(owner, Ordering::Relaxed);
        kernel::remember_threads();
        streams::record();
        PHASE.store(OPEN, Ordering::Release);
        Some(())
    }

    fn header(&self, at: usize) -> &AtomicU64 {
        // SAFETY: the header is mapped, and its numbers are aligned.
        unsafe { AtomicU64::from_ptr(self.log.add(at).cast()) }
    }

    /// Takes `count` slots that follow each other, in one window.
    fn take(&self, count: u64) -> Option<(u64, *mut CallSlot)> {
        let is_in_window = |first: u64| first / WINDOW_SLOTS == (first + count - 1) / WINDOW_SLOTS;
        let mut first = self.header(NEXT_AT).fetch_add(count, Ordering::Relaxed);
        while !is_in_window(first) {
            first = self.header(NEXT_AT).fetch_add(count, Ordering::Relaxed);
        }
        let mut waited = 0;
        loop {
            if self.header(ENDED_AT).load(Ordering::Relaxed) != 0 {
                return self.lose();
            }
            if first + count <= self.header(READY_AT).load(Ordering::Acquire) {
                break;
            }
            if waited == ROOM_MILLISECONDS {
                // The recorder has died: no other call has to wait.
                self.header(ENDED_AT).store(1, Ordering::Relaxed);
            } else {
                kernel::sleep_a_millisecond();
                waited += 1;
            }
        }
        let window = (first / WINDOW_SLOTS) as usize;
        let known = WINDOWS.get(window)?.load(Ordering::Acquire);
        let Some(mapped) = (!known.is_null()).then_some(known).or_else(|| map_window(window))
        else {
            return self.lose();
        };
        // SAFETY: the slot has room and is mapped.
        let slot = unsafe { mapped.add((first % WINDOW_SLOTS) as usize * SLOT_BYTES) };
        Some((first, slot.cast()))
    }

    /// Stops recording in this process, and a parent whose memory it has.
    fn lose<T>(&self) -> Option<T> {
        let stopped =
            PHASE.compare_exchange(OPEN, STOPPED, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if stopped {
            self.header(LOST_AT).fetch_add(1, Ordering::Relaxed);
        }
        None
    }

    /// Begins a call of `operation` on the file whose path is the text `file`.
    pub fn begin(&self, operation: u32, file: u64) -> Option<BegunCall> {
        self.take(1).map(|(_, slot)| self.fill(slot, (operation, file)))
    }

    /// Begins a call that has two slots, each with an operation.
    pub fn begin_two(&self, first: u32, second: u32) -> Option<[BegunCall; 2]> {
        let (_, slot) = self.take(2)?;
        // SAFETY: the call has two slots.
        let next = unsafe { slot.add(1) };
        let begun = self.fill(slot, (first, 0));
        Some([begun, self.fill(next, (second, 0))])
    }

    fn fill(&self, slot: *mut CallSlot, (operation, file): (u32, u64)) -> BegunCall {
        let (process, thread) = (self.process, kernel::thread());
        let begun = BegunCall { slot, operation, begin_ns: kernel::now_ns() };
        let begin_ns = begun.begin_ns;
        let call = CallSlot { process, thread, file, begin_ns, ..CallSlot::default() };
        // SAFETY: the slot is this call's.
        unsafe { slot.write_volatile(call) };
        set_state(slot, CALL_BEGUN | operation);
        begun
    }

    /// Puts a text, of a path that leads from the path `directory` if that is not 0, and returns its number; 0 if
    /// there is no room.
    pub fn put_text(&self, directory: u64, text: &[u8]) -> u64 {
        let text = text.get(..TEXT_BYTES_MAX).unwrap_or(text);
        self.put_text_with(directory, text.len(), |into| {
            into.copy_from_slice(text);
            Some(text.len())
        })
    }

    /// Puts a text of at most `bytes` bytes that `write` writes, and returns its number; 0 if it writes none, or
    /// there is no room.
    pub fn put_text_with(
        &self,
        directory: u64,
        bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> u64 {
        let slots = text_slots(bytes);
        let Some((number, slot)) = self.take(slots.into()) else { return 0 };
        // Whoever reads the log must not take bytes for slots, so their number comes first.
        let header = CallSlot { slots, file: directory, ..CallSlot::default() };
        // SAFETY: the slots are this text's.
        let into = unsafe {
            slot.write_volatile(header);
            set_state(slot, TEXT);
            slice::from_raw_parts_mut(slot.add(1).cast::<u8>(), bytes)
        };
        let Some(length) = write(into) else { return 0 };
        // SAFETY: as above.
        let written = unsafe { AtomicU64::from_ptr(&raw mut (*slot).offset) };
        written.store(length as u64, Ordering::Release);
        number
    }

    /// Puts the beginning of a process: its program and its rank.
    fn put_process(&self) {
        let read = |into: &mut [u8]| kernel::read_link(c"/proc/self/exe", into);
        let file = self.put_text_with(0, TEXT_BYTES_MAX, read);
        let ranks = RANK_VARIABLES.iter().filter_map(|name| kernel::number_in_environment(name));
        let rank = ranks.map(|rank| u64::from(rank) + 1).next().unwrap_or(0);
        let Some((_, slot)) = self.take(1) else { return };
        let (process, thread) = (self.process, kernel::thread());
        let begin_ns = kernel::now_ns();
        let bytes = streams::are_recorded().into();
        let begun = CallSlot {
            process,
            thread,
            file,
            offset: rank,
            bytes,
            begin_ns,
            end_ns: begin_ns,
            ..CallSlot::default()
        };
        // SAFETY: the slot is this process's.
        unsafe { slot.write_volatile(begun) };
        set_state(slot, PROCESS);
    }
}

impl BegunCall {
    /// Ends the call, which has returned `result` at `end_ns`.
    pub fn end_at(self, end_ns: u64, result: i64, (offset, bytes): (u64, u64)) {
        let slot = self.slot;
        // SAFETY: the slot is this call's.
        unsafe {
            (&raw mut (*slot).offset).write_volatile(offset);
            (&raw mut (*slot).bytes).write_volatile(bytes);
            (&raw mut (*slot).end_ns).write_volatile(end_ns.max(self.begin_ns));
            (&raw mut (*slot).result).write_volatile(result);
        }
        set_state(slot, CALL_RETURNED | self.operation);
    }

    /// Sets the file of the call, which the call itself has found.
    pub fn set_file(self, file: u64) {
        // SAFETY: the slot is this call's.
        unsafe { (&raw mut (*self.slot).file).write_volatile(file) };
    }
}

fn set_state(slot: *mut CallSlot, state: u32) {
    // SAFETY: the slot is aligned, and its other fields are written.
    unsafe { AtomicU32::from_ptr(&raw mut (*slot).state).store(state, Ordering::Release) };
}

/// The result of a call as the log has it.
pub fn logged_result(result: i64) -> i64 {
    let number: c_int = kernel::error_number();
    if result == -1 { -i64::from(number) } else { result }
}

const _: () = assert!(size_of::<CallSlot>() == SLOT_BYTES && FIRST_SLOT > 1);
