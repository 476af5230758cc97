// SPDX-License-Identifier: Apache-2.0
//! Log run builder: the segments of one file in one log, in the order in which they were written.
//!
//! Writers pass segments in batches, which cut runs at arbitrary points. A builder joins the runs
//! again as they arrive, and joins similar runs to nested runs: a pattern that a rank writes takes
//! a few dozen bytes no matter how long it continues. Segments in no pattern take 24 bytes each. A
//! builder reorders nothing, so where segments of several builders overlap, the order in which the
//! builders grew later decides between them.
//! Source: MetaKV §III-A (phrases).

use esker_table::manifest::SetId;

use super::find_runs::RUN_MIN;
use super::{FilePiece, LogPlace, NestedRun, Segment, SegmentRun};

/// Segments of one file in one log; holes, which are in no log, have a builder of their own.
#[derive(Debug, Default)]
pub struct LogRunBuilder {
    file: u128,
    log: Option<(SetId, u64)>,
    parts: Vec<RunPart>,
    loose: Vec<FilePiece>,
    /// The last run, which may continue.
    open: Option<SegmentRun>,
    seq_max: u64,
}

/// An element of a builder.
#[derive(Debug)]
pub(super) enum RunPart {
    Nested(NestedRun),
    /// The next `n` of the single segments.
    Loose(usize),
    /// A segment with a checksum, or a hole.
    Other(Segment),
}

impl LogRunBuilder {
    /// Makes an empty builder of `file` in `log`.
    #[must_use]
    pub fn new(file: u128, log: Option<(SetId, u64)>) -> Self {
        Self { file, log, ..Self::default() }
    }

    /// The newest operation that wrote any of the segments.
    pub(super) fn seq_max(&self) -> u64 {
        self.seq_max
    }

    /// The single segments, in order.
    #[must_use]
    pub fn loose_segments(&self) -> &[FilePiece] {
        &self.loose
    }

    /// Returns all elements in order; single segments appear only as counts.
    pub(super) fn parts(&self) -> impl Iterator<Item = &RunPart> {
        self.parts.iter()
    }

    /// The run that may continue; it is not a part yet.
    #[must_use]
    pub fn open(&self) -> Option<&SegmentRun> {
        self.open.as_ref()
    }

    /// Returns single segment `piece` as a segment of the builder's file and log.
    #[must_use]
    #[inline]
    pub fn segment(&self, piece: &FilePiece, seq: u64) -> Segment {
        let FilePiece { offset, length, log_offset } = *piece;
        let place = self.log.map(|(set, log)| LogPlace { set, log, offset: log_offset });
        Segment { file: self.file, offset, length, place, checksum: None, seq }
    }

    /// Returns all its segments, in the order in which they were written.
    pub fn segments(&self) -> impl Iterator<Item = Segment> {
        let mut loose = self.loose.iter();
        let of_parts = self.parts.iter().flat_map(move |part| {
            let (nested, count, other) = match part {
                RunPart::Nested(nested) => (Some(nested), 0, None),
                RunPart::Loose(count) => (None, *count, None),
                RunPart::Other(segment) => (None, 0, Some(*segment)),
            };
            let of_nested = nested.into_iter().flat_map(NestedRun::runs);
            let of_nested = of_nested.flat_map(|run| run.segments());
            let own: Vec<Segment> =
                loose.by_ref().take(count).map(|piece| self.segment(piece, 0)).collect();
            of_nested.chain(own).chain(other)
        });
        of_parts.chain(self.open.iter().flat_map(SegmentRun::segments))
    }

    /// Adds `run`, written after all that is here.
    pub fn push(&mut self, run: &SegmentRun) {
        self.seq_max = self.seq_max.max(run.first.seq);
        if run.first.checksum.is_some() || run.first.place.is_none() {
            self.close();
            debug_assert!(run.count == 1, "neither holes nor segments with checksums are runs");
            return self.parts.push(RunPart::Other(run.first));
        }
        let Some(open) = &mut self.open else {
            self.open = Some(*run);
            return;
        };
        let seq = open.first.seq.max(run.first.seq);
        if goes_on(open, run) {
            open.count += run.count;
            open.first.seq = seq;
        } else if open.count == 1 && precedes(&piece_of(open), run) {
            *open = SegmentRun { first: open.first, count: run.count + 1, ..*run };
            open.first.seq = seq;
            self.absorb_loose();
        } else if open.count == 1 && run.count == 1 {
            self.close();
            self.open = Some(*run);
            self.find_run();
        } else {
            self.close();
            self.open = Some(*run);
        }
    }

