// SPDX-License-Identifier: Apache-2.0
//! Ranges: one or many, in any order, and beyond the end.

use super::{CheckFolder, assert_kind, noise};
use crate::store::COALESCE_GAP_BYTES;
use crate::{Kind, Random};

pub(super) fn one_range(place: &CheckFolder) {
    let bytes = noise(10, 10_000);
    place.put("a", &bytes);
    let name = place.name("a");
    for (start, end) in [(0, 10_000), (0, 1), (9_999, 10_000), (4_000, 6_000), (5, 5)] {
        let found = place.store.get_range(&name, start..end).expect("a range");
        let (start, end) = (to_usize(start), to_usize(end));
        assert!(found == bytes[start..end], "{start}..{end} differs");
    }
}

pub(super) fn beyond_the_end_is_corrupt(place: &CheckFolder) {
    place.put("a", b"0123456789");
    let name = place.name("a");
    for (start, end) in [(5, 11), (10, 11), (11, 12), (11, 11), (0, u64::MAX), (u64::MAX, u64::MAX)]
    {
        assert_kind(place.store.get_range(&name, start..end), Kind::Corrupt);
    }
    assert_kind(place.store.get_ranges(&name, &[0..2, 9..11]), Kind::Corrupt);
    let (start, end) = (5, 4);
    assert_kind(place.store.get_range(&name, start..end), Kind::Invalid);
    assert_kind(place.store.get_ranges(&name, &[0..1, start..end]), Kind::Invalid);
    assert_eq!(place.store.get_range(&name, 10..10).expect("nothing at the end"), "");
}

pub(super) fn a_range_may_end_with_the_object(place: &CheckFolder) {
    place.put("a", b"0123456789");
    let log = place.store.append_log(&place.name("log")).expect("a log");
    for piece in ["0123", "456789"] {
        log.append(piece.as_bytes()).expect("append");
        log.sync().expect("sync");
    }
    for name in [place.name("a"), place.name("log")] {
        for (start, end, expected) in
            [(0, 10, "0123456789"), (2, 6, "2345"), (5, 20, "56789"), (10, 12, ""), (11, 12, "")]
        {
            let found = place.store.get_range_within(&name, start..end).expect("a range");
            assert_eq!(found, expected, "{name} {start}..{end}");
        }
    }
    assert_kind(place.store.get_range_within(&place.name("absent"), 0..1), Kind::NotFound);
}

pub(super) fn many_ranges_keep_their_order(place: &CheckFolder) {
    let size = 3 << 20;
    let bytes = noise(11, size);
    place.put("a", &bytes);
    let name = place.name("a");
    assert_eq!(place.store.get_ranges(&name, &[]).expect("none").len(), 0);
    let mut random = Random::from_seed(12);
    for count in [1, 2, 5, 40] {
        let ranges: Vec<_> = (0..count)
            .map(|_| {
                let start = random.below(size as u64);
                let longest = (size as u64 - start).min(3 * COALESCE_GAP_BYTES);
                start..start + random.below(longest + 1)
            })
            .collect();
        let found = place.store.get_ranges(&name, &ranges).expect("ranges");
        assert_eq!(found.len(), ranges.len());
        for (range, found) in ranges.iter().zip(found) {
            assert!(
                found == bytes[to_usize(range.start)..to_usize(range.end)],
                "{range:?} differs"
            );
        }
    }
}

fn to_usize(place: u64) -> usize {
    usize::try_from(place).expect("the object is in memory")
}
