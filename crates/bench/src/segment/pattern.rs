// SPDX-License-Identifier: Apache-2.0
//! Pattern: the patterns in which the ranks of a job write one file, as in MetaKV §IV, and the
//! batches in which their segments arrive at an index.
//!
//! - strided: IOR with one file; transfers of the ranks alternate.
//! - tile: MPI-Tile-IO; each rank has a tile of a two-dimensional array, stored by rows.
//! - btio: NAS BTIO; ranks have cells on the diagonals of a cube, and append a cube in each step.
//! - random: distinct blocks of the file in random order.

use std::io::{self, Write};

use esker_base::{Error, Kind, Random, Result};
use esker_extent::FilePiece;

use crate::permutation::Permutation;

/// Segments that a rank hands over at once.
pub const BATCH: usize = 1_024;
/// Bytes of a point of the BTIO cube: five numbers.
const POINT_BYTES: u64 = 40;
/// Magic of a dump.
const DUMP_MAGIC: &[u8; 8] = b"ESKERSEG";
const DUMP_VERSION: u32 = 1;

/// A write pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePattern {
    /// Transfers of this many bytes, alternating between ranks.
    Strided(u64),
    /// Tiles with rows of this many bytes.
    Tile(u64),
    /// A cube with sides of this many points.
    Btio(u64),
    /// Blocks of this many bytes.
    Random(u64),
}

/// Parameters of the workload.
#[derive(Clone, Debug)]
pub struct PatternSize {
    /// The pattern of offsets.
    pub pattern: WritePattern,
    /// Number of ranks that write.
    pub clients: u64,
    /// Number of segments of all ranks.
    pub segments: u64,
    /// Number of segments in a batch.
    pub batch: usize,
    /// True if batches arrive in random order, even those of one rank.
    pub shuffled: bool,
}

/// Segments of one rank that arrive together.
#[derive(Clone, Debug)]
pub struct SegmentBatch {
    /// The rank, which is also the number of its log.
    pub client: u64,
    /// Its segments, in the order in which the rank wrote them.
    pub pieces: Vec<FilePiece>,
}

/// Offset and length of segment `index` of rank `client`.
fn piece_at(
    size: &PatternSize,
    order: Option<&Permutation>,
    client: u64,
    index: u64,
) -> (u64, u64) {
    match size.pattern {
        WritePattern::Strided(bytes) => ((index * size.clients + client) * bytes, bytes),
        WritePattern::Random(bytes) => {
            let at = index * size.clients + client;
            (order.map_or(at, |order| order.at(at)) * bytes, bytes)
        }
        WritePattern::Tile(bytes) => {
            let across = 1u64 << (size.clients.ilog2() / 2);
            let rows = size.segments / size.clients;
            let (column, row) = (client % across, client / across);
            (((row * rows + index) * across + column) * bytes, bytes)
        }
        WritePattern::Btio(side) => btio(side, size.clients, client, index),
    }
}

/// Line `index` of a BTIO rank: the cells of `p`² ranks are on the diagonals of a cube of `p` cells
/// a side, so that each rank has one cell in every layer.
fn btio(side: u64, clients: u64, client: u64, index: u64) -> (u64, u64) {
    let p = clients.isqrt().max(1);
    let bounds = |cell: u64| (cell * side / p, (cell + 1) * side / p);
    let (column, row) = (client % p, client / p);
    let mut left = index;
    let mut step = 0;
    loop {
        for layer in 0..p {
            let (x, x_end) = bounds((column + layer) % p);
            let (y, y_end) = bounds((row + layer) % p);
            let (z, z_end) = bounds(layer);
            let lines = (y_end - y) * (z_end - z);
            if left < lines {
                let (line_y, line_z) = (y + left % (y_end - y), z + left / (y_end - y));
                let point = ((step * side + line_z) * side + line_y) * side + x;
                return (point * POINT_BYTES, (x_end - x) * POINT_BYTES);
            }
            left -= lines;
        }
        step += 1;
    }
}

