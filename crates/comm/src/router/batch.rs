// SPDX-License-Identifier: Apache-2.0
//! Batch: records for one next hop, sent as one message. Layout: docs/format/message.md, "Batches".
//! This file is its only encoder and decoder.
//!
//! ```text
//! 0 epoch u32 | 4 hop u8 | 5 flags u8 (1: last of its epoch) | 6 0 u16 | 8 records u32
//! 12 bytes of a record u32, or 2^32 - 1 if each has its length | 16 records so far u64 | 24 records
//! record: from u32 and to u32, as the hop needs them | length | bytes
//! ```
//! A length is one byte below 255, else 255 and a u32.

use esker_base::{Error, Result};

use crate::Rank;

/// Bytes of the header, before the records.
pub(super) const HEADER_BYTES: usize = 24;

/// Most bytes that a record takes besides its own: from, to, length.
pub(super) const RECORD_OVERHEAD_MAX: usize = 4 + 4 + 5;

const FLAG_LAST: u8 = 1;
const VARIABLE: u32 = u32::MAX;
const LONG: u8 = 255;

/// The fields that every record of a batch carries besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchFlags {
    /// Records carry their origin; otherwise it is the sender of the batch.
    pub has_from: bool,
    /// Records carry their destination; otherwise it is the receiver of the batch.
    pub has_to: bool,
    /// The length of every record; if `None`, each record carries its own.
    pub record_bytes: Option<u32>,
}

impl BatchFlags {
    /// Bytes that a record of `length` takes in a batch.
    pub fn encoded_bytes(&self, length: usize) -> usize {
        let length_bytes = match self.record_bytes {
            Some(_) => 0,
            None if length < LONG as usize => 1,
            None => 5,
        };
        4 * usize::from(self.has_from) + 4 * usize::from(self.has_to) + length_bytes + length
    }

    /// Appends a record to a batch.
    #[inline]
    pub fn put(&self, batch: &mut Vec<u8>, from: Rank, to: Rank, record: &[u8]) {
        if self.has_from {
            batch.extend_from_slice(&from.0.to_le_bytes());
        }
        if self.has_to {
            batch.extend_from_slice(&to.0.to_le_bytes());
        }
        if self.record_bytes.is_none() {
            match u8::try_from(record.len()) {
                Ok(length) if length < LONG => batch.push(length),
                _ => {
                    let length = u32::try_from(record.len()).expect("no longer than a message");
                    batch.push(LONG);
                    batch.extend_from_slice(&length.to_le_bytes());
                }
            }
        }
        batch.extend_from_slice(record);
    }
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BatchHeader {
    /// Number of epochs that ended before, modulo 2^32.
    pub epoch: u32,
    /// 0, 1 or 2.
    pub hop: u8,
    /// True if the sender sends no more on this hop in this epoch.
    pub is_last: bool,
    /// Number of records in the batch.
    pub records: u32,
    /// Records that the sender has sent to this receiver on this hop in this epoch, including
    /// these.
    pub records_so_far: u64,
}

impl BatchHeader {
    /// Writes the header into the first bytes of `batch`.
    pub fn write(&self, flags: &BatchFlags, batch: &mut [u8]) {
        batch[0..4].copy_from_slice(&self.epoch.to_le_bytes());
        batch[4] = self.hop;
        batch[5] = if self.is_last { FLAG_LAST } else { 0 };
        batch[6..8].fill(0);
        batch[8..12].copy_from_slice(&self.records.to_le_bytes());
        batch[12..16].copy_from_slice(&flags.record_bytes.unwrap_or(VARIABLE).to_le_bytes());
        batch[16..24].copy_from_slice(&self.records_so_far.to_le_bytes());
    }

    /// Reads the header of `batch`; returns it with a cursor over the records.
    pub fn read<'a>(flags: &BatchFlags, batch: &'a [u8]) -> Result<(Self, BatchRecords<'a>)> {
        let corrupt = |offset, what: String| Err(Error::corrupt("batch", offset, what));
        let Some((header, records)) = batch.split_first_chunk::<HEADER_BYTES>() else {
            return corrupt(0, format!("{} bytes are less than a header", batch.len()));
        };
        let word = |at: usize| {
            u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes of the header"))
        };
        let record_bytes = word(12);
        if header[5] & !FLAG_LAST != 0 || header[6..8] != [0, 0] {
            return corrupt(5, format!("expected flags 0 or 1, got {:02x?}", &header[5..8]));
        }
        if record_bytes != flags.record_bytes.unwrap_or(VARIABLE) {
            let expected = flags.record_bytes;
            return corrupt(
                12,
                format!("records of {expected:?} bytes expected, got {record_bytes}"),
            );
        }
        let read = Self {
            epoch: word(0),
            hop: header[4],
            is_last: header[5] & FLAG_LAST != 0,
            records: word(8),
            records_so_far: u64::from(word(16)) | u64::from(word(20)) << 32,
        };
        Ok((
            read,
            BatchRecords { flags: *flags, rest: records, left: read.records, bytes: batch.len() },
        ))
    }
}

