// SPDX-License-Identifier: Apache-2.0
//! Patterns: the features of their traces are the variables that made them.

use esker_advisor::features::TraceFeatures;
use esker_advisor::observation::AccessPattern;
use esker_advisor::pattern::{PatternSize, TracePattern, write_pattern};
use esker_advisor::trace::{TraceReader, features};

const STRIPE: u64 = 65_536;

pub const SIZE: PatternSize = PatternSize {
    ranks: 4,
    requests: 12,
    request_bytes: STRIPE,
    gap_bytes: 0,
    shift_bytes: 0,
    interval_ns: 1_000_000,
    written: 0,
    last_bytes: None,
    is_file_per_rank: false,
};

pub fn trace(pattern: TracePattern, size: &PatternSize) -> Vec<u8> {
    write_pattern(pattern, size, Vec::new()).expect("a trace").0
}

fn features_of(pattern: TracePattern, size: &PatternSize) -> TraceFeatures {
    let trace = trace(pattern, size);
    let reader = TraceReader::open(&trace[..], "trace").expect("a trace");
    let found = features(&reader, STRIPE).expect("features");
    found.validate().expect("consistent");
    found
}

#[test]
fn every_pattern_transfers_its_requests() {
    for pattern in TracePattern::ALL {
        for is_write in [false, true] {
            let written = if is_write { u64::MAX } else { 0 };
            let found = features_of(pattern, &PatternSize { written, ..SIZE });
            assert_eq!(found.processes, 4, "{pattern:?}");
            match pattern {
                TracePattern::WorkbenchMix => assert_eq!((found.reads, found.writes), (48, 48)),
                _ if is_write => assert_eq!((found.reads, found.writes), (0, 48)),
                _ => assert_eq!((found.reads, found.writes), (48, 0), "{pattern:?}"),
            }
        }
    }
}

#[test]
fn the_variables_of_the_paper_come_back() {
    let of = |pattern, gap_bytes, shift_bytes| {
        features_of(pattern, &PatternSize { gap_bytes, shift_bytes, ..SIZE })
    };
    let shifted = of(TracePattern::OffsetShift, 0, 1_024);
    assert_eq!(
        (shifted.access_pattern(), shifted.is_aligned()),
        (AccessPattern::Contiguous, false)
    );
    assert_eq!((shifted.unaligned_bytes_median, shifted.unaligned_requests), (1_024, 48));
    let gaps = of(TracePattern::Noncontiguous, STRIPE, 0);
    assert_eq!(
        (gaps.access_pattern(), gaps.gap_bytes_mean),
        (AccessPattern::Noncontiguous, STRIPE)
    );
    assert!(gaps.is_aligned());
    // From the end of a region to the next one of the rank: those of three ranks, and four gaps.
    let hpio = of(TracePattern::Hpio, 4_096, 0);
    assert_eq!(hpio.gap_bytes_mean, 3 * STRIPE + 4 * 4_096);
    assert_eq!((hpio.files, hpio.shared_files), (1, 1));
    assert_eq!((hpio.opens, hpio.closes, hpio.request_bytes_median), (4, 4, STRIPE));
    let app1 = of(TracePattern::LanlApp1, 0, 0);
    assert_eq!((app1.request_bytes_median, app1.bytes()), (131_056, 4 * 4 * 262_144));
    let mix = of(TracePattern::WorkbenchMix, 0, 0);
    assert_eq!((mix.opens, mix.creates, mix.closes, mix.other_metadata), (96, 48, 96, 96));
    assert_eq!((mix.files, mix.shared_files), (4 * 24, 0));
}
