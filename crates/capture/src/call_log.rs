// SPDX-License-Identifier: Apache-2.0
//! Call log: the calls of a recording that has ended, read once from the first to the last.
//!
//! The programs that were recorded wrote the log, so everything in it is checked.

use std::fs::File;
use std::os::unix::fs::FileExt;

use esker_base::{Error, Result};

use crate::library::call_slot::{
    CALL_BEGUN, CALL_RETURNED, CallSlot, FIRST_SLOT, LOST_AT, NEXT_AT, PROCESS, READY_AT,
    SLOT_BYTES, SLOTS_MAX, STATE_MASK, TEXT, TEXT_BYTES_MAX, text_slots,
};

/// Slots that are read at once: 1 MiB.
const SLOTS_READ: u64 = 1 << 14;

/// Longest path that directories may be put together to.
const PATH_BYTES_MAX: usize = 4 * 4096;

/// A call on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedCall {
    /// What it does: a number of [`operation`](crate::operation).
    pub operation: u32,
    /// The process.
    pub process: u32,
    /// The thread.
    pub thread: u32,
    /// The text that is the file's path; `None` if it is unknown.
    pub file: Option<u64>,
    /// Position in the file, if it is known.
    pub offset: Option<u64>,
    /// Bytes asked for.
    pub bytes: u64,
    /// Beginning, since that of the log.
    pub begin_ns: u64,
    /// Return and result, or the error number as a negative one; `None` if it did not return.
    pub returned: Option<(u64, i64)>,
}

/// A process that has begun, or was forked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedProcess {
    /// The process.
    pub process: u32,
    /// The text that is the path of its program, if it is known.
    pub program: Option<u64>,
    /// The number that whatever has started ranks gave it.
    pub rank: Option<u32>,
    /// True if what streams read and write is recorded.
    pub has_streams: bool,
}

/// A part of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedEvent {
    /// A call.
    Call(RecordedCall),
    /// The beginning of a process.
    Process(RecordedProcess),
}

/// The calls of a recording.
#[derive(Debug)]
pub struct CallLog {
    file: File,
    object: String,
    /// The end of the slots that were taken and had room.
    end: u64,
    epoch_ns: u64,
    begin_ns: u64,
    lost: u64,
    failure: Option<Error>,
}

impl CallLog {
    pub(crate) fn new(file: File, object: String, failure: Option<Error>) -> Result<Self> {
        let number = |at: usize| {
            let mut bytes = [0; 8];
            let read = file.read_exact_at(&mut bytes, at as u64);
            read.map_err(|error| Error::io(error, object.clone()))?;
            Ok(u64::from_ne_bytes(bytes))
        };
        let metadata = file.metadata().map_err(|error| Error::io(error, object.clone()))?;
        let slots = (metadata.len() / SLOT_BYTES as u64).min(SLOTS_MAX);
        let end = number(NEXT_AT)?.min(number(READY_AT)?).min(slots);
        let (epoch_ns, begin_ns, lost) = (number(8)?, number(16)?, number(LOST_AT)?);
        Ok(Self { file, object, end, epoch_ns, begin_ns, lost, failure })
    }

    /// The beginning of the log, in ns since the Unix epoch.
    #[must_use]
    pub fn epoch_ns(&self) -> u64 {
        self.epoch_ns
    }

    /// The number of processes that went on without being recorded, as there was no room for their calls.
    #[must_use]
    pub fn unrecorded(&self) -> u64 {
        self.lost
    }

