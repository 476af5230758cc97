// SPDX-License-Identifier: Apache-2.0
//! Segments in the write-ahead log: each encoded as its difference from the one before.
//!
//! Layout: docs/format/wal.md, "Operations on segments". This file is its only encoder and decoder.

use esker_base::wire::{WireDamage, WireInput, put_varint, unzigzag, zigzag};
use esker_table::manifest::SetId;

use super::{LogPlace, Segment, SegmentRun};

/// Maximum segments of an operation.
pub const OPERATION_SEGMENTS_MAX: usize = 1 << 20;

const SAME_FILE: u8 = 1;
const SAME_LOG: u8 = 2;
const HOLE: u8 = 4;
const CHECKSUM: u8 = 8;
const RUN: u8 = 16;

/// Encodes, or decodes, the operations of one log; both keep the state that the next is relative
/// to.
#[derive(Debug, Default)]
pub struct SegmentLog {
    pending: Vec<u8>,
    last_seq: u64,
    file: u128,
    /// End of the previous segment in its file.
    end: u64,
    /// End of the previous segment in its log.
    place: LogPlace,
}

impl SegmentLog {
    /// The encoded bytes that have not been taken yet.
    #[must_use]
    pub fn pending(&mut self) -> &mut Vec<u8> {
        &mut self.pending
    }

    /// Adds operation `seq`, which puts `runs` in their order.
    ///
    /// # Panics
    /// If there are too many, or a run is not possible.
    pub fn add(&mut self, seq: u64, runs: &[SegmentRun]) {
        assert!(runs.len() <= OPERATION_SEGMENTS_MAX, "an operation within its bound");
        put_varint(&mut self.pending, seq.wrapping_sub(self.last_seq));
        put_varint(&mut self.pending, runs.len() as u64);
        self.last_seq = seq;
        for run in runs {
            self.add_run(run);
        }
    }

    fn add_run(&mut self, run: &SegmentRun) {
        assert!(is_loggable(run), "a run of segments within its bounds");
        let segment = &run.first;
        let out = &mut self.pending;
        let same_file = segment.file == self.file;
        let same_log = segment
            .place
            .is_some_and(|place| (place.set, place.log) == (self.place.set, self.place.log));
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        out.push(
            flag(same_file, SAME_FILE)
                | flag(run.count > 1, RUN)
                | flag(same_log, SAME_LOG)
                | flag(segment.place.is_none(), HOLE)
                | flag(segment.place.is_some() && segment.checksum.is_some(), CHECKSUM),
        );
        if !same_file {
            out.extend_from_slice(&segment.file.to_le_bytes());
        }
        put_varint(out, zigzag(segment.offset.wrapping_sub(self.end)));
        put_varint(out, segment.length);
        if run.count > 1 {
            put_varint(out, run.count);
            put_varint(out, run.stride);
            put_varint(out, run.log_stride);
        }
        (self.file, self.end) = (segment.file, run.end());
        let Some(place) = segment.place else { return };
        if !same_log {
            out.extend_from_slice(&place.set.0.to_le_bytes());
            put_varint(out, place.log);
        }
        put_varint(out, zigzag(place.offset.wrapping_sub(self.place.offset)));
        if let Some(checksum) = segment.checksum {
            out.extend_from_slice(&checksum.to_le_bytes());
        }
        let (_, _, end) = run.log_end().expect("a run of segments with a place");
        self.place = LogPlace { offset: end, ..place };
    }

    /// Encodes `runs` as one message.
    #[must_use]
    pub fn encode_batch(runs: &[SegmentRun]) -> Vec<u8> {
        let mut log = Self::default();
        let max = OPERATION_SEGMENTS_MAX as u64;
        let cut: Vec<SegmentRun> = runs.iter().flat_map(|run| run.cut(max)).collect();
        cut.chunks(OPERATION_SEGMENTS_MAX).for_each(|operation| log.add(0, operation));
        log.pending
    }

    /// Decodes a message that [`SegmentLog::encode_batch`] made, and checks its runs.
    ///
    /// # Errors
    /// The damage, with its offset.
    pub fn decode_batch(bytes: &[u8]) -> Result<Vec<SegmentRun>, WireDamage> {
        let (mut input, mut all, mut runs) = (WireInput::new(bytes), Vec::new(), Vec::new());
        let mut log = Self::default();
        while input.left() > 0 {
            log.decode(&mut input, &mut runs)?;
            all.append(&mut runs);
        }
        Ok(all)
    }

    /// Decodes the next operation of `input`: returns its number, and its runs in `runs`.
    pub(crate) fn decode(
        &mut self,
        input: &mut WireInput,
        runs: &mut Vec<SegmentRun>,
    ) -> Result<u64, WireDamage> {
        let seq = self.last_seq.wrapping_add(input.varint()?);
        let count =
            input.varint_max(OPERATION_SEGMENTS_MAX, "an operation's number of segments")?;
        self.last_seq = seq;
        runs.clear();
        for _ in 0..count {
            runs.push(self.decode_run(seq, input)?);
        }
        Ok(seq)
    }

    fn decode_run(&mut self, seq: u64, input: &mut WireInput) -> Result<SegmentRun, WireDamage> {
        let flags = input.u8()?;
        let known = flags & !(SAME_FILE | SAME_LOG | HOLE | CHECKSUM | RUN) == 0;
        if !known || (flags & HOLE != 0 && flags & (SAME_LOG | CHECKSUM | RUN) != 0) {
            return Err(input.damage("a segment's known flags"));
        }
        let file = if flags & SAME_FILE == 0 { input.u128()? } else { self.file };
        let offset = self.end.wrapping_add(unzigzag(input.varint()?));
        let length = input.varint()?;
        let mut run = SegmentRun {
            first: Segment { seq, ..Segment::hole(file, offset, length) },
            count: 1,
            stride: length,
            log_stride: length,
        };
        if flags & RUN != 0 {
            run.count = input.varint()?;
            if run.count < 2 {
                return Err(input.damage("a run of several segments"));
            }
            run.stride = input.varint()?;
            run.log_stride = input.varint()?;
        }
        if flags & HOLE != 0 {
            return self.accept(run, input);
        }
        let mut place = self.place;
        if flags & SAME_LOG == 0 {
            place.set = SetId(input.u128()?);
            place.log = input.varint()?;
        }
        place.offset = self.place.offset.wrapping_add(unzigzag(input.varint()?));
        let known = place.set != SetId::default();
        run.first.place = known.then_some(place);
        if !known {
            return Err(input.damage("a segment in a log"));
        }
        run.first.checksum = if flags & CHECKSUM != 0 { Some(input.u32()?) } else { None };
        self.accept(run, input)
    }

    /// Advances the state past `run`, if its numbers are possible.
    fn accept(&mut self, run: SegmentRun, input: &WireInput) -> Result<SegmentRun, WireDamage> {
        if !is_loggable(&run) {
            return Err(input.damage("segments within their file and log"));
        }
        (self.file, self.end) = (run.first.file, run.end());
        if let (Some(place), Some((_, _, end))) = (run.first.place, run.log_end()) {
            self.place = LogPlace { offset: end, ..place };
        }
        Ok(run)
    }
}

/// Returns whether a decoder accepts `run`.
fn is_loggable(run: &SegmentRun) -> bool {
    run.is_possible() && run.count <= OPERATION_SEGMENTS_MAX as u64
}
