// SPDX-License-Identifier: Apache-2.0
//! Pattern: synthetic traces of known applications and benchmarks.
//!
//! `layout` computes the place of each request of each rank, as a pure function; this file makes a
//! trace of it. All patterns but the mix of the workbench use one file, as in the paper: every rank
//! opens it, waits for all, issues its requests, waits again and closes it. Times are nominal, one
//! request each interval and rank. Source: Kougkas et al. 2016, §4.2 to 4.4; the benchmarks that
//! `layout` names.

mod layout;

use std::io::Write;

use esker_base::{Error, Kind, Result};

pub use self::layout::PatternRequest;
use crate::trace::{TraceFile, TraceOperation, TraceOrigin, TraceRecord, TraceWriter};

/// Bytes of the file of a pattern: far from the end of all numbers.
const FILE_BYTES_MAX: u128 = 1 << 60;

/// An application or benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracePattern {
    /// Contiguous requests, shifted from the boundaries of stripes (§4.2.1).
    OffsetShift,
    /// Contiguous requests of one size (§4.2.2).
    RequestSize,
    /// Requests with gaps between them (§4.2.3).
    Noncontiguous,
    /// HPIO: regions of all ranks in turns, with gaps between them (§4.3).
    Hpio,
    /// LANL App1: loops of 16, 131,056 and 131,072 bytes (§4.4).
    LanlApp1,
    /// LANL App2, whose pattern the paper does not print: small headers before large blocks.
    LanlApp2Like,
    /// IOR, segmented: each rank has a block of its own.
    IorSegmented,
    /// IOR, strided: ranks take turns with each request.
    IorStrided,
    /// IOR with random offsets: each rank has a block of its own, and no order in it.
    IorRandom,
    /// Tiles of a matrix, row by row.
    Tile,
    /// BT-IO of the NAS benchmarks: lines of the cells of a cube, diagonally partitioned.
    BtioLike,
    /// MDWorkbench: small files of other ranks are read and removed, and new ones made.
    WorkbenchMix,
}

impl TracePattern {
    /// All patterns.
    pub const ALL: [Self; 12] = [
        Self::OffsetShift,
        Self::RequestSize,
        Self::Noncontiguous,
        Self::Hpio,
        Self::LanlApp1,
        Self::LanlApp2Like,
        Self::IorSegmented,
        Self::IorStrided,
        Self::IorRandom,
        Self::Tile,
        Self::BtioLike,
        Self::WorkbenchMix,
    ];

    /// The word on the command line, and the family in observations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OffsetShift => "offset-shift",
            Self::RequestSize => "request-size",
            Self::Noncontiguous => "noncontiguous",
            Self::Hpio => "hpio",
            Self::LanlApp1 => "lanl-app1",
            Self::LanlApp2Like => "lanl-app2-like",
            Self::IorSegmented => "ior-segmented",
            Self::IorStrided => "ior-strided",
            Self::IorRandom => "ior-random",
            Self::Tile => "tile",
            Self::BtioLike => "btio-like",
            Self::WorkbenchMix => "workbench-mix",
        }
    }

    /// The pattern of a word.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name() == name)
    }
}

/// The parameters of a pattern, with the paper's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternSize {
    /// p: ranks.
    pub ranks: u32,
    /// Requests of each rank.
    pub requests: u64,
    /// r: bytes of a request. LANL App1 has sizes of its own.
    pub request_bytes: u64,
    /// g: bytes between requests, of patterns that have gaps.
    pub gap_bytes: u64,
    /// A: bytes by which all requests are shifted.
    pub shift_bytes: u64,
    /// The nominal time between the requests of a rank.
    pub interval_ns: u64,
    /// Number of requests of each rank that write, spread evenly over all of them; from `requests`
    /// on, all write. The mix ignores it.
    pub written: u64,
    /// Bytes of the last request of each rank, if R is not a multiple of r.
    pub last_bytes: Option<u64>,
    /// True if each rank has a file of its own instead of one for all.
    pub is_file_per_rank: bool,
}

