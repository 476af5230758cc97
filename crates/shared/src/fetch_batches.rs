// SPDX-License-Identifier: Apache-2.0
//! Fetch batches: requests for bytes that other ranks wrote, within the bounds of a request.

use std::collections::BTreeMap;

use esker_comm::Rank;
use esker_extent::Segment;

use crate::message::{FETCH_BYTES_MAX, SEGMENTS_MAX};

/// Batches segments into requests for their bytes, within the bounds of a request.
#[derive(Debug, Default)]
pub(crate) struct FetchBatches {
    full: Vec<(Rank, Vec<Segment>)>,
    /// By rank: segments, and their total bytes.
    open: BTreeMap<Rank, (Vec<Segment>, u64)>,
}

impl FetchBatches {
    /// Adds `piece`, to be read through `from`.
    pub(crate) fn add(&mut self, from: Rank, piece: &Segment) {
        let (segments, bytes) = self.open.entry(from).or_default();
        let mut at = piece.offset;
        while at < piece.end() {
            if *bytes == FETCH_BYTES_MAX || segments.len() == SEGMENTS_MAX {
                self.full.push((from, std::mem::take(segments)));
                *bytes = 0;
            }
            let part = piece.part(at, piece.end().min(at + (FETCH_BYTES_MAX - *bytes)));
            at = part.end();
            *bytes += part.length;
            segments.push(part);
        }
    }

    /// All batches.
    pub(crate) fn all(self) -> impl Iterator<Item = (Rank, Vec<Segment>)> {
        let open = self.open.into_iter().map(|(from, (segments, _))| (from, segments));
        self.full.into_iter().chain(open)
    }
}

#[cfg(test)]
mod tests {
    use esker_extent::LogPlace;
    use esker_table::manifest::SetId;

    use super::*;
    use crate::message::{OFFSETS_MAX, RankRequest, ones};

    #[test]
    fn fetches_are_bounded_and_have_every_byte_once() {
        let piece = |offset: u64, length: u64| {
            let place = Some(LogPlace { set: SetId(1), log: 2, offset: offset * 3 });
            Segment { file: 9, offset, length, place, checksum: None, seq: 0 }
        };
        let long = piece(1 << 40, 3 * FETCH_BYTES_MAX + 5);
        let many = (0..3 * OFFSETS_MAX as u64 + 7).map(|at| piece(at * 10, 1 + at % 3));
        let mut batches = FetchBatches::default();
        let (mut wanted, mut got) = ([0; 2], [0; 2]);
        for (index, piece) in many.chain([long]).enumerate() {
            wanted[index % 2] += piece.length;
            batches.add(Rank((index % 2) as u32), &piece);
        }
        for (from, parts) in batches.all() {
            let bytes: u64 = parts.iter().map(|part| part.length).sum();
            assert!(bytes <= FETCH_BYTES_MAX && parts.len() <= SEGMENTS_MAX && bytes > 0);
            assert!(RankRequest::decode(from, &RankRequest::Fetch(ones(&parts)).encode(1)).is_ok());
            assert!(parts.windows(2).all(|pair| pair[0].end() <= pair[1].offset));
            got[from.index()] += bytes;
        }
        assert_eq!(got, wanted);
    }
}