    /// The reason for which there was no more room, if that is so.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Calls `visit` with everything in the log, in the order of beginnings; calls that threads began at the
    /// same time may be in another order.
    ///
    /// # Errors
    /// `Corrupt` with the slot for a log that a program has overwritten; those of `visit`.
    pub fn visit(&self, mut visit: impl FnMut(RecordedEvent) -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; SLOTS_READ as usize * SLOT_BYTES];
        let (mut from, mut at) = (0, FIRST_SLOT);
        let mut slots = 0;
        while at < self.end {
            if at >= from + slots {
                from = at;
                slots = SLOTS_READ.min(self.end - at);
                self.read(&mut buffer[..slots as usize * SLOT_BYTES], from)?;
            }
            let (found, _) = buffer[(at - from) as usize * SLOT_BYTES..]
                .split_first_chunk()
                .expect("whole slots");
            let slot = CallSlot::from_bytes(found);
            at += match slot.state & STATE_MASK {
                // A process that was killed before it wrote the state, or slots that nobody uses.
                0 => 1,
                TEXT if (1..=text_slots(TEXT_BYTES_MAX)).contains(&slot.slots) => slot.slots.into(),
                CALL_BEGUN | CALL_RETURNED => {
                    visit(RecordedEvent::Call(self.call(&slot)))?;
                    1
                }
                PROCESS => {
                    visit(RecordedEvent::Process(process(&slot)))?;
                    1
                }
                _ => return Err(self.corrupt(at, "no call")),
            };
        }
        Ok(())
    }

    /// The path of a call or a process, which is absolute; `None` for one that was not written to its end, or is
    /// longer than any path.
    ///
    /// # Errors
    /// `Corrupt` for a text that was overwritten.
    pub fn path(&self, text: u64) -> Result<Option<Vec<u8>>> {
        let (mut at, mut path) = (text, Vec::new());
        loop {
            let Some((directory, mut part)) = self.text(at)? else { return Ok(None) };
            if !path.is_empty() {
                part.push(b'/');
                part.extend_from_slice(&path);
            }
            path = part;
            if directory == 0 {
                return Ok(Some(path));
            }
            // A text leads from an earlier one.
            if directory >= at {
                return Err(self.corrupt(at, "a path without a beginning"));
            }
            if path.len() > PATH_BYTES_MAX {
                return Ok(None);
            }
            at = directory;
        }
    }

    /// The text `number`, and the one of the directory from which it leads; `None` if it was not written.
    fn text(&self, number: u64) -> Result<Option<(u64, Vec<u8>)>> {
        if number < FIRST_SLOT {
            return Err(self.corrupt(number, "no text"));
        }
        if number >= self.end {
            return Ok(None);
        }
        let mut header = [0; SLOT_BYTES];
        self.read(&mut header, number)?;
        let slot = CallSlot::from_bytes(&header);
        let length = usize::try_from(slot.offset).ok().filter(|length| *length <= TEXT_BYTES_MAX);
        let length = length.filter(|length| text_slots(*length) <= slot.slots);
        let is_inside = number + u64::from(slot.slots) <= self.end;
        let Some(length) = length.filter(|_| slot.state == TEXT && is_inside) else {
            return Err(self.corrupt(number, "no text"));
        };
        let mut text = vec![0; length];
        self.read(&mut text, number + 1)?;
        Ok((length > 0).then_some((slot.file, text)))
    }

    fn call(&self, slot: &CallSlot) -> RecordedCall {
        let since = |ns: u64| ns.saturating_sub(self.begin_ns);
        let has_returned = slot.state & STATE_MASK == CALL_RETURNED;
        RecordedCall {
            operation: slot.state & !STATE_MASK,
            process: slot.process,
            thread: slot.thread,
            file: (slot.file != 0).then_some(slot.file),
            offset: (slot.offset != u64::MAX).then_some(slot.offset),
            bytes: slot.bytes,
            begin_ns: since(slot.begin_ns),
            returned: has_returned.then(|| (since(slot.end_ns), slot.result)),
        }
    }

    fn read(&self, into: &mut [u8], slot: u64) -> Result<()> {
        let read = self.file.read_exact_at(into, slot * SLOT_BYTES as u64);
        read.map_err(|error| Error::io(error, self.object.clone()))
    }

    fn corrupt(&self, slot: u64, what: &str) -> Error {
        let position = slot.saturating_mul(SLOT_BYTES as u64);
        Error::corrupt(&self.object, position, format!("slot {slot} has {what}"))
    }
}