impl PatternSize {
    /// Checks the parameters for `pattern`.
    ///
    /// # Errors
    /// `Invalid` for zeros, for files that are too large, and for ranks that the pattern cannot
    /// have.
    pub fn check(&self, pattern: TracePattern) -> Result<()> {
        let wrong = |what: String| Err(Error::new(Kind::Invalid, what));
        if self.ranks == 0 || self.requests == 0 || self.request_bytes == 0 {
            return wrong("a pattern has at least one rank, one request and one byte".to_owned());
        }
        let distance = u128::from(self.request_bytes.max(layout::APP1_LOOP_BYTES))
            + u128::from(self.gap_bytes);
        // Tiles and cubes may be up to eight times as large as what is accessed.
        let extent = distance
            .checked_mul(u128::from(self.ranks))
            .and_then(|extent| extent.checked_mul(8 * (u128::from(self.requests) + 1)))
            .and_then(|extent| extent.checked_add(u128::from(self.shift_bytes)));
        if extent.is_none_or(|extent| extent > FILE_BYTES_MAX) {
            return wrong(format!("the file of {} would be too large", pattern.name()));
        }
        let times = u128::from(self.interval_ns) * (u128::from(self.requests) + 2) * 8;
        if times > FILE_BYTES_MAX {
            return wrong("the trace would last for more than four years".to_owned());
        }
        let edge = self.ranks.isqrt();
        let is_last_possible =
            |last| pattern.has_one_size() && (1..=self.request_bytes).contains(&last);
        if self.last_bytes.is_some_and(|last| !is_last_possible(last)) {
            return wrong(format!("{} has no shorter last request", pattern.name()));
        }
        if self.is_file_per_rank && pattern == TracePattern::WorkbenchMix {
            return wrong(format!("the files of {} belong to no rank", pattern.name()));
        }
        if pattern == TracePattern::BtioLike && edge * edge != self.ranks {
            return wrong(format!(
                "{} needs a square number of ranks, such as {} or {}; {} is none",
                pattern.name(),
                edge * edge,
                u64::from(edge + 1).pow(2),
                self.ranks
            ));
        }
        Ok(())
    }

    /// The name of a test case with those of these parameters that the pattern uses.
    #[must_use]
    pub fn case(&self, pattern: TracePattern) -> String {
        let Self { ranks, requests, gap_bytes, shift_bytes, .. } = self;
        let is_mix = pattern == TracePattern::WorkbenchMix;
        let kind = match self.written {
            _ if is_mix => String::new(),
            0 => " read".to_owned(),
            written if written >= *requests => " write".to_owned(),
            written => format!(" read-write w={written}"),
        };
        let sizes = pattern.sizes(self);
        let mut name = format!("{}{kind} p={ranks} n={requests} r={sizes}", pattern.name());
        if pattern.has_gaps() {
            name += &format!(" g={gap_bytes}");
        }
        if !is_mix {
            name += &format!(" A={shift_bytes}");
        }
        if let Some(last) = self.last_bytes {
            name += &format!(" last={last}");
        }
        if self.is_file_per_rank {
            name += " file-per-process";
        }
        name
    }

    /// The arguments of `esker advise synth` for a pattern whose requests have one size.
    #[must_use]
    pub fn arguments(&self, pattern: TracePattern) -> String {
        let Self { ranks, requests, request_bytes, gap_bytes, shift_bytes, .. } = self;
        let last = self.last_bytes.unwrap_or(*request_bytes);
        let input = (requests - 1).saturating_mul(*request_bytes).saturating_add(last);
        let mut text = format!("{} -p {ranks} -R {input} -r {request_bytes}", pattern.name());
        let is_write = self.written >= *requests;
        for (has, argument) in [
            (*gap_bytes > 0, format!(" -g {gap_bytes}")),
            (*shift_bytes > 0, format!(" -A {shift_bytes}")),
            (is_write, " --write".to_owned()),
            (!is_write && self.written > 0, format!(" --written {}", self.written)),
            (self.is_file_per_rank, " --file-per-process".to_owned()),
        ] {
            if has {
                text += &argument;
            }
        }
        text
    }

    /// The operation of request `index` of a rank.
    fn transfer(&self, index: u64) -> TraceOperation {
        let written = u128::from(self.written.min(self.requests));
        let before = |index: u64| u128::from(index) * written / u128::from(self.requests);
        match before(index + 1) > before(index) {
            true => TraceOperation::Write,
            false => TraceOperation::Read,
        }
    }
}

/// Writes the trace of `pattern` to `output`. Returns the output and the number of records.
///
/// # Errors
/// As [`PatternSize::check`] and as the output answers.
pub fn write_pattern<W: Write>(
    pattern: TracePattern,
    size: &PatternSize,
    output: W,
) -> Result<(W, u64)> {
    size.check(pattern)?;
    let (program, source) = (size.case(pattern), "synthetic".to_owned());
    let origin = TraceOrigin { program, source, epoch_ns: 0 };
    let mut writer = TraceWriter::new(output, "the trace of a pattern", origin)?;
    match pattern {
        TracePattern::WorkbenchMix => write_mix(size, &mut writer)?,
        _ => write_shared_file(pattern, size, &mut writer)?,
    }
    let records = writer.rows();
    Ok((writer.finish()?, records))
}