/// Cursor over the records of a batch.
pub(super) struct BatchRecords<'a> {
    flags: BatchFlags,
    rest: &'a [u8],
    left: u32,
    /// Bytes of the whole batch.
    bytes: usize,
}

/// A record of a batch: its origin and destination, if the batch carries them, and its bytes.
pub(super) type BatchRecord<'a> = (Option<Rank>, Option<Rank>, &'a [u8]);

impl<'a> BatchRecords<'a> {
    /// Returns the next record, or `None` at the end of the batch; fails if bytes follow the last
    /// record.
    #[inline]
    pub fn next(&mut self) -> Result<Option<BatchRecord<'a>>> {
        if self.left == 0 {
            if self.rest.is_empty() {
                return Ok(None);
            }
            return Err(self.corrupt("bytes follow the last record"));
        }
        self.left -= 1;
        let from = if self.flags.has_from { Some(Rank(self.word()?)) } else { None };
        let to = if self.flags.has_to { Some(Rank(self.word()?)) } else { None };
        let length = match self.flags.record_bytes {
            Some(length) => length,
            None => match self.split(1)?[0] {
                LONG => self.word()?,
                short => u32::from(short),
            },
        };
        Ok(Some((from, to, self.split(length as usize)?)))
    }

    fn word(&mut self) -> Result<u32> {
        let bytes = self.split(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes were split off")))
    }

    #[inline]
    fn split(&mut self, length: usize) -> Result<&'a [u8]> {
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.corrupt("it ends within a record"));
        };
        self.rest = rest;
        Ok(bytes)
    }

    #[cold]
    fn corrupt(&self, what: &str) -> Error {
        Error::corrupt("batch", (self.bytes - self.rest.len()) as u64, what)
    }
}

#[cfg(test)]
mod tests {
    use esker_base::Kind;

    use super::*;

    const VARIED: BatchFlags = BatchFlags { has_from: true, has_to: true, record_bytes: None };
    const FIXED: BatchFlags = BatchFlags { has_from: false, has_to: false, record_bytes: Some(3) };

    fn batch(flags: &BatchFlags, records: &[(Rank, Rank, &[u8])]) -> Vec<u8> {
        let mut batch = vec![0; HEADER_BYTES];
        for (from, to, record) in records {
            let before = batch.len();
            flags.put(&mut batch, *from, *to, record);
            assert_eq!(batch.len() - before, flags.encoded_bytes(record.len()));
        }
        let header = BatchHeader {
            epoch: 7,
            hop: 1,
            is_last: true,
            records: u32::try_from(records.len()).unwrap(),
            records_so_far: 1 << 33,
        };
        header.write(flags, &mut batch);
        assert_eq!(BatchHeader::read(flags, &batch).unwrap().0, header);
        batch
    }

    type Owned = (Option<Rank>, Option<Rank>, Vec<u8>);

    fn decode(flags: &BatchFlags, batch: &[u8]) -> Result<Vec<Owned>> {
        let (_, mut records) = BatchHeader::read(flags, batch)?;
        let mut decoded = Vec::new();
        while let Some((from, to, bytes)) = records.next()? {
            decoded.push((from, to, bytes.to_vec()));
        }
        Ok(decoded)
    }

    #[test]
    fn records_come_back() {
        let long = vec![9; 300];
        let records: [(Rank, Rank, &[u8]); 4] = [
            (Rank(1), Rank(2), b"abc"),
            (Rank(3), Rank(4), b""),
            (Rank(5), Rank(6), &long[..254]),
            (Rank(7), Rank(8), &long),
        ];
        let decoded = decode(&VARIED, &batch(&VARIED, &records)).unwrap();
        let expected = records.map(|(from, to, bytes)| (Some(from), Some(to), bytes.to_vec()));
        assert_eq!(decoded, expected);
        let fixed = decode(&FIXED, &batch(&FIXED, &[(Rank(0), Rank(0), b"xyz")])).unwrap();
        assert_eq!(fixed, [(None, None, b"xyz".to_vec())]);
    }

    /// The bytes of docs/format/message.md.
    #[test]
    fn golden() {
        let made = batch(&VARIED, &[(Rank(1), Rank(258), b"abc")]);
        let hex: String = made.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "0700000001010000".to_owned()
                + "01000000ffffffff"
                + "0000000002000000"
                + "010000000201000003616263"
        );
    }

    #[test]
    fn truncated_or_extended_batches_are_refused() {
        let whole = batch(&VARIED, &[(Rank(1), Rank(2), b"abc"), (Rank(1), Rank(2), &[1; 300])]);
        for length in 0..whole.len() {
            let error = decode(&VARIED, &whole[..length]).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{length}");
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(decode(&VARIED, &longer).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn flipped_bits_never_panic() {
        let whole = batch(&VARIED, &[(Rank(1), Rank(2), b"abc"), (Rank(1), Rank(2), &[1; 300])]);
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            if let Err(error) = decode(&VARIED, &flipped) {
                assert_eq!(error.kind(), Kind::Corrupt);
            }
        }
    }
}
