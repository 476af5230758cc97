//! Segments in the write-ahead log: each as its difference to the one before.
//!
//! Layout: docs/format/wal.md, "Segments". This file is its only encoder and decoder.

use super::{LogPlace, Segment};
use crate::manifest::SetId;
use crate::wire::{Damage, Input, put_varint, unzigzag, zigzag};

/// An operation puts at most this many segments.
pub const OPERATION_SEGMENTS_MAX: usize = 1 << 20;

const SAME_FILE: u8 = 1;
const SAME_LOG: u8 = 2;
const HOLE: u8 = 4;
const CHECKSUM: u8 = 8;

/// Encodes, or decodes, the operations of one log; both keep what the next is told from.
#[derive(Debug, Default)]
pub struct SegmentLog {
    pending: Vec<u8>,
    last_seq: u64,
    file: u128,
    /// Where the segment before ended in its file.
    end: u64,
    /// Where it ended in its log.
    place: LogPlace,
}

impl SegmentLog {
    /// What has not been taken yet.
    #[must_use]
    pub fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Adds operation `seq`, which puts `segments` in their order.
    pub fn add(&mut self, seq: u64, segments: &[Segment]) {
        assert!(segments.len() <= OPERATION_SEGMENTS_MAX, "an operation within its bound");
        put_varint(&mut self.pending, seq.wrapping_sub(self.last_seq));
        put_varint(&mut self.pending, segments.len() as u64);
        self.last_seq = seq;
        for segment in segments {
            self.add_segment(segment);
        }
    }

    fn add_segment(&mut self, segment: &Segment) {
        let out = &mut self.pending;
        let same_file = segment.file == self.file;
        let same_log = segment
            .place
            .is_some_and(|place| (place.set, place.log) == (self.place.set, self.place.log));
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        out.push(
            flag(same_file, SAME_FILE)
                | flag(same_log, SAME_LOG)
                | flag(segment.place.is_none(), HOLE)
                | flag(segment.place.is_some() && segment.checksum.is_some(), CHECKSUM),
        );
        if !same_file {
            out.extend_from_slice(&segment.file.to_le_bytes());
        }
        put_varint(out, zigzag(segment.offset.wrapping_sub(self.end)));
        put_varint(out, segment.length);
        (self.file, self.end) = (segment.file, segment.end());
        let Some(place) = segment.place else { return };
        if !same_log {
            out.extend_from_slice(&place.set.0.to_le_bytes());
            put_varint(out, place.log);
        }
        put_varint(out, zigzag(place.offset.wrapping_sub(self.place.offset)));
        if let Some(checksum) = segment.checksum {
            out.extend_from_slice(&checksum.to_le_bytes());
        }
        self.place = LogPlace { offset: place.offset.wrapping_add(segment.length), ..place };
    }

    /// Decodes the next operation of `input`: its number, and its segments into `segments`.
    pub(crate) fn decode(
        &mut self,
        input: &mut Input,
        segments: &mut Vec<Segment>,
    ) -> Result<u64, Damage> {
        let seq = self.last_seq.wrapping_add(input.varint()?);
        let count =
            input.varint_max(OPERATION_SEGMENTS_MAX, "an operation's number of segments")?;
        self.last_seq = seq;
        segments.clear();
        for _ in 0..count {
            segments.push(self.decode_segment(seq, input)?);
        }
        Ok(seq)
    }

    fn decode_segment(&mut self, seq: u64, input: &mut Input) -> Result<Segment, Damage> {
        let flags = input.u8()?;
        let known = flags & !(SAME_FILE | SAME_LOG | HOLE | CHECKSUM) == 0;
        if !known || (flags & HOLE != 0 && flags & (SAME_LOG | CHECKSUM) != 0) {
            return Err(input.damage("a segment's known flags"));
        }
        let file = if flags & SAME_FILE == 0 { input.u128()? } else { self.file };
        let offset = self.end.wrapping_add(unzigzag(input.varint()?));
        let length = input.varint()?;
        let end = offset.checked_add(length).filter(|_| length > 0);
        let end = end.ok_or(input.damage("a segment within its file"))?;
        (self.file, self.end) = (file, end);
        if flags & HOLE != 0 {
            return Ok(Segment { seq, ..Segment::hole(file, offset, length) });
        }
        let mut place = self.place;
        if flags & SAME_LOG == 0 {
            place.set = SetId(input.u128()?);
            place.log = input.varint()?;
        }
        place.offset = self.place.offset.wrapping_add(unzigzag(input.varint()?));
        let after = place.offset.checked_add(length).filter(|_| place.set != SetId::default());
        let after = after.ok_or(input.damage("a segment within its log"))?;
        self.place = LogPlace { offset: after, ..place };
        let checksum = if flags & CHECKSUM != 0 { Some(input.u32()?) } else { None };
        Ok(Segment { file, offset, length, place: Some(place), checksum, seq })
    }
}
