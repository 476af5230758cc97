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
        let (count, stride, log_stride) = run_at(&pieces[at..], |piece| *piece);
        out.push(SegmentRun { first, count: count as u64, stride, log_stride });
        at += count;
    }
}

/// How many of `items` from the first on are a run, and its strides.
#[inline]
fn run_at<T>(items: &[T], piece: impl Fn(&T) -> Piece) -> (usize, u64, u64) {
    let first = piece(&items[0]);
    let alone = (1, first.length, first.length);
    let Some(second) = items.get(1).map(&piece) else { return alone };
    let stride = second.offset.wrapping_sub(first.offset);
    let log_stride = second.log_offset.wrapping_sub(first.log_offset);
    if second.offset < first.offset || stride < first.length || second.log_offset < first.log_offset
    {
        return alone;
    }
    let mut wanted = first;
    let count = items.iter().take_while(|item| {
        let goes_on = piece(item) == wanted;
        wanted.offset = wanted.offset.wrapping_add(stride);
        wanted.log_offset = wanted.log_offset.wrapping_add(log_stride);
        goes_on
    });
    let count = count.count();
    if count < RUN_MIN { alone } else { (count, stride, log_stride) }
}
