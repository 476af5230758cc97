// SPDX-License-Identifier: Apache-2.0
//! Checked read: all bytes of a file whose content is in the extent table, compared with the
//! checksums of their segments.
//!
//! A segment that a newer one has cut has no checksum, nor have runs: their bytes are not checked.

use esker_base::{Error, Kind, Result};
use esker_extent::{LogPlace, Segment};
use esker_table::object_name::ObjectName;

use crate::data::PIECE_BYTES;
use crate::inode::Inode;
use crate::stack::namespace::Namespace;

/// Segments are looked up in ranges of at least this size, so that memory does not grow with the
/// file.
const WINDOW_BYTES: u64 = 64 << 20;
/// Zeros are passed in pieces of this size.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Namespace {
    /// Like [`Namespace::read_stored`], for a file whose content is in the extent table.
    pub(super) fn read_segments(
        &self,
        inode: &Inode,
        take: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let (mut at, mut window_bytes) = (0, WINDOW_BYTES);
        while at < inode.size {
            let end = inode.size.min(at.saturating_add(window_bytes));
            let overlay = self.layers().segments(inode, at..end)?;
            let stored = |piece: &&Segment| piece.place.is_some();
            let segments: Vec<Segment> = overlay.pieces().iter().filter(stored).copied().collect();
            let Some(first) = segments.first() else {
                // A hole of any size is crossed in a few steps.
                (at, window_bytes) = (end, window_bytes.saturating_mul(2));
                continue;
            };
            // Segments are looked up whole, for their checksums.
            at = first.offset;
            let end = match whole_end(&segments, end) {
                _ if end == inode.size => end,
                Some(end) => end,
                None => {
                    window_bytes = window_bytes.saturating_mul(2);
                    continue;
                }
            };
            window_bytes = WINDOW_BYTES;
            let mut checks = SegmentChecks::new(&segments);
            while at < end {
                let count = (end - at).min(PIECE_BYTES);
                let bytes = self.read_content(inode, at, count as usize)?;
                take(at, &bytes)?;
                for segment in checks.add(at, &bytes) {
                    self.check_changed(inode, segment)?;
                }
                at += count;
            }
        }
        Ok(())
    }

    /// Fails if `segment`, whose bytes do not have its checksum, is still part of the content of
    /// `inode`: then they are damaged, and not of a later write.
    fn check_changed(&self, inode: &Inode, segment: &Segment) -> Result<()> {
        let overlay = self.layers().segments(inode, segment.offset..segment.end())?;
        match (overlay.pieces(), segment.place) {
            ([found], Some(place)) if found == segment => Err(damage(segment, place)),
            _ => Ok(()),
        }
    }

    /// Passes all bytes of a file whose content is in the extent table, also those of holes, to
    /// `take`, and checks their checksums.
    pub(crate) fn read_mapped_whole(
        &self,
        inode: &Inode,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut at = 0;
        self.read_segments(inode, &mut |offset, bytes| {
            take_zeros(offset - at, take)?;
            at = offset + bytes.len() as u64;
            take(bytes)
        })?;
        take_zeros(inode.size - at, take)
    }
}

/// The segments of a range of a file, and the checksum so far of the one that is being read.
struct SegmentChecks<'a> {
    /// Those not read to their end yet, in order.
    segments: &'a [Segment],
    checksum: u32,
}

impl<'a> SegmentChecks<'a> {
    /// Checks bytes of `segments`, which are in order.
    fn new(segments: &'a [Segment]) -> Self {
        Self { segments, checksum: 0 }
    }

    /// Adds the file's `bytes` from `at` on, which follow those added before, or a hole. Returns
    /// the segments that end in them and whose checksums are others.
    fn add(&mut self, at: u64, bytes: &[u8]) -> Vec<&'a Segment> {
        let end = at + bytes.len() as u64;
        let mut damaged = Vec::new();
        while let [segment, rest @ ..] = self.segments
            && segment.offset < end
        {
            if let Some(expected) = segment.checksum {
                let index = |offset: u64| usize::try_from(offset - at).expect("within the bytes");
                let part = index(segment.offset.max(at))..index(segment.end().min(end));
                self.checksum = crc32c::crc32c_append(self.checksum, &bytes[part]);
                if segment.end() <= end && self.checksum != expected {
                    damaged.push(segment);
                }
            }
            if segment.end() > end {
                break;
            }
            (self.segments, self.checksum) = (rest, 0);
        }
        damaged
    }
}

/// Returns the error for a segment at `place` whose bytes do not have its checksum.
fn damage(segment: &Segment, place: LogPlace) -> Error {
    let context = format!(
        "{} at byte {}: {} bytes that do not have their checksum; `esker verify` lists all damage",
        ObjectName::Data(place.set, place.log),
        place.offset,
        segment.length
    );
    Error::new(Kind::Corrupt, context)
}

/// Returns the end of a range of which `segments` were looked up to `end`, without a last segment
/// that the range may cut; `None` if that is the only one.
fn whole_end(segments: &[Segment], end: u64) -> Option<u64> {
    let (last, before) = segments.split_last()?;
    if last.end() < end || last.checksum.is_some() {
        return Some(end);
    }
    before.last().map(|_| last.offset)
}

/// Passes `count` zeros to `take`.
fn take_zeros(mut count: u64, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    while count > 0 {
        let next = count.min(ZEROS.len() as u64);
        take(&ZEROS[..next as usize])?;
        count -= next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use esker_table::manifest::SetId;

    use super::*;

    fn segment(offset: u64, bytes: &[u8]) -> Segment {
        Segment {
            file: 1,
            offset,
            length: bytes.len() as u64,
            place: Some(LogPlace { set: SetId(1), log: 1, offset: 7 }),
            checksum: Some(crc32c::crc32c(bytes)),
            seq: 1,
        }
    }

    #[test]
    fn every_segment_is_compared_in_whatever_pieces_it_is_read() {
        let content: Vec<u8> = (0..60).collect();
        let mut segments = [10..25, 25..26, 30..55]
            .map(|range: std::ops::Range<usize>| segment(range.start as u64, &content[range]));
        for damaged in 0..=segments.len() {
            for piece_bytes in 1..=content.len() {
                let mut checks = SegmentChecks::new(&segments);
                let found: Vec<u64> = content
                    .chunks(piece_bytes)
                    .enumerate()
                    .flat_map(|(piece, bytes)| checks.add((piece * piece_bytes) as u64, bytes))
                    .map(|segment| segment.offset)
                    .collect();
                let expected: Vec<u64> = [10, 25, 30][..damaged].to_vec();
                assert_eq!(found, expected, "in pieces of {piece_bytes}");
            }
            if let Some(segment) = segments.get_mut(damaged) {
                segment.checksum = segment.checksum.map(|checksum| checksum ^ 1);
            }
        }
    }

    #[test]
    fn a_range_ends_before_a_segment_that_it_may_cut() {
        let (first, last) = (segment(10, b"first"), segment(20, b"last"));
        let cut = Segment { checksum: None, ..last };
        assert_eq!(whole_end(&[first, last], 24), Some(24));
        assert_eq!(whole_end(&[first, cut], 30), Some(30));
        assert_eq!(whole_end(&[first, cut], 24), Some(20));
        assert_eq!(whole_end(&[cut], 24), None);
    }
}