    /// Adds all runs of `nested`, as [`LogRunBuilder::push`] does.
    pub(super) fn push_nested(&mut self, nested: &NestedRun) {
        self.seq_max = self.seq_max.max(nested.run.first.seq);
        if nested.count == 1 {
            return self.push(&nested.run);
        }
        self.close();
        if let Some(RunPart::Nested(last)) = self.parts.last_mut()
            && last.try_append(nested)
        {
            return;
        }
        self.parts.push(RunPart::Nested(*nested));
    }

    /// Removes the last single segment, if nothing came between it and the open run.
    fn pop_loose(&mut self) -> Option<FilePiece> {
        let Some(RunPart::Loose(count)) = self.parts.last_mut() else { return None };
        *count -= 1;
        if *count == 0 {
            self.parts.pop();
        }
        self.loose.pop()
    }

    fn last_loose(&self) -> &[FilePiece] {
        match self.parts.last() {
            Some(RunPart::Loose(count)) => &self.loose[self.loose.len() - count..],
            _ => &[],
        }
    }

    /// Moves the single segments that directly precede the open run into it.
    fn absorb_loose(&mut self) {
        while let (Some(last), Some(open)) = (self.last_loose().last(), &self.open)
            && precedes(last, open)
        {
            let piece = self.pop_loose().expect("it was there");
            let open = self.open.as_mut().expect("it was there");
            let first = open.first;
            open.first.offset = piece.offset;
            if let (Some(place), Some(_)) = (&mut open.first.place, first.place) {
                place.offset = piece.log_offset;
            }
            open.count += 1;
        }
    }

    /// Turns the last single segments and the open one into a run, if they form one.
    #[inline]
    fn find_run(&mut self) {
        let loose = self.last_loose();
        let Some(open) = self.open.as_ref().filter(|_| loose.len() >= RUN_MIN - 1) else {
            return;
        };
        let last = piece_of(open);
        let tail = &loose[loose.len() - (RUN_MIN - 1)..];
        let before = tail[RUN_MIN - 2];
        let stride = last.offset.wrapping_sub(before.offset);
        let log_stride = last.log_offset.wrapping_sub(before.log_offset);
        if last.offset < before.offset
            || stride < last.length
            || last.log_offset < before.log_offset
        {
            return;
        }
        let mut next = last;
        let is_run = tail.iter().rev().all(|piece| {
            let is_before = piece.length == next.length
                && piece.offset.checked_add(stride) == Some(next.offset)
                && piece.log_offset.checked_add(log_stride) == Some(next.log_offset);
            next = *piece;
            is_before
        });
        if is_run {
            let seq = open.first.seq;
            let first = self.segment(&tail[0], seq);
            let count = RUN_MIN as u64;
            for _ in 1..RUN_MIN {
                let _ = self.pop_loose();
            }
            self.open = Some(SegmentRun { first, count, stride, log_stride });
        }
    }

    /// Makes the open run a part.
    pub(super) fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let count = open.count as usize;
        match self.parts.last_mut() {
            Some(RunPart::Nested(nested)) if count >= RUN_MIN => {
                if !nested.try_push(&open) {
                    self.parts.push(RunPart::Nested(NestedRun::one(open)));
                }
                return;
            }
            _ if count >= RUN_MIN => return self.parts.push(RunPart::Nested(NestedRun::one(open))),
            Some(RunPart::Loose(loose)) => *loose += count,
            _ => self.parts.push(RunPart::Loose(count)),
        }
        self.loose.extend(open.segments().map(|one| piece_of(&SegmentRun::one(one))));
    }
}

#[inline]
fn piece_of(run: &SegmentRun) -> FilePiece {
    let Segment { offset, length, place, .. } = run.first;
    FilePiece { offset, length, log_offset: place.map_or(0, |place| place.offset) }
}

/// Returns whether `next` continues `run`.
#[inline]
fn goes_on(run: &SegmentRun, next: &SegmentRun) -> bool {
    let (own, other) = (piece_of(run), piece_of(next));
    let behind = |start: u64, stride: u64| start.checked_add(run.count.checked_mul(stride)?);
    run.count > 1
        && own.length == other.length
        && behind(own.offset, run.stride) == Some(other.offset)
        && behind(own.log_offset, run.log_stride) == Some(other.log_offset)
        && (next.count == 1 || (next.stride, next.log_stride) == (run.stride, run.log_stride))
        && run.count.checked_add(next.count).is_some()
}

/// Returns whether `piece` would precede the first segment of `run`.
#[inline]
fn precedes(piece: &FilePiece, run: &SegmentRun) -> bool {
    let first = piece_of(run);
    run.count > 1
        && piece.length == first.length
        && piece.offset.checked_add(run.stride) == Some(first.offset)
        && piece.log_offset.checked_add(run.log_stride) == Some(first.log_offset)
}
