// SPDX-License-Identifier: Apache-2.0
//! Nested run: runs of segments at one distance from each other; the record of runs.
//!
//! Ranks that write boxes of an array of several dimensions write lines within planes: a run for
//! each plane, all alike. A nested run is all these runs in one record, like the nested phrases of
//! MetaKV §III-A. A single run is a nested run of one, and a single segment a run of one.

use esker_base::Result;
use esker_table::manifest::SetId;
use esker_table::schema::{Row, Schema};

use super::{Segment, SegmentRun, columns, impossible};

/// `count` runs like `run`, each `stride` bytes after the previous one in the file, and
/// `log_stride` in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NestedRun {
    /// The first run.
    pub run: SegmentRun,
    /// Number of runs, at least 1.
    pub count: u64,
    /// Distance from the start of one run to that of the next; at least the span of a run, so that
    /// runs do not interleave. 0 if there is only one.
    pub stride: u64,
    /// The same distance in the log.
    pub log_stride: u64,
}

/// Columns of [`RUN`] after those that describe its first segment.
mod column {
    pub const COUNT: usize = 9;
    pub const STRIDE: usize = 10;
    pub const LOG_STRIDE: usize = 11;
    pub const RUNS: usize = 12;
    pub const RUN_STRIDE: usize = 13;
    pub const RUN_LOG_STRIDE: usize = 14;
}

/// The schema of runs in the extent table; the key is that of the first segment.
pub static RUN: Schema = Schema {
    id: 4,
    name: "run",
    ints: &columns::<15>(&[
        "count",
        "stride",
        "log_stride",
        "runs",
        "run_stride",
        "run_log_stride",
    ]),
    strings: &["unused"],
    key_ints: 3,
    group_ints: 2,
    hash_of: None,
    has_filters: false,
};

impl NestedRun {
    /// Makes a nested run of `run` alone.
    #[must_use]
    pub fn one(run: SegmentRun) -> Self {
        Self { run, count: 1, stride: 0, log_stride: 0 }
    }

    /// Returns run `index`.
    #[must_use]
    #[inline]
    pub fn run(&self, index: u64) -> SegmentRun {
        debug_assert!(index < self.count);
        let mut run = self.run;
        run.first.offset += index * self.stride;
        if let Some(place) = &mut run.first.place {
            place.offset += index * self.log_stride;
        }
        run
    }

    /// Returns all its runs, in order.
    pub fn runs(&self) -> impl Iterator<Item = SegmentRun> + use<> {
        let nested = *self;
        (0..nested.count).map(move |index| nested.run(index))
    }

    /// The number of its segments.
    #[must_use]
    pub fn segments(&self) -> u64 {
        self.count.saturating_mul(self.run.count)
    }

    /// The end of its last segment in the file.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.run.end() + (self.count - 1) * self.stride
    }

    /// The set, the log and the end of its bytes in the log; `None` for holes.
    #[must_use]
    pub fn log_end(&self) -> Option<(SetId, u64, u64)> {
        let (set, log, end) = self.run.log_end()?;
        Some((set, log, end + (self.count - 1) * self.log_stride))
    }

    /// Returns whether its numbers are possible: its run is, runs do not interleave, and all of
    /// them end within 64 bits, in the file and in the log.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        if !self.run.is_possible() {
            return false;
        }
        let reach = |end: u64, stride: u64| end.checked_add((self.count - 1).checked_mul(stride)?);
        let log_end = self.run.log_end().map_or(0, |(_, _, end)| end);
        match self.count {
            0 => false,
            1 => (self.stride, self.log_stride) == (0, 0),
            _ => {
                self.run.count > 1
                    && self.stride >= self.run.end() - self.run.first.offset
                    && reach(self.run.end(), self.stride).is_some()
                    && reach(log_end, self.log_stride).is_some()
                    && self.count.checked_mul(self.run.count).is_some()
            }
        }
    }

    /// Adds `run` if it continues the nested run, and returns whether it did. The second run sets
    /// the strides: two runs alike are a nested run.
    #[must_use]
    pub fn try_push(&mut self, run: &SegmentRun) -> bool {
        let (own, next) = (&self.run, run);
        let (Some(place), Some(next_place)) = (own.first.place, next.first.place) else {
            return false;
        };
        let is_alike = (own.count, own.stride, own.log_stride, own.first.length)
            == (next.count, next.stride, next.log_stride, next.first.length)
            && (place.set, place.log) == (next_place.set, next_place.log);
        if !is_alike {
            return false;
        }
        let distance = |from: u64, to: u64| to.checked_sub(from);
        let (Some(offset), Some(log_offset)) = (
            distance(own.first.offset, next.first.offset),
            distance(place.offset, next_place.offset),
        ) else {
            return false;
        };
        if self.count == 1 {
            if offset < own.end() - own.first.offset {
                return false;
            }
            (self.stride, self.log_stride) = (offset, log_offset);
        } else if self.count.checked_mul(self.stride) != Some(offset)
            || self.count.checked_mul(self.log_stride) != Some(log_offset)
        {
            return false;
        }
        self.count += 1;
        self.run.first.seq = self.run.first.seq.max(run.first.seq);
        true
    }

    /// Adds all runs of `nested` if they continue this one; returns whether they do.
    #[must_use]
    pub fn try_append(&mut self, nested: &Self) -> bool {
        let (before, strides) = (*self, (nested.stride, nested.log_stride));
        if self.try_push(&nested.run)
            && (nested.count == 1 || strides == (self.stride, self.log_stride))
        {
            self.count += nested.count - 1;
            return true;
        }
        *self = before;
        false
    }

    /// Returns the record, in stored form, which here equals the readable form.
    #[must_use]
    pub fn row(&self) -> Row<'static> {
        use column as c;
        let mut row = self.run.first.placed_segment_row();
        row.ints[c::COUNT] = self.run.count;
        row.ints[c::STRIDE] = self.run.stride;
        row.ints[c::LOG_STRIDE] = self.run.log_stride;
        row.ints[c::RUNS] = self.count;
        row.ints[c::RUN_STRIDE] = self.stride;
        row.ints[c::RUN_LOG_STRIDE] = self.log_stride;
        row
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// `Corrupt` if its numbers are impossible.
    pub fn of_row(row: &Row) -> Result<Self> {
        use column as c;
        let ints = &row.ints;
        let run = SegmentRun {
            first: Segment::of_placed(row).ok_or_else(|| impossible(row))?,
            count: ints[c::COUNT],
            stride: ints[c::STRIDE],
            log_stride: ints[c::LOG_STRIDE],
        };
        let nested = Self {
            run,
            count: ints[c::RUNS],
            stride: ints[c::RUN_STRIDE],
            log_stride: ints[c::RUN_LOG_STRIDE],
        };
        if nested.is_possible() { Ok(nested) } else { Err(impossible(row)) }
    }
}
