// SPDX-License-Identifier: Apache-2.0
//! Call slot: the layout of the log that the library writes and the recorder reads, in memory that both map.
//!
//! A log is a header of [`FIRST_SLOT`] slots, and slots of [`SLOT_BYTES`]. Whoever needs slots takes their
//! numbers from [`NEXT_AT`], and uses those below the number at [`READY_AT`], for which the recorder has made
//! room. A call takes its slot before it begins, so slots are in the order of beginnings, but for calls that
//! threads begin at the same time. Its [`state`](CallSlot::state) says how far it has come; a slot of zeros is
//! one whose process ended before it wrote anything. A text takes a slot for its length and further ones
//! for its bytes.
//!
//! | bytes of the header | content |
//! |---|---|
//! | 0–7 | [`MAGIC`] |
//! | 8–15 | beginning of the log in ns since the Unix epoch |
//! | 16–23 | the same by the monotonic clock, which times the calls |
//! | 64–71 | [`NEXT_AT`]: the next free slot |
//! | 128–135 | [`READY_AT`]: the first slot without room |
//! | 136–143 | [`ENDED_AT`]: not 0 once there will be no more room |
//! | 192–199 | [`LOST_AT`]: the number of calls without a slot |
//!
//! Numbers are those of the machine: a log does not outlive its recorder.

/// Begins a log.
pub const MAGIC: u64 = 0x0153_474f_4c4b_5345;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 64;
/// The first slot after the header.
pub const FIRST_SLOT: u64 = 64;
/// Maximum number of slots: 16 GiB.
pub const SLOTS_MAX: u64 = 1 << 28;
/// Position of the next free slot.
pub const NEXT_AT: usize = 64;
/// Position of the first slot without room.
pub const READY_AT: usize = 128;
/// Position of the mark of a log that gets no more room.
pub const ENDED_AT: usize = 136;
/// Position of the number of calls without a slot.
pub const LOST_AT: usize = 192;

/// A call that has begun.
pub const CALL_BEGUN: u32 = 0x4553_0100;
/// A call that has returned; the low byte is its operation.
pub const CALL_RETURNED: u32 = 0x4553_0200;
/// A text, or as much of it as was written.
pub const TEXT: u32 = 0x4553_0300;
/// The beginning of a process.
pub const PROCESS: u32 = 0x4553_0400;
/// The part of a state that says which of these it is.
pub const STATE_MASK: u32 = 0xffff_ff00;

/// Longest text: a path of Linux.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Numbers of operations, in states.
pub mod operation {
    /// Opens a file that must exist.
    pub const OPEN: u32 = 0;
    /// Opens a file and makes it if it is absent.
    pub const CREATE: u32 = 1;
    /// Closes a file.
    pub const CLOSE: u32 = 2;
    /// Reads.
    pub const READ: u32 = 3;
    /// Writes.
    pub const WRITE: u32 = 4;
    /// Moves the position of an open file.
    pub const SEEK: u32 = 5;
    /// Reads the attributes of a file.
    pub const STAT: u32 = 6;
    /// Makes a file durable.
    pub const SYNC: u32 = 7;
    /// Changes the size of a file, or allocates.
    pub const TRUNCATE: u32 = 8;
    /// Removes a name.
    pub const UNLINK: u32 = 9;
    /// Makes a directory.
    pub const MAKE_DIRECTORY: u32 = 10;
    /// Removes a directory.
    pub const REMOVE_DIRECTORY: u32 = 11;
    /// Renames; the next slot has the new name.
    pub const RENAME: u32 = 12;
    /// The new name of a rename.
    pub const RENAME_TARGET: u32 = 13;
    /// Opens a directory to list it.
    pub const LIST: u32 = 14;
    /// Makes a symbolic or a hard link.
    pub const LINK: u32 = 15;
    /// Changes the attributes of a file.
    pub const SET_ATTRIBUTES: u32 = 16;
    /// Maps a file into memory, where accesses to it are not recorded.
    pub const MAP: u32 = 64;
}

/// A slot. Of a text, `offset` is the number of bytes once all are written, `slots` that of its slots, its
/// own included or more, and `file` the text of the directory from which it leads, or 0. Of a process, `file` is the text of its program, `offset` its rank and 1, or 0 without one,
/// and `bytes` is 1 if the calls of its streams are recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallSlot {
    /// What the slot has.
    pub state: u32,
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// Slots of a text.
    pub slots: u32,
    /// The slot of the file's path, 0 if it is unknown.
    pub file: u64,
    /// Position in the file, `u64::MAX` if it is unknown.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Beginning, by the monotonic clock.
    pub begin_ns: u64,
    /// Return.
    pub end_ns: u64,
    /// Result, or the error number as a negative one.
    pub result: i64,
}

impl CallSlot {
    /// The fields as bytes of the machine's order.
    pub fn from_bytes(bytes: &[u8; SLOT_BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_ne_bytes(word)
        };
        let long = |at: usize| {
            let mut long = [0; 8];
            long.copy_from_slice(&bytes[at..at + 8]);
            u64::from_ne_bytes(long)
        };
        Self {
            state: word(0),
            process: word(4),
            thread: word(8),
            slots: word(12),
            file: long(16),
            offset: long(24),
            bytes: long(32),
            begin_ns: long(40),
            end_ns: long(48),
            result: long(56) as i64,
        }
    }
}

/// The number of slots of a text of `bytes`.
pub const fn text_slots(bytes: usize) -> u32 {
    1 + bytes.div_ceil(SLOT_BYTES) as u32
}
