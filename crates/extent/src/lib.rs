// SPDX-License-Identifier: Apache-2.0
//! Segments: map ranges of files to bytes of logs; the records of the extent table.
//!
//! A file's content may be spread over many logs, in pieces that overwrite each other. The pieces
//! of one source of segments (a memtable, a run of tables, a change set) do not overlap; where
//! those of two sources do, the newer wins, byte by byte. So a write never reads the bytes that it
//! overwrites.
//!
//! A record's key is (file, end). Only the first record that ends after an offset can contain it,
//! so finding the piece at an offset is one forward seek, without looking backwards.
//! Source: DESIGN §1.5; MetaKV §II (locating segments of shared files).

mod buffer;
mod family;
mod file_buffer;
mod files;
mod find_runs;
mod group;
mod interval_index;
mod log;
mod log_run_builder;
mod loose_segments;
mod map;
mod merge;
mod nested_run;
mod overlay;
mod run;
mod strided_segments;
mod tables;
mod tree;

use esker_base::{Error, Kind, Result};
use esker_table::manifest::SetId;
use esker_table::schema::{IntColumn, Key, Row, Schema};

pub use self::buffer::{ForTables, SegmentBuffer};
pub use self::family::{ExtentFamily, SegmentMemtable, logged_runs};
pub use self::files::runs_among;
pub use self::find_runs::{FilePiece, find_runs};
pub use self::interval_index::IntervalIndex;
pub use self::log::{OPERATION_SEGMENTS_MAX, SegmentLog};
pub use self::log_run_builder::LogRunBuilder;
pub use self::loose_segments::LooseSegments;
pub use self::map::SegmentMap;
pub use self::merge::SegmentMerge;
pub use self::nested_run::{NestedRun, RUN};
pub use self::overlay::SegmentOverlay;
pub use self::run::SegmentRun;
pub use self::strided_segments::{StrideDimension, StridedSegments};
pub use self::tables::{RunTables, SegmentSource, SegmentTables};
pub use self::tree::TreeExtents;

/// The place of bytes: the set in whose folder the log is, the log's number, and the offset in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPlace {
    /// The set.
    pub set: SetId,
    /// Number of the log.
    pub log: u64,
    /// Offset in the log.
    pub offset: u64,
}

/// A range of a file and the place of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The file.
    pub file: u128,
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes, at least 1; `offset + length` fits 64 bits.
    pub length: u64,
    /// The place of its bytes; `None` for a hole, which hides older sources in its range and reads
    /// as zeros.
    pub place: Option<LogPlace>,
    /// CRC-32C of its bytes; unknown for the remainder of a segment that was cut.
    pub checksum: Option<u32>,
    /// Operation that wrote it, within its change set.
    pub seq: u64,
}

/// Columns of [`SEGMENT`], in its order.
mod column {
    pub const END: usize = 2;
    pub const SEQ: usize = 3;
    pub const LENGTH: usize = 4;
    pub const SET_HIGH: usize = 5;
    pub const SET_LOW: usize = 6;
    pub const LOG: usize = 7;
    pub const LOG_OFFSET: usize = 8;
    pub const CHECKSUM: usize = 9;
}

/// Flag in the checksum column: the checksum is known.
const KNOWN: u64 = 1 << 32;

/// The columns that describe one segment except for its checksum; all schemas of segments begin
/// with them.
const PLACED: [IntColumn; 9] = [
    IntColumn::plain("file_high"),
    IntColumn::plain("file_low"),
    IntColumn::plain("end"),
    IntColumn::plain("seq"),
    IntColumn::plain("length"),
    IntColumn::plain("set_high"),
    IntColumn::plain("set_low"),
    IntColumn::plain("log"),
    IntColumn::plain("log_offset"),
];

/// Returns [`PLACED`] followed by `more` columns.
const fn columns<const N: usize>(more: &[&'static str]) -> [IntColumn; N] {
    assert!(N == PLACED.len() + more.len(), "every column has a name");
    let mut columns = [IntColumn::plain(""); N];
    let mut at = 0;
    while at < N {
        columns[at] = match at.checked_sub(PLACED.len()) {
            None => PLACED[at],
            Some(more_at) => IntColumn::plain(more[more_at]),
        };
        at += 1;
    }
    columns
}

/// The schema of the extent table.
pub static SEGMENT: Schema = Schema {
    id: 3,
    name: "segment",
    ints: &columns::<10>(&["checksum"]),
    strings: &["unused"],
    key_ints: 3,
    group_ints: 2,
    hash_of: None,
    has_filters: false,
};

/// Returns the key of the first segment of `file` that may contain the byte at `offset`.
#[must_use]
pub fn seek_key(file: u128, offset: u64) -> Key<'static> {
    Key { ints: [(file >> 64) as u64, file as u64, offset.saturating_add(1)], string: &[] }
}

