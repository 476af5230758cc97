//! Runs among the segments that a writer hands over at once: a comparison of neighbours.

use super::{LogPlace, Segment, SegmentRun};

/// Fewer segments than this are not worth a run.
pub(super) const RUN_MIN: usize = 4;

/// A range of a file and where its bytes are in a log, as a writer hands over thousands at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where in the file it starts.
    pub offset: u64,
    /// How many bytes it has.
    pub length: u64,
    /// Where in the log they are.
    pub log_offset: u64,
}

/// Finds runs among `pieces`, whose bytes are all in the log of `log`, a segment of their file
/// without offsets; what is in none comes as a run of one.
pub fn find_runs(log: &Segment, pieces: &[Piece], out: &mut Vec<SegmentRun>) {
    let mut at = 0;
    while at < pieces.len() {
        let piece = pieces[at];
        let place = log.place.map(|place| LogPlace { offset: piece.log_offset, ..place });
        let first = Segment { offset: piece.offset, length: piece.length, place, ..*log };
        let (count, stride, log_stride) = run_at(&pieces[at..]);
        out.push(SegmentRun { first, count: count as u64, stride, log_stride });
        at += count;
    }
}

/// How many of `pieces` from the first on are a run, and its strides.
#[inline]
fn run_at(pieces: &[Piece]) -> (usize, u64, u64) {
    let first = pieces[0];
    let alone = (1, first.length, first.length);
    let Some(second) = pieces.get(1) else { return alone };
    let strides =
        (second.offset.checked_sub(first.offset), second.log_offset.checked_sub(first.log_offset));
    let (Some(stride), Some(log_stride)) = strides else { return alone };
    if stride < first.length {
        return alone;
    }
    let follows = |pair: &&[Piece]| {
        pair[0].length == pair[1].length
            && pair[0].offset.checked_add(stride) == Some(pair[1].offset)
            && pair[0].log_offset.checked_add(log_stride) == Some(pair[1].log_offset)
    };
    let count = 1 + pieces.windows(2).take_while(follows).count();
    if count < RUN_MIN { alone } else { (count, stride, log_stride) }
}
