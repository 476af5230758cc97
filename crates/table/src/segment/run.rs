//! Segment run: segments of one length at one distance from each other, in a file and in a log.
//!
//! What a rank writes into a shared file is hardly ever one range, and hardly ever random: it is a
//! pattern, and a run says in one record what would be thousands of segments (MetaKV §III-A, the
//! phrases of its delta encoding).

use esker_base::{Error, Kind, Result};

use super::{LogPlace, Segment};
use crate::manifest::SetId;
use crate::schema::{IntColumn, Row, Schema};

/// `count` segments, each `stride` behind the one before in the file, and `log_stride` in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRun {
    /// The first of them.
    pub first: Segment,
    /// How many there are, at least 1.
    pub count: u64,
    /// From the start of one to that of the next; at least their length, so that they do not
    /// overlap.
    pub stride: u64,
    /// The same in the log.
    pub log_stride: u64,
}

/// Columns of [`RUN`], in its order.
mod column {
    pub const END: usize = 2;
    pub const SEQ: usize = 3;
    pub const LENGTH: usize = 4;
    pub const SET_HIGH: usize = 5;
    pub const SET_LOW: usize = 6;
    pub const LOG: usize = 7;
    pub const LOG_OFFSET: usize = 8;
    pub const COUNT: usize = 9;
    pub const STRIDE: usize = 10;
    pub const LOG_STRIDE: usize = 11;
}

const fn plain(name: &'static str) -> IntColumn {
    IntColumn { name, relative_to: None }
}

/// The schema of runs in the extent table; the key is that of the first segment.
pub static RUN: Schema = Schema {
    id: 4,
    name: "run",
    ints: &[
        plain("file_high"),
        plain("file_low"),
        plain("end"),
        plain("seq"),
        plain("length"),
        plain("set_high"),
        plain("set_low"),
        plain("log"),
        plain("log_offset"),
        plain("count"),
        plain("stride"),
        plain("log_stride"),
    ],
    strings: &["unused"],
    key_ints: 3,
    group_ints: 2,
    hash_of: None,
    has_filters: false,
};

impl SegmentRun {
    /// `segment` alone.
    #[must_use]
    pub fn one(segment: Segment) -> Self {
        Self { count: 1, stride: segment.length, log_stride: segment.length, first: segment }
    }

    /// Whether its numbers make sense: it has segments, they do not overlap, and all of them end
    /// within 64 bits, in the file and in the log.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let reach = |start: u64, stride: u64| {
            let span = (self.count.checked_sub(1)?).checked_mul(stride)?;
            start.checked_add(span)?.checked_add(self.first.length)
        };
        let log_start = self.first.place.map_or(0, |place| place.offset);
        self.first.length > 0
            && (self.count == 1 || (self.stride >= self.first.length && self.first.place.is_some()))
            && reach(self.first.offset, self.stride).is_some()
            && reach(log_start, self.log_stride).is_some()
    }

    /// Segment `index` of it.
    #[must_use]
    #[inline]
    pub fn segment(&self, index: u64) -> Segment {
        debug_assert!(index < self.count);
        let place = self
            .first
            .place
            .map(|place| LogPlace { offset: place.offset + index * self.log_stride, ..place });
        let checksum = self.first.checksum.filter(|_| self.count == 1);
        Segment { offset: self.first.offset + index * self.stride, place, checksum, ..self.first }
    }

    /// All its segments, in order.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        let run = *self;
        (0..run.count).map(move |index| run.segment(index))
    }

    /// Where in the file the last of them ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.end() + (self.count - 1) * self.stride
    }

    /// How far it reaches in its log.
    #[must_use]
    pub fn log_end(&self) -> Option<(SetId, u64, u64)> {
        let place = self.first.place?;
        let end = place.offset + (self.count - 1) * self.log_stride + self.first.length;
        Some((place.set, place.log, end))
    }

    /// The record, in stored form, which is the readable one.
    #[must_use]
    pub fn row(&self) -> Row<'static> {
        use column as c;
        let mut row = Row::default();
        let place = self.first.place.unwrap_or_default();
        row.ints[0] = (self.first.file >> 64) as u64;
        row.ints[1] = self.first.file as u64;
        row.ints[c::END] = self.first.end();
        row.ints[c::SEQ] = self.first.seq;
        row.ints[c::LENGTH] = self.first.length;
        row.ints[c::SET_HIGH] = (place.set.0 >> 64) as u64;
        row.ints[c::SET_LOW] = place.set.0 as u64;
        row.ints[c::LOG] = place.log;
        row.ints[c::LOG_OFFSET] = place.offset;
        row.ints[c::COUNT] = self.count;
        row.ints[c::STRIDE] = self.stride;
        row.ints[c::LOG_STRIDE] = self.log_stride;
        row
    }

    /// What a record says.
    ///
    /// # Errors
    /// `Corrupt` if its numbers make no sense.
    pub fn of_row(row: &Row) -> Result<Self> {
        use column as c;
        let ints = &row.ints;
        let file = u128::from(ints[0]) << 64 | u128::from(ints[1]);
        let (length, seq) = (ints[c::LENGTH], ints[c::SEQ]);
        let place = LogPlace {
            set: SetId(u128::from(ints[c::SET_HIGH]) << 64 | u128::from(ints[c::SET_LOW])),
            log: ints[c::LOG],
            offset: ints[c::LOG_OFFSET],
        };
        let wrong = || {
            let what =
                format!("run of segments of file {file:032x}, the first to {}", ints[c::END]);
            Error::new(Kind::Corrupt, format!("{what}: impossible numbers; run `esker verify`"))
        };
        let offset = ints[c::END].checked_sub(length).ok_or_else(wrong)?;
        let place = (place.set != SetId::default()).then_some(place);
        let run = Self {
            first: Segment { file, offset, length, place, checksum: None, seq },
            count: ints[c::COUNT],
            stride: ints[c::STRIDE],
            log_stride: ints[c::LOG_STRIDE],
        };
        if run.is_possible() { Ok(run) } else { Err(wrong()) }
    }
}
