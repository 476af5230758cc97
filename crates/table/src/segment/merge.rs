//! Segment merge: the segments of several sources in order, a newer one cutting older ones.
//!
//! A sweep over (file, offset): at each point the newest source that has a segment there decides,
//! up to where that ends or a newer one begins. Neighbours that follow one another in their log are
//! joined. Memory: one block a source.

use esker_base::Result;

use super::Segment;
use crate::merge::Cursor;
use crate::schema::Key;

/// Segments of several sources as one.
#[derive(Debug)]
pub struct SegmentMerge {
    /// The newest first.
    sources: Vec<Source>,
    /// The piece that may still grow.
    pending: Option<Segment>,
}

#[derive(Debug)]
struct Source {
    cursor: Cursor,
    /// What is left of its current segment.
    rest: Option<Segment>,
}

impl Source {
    fn read(&mut self) -> Result<()> {
        self.rest = match self.cursor.is_valid() {
            true => Some(Segment::of_row(&self.cursor.row())?),
            false => None,
        };
        Ok(())
    }

    /// Passes over what lies before `at` of `file`, and everything of files before.
    fn pass(&mut self, file: u128, at: u64) -> Result<()> {
        while let Some(rest) = self.rest {
            if rest.file > file || (rest.file == file && rest.offset >= at) {
                return Ok(());
            }
            if rest.file == file && rest.end() > at {
                self.rest = Some(rest.part(at, rest.end()));
                return Ok(());
            }
            self.cursor.advance()?;
            self.read()?;
        }
        Ok(())
    }
}

impl SegmentMerge {
    /// Merges `cursors`, of which earlier ones are newer.
    ///
    /// # Errors
    /// `Corrupt`, and what the store reports.
    pub fn new(cursors: Vec<Cursor>) -> Result<Self> {
        let mut sources = Vec::with_capacity(cursors.len());
        for mut cursor in cursors {
            cursor.start(&Key::FIRST)?;
            let mut source = Source { cursor, rest: None };
            source.read()?;
            sources.push(source);
        }
        Ok(Self { sources, pending: None })
    }

    /// The next segment, holes among them; none at the end.
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
        let starts = self.sources.iter().filter_map(|source| source.rest.as_ref());
        let Some((file, at)) = starts.map(|rest| (rest.file, rest.offset)).min() else {
            return Ok(None);
        };
        let here =
            |source: &Source| source.rest.filter(|rest| rest.file == file && rest.offset == at);
        let winner = self.sources.iter().position(|source| here(source).is_some());
        let winner = winner.expect("the least start is some source's");
        let segment = here(&self.sources[winner]).expect("found just now");
        // A newer source that begins within cuts it.
        let cut = self.sources[..winner]
            .iter()
            .filter_map(|source| source.rest.filter(|rest| rest.file == file))
            .map(|rest| rest.offset)
            .fold(segment.end(), u64::min);
        for source in &mut self.sources {
            source.pass(file, cut)?;
        }
        Ok(Some(segment.part(at, cut)))
    }
}
