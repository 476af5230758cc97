//! Snapshot: all segments of a file at one moment, at who asked for them; servers keep nothing of it.

use esker_base::Result;
use esker_table::segment::{Overlay, Segment, SegmentBuffer, SegmentRun};

use crate::service::no_answer;

/// All segments of a file at one moment, which later puts do not change.
#[derive(Debug, Default)]
pub struct Snapshot {
    buffer: SegmentBuffer,
    file: u128,
    end: u64,
}

impl Snapshot {
    /// `runs` of `file`, of all servers.
    pub(crate) fn of(file: u128, runs: Vec<SegmentRun>) -> Result<Self> {
        if runs.iter().any(|run| run.first.file != file) {
            return Err(no_answer());
        }
        let placed = runs.iter().filter(|run| run.first.place.is_some());
        let end = placed.map(SegmentRun::end).max().unwrap_or(0);
        let mut buffer = SegmentBuffer::default();
        buffer.insert_batch(file, &runs);
        Ok(Self { buffer, file, end })
    }

    /// Where the last segment ends.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Up to `limit` segments that end after `from`, in order, whole; holes are left out. To go on
    /// give the end of the last.
    ///
    /// # Errors
    /// `TooLarge` if there are too many that overlapped.
    pub fn chunk(&self, from: u64, limit: usize) -> Result<Vec<Segment>> {
        let Some(lattice) = self.buffer.lattice(self.file)? else { return Ok(Vec::new()) };
        let (mut found, mut from) = (Vec::new(), from);
        while found.len() < limit {
            let chunk = lattice.chunk(from, limit);
            let Some(last) = chunk.last() else { break };
            from = last.end();
            found.extend(chunk.into_iter().filter(|segment| segment.place.is_some()));
        }
        found.truncate(limit);
        Ok(found)
    }

    /// Fills the gaps of `overlay`, of the same file.
    ///
    /// # Errors
    /// As [`Snapshot::chunk`].
    pub fn fill(&self, overlay: &mut Overlay) -> Result<()> {
        self.buffer.fill(overlay)
    }
}
