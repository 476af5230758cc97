// SPDX-License-Identifier: Apache-2.0
//! Segment merge: yields the segments of several sources in order; newer segments cut older ones.
//!
//! A sweep over (file, offset): at each point the newest source with a segment there decides, up to
//! the end of that segment or the start of a newer one. Adjacent segments that are also adjacent in
//! their log are joined. Memory: one block per source.

use std::sync::Arc;
use std::vec;

use esker_base::Result;
use esker_table::merge::RecordMerge;
use esker_table::schema::Key;

use super::{IntervalIndex, RunTables, SEGMENT, Segment, SegmentSource};

/// Segments of an interval index that are read at a time.
const CHUNK_SEGMENTS: usize = 1 << 12;

/// Merges the segments of several sources.
#[derive(Debug)]
pub struct SegmentMerge {
    /// The sources, newest first.
    sources: Vec<MergeSource>,
    /// The last piece, which the next one may extend.
    pending: Option<Segment>,
}

#[derive(Debug)]
struct MergeSource {
    stream: SegmentStream,
    /// The rest of its current segment.
    rest: Option<Segment>,
}

/// Segments of one source in order.
#[derive(Debug)]
enum SegmentStream {
    Rows(Box<RecordMerge>),
    /// Segments in memory.
    #[cfg(test)]
    List(vec::IntoIter<Segment>),
    Runs {
        runs: Arc<RunTables>,
        files: vec::IntoIter<u128>,
        of_file: Option<OfFile>,
    },
}

/// Segments of one file of a table of runs.
#[derive(Debug)]
struct OfFile {
    intervals: Arc<IntervalIndex>,
    chunk: vec::IntoIter<Segment>,
    from: u64,
}

impl SegmentStream {
    fn next(&mut self) -> Result<Option<Segment>> {
        match self {
            Self::Rows(rows) => match rows.advance()? {
                true => Segment::of_row(&rows.row()).map(Some),
                false => Ok(None),
            },
            #[cfg(test)]
            Self::List(segments) => Ok(segments.next()),
            Self::Runs { runs, files, of_file } => loop {
                if let Some(own) = of_file {
                    if own.chunk.len() == 0 {
                        own.chunk = own.intervals.chunk(own.from, CHUNK_SEGMENTS).into_iter();
                    }
                    if let Some(segment) = own.chunk.next() {
                        own.from = segment.end();
                        return Ok(Some(segment));
                    }
                }
                let Some(file) = files.next() else { return Ok(None) };
                let intervals = runs.interval_index(file)?;
                *of_file = Some(OfFile { intervals, chunk: Vec::new().into_iter(), from: 0 });
            },
        }
    }
}

impl MergeSource {
    fn read(&mut self) -> Result<()> {
        self.rest = self.stream.next()?;
        Ok(())
    }

    /// Skips everything before `at` of `file`, and all earlier files.
    fn pass(&mut self, file: u128, at: u64) -> Result<()> {
        while let Some(rest) = self.rest {
            if rest.file > file || (rest.file == file && rest.offset >= at) {
                return Ok(());
            }
            if rest.file == file && rest.end() > at {
                self.rest = Some(rest.part(at, rest.end()));
                return Ok(());
            }
            self.read()?;
        }
        Ok(())
    }
}

impl SegmentMerge {
    /// Merges `sources`, newest first, without the runs of files that are `left_out`.
    ///
    /// # Errors
    /// `Corrupt`, and errors of the store.
    pub fn new(sources: &[SegmentSource], left_out: &dyn Fn(u128) -> bool) -> Result<Self> {
        let mut merged = Vec::with_capacity(sources.len());
        for source in sources {
            let stream = match source {
                SegmentSource::Rows(run) => {
                    SegmentStream::Rows(Box::new(run.merge(&SEGMENT, &Key::FIRST, &Key::LAST)?))
                }
                SegmentSource::Runs(runs) => {
                    let mut files = runs.files()?;
                    files.retain(|file| !left_out(*file));
                    SegmentStream::Runs {
                        runs: runs.clone(),
                        files: files.into_iter(),
                        of_file: None,
                    }
                }
            };
            merged.push(stream);
        }
        Self::of_streams(merged)
    }

    /// Merges segments in memory; earlier lists are newer.
    #[cfg(test)]
    pub(super) fn of_lists(lists: Vec<Vec<Segment>>) -> Result<Self> {
        Self::of_streams(
            lists.into_iter().map(|all| SegmentStream::List(all.into_iter())).collect(),
        )
    }

    fn of_streams(streams: Vec<SegmentStream>) -> Result<Self> {
        let mut sources = Vec::with_capacity(streams.len());
        for stream in streams {
            let mut source = MergeSource { stream, rest: None };
            source.read()?;
            sources.push(source);
        }
        Ok(Self { sources, pending: None })
    }

    /// Returns the next segment, which may be a hole; `None` at the end.
    ///
    /// # Errors
    /// As [`SegmentMerge::new`].
    pub fn read(&mut self) -> Result<Option<Segment>> {
        loop {
            let Some(piece) = self.next_piece()? else {
                return Ok(self.pending.take());
            };
            match &mut self.pending {
                None => self.pending = Some(piece),
                Some(pending) if pending.is_followed_by(&piece) => {
                    *pending = pending.joined(&piece);
                }
                Some(pending) => return Ok(Some(std::mem::replace(pending, piece))),
            }
        }
    }

    fn next_piece(&mut self) -> Result<Option<Segment>> {
        let rests = || self.sources.iter().map(|source| source.rest.as_ref());
        let starts = rests().enumerate().filter_map(|(number, rest)| {
            let rest = rest?;
            Some((rest.file, rest.offset, number))
        });
        // The newest of the segments that start first wins.
        let Some((file, at, winner)) = starts.min() else { return Ok(None) };
        let segment = self.sources[winner].rest.expect("it starts there");
        // A newer source that begins inside the segment cuts it.
        let newer = rests().take(winner).flatten().filter(|rest| rest.file == file);
        let cut = newer.map(|rest| rest.offset).fold(segment.end(), u64::min);
        for source in &mut self.sources {
            let is_before = |rest: &Segment| rest.file == file && rest.offset < cut;
            if source.rest.as_ref().is_some_and(is_before) {
                source.pass(file, cut)?;
            }
        }
        Ok(Some(segment.part(at, cut)))
    }
}