impl Segment {
    /// Makes a range that reads as zeros and hides older sources.
    #[must_use]
    pub fn hole(file: u128, offset: u64, length: u64) -> Self {
        Self { file, offset, length, place: None, checksum: None, seq: 0 }
    }

    /// Its end in the file.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }

    /// Returns the part of it from `start` to `end`, which must be within it.
    #[must_use]
    pub fn part(&self, start: u64, end: u64) -> Self {
        debug_assert!(self.offset <= start && start < end && end <= self.end());
        let skipped = start - self.offset;
        let place = self
            .place
            .map(|place| LogPlace { offset: place.offset.wrapping_add(skipped), ..place });
        let is_whole = (start, end) == (self.offset, self.end());
        let checksum = self.checksum.filter(|_| is_whole);
        Self { offset: start, length: end - start, place, checksum, ..*self }
    }

    /// Returns whether `next` continues this segment, in the file and in the log.
    #[must_use]
    pub fn is_followed_by(&self, next: &Self) -> bool {
        let goes_on = match (&self.place, &next.place) {
            (None, None) => true,
            (Some(own), Some(other)) => {
                own.set == other.set
                    && own.log == other.log
                    && own.offset.checked_add(self.length) == Some(other.offset)
            }
            _ => false,
        };
        goes_on && self.file == next.file && self.end() == next.offset
    }

    /// Joins this segment and `next`, by which it [is followed](Self::is_followed_by).
    #[must_use]
    pub fn joined(&self, next: &Self) -> Self {
        let checksum = match (self.checksum, next.checksum, usize::try_from(next.length)) {
            (Some(own), Some(other), Ok(bytes)) => Some(crc32c::crc32c_combine(own, other, bytes)),
            _ => None,
        };
        let (length, seq) = (self.length + next.length, self.seq.max(next.seq));
        Self { length, checksum, seq, ..*self }
    }

    /// Returns the record, in stored form, which here equals the readable form.
    #[must_use]
    pub fn row(&self) -> Row<'static> {
        let mut row = self.placed_segment_row();
        row.ints[column::CHECKSUM] =
            self.checksum.map_or(0, |checksum| KNOWN | u64::from(checksum));
        row
    }

    /// Returns a row of [`PLACED`].
    fn placed_segment_row(&self) -> Row<'static> {
        use column as c;
        let mut row = Row::default();
        let place = self.place.unwrap_or_default();
        row.ints[0] = (self.file >> 64) as u64;
        row.ints[1] = self.file as u64;
        row.ints[c::END] = self.end();
        row.ints[c::SEQ] = self.seq;
        row.ints[c::LENGTH] = self.length;
        row.ints[c::SET_HIGH] = (place.set.0 >> 64) as u64;
        row.ints[c::SET_LOW] = place.set.0 as u64;
        row.ints[c::LOG] = place.log;
        row.ints[c::LOG_OFFSET] = place.offset;
        row
    }

    /// Decodes the columns [`PLACED`]; `None` if their numbers are impossible.
    fn of_placed(row: &Row) -> Option<Self> {
        use column as c;
        let ints = &row.ints;
        let file = u128::from(ints[0]) << 64 | u128::from(ints[1]);
        let (length, seq) = (ints[c::LENGTH], ints[c::SEQ]);
        let offset = ints[c::END].checked_sub(length).filter(|_| length > 0)?;
        let place = LogPlace {
            set: SetId(u128::from(ints[c::SET_HIGH]) << 64 | u128::from(ints[c::SET_LOW])),
            log: ints[c::LOG],
            offset: ints[c::LOG_OFFSET],
        };
        place.offset.checked_add(length)?;
        let place = (place.set != SetId::default()).then_some(place);
        Some(Self { file, offset, length, place, checksum: None, seq })
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// `Corrupt` if a number is out of its range.
    pub fn of_row(row: &Row) -> Result<Self> {
        let checksum = row.ints[column::CHECKSUM];
        match Self::of_placed(row) {
            Some(segment) if matches!(checksum >> 32, 0 | 1) => {
                Ok(Self { checksum: (checksum != 0).then_some(checksum as u32), ..segment })
            }
            _ => Err(impossible(row)),
        }
    }
}

/// Returns `Corrupt` for a record of segments whose numbers are impossible.
fn impossible(row: &Row) -> Error {
    let (file, end) = ((row.ints[0], row.ints[1]), row.ints[column::END]);
    let what = format!(
        "segments of file {:016x}{:016x}, the first to {end}: impossible numbers; run `esker verify`",
        file.0, file.1
    );
    Error::new(Kind::Corrupt, what)
}

#[cfg(test)]
mod tests;
