// SPDX-License-Identifier: Apache-2.0
//! Layout: the places of a pattern's requests in the file.
//!
//! With p ranks, n requests a rank, r bytes a request, g bytes of gap, for rank k and request i:
//! ```text
//! offset-shift, request-size, ior-segmented   (k n + i) r
//! noncontiguous                               (k n + i) (r + g)
//! hpio                                        (i p + k) (r + g)
//! ior-strided                                 (i p + k) r
//! ior-random                                  (k n + i a mod n) r, with a near n / golden ratio
//! lanl-app1      loop l = i / 3, part i mod 3: (l p + k) 262,144 + 0, 16 or 131,072
//! lanl-app2-like 64 bytes, then r bytes, in a block of the rank's own
//! tile           row i of tile (k mod x, k / x) of a matrix of x tiles a row
//! btio-like      lines of 40-byte points of q cells of a cube, in steps, with p = q²
//! ```
//! and all shifted by A. Source: Kougkas et al. 2016, §4.2 to 4.4 (sizes, gaps, shifts; the LANL
//! traces, not the paper, show that App1 is strided); HPIO, IOR, mpi-tile-io, and BT-IO of the NAS
//! parallel benchmarks (Wong and Van der Wijngaart, NAS-03-002).

use super::{PatternSize, TracePattern};
use crate::trace::{TraceFile, TraceOperation, TraceRecord};

/// Bytes of a loop of LANL App1.
pub const APP1_LOOP_BYTES: u64 = 262_144;

/// Offsets and sizes in a loop of LANL App1.
const APP1_LOOP: [(u64, u64); 3] = [(0, 16), (16, 131_056), (131_072, 131_072)];

/// Bytes before each block of what we take for LANL App2.
const APP2_HEADER_BYTES: u64 = 64;

/// Multiples of its inverse are spread evenly, and far from their neighbours.
const GOLDEN_RATIO: f64 = 1.618_033_988_749_895;

/// Bytes of a point of BT-IO: five numbers.
const BTIO_POINT_BYTES: u64 = 40;

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatternRequest {
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u64,
}

impl PatternRequest {
    /// The request as a record that takes no time and succeeds.
    #[must_use]
    pub fn record(
        self,
        rank: u32,
        operation: TraceOperation,
        file: TraceFile,
        begin_ns: u64,
    ) -> TraceRecord {
        TraceRecord {
            file,
            offset: self.offset,
            bytes: self.bytes,
            begin_ns,
            end_ns: begin_ns,
            result: self.bytes.cast_signed(),
            ..TraceRecord::new(rank, operation)
        }
    }
}

impl TracePattern {
    /// True if gaps may lie between the requests.
    #[must_use]
    pub const fn has_gaps(self) -> bool {
        matches!(self, Self::Noncontiguous | Self::Hpio)
    }

    /// True if each request has r bytes, at an offset that does not depend on the other sizes.
    #[must_use]
    pub const fn has_one_size(self) -> bool {
        !matches!(self, Self::LanlApp1 | Self::LanlApp2Like | Self::BtioLike | Self::WorkbenchMix)
    }

    /// The number of requests with which a rank transfers at most `input_bytes`, in whole loops of the
    /// pattern, at least one. 0 for no bytes.
    #[must_use]
    pub fn requests_of(self, input_bytes: u64, request_bytes: u64) -> u64 {
        let (requests, bytes) = match self {
            Self::LanlApp1 => (APP1_LOOP.len() as u64, APP1_LOOP_BYTES),
            Self::LanlApp2Like => (2, request_bytes.saturating_add(APP2_HEADER_BYTES)),
            Self::BtioLike => (1, btio_line_bytes(request_bytes)),
            // An object is read, and one is written.
            Self::WorkbenchMix => (1, request_bytes.saturating_mul(2)),
            _ => (1, request_bytes),
        };
        match input_bytes {
            0 => 0,
            _ => input_bytes.checked_div(bytes).unwrap_or(0).max(1).saturating_mul(requests),
        }
    }

