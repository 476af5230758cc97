// SPDX-License-Identifier: Apache-2.0
//! Values: the log of a rank that keeps its own values (format pointer).
//! Layout: docs/format/imd.md, "Values".
//!
//! Values follow one another in pages of one size, each with a checksum at its end. A reader finds
//! a value by its offset and verifies the pages that hold it. Zeros fill the rest of an epoch's
//! last page.

use std::ops::Range;

use esker_base::store::{AppendLog, SharedStore};
use esker_base::{Error, Kind, Result};

use crate::checksum::{CHECKSUM_BYTES, LogChecksum, LogKind};
use crate::index::head::IndexLogHead;
use crate::names;

/// Bytes of a page, checksum included.
pub const PAGE_BYTES: usize = 8 << 10;

/// Bytes of values in a page.
pub const PAGE_VALUE_BYTES: usize = PAGE_BYTES - CHECKSUM_BYTES;

/// Maximum number of pages written to the store at once, if memory permits.
const PAGES_MAX: u64 = 64;

/// Appends values to the log.
pub(crate) struct ValueLog {
    log: Box<dyn AppendLog>,
    checksum: LogChecksum,
    /// Pages not written yet; the last one is unfinished.
    pages: Vec<u8>,
    /// Bytes written to the store at once.
    piece_bytes: usize,
    /// Bytes of the log so far.
    written: u64,
    poisoned: bool,
}

impl std::fmt::Debug for ValueLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValueLog").field("written", &self.written).finish_non_exhaustive()
    }
}

impl ValueLog {
    /// Creates the log of the rank in `head`, with buffers of `memory_bytes`
    /// ([`ValueLog::memory_bytes`]).
    pub(crate) fn create(
        store: &SharedStore,
        prefix: &str,
        head: &IndexLogHead,
        memory_bytes: u64,
    ) -> Result<Self> {
        let log = store.append_log(&names::values(prefix, head.partition))?;
        let checksum = LogChecksum::new(head.directory, head.partition, LogKind::Values);
        let piece_bytes = usize::try_from(memory_bytes).expect("few pages");
        let pages = Vec::with_capacity(piece_bytes);
        Ok(Self { log, checksum, pages, piece_bytes, written: 0, poisoned: false })
    }

    /// The buffer's share of a rank's memory.
    pub(crate) fn memory_bytes(rank_bytes: u64) -> u64 {
        let page = PAGE_BYTES as u64;
        (rank_bytes / 16 / page).clamp(1, PAGES_MAX) * page
    }

    /// Adds a value; returns its offset among the value bytes.
    pub(crate) fn append(&mut self, value: &[u8]) -> Result<u64> {
        if self.poisoned {
            return Err(Error::new(Kind::Closed, "an earlier write of this rank's values failed"));
        }
        let page = (self.written + self.pages.len() as u64) / PAGE_BYTES as u64;
        let in_page = self.pages.len() % PAGE_BYTES;
        let offset = page * PAGE_VALUE_BYTES as u64 + in_page as u64;
        let mut rest = value;
        while !rest.is_empty() {
            let room = PAGE_VALUE_BYTES - self.pages.len() % PAGE_BYTES;
            let (here, behind) = rest.split_at(room.min(rest.len()));
            self.pages.extend_from_slice(here);
            rest = behind;
            if here.len() == room {
                self.seal()?;
            }
        }
        Ok(offset)
    }

    fn seal(&mut self) -> Result<()> {
        let start = self.pages.len() - PAGE_VALUE_BYTES;
        self.checksum.seal(&mut self.pages, start, self.written + start as u64);
        if self.pages.len() >= self.piece_bytes { self.hand_over() } else { Ok(()) }
    }

    fn hand_over(&mut self) -> Result<()> {
        if self.pages.is_empty() {
            return Ok(());
        }
        let done = self.log.append(&self.pages);
        self.poisoned = done.is_err();
        done?;
        self.written += self.pages.len() as u64;
        self.pages.clear();
        Ok(())
    }

    /// Makes all values so far durable.
    pub(crate) fn sync(&mut self) -> Result<()> {
        let in_page = self.pages.len() % PAGE_BYTES;
        if in_page > 0 {
            self.pages.resize(self.pages.len() + PAGE_VALUE_BYTES - in_page, 0);
            self.seal()?;
        }
        self.hand_over()?;
        let done = self.log.sync();
        self.poisoned = done.is_err();
        done
    }