fn write_shared_file<W: Write>(
    pattern: TracePattern,
    size: &PatternSize,
    writer: &mut TraceWriter<W>,
) -> Result<()> {
    let files: Vec<TraceFile> = match size.is_file_per_rank {
        true => {
            let file = |rank| writer.file(format!("/data-{rank}").as_bytes());
            (0..size.ranks).map(file).collect::<Result<_>>()?
        }
        false => vec![writer.file(b"/data")?],
    };
    let file_of = |rank: u32| files[rank as usize % files.len()];
    let none = |_| TraceFile::NONE;
    let open = if size.written > 0 { TraceOperation::Create } else { TraceOperation::Open };
    push_all(writer, size.ranks, open, file_of, 0)?;
    push_all(writer, size.ranks, TraceOperation::Barrier, none, 0)?;
    let end_ns = size.requests * size.interval_ns;
    for index in 0..size.requests {
        for rank in 0..size.ranks {
            let request = pattern.request(size, rank, index);
            let (operation, file) = (size.transfer(index), file_of(rank));
            writer.push(&request.record(rank, operation, file, index * size.interval_ns))?;
        }
    }
    push_all(writer, size.ranks, TraceOperation::Barrier, none, end_ns)?;
    push_all(writer, size.ranks, TraceOperation::Close, file_of, end_ns)
}

/// A call of every rank.
fn push_all<W: Write>(
    writer: &mut TraceWriter<W>,
    ranks: u32,
    operation: TraceOperation,
    file_of: impl Fn(u32) -> TraceFile,
    begin_ns: u64,
) -> Result<()> {
    (0..ranks).try_for_each(|rank| {
        let (record, file) = (TraceRecord::new(rank, operation), file_of(rank));
        writer.push(&TraceRecord { file, begin_ns, end_ns: begin_ns, ..record })
    })
}

/// Objects that exist before the mix begins, for each rank.
fn mix_objects(size: &PatternSize) -> u64 {
    size.requests
}