    /// The sizes of its requests, joined with `+`.
    pub(super) fn sizes(self, size: &PatternSize) -> String {
        match self {
            Self::LanlApp1 => APP1_LOOP.map(|(_, bytes)| bytes.to_string()).join("+"),
            Self::LanlApp2Like => format!("{APP2_HEADER_BYTES}+{}", size.request_bytes),
            Self::BtioLike => btio_line_bytes(size.request_bytes).to_string(),
            _ => size.request_bytes.to_string(),
        }
    }

    /// Request `index` of `rank`; the size was checked. A mix has no shared file.
    #[must_use]
    pub fn request(self, size: &PatternSize, rank: u32, index: u64) -> PatternRequest {
        let (rank, ranks) = (u64::from(rank), u64::from(size.ranks));
        let (bytes, distance) = (size.request_bytes, size.request_bytes + size.gap_bytes);
        let own = rank * size.requests + index;
        let turn = index * ranks + rank;
        let (offset, bytes) = match self {
            Self::OffsetShift | Self::RequestSize | Self::IorSegmented => (own * bytes, bytes),
            Self::Noncontiguous => (own * distance, bytes),
            Self::Hpio => (turn * distance, bytes),
            Self::IorStrided => (turn * bytes, bytes),
            Self::IorRandom => {
                let place = scattered(index, size.requests);
                ((rank * size.requests + place) * bytes, bytes)
            }
            Self::LanlApp1 => {
                let (begin, bytes) = APP1_LOOP[(index % 3) as usize];
                ((index / 3 * ranks + rank) * APP1_LOOP_BYTES + begin, bytes)
            }
            Self::LanlApp2Like => {
                let pairs = size.requests.div_ceil(2);
                let pair = (rank * pairs + index / 2) * (APP2_HEADER_BYTES + bytes);
                match index % 2 {
                    0 => (pair, APP2_HEADER_BYTES),
                    _ => (pair + APP2_HEADER_BYTES, bytes),
                }
            }
            Self::Tile => {
                let across = ranks.isqrt().max(1);
                let (column, row) = (rank % across, rank / across);
                ((row * size.requests + index) * across * bytes + column * bytes, bytes)
            }
            Self::BtioLike => btio(size, rank, index),
            Self::WorkbenchMix => (0, bytes),
        };
        let is_last = index + 1 == size.requests;
        let bytes = size.last_bytes.filter(|_| is_last).unwrap_or(bytes);
        PatternRequest { offset: offset + size.shift_bytes, bytes }
    }
}

/// The place of request `index` of `count`, far from that of the one before: a permutation.
fn scattered(index: u64, count: u64) -> u64 {
    let shares_factor = |step: u64| {
        let (mut a, mut b) = (step, count);
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a > 1
    };
    let nearest = (count as f64 / GOLDEN_RATIO).round() as u64;
    let step =
        (nearest.max(1)..).find(|step| !shares_factor(*step)).expect("count + 1 at the latest");
    (u128::from(index) * u128::from(step) % u128::from(count)) as u64
}

/// Bytes of a line of a cell: whole points.
fn btio_line_bytes(request_bytes: u64) -> u64 {
    (request_bytes / BTIO_POINT_BYTES).max(1) * BTIO_POINT_BYTES
}

/// A line of a cell. The cube has q cells along each edge, a cell k points; rank (i, j) has the
/// cells ((i + c) mod q, (j + c) mod q, c).
fn btio(size: &PatternSize, rank: u64, index: u64) -> (u64, u64) {
    let cells = u64::from(size.ranks).isqrt();
    let points = btio_line_bytes(size.request_bytes) / BTIO_POINT_BYTES;
    let edge = cells * points;
    let (line, rest) = (index % points, index / points);
    let (plane, rest) = (rest % points, rest / points);
    let (cell, step) = (rest % cells, rest / cells);
    let x = (rank % cells + cell) % cells * points;
    let y = (rank / cells + cell) % cells * points + line;
    let z = cell * points + plane;
    let offset = (((step * edge + z) * edge + y) * edge + x) * BTIO_POINT_BYTES;
    (offset, points * BTIO_POINT_BYTES)
}