impl PatternSize {
    /// All batches in order of arrival: those of different ranks interleave at random; those of one
    /// rank arrive in order unless shuffled.
    ///
    /// # Errors
    /// `Invalid` for a size without segments, or a number of ranks that the pattern does not
    /// support.
    pub fn batches(&self) -> Result<Vec<SegmentBatch>> {
        let invalid = |what: &str| Err(Error::new(Kind::Invalid, what.to_owned()));
        if self.clients == 0 || self.segments < self.clients || self.batch == 0 {
            return invalid("a workload has at least a client, and a segment for each");
        }
        if matches!(self.pattern, WritePattern::Btio(_))
            && self.clients.isqrt().pow(2) != self.clients
        {
            return invalid("BTIO runs on a square number of clients: 16, 64, 256, 1024");
        }
        let each = self.segments / self.clients;
        let order = match self.pattern {
            WritePattern::Random(_) => Some(Permutation::new(self.segments, 5)),
            _ => None,
        };
        let mut random = Random::from_seed(7);
        let mut batches = Vec::new();
        let mut waiting: Vec<(u64, u64, u64)> = (0..self.clients).map(|c| (c, 0, 0)).collect();
        while !waiting.is_empty() {
            let at = random.below(waiting.len() as u64) as usize;
            let (client, done, log_bytes) = &mut waiting[at];
            let count = (each - *done).min(self.batch as u64);
            let mut pieces = Vec::with_capacity(count as usize);
            for index in *done..*done + count {
                let (offset, length) = piece_at(self, order.as_ref(), *client, index);
                pieces.push(FilePiece { offset, length, log_offset: *log_bytes });
                *log_bytes += length;
            }
            batches.push(SegmentBatch { client: *client, pieces });
            *done += count;
            if *done == each {
                waiting.swap_remove(at);
            }
        }
        if self.shuffled {
            for at in (1..batches.len()).rev() {
                batches.swap(at, random.below(at as u64 + 1) as usize);
            }
        }
        Ok(batches)
    }
}

/// Writes `batches` in a format for other programs: the magic, a version, the numbers of clients,
/// of segments and of batches; for each batch its client and its number of segments, and for each
/// segment the offset, the length and the offset in the log. All little-endian.
///
/// # Errors
/// Errors of `out`.
pub fn dump(clients: u64, batches: &[SegmentBatch], out: &mut dyn Write) -> io::Result<()> {
    let segments: u64 = batches.iter().map(|batch| batch.pieces.len() as u64).sum();
    out.write_all(DUMP_MAGIC)?;
    out.write_all(&DUMP_VERSION.to_le_bytes())?;
    out.write_all(&(clients as u32).to_le_bytes())?;
    out.write_all(&segments.to_le_bytes())?;
    out.write_all(&(batches.len() as u64).to_le_bytes())?;
    for batch in batches {
        out.write_all(&(batch.client as u32).to_le_bytes())?;
        out.write_all(&(batch.pieces.len() as u32).to_le_bytes())?;
        for piece in &batch.pieces {
            for value in [piece.offset, piece.length, piece.log_offset] {
                out.write_all(&value.to_le_bytes())?;
            }
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_written_once() {
        let patterns =
            [WritePattern::Strided(10), WritePattern::Tile(10), WritePattern::Random(10)];
        for (pattern, clients) in
            patterns.into_iter().map(|p| (p, 16)).chain([(WritePattern::Btio(24), 16)])
        {
            // A whole cube has, for each cell across, as many lines as a layer has points.
            let segments =
                if let WritePattern::Btio(side) = pattern { side * side * 4 } else { 4_096 };
            let size = PatternSize { pattern, clients, segments, batch: 100, shuffled: true };
            let batches = size.batches().expect("a possible size");
            let mut all: Vec<FilePiece> =
                batches.into_iter().flat_map(|batch| batch.pieces).collect();
            assert_eq!(all.len() as u64, segments, "{pattern:?}");
            all.sort_unstable_by_key(|piece| piece.offset);
            let mut end = 0;
            for piece in &all {
                assert_eq!(piece.offset, end, "{pattern:?}");
                end += piece.length;
            }
        }
    }
}
