// SPDX-License-Identifier: Apache-2.0
//! Finds runs among the segments that a writer passes at once, by comparing neighbours.

use super::{LogPlace, Segment, SegmentRun};

/// Minimum number of segments that are worth a run.
pub(super) const RUN_MIN: usize = 4;

/// A range of a file and the offset of its bytes in a log; writers pass thousands at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePiece {
    /// Offset in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Offset of the bytes in the log.
    pub log_offset: u64,
}

/// Finds runs among `pieces`. `log` is a segment of their file, without offsets, that names the log
/// of all their bytes. A piece in no run becomes a run of one.
pub fn find_runs(log: &Segment, pieces: &[FilePiece], out: &mut Vec<SegmentRun>) {
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

/// Returns how many of `pieces` from the first on form a run, and its strides.
#[inline]
fn run_at(pieces: &[FilePiece]) -> (usize, u64, u64) {
    let first = pieces[0];
    let alone = (1, first.length, first.length);
    let Some(second) = pieces.get(1) else { return alone };
    let strides =
        (second.offset.checked_sub(first.offset), second.log_offset.checked_sub(first.log_offset));
    let (Some(stride), Some(log_stride)) = strides else { return alone };
    if stride < first.length {
        return alone;
    }
    let follows = |pair: &&[FilePiece]| {
        pair[0].length == pair[1].length
            && pair[0].offset.checked_add(stride) == Some(pair[1].offset)
            && pair[0].log_offset.checked_add(log_stride) == Some(pair[1].log_offset)
    };
    let count = 1 + pieces.windows(2).take_while(follows).count();
    if count < RUN_MIN { alone } else { (count, stride, log_stride) }
}