    /// Bytes of the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.written
    }
}

/// The pages of a value of `bytes` at `offset`, as a range of the log; at least one page.
#[must_use]
pub(crate) fn pages_of(offset: u64, bytes: u32) -> Option<Range<u64>> {
    let page = |at: u64| at / PAGE_VALUE_BYTES as u64;
    let last = offset.checked_add(u64::from(bytes).max(1) - 1)?;
    let end = page(last).checked_add(1)?.checked_mul(PAGE_BYTES as u64)?;
    Some(page(offset) * PAGE_BYTES as u64..end)
}

/// Pointer to a value, stored in a partition's tables: the rank that has the value, its offset, and
/// its length unless all lengths are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePointer {
    /// The rank whose log has the value.
    pub rank: u32,
    /// Offset among the value bytes.
    pub offset: u64,
    /// Length.
    pub bytes: u32,
}

/// Bytes of a pointer if all values have one length.
pub const POINTER_BYTES: usize = 12;

/// Bytes of a pointer that includes the length.
pub const LONG_POINTER_BYTES: usize = 16;

impl ValuePointer {
    /// Appends the encoded pointer, with the length only if `long`.
    pub(crate) fn encode(&self, long: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.rank.to_le_bytes());
        out.extend_from_slice(&self.offset.to_le_bytes());
        if long {
            out.extend_from_slice(&self.bytes.to_le_bytes());
        }
    }

    /// Decodes the pointer in `bytes`; `value_bytes` is the length of all values if they have one.
    pub(crate) fn decode(bytes: &[u8], value_bytes: Option<u32>) -> Option<Self> {
        let rank = u32::from_le_bytes(*bytes.first_chunk()?);
        let offset = u64::from_le_bytes(*bytes.get(4..)?.first_chunk()?);
        let bytes = match (value_bytes, bytes.get(POINTER_BYTES..)?) {
            (Some(value_bytes), []) => value_bytes,
            (None, length) => u32::from_le_bytes(*length.as_array()?),
            _ => return None,
        };
        Some(Self { rank, offset, bytes })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::MemoryStore;

    use super::*;
    use crate::record_layout::{RecordLayout, ValueFormat};

    #[test]
    fn values_lie_where_their_pointers_say() {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let layout = RecordLayout::Variable;
        let format = ValueFormat::Pointer;
        let head = IndexLogHead { directory: 7, partition: 3, partitions: 4, format, layout };
        let mut log = ValueLog::create(&store, "d/", &head, 2 * PAGE_BYTES as u64).expect("log");
        let checksum = LogChecksum::new(7, 3, LogKind::Values);
        let lengths = [5, 0, 8000, 200, 20_000, 1, PAGE_VALUE_BYTES, 3];
        let values: Vec<Vec<u8>> = (1..).zip(lengths).map(|(i, n)| vec![i; n]).collect();
        let mut offsets = Vec::new();
        for (at, value) in values.iter().enumerate() {
            offsets.push(log.append(value).expect("append"));
            if at == 3 {
                log.sync().expect("sync");
            }
        }
        log.sync().expect("sync");
        let all = store.get("d/00000003-values", 1 << 20).expect("read");
        assert_eq!(all.len() as u64, log.bytes());
        for (value, offset) in values.iter().zip(offsets) {
            let pages = pages_of(offset, value.len() as u32).expect("small");
            let mut bytes = Vec::new();
            for start in pages.clone().step_by(PAGE_BYTES) {
                let page = &all[start as usize..start as usize + PAGE_BYTES];
                bytes.extend_from_slice(checksum.open(page, start, "values").expect("verified"));
            }
            let skip = offset % PAGE_VALUE_BYTES as u64;
            assert_eq!(&bytes[skip as usize..][..value.len()], value);
        }
    }

    #[test]
    fn pointers_round_trip() {
        let pointer = ValuePointer { rank: 3, offset: 1 << 40, bytes: 9 };
        for (long, value_bytes) in [(true, None), (false, Some(9))] {
            let mut out = Vec::new();
            pointer.encode(long, &mut out);
            assert_eq!(ValuePointer::decode(&out, value_bytes), Some(pointer));
            assert_eq!(ValuePointer::decode(&out[..11], value_bytes), None);
            assert_eq!(ValuePointer::decode(&out, if long { Some(9) } else { None }), None);
        }
    }
}