/// Each rank reads and removes the oldest object of the rank before it, and makes a new one for the
/// rank after it.
fn write_mix<W: Write>(size: &PatternSize, writer: &mut TraceWriter<W>) -> Result<()> {
    for index in 0..size.requests {
        for rank in 0..size.ranks {
            let before = (rank + size.ranks - 1) % size.ranks;
            let after = (rank + 1) % size.ranks;
            let old = writer.file(format!("/rank-{before}/object-{index}").as_bytes())?;
            let number = mix_objects(size) + index;
            let new = writer.file(format!("/rank-{after}/object-{number}").as_bytes())?;
            let request = PatternRequest { offset: 0, bytes: size.request_bytes };
            let calls = [
                (TraceOperation::Stat, old),
                (TraceOperation::Open, old),
                (TraceOperation::Read, old),
                (TraceOperation::Close, old),
                (TraceOperation::Unlink, old),
                (TraceOperation::Create, new),
                (TraceOperation::Write, new),
                (TraceOperation::Close, new),
            ];
            for (operation, file) in calls {
                let record = request.record(rank, operation, file, index * size.interval_ns);
                let is_transfer = operation.is_transfer();
                let bytes = if is_transfer { record.bytes } else { 0 };
                let result = if is_transfer { record.result } else { 0 };
                writer.push(&TraceRecord { bytes, result, ..record })?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: PatternSize = PatternSize {
        ranks: 4,
        requests: 8,
        request_bytes: 65_536,
        gap_bytes: 0,
        shift_bytes: 0,
        interval_ns: 1_000_000,
        written: 0,
        last_bytes: None,
        is_file_per_rank: false,
    };

    fn of(pattern: TracePattern, size: PatternSize, rank: u32) -> Vec<(u64, u64)> {
        let request = |index| pattern.request(&size, rank, index);
        (0..size.requests).map(request).map(|found| (found.offset, found.bytes)).collect()
    }

    #[test]
    fn requests_lie_where_the_paper_says() {
        let shifted = PatternSize { shift_bytes: 1_024, requests: 2, ..SIZE };
        assert_eq!(
            of(TracePattern::OffsetShift, shifted, 1),
            [(132_096, 65_536), (197_632, 65_536)]
        );
        let gaps = PatternSize { gap_bytes: 100, requests: 2, ..SIZE };
        assert_eq!(of(TracePattern::Noncontiguous, gaps, 0), [(0, 65_536), (65_636, 65_536)]);
        assert_eq!(of(TracePattern::Hpio, gaps, 1), [(65_636, 65_536), (328_180, 65_536)]);
        assert_eq!(of(TracePattern::IorStrided, gaps, 1), [(65_536, 65_536), (327_680, 65_536)]);
        assert_eq!(
            of(TracePattern::IorRandom, PatternSize { request_bytes: 10, ..SIZE }, 1),
            [80, 130, 100, 150, 120, 90, 140, 110].map(|offset| (offset, 10))
        );
        let app1 = PatternSize { requests: 4, ..SIZE };
        assert_eq!(
            of(TracePattern::LanlApp1, app1, 1),
            [(262_144, 16), (262_160, 131_056), (393_216, 131_072), (1_310_720, 16)]
        );
        assert_eq!(of(TracePattern::LanlApp2Like, app1, 0)[..2], [(0, 64), (64, 65_536)]);
        assert_eq!(
            of(TracePattern::Tile, PatternSize { requests: 2, ..SIZE }, 3),
            [(5 * 65_536, 65_536), (7 * 65_536, 65_536)]
        );
    }

    /// Requests of all ranks are disjoint, and those of patterns without gaps fill the file.
    #[test]
    fn requests_never_overlap() {
        // As many requests as BT-IO has lines in a step: q cells of k planes of k lines.
        let size = PatternSize { request_bytes: 160, requests: 32, ..SIZE };
        for pattern in TracePattern::ALL {
            if pattern == TracePattern::WorkbenchMix {
                continue;
            }
            size.check(pattern).expect("valid");
            let mut all: Vec<_> =
                (0..size.ranks).flat_map(|rank| of(pattern, size, rank)).collect();
            all.sort_unstable();
            assert!(all.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{pattern:?}");
            let bytes: u64 = all.iter().map(|(_, bytes)| bytes).sum();
            let end = all.last().map(|(offset, bytes)| offset + bytes);
            if !matches!(pattern, TracePattern::LanlApp1) {
                assert_eq!(end, Some(bytes), "{pattern:?} fills its file");
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let refused = |size: PatternSize, pattern| {
            assert_eq!(size.check(pattern).expect_err("refused").kind(), Kind::Invalid);
        };
        refused(PatternSize { ranks: 0, ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { requests: 0, ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { request_bytes: 0, ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { request_bytes: u64::MAX, ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { requests: 1 << 60, ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { shift_bytes: u64::MAX, ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { interval_ns: u64::MAX, ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { ranks: 5, ..SIZE }, TracePattern::BtioLike);
        refused(PatternSize { last_bytes: Some(0), ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { last_bytes: Some(65_537), ..SIZE }, TracePattern::Hpio);
        refused(PatternSize { last_bytes: Some(1), ..SIZE }, TracePattern::LanlApp1);
        refused(PatternSize { is_file_per_rank: true, ..SIZE }, TracePattern::WorkbenchMix);
    }

    /// Symptom: the case of LANL App1 named a size of requests that it does not have, and that of
    /// the mix said that it reads.
    #[test]
    fn cases_name_what_the_pattern_does() {
        let size = PatternSize { requests: 6, gap_bytes: 9, ..SIZE };
        for (pattern, case) in [
            (TracePattern::LanlApp1, "lanl-app1 read p=4 n=6 r=16+131056+131072 A=0"),
            (TracePattern::LanlApp2Like, "lanl-app2-like read p=4 n=6 r=64+65536 A=0"),
            (TracePattern::WorkbenchMix, "workbench-mix p=4 n=6 r=65536"),
            (TracePattern::BtioLike, "btio-like read p=4 n=6 r=65520 A=0"),
            (TracePattern::Hpio, "hpio read p=4 n=6 r=65536 g=9 A=0"),
        ] {
            assert_eq!(size.case(pattern), case);
        }
        let mixed = PatternSize { written: 2, last_bytes: Some(5), is_file_per_rank: true, ..SIZE };
        let case = "ior-segmented read-write w=2 p=4 n=8 r=65536 A=0 last=5 file-per-process";
        assert_eq!(mixed.case(TracePattern::IorSegmented), case);
        let arguments = "ior-segmented -p 4 -R 458757 -r 65536 --written 2 --file-per-process";
        assert_eq!(mixed.arguments(TracePattern::IorSegmented), arguments);
    }

    #[test]
    fn writes_are_spread_evenly() {
        let of = |written| {
            let size = PatternSize { written, ..SIZE };
            (0..8).map(|index| u8::from(size.transfer(index) == TraceOperation::Write)).collect()
        };
        let expected: [(u64, [u8; 8]); 5] = [
            (0, [0; 8]),
            (1, [0, 0, 0, 0, 0, 0, 0, 1]),
            (4, [0, 1, 0, 1, 0, 1, 0, 1]),
            (8, [1; 8]),
            (u64::MAX, [1; 8]),
        ];
        for (written, expected) in expected {
            let found: Vec<u8> = of(written);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn names_are_unique() {
        for pattern in TracePattern::ALL {
            assert_eq!(TracePattern::of_name(pattern.name()), Some(pattern));
        }
        assert_eq!(TracePattern::of_name("other"), None);
    }
}