fn process(slot: &CallSlot) -> RecordedProcess {
    RecordedProcess {
        process: slot.process,
        program: (slot.file != 0).then_some(slot.file),
        rank: slot.offset.checked_sub(1).and_then(|rank| u32::try_from(rank).ok()),
        has_streams: slot.bytes != 0,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use esker_base::{Kind, Random};

    use super::*;

    /// A log of these slots, each followed by the bytes of its text.
    fn log(slots: &[(CallSlot, &[u8])]) -> (File, u64) {
        let mut bytes = vec![0; FIRST_SLOT as usize * SLOT_BYTES];
        for (slot, text) in slots {
            let words = [slot.state, slot.process, slot.thread, slot.slots].map(u32::to_ne_bytes);
            bytes.extend(words.as_flattened());
            let longs = [slot.file, slot.offset, slot.bytes, slot.begin_ns, slot.end_ns];
            bytes.extend(longs.map(u64::to_ne_bytes).as_flattened());
            bytes.extend(slot.result.to_ne_bytes());
            bytes.extend_from_slice(text);
            bytes.resize(bytes.len().next_multiple_of(SLOT_BYTES), 0);
        }
        let end = (bytes.len() / SLOT_BYTES) as u64;
        // Programs have taken slots without room.
        for (at, number) in [(8, 1_000), (16, 50), (NEXT_AT, end + 3), (READY_AT, end)] {
            bytes[at..at + 8].copy_from_slice(&number.to_ne_bytes());
        }
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(&bytes, 0).expect("written");
        (file, bytes.len() as u64)
    }

    fn text(directory: u64, text: &[u8]) -> (CallSlot, &[u8]) {
        let slots = text_slots(text.len());
        let offset = text.len() as u64;
        (CallSlot { state: TEXT, slots, file: directory, offset, ..CallSlot::default() }, text)
    }

    fn call(state: u32, file: u64) -> (CallSlot, &'static [u8]) {
        let [begin_ns, end_ns] = [60, 70];
        (CallSlot { state, process: 7, file, begin_ns, end_ns, ..CallSlot::default() }, b"")
    }

    fn open(file: &File) -> Result<CallLog> {
        CallLog::new(file.try_clone().expect("a descriptor"), "log".into(), None)
    }

    #[test]
    fn calls_and_paths_are_read_as_they_were_written() -> Result<()> {
        let long = [b'x'; 200];
        // Slots 64 and 65, 66 to 70, 71 and 72.
        let texts = [text(0, b"/directory"), text(64, &long), text(66, b"name")];
        let unwritten = (CallSlot::default(), &b""[..]);
        let calls = [call(CALL_RETURNED | 3, 71), unwritten, call(CALL_BEGUN | 4, 0)];
        let (file, _) = log(&[&texts[..], &calls].concat());
        let log = open(&file)?;
        let mut found = Vec::new();
        log.visit(|event| {
            found.push(event);
            Ok(())
        })?;
        let [RecordedEvent::Call(first), RecordedEvent::Call(second)] = found[..] else {
            panic!("{found:?}")
        };
        assert_eq!((first.operation, first.returned), (3, Some((20, 0))));
        assert_eq!((first.begin_ns, first.file, log.epoch_ns()), (10, Some(71), 1_000));
        assert_eq!((second.operation, second.returned, second.file), (4, None, None));
        let path = ["/directory/", std::str::from_utf8(&long).expect("text"), "/name"].concat();
        assert_eq!(log.path(71)?, Some(path.into_bytes()));
        for wrong in [0, 63, 65, 73] {
            assert_eq!(log.path(wrong).unwrap_err().kind(), Kind::Corrupt, "text {wrong}");
        }
        // A process that went on after the end of the recording.
        assert_eq!((log.path(1_000)?, log.path(u64::MAX)?), (None, None));
        Ok(())
    }

    #[test]
    fn a_log_that_was_overwritten_is_an_error_or_harmless() {
        let texts = [text(0, b"/directory"), text(64, b"file"), text(66, b"more")];
        let calls = [call(CALL_RETURNED | 3, 68), call(PROCESS, 64), call(CALL_BEGUN, 66)];
        let (file, length) = log(&[&texts[..], &calls].concat());
        let mut good = vec![0; length as usize];
        file.read_exact_at(&mut good, 0).expect("read");
        let mut random = Random::from_seed(7);
        for _ in 0..3_000 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(length) as usize;
                bytes[at] = [random.next_u64() as u8, 0, 64, 0xff][random.below(4) as usize];
            }
            file.write_all_at(&bytes, 0).expect("written");
            let Ok(log) = open(&file) else { continue };
            let mut texts = Vec::new();
            let _ = log.visit(|event| {
                texts.extend(match event {
                    RecordedEvent::Call(call) => call.file,
                    RecordedEvent::Process(process) => process.program,
                });
                Ok(())
            });
            for text in texts {
                if let Ok(Some(path)) = log.path(text) {
                    assert!(path.len() <= PATH_BYTES_MAX + TEXT_BYTES_MAX + 1);
                }
            }
        }
    }
}
