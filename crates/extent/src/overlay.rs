// SPDX-License-Identifier: Apache-2.0
//! Overlay: the content of a range of a file, assembled from sources of which earlier ones win.

use std::ops::Range;

use esker_base::Result;
use esker_table::merge::RecordMerge;

use super::{SEGMENT, Segment, SegmentSource, SegmentTables, seek_key};

/// Non-overlapping pieces of a range of one file, in order.
#[derive(Clone, Debug)]
pub struct SegmentOverlay {
    file: u128,
    range: Range<u64>,
    pieces: Vec<Segment>,
    /// Bytes of the range that no piece covers.
    missing_bytes: u64,
}

impl SegmentOverlay {
    /// Makes an overlay of `range` of `file` in which no byte is known yet.
    #[must_use]
    pub fn new(file: u128, range: Range<u64>) -> Self {
        let missing_bytes = range.end.saturating_sub(range.start);
        Self { file, range, pieces: Vec::new(), missing_bytes }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> u128 {
        self.file
    }

    /// The range.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns whether every byte is known, so that older sources need not be read.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.missing_bytes == 0
    }

    /// The pieces in order, including holes; no source had anything in the gaps between them.
    #[must_use]
    pub fn pieces(&self) -> &[Segment] {
        &self.pieces
    }

    /// Fills gaps from a source older than all before: its segments of the file, in order and
    /// without overlaps. Segments outside the range are ignored.
    pub fn add(&mut self, older: impl Iterator<Item = Segment>) {
        let mut older = older.peekable();
        if older.peek().is_none() || self.is_covered() {
            return;
        }
        let newer = std::mem::take(&mut self.pieces);
        let mut newer = newer.into_iter().peekable();
        for segment in older {
            let mut at = segment.offset.max(self.range.start);
            let end = segment.end().min(self.range.end);
            while at < end {
                // Skip pieces that end at or before `at`.
                while let Some(done) = newer.next_if(|piece| piece.end() <= at) {
                    self.pieces.push(done);
                }
                let next = newer.peek();
                match next {
                    Some(piece) if piece.offset <= at => at = piece.end(),
                    _ => {
                        let stop = next.map_or(end, |piece| piece.offset.min(end));
                        self.missing_bytes -= stop - at;
                        self.pieces.push(segment.part(at, stop));
                        at = stop;
                    }
                }
            }
        }
        self.pieces.extend(newer);
    }

    /// Fills gaps from each source of `tables`, newest first. Cost: about one block read for each.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn add_tables(&mut self, tables: &SegmentTables) -> Result<()> {
        let from = seek_key(self.file, self.range.start);
        let to = SEGMENT.group_last(&from);
        for source in tables.sources() {
            match source {
                _ if self.is_covered() => break,
                SegmentSource::Rows(run) => self.add_rows(run.merge(&SEGMENT, &from, &to)?)?,
                SegmentSource::Runs(runs) => {
                    let intervals = runs.interval_index(self.file)?;
                    self.add(intervals.overlapping(&self.range).into_iter());
                }
            }
        }
        Ok(())
    }

    fn add_rows(&mut self, mut rows: RecordMerge) -> Result<()> {
        let mut found: Vec<Segment> = Vec::new();
        while rows.advance()? {
            let segment = Segment::of_row(&rows.row())?;
            if segment.file != self.file || segment.offset >= self.range.end {
                break;
            }
            // A hostile table may hold overlapping segments: the first keeps its bytes.
            let start = found.last().map_or(segment.offset, |last| last.end().max(segment.offset));
            if start < segment.end() {
                found.push(segment.part(start, segment.end()));
            }
        }
        self.add(found.into_iter());
        Ok(())
    }
}
