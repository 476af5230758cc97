// SPDX-License-Identifier: Apache-2.0
//! Extended trace (DXT): each read and write of a job, as records of a trace.
//!
//! ```text
//! file id u64 | rank i64 | shared i64 | host text[64] | writes i64 | reads i64
//! offset i64 | length i64 | begin f64 | end f64        for each write, then for each read
//! ```
//! A log groups accesses by file and process; a trace has them in the order of time, so the import
//! sorts them in memory, at most [`ACCESSES_MAX`]. Source: darshan-hpc/darshan,
//! include/darshan-dxt-log-format.h; Xu et al., DXT: Darshan eXtended Tracing, CUG 2017.

use std::io::Write;

use esker_base::{Error, Kind, Result};

use super::region_reader::RegionReader;
use crate::trace::{TraceFile, TraceOperation, TraceRecord, TraceWriter};

const RECORD_BYTES: usize = 104;
const ACCESS_BYTES: usize = 32;

/// Accesses of a log: 3 GB in memory. Darshan keeps 2 MiB of them a process unless told otherwise.
const ACCESSES_MAX: usize = 1 << 26;

/// Reads the accesses of a region into `writer`, with `path` giving the paths of files. Returns
/// their number.
///
/// # Errors
/// `Corrupt` with the place for damage and for impossible accesses; `TooLarge` for too many.
pub fn write_accesses<W: Write>(
    mut region: RegionReader<'_>,
    object: &str,
    path: impl Fn(u64) -> String,
    writer: &mut TraceWriter<W>,
) -> Result<u64> {
    let mut accesses = Vec::new();
    let mut record = [0; RECORD_BYTES];
    while region.read(&mut record)? {
        let word =
            |at: usize| i64::from_le_bytes(*record[at..].first_chunk().expect("inside the record"));
        let file = writer.file(path(word(0).cast_unsigned()).as_bytes())?;
        let Ok(rank) = u32::try_from(word(8)) else {
            return Err(region.corrupt(format!("rank {}", word(8))));
        };
        let [writes, reads] = [word(88), word(96)];
        if writes < 0 || reads < 0 {
            return Err(region.corrupt(format!("{writes} writes and {reads} reads")));
        }
        let kinds = [(TraceOperation::Write, writes), (TraceOperation::Read, reads)];
        for (operation, count) in kinds {
            for _ in 0..count {
                if accesses.len() == ACCESSES_MAX {
                    let what = format!("{object}: more than {ACCESSES_MAX} accesses");
                    return Err(Error::new(Kind::TooLarge, what));
                }
                accesses.push(access(&mut region, rank, operation, file)?);
            }
        }
    }
    accesses.sort_by_key(|access| (access.begin_ns, access.rank));
    accesses.iter().try_for_each(|access| writer.push(access))?;
    Ok(accesses.len() as u64)
}

fn access(
    region: &mut RegionReader<'_>,
    rank: u32,
    operation: TraceOperation,
    file: TraceFile,
) -> Result<TraceRecord> {
    let mut bytes = [0; ACCESS_BYTES];
    if !region.read(&mut bytes)? {
        return Err(region.corrupt("expected an access"));
    }
    let [offset, length, begin, end] = [0, 1, 2, 3].map(|index| bytes.as_chunks::<8>().0[index]);
    let [offset, length] = [offset, length].map(i64::from_le_bytes);
    let [begin, end] = [begin, end].map(f64::from_le_bytes);
    let is_inside = offset >= 0 && length >= 0 && offset.checked_add(length).is_some();
    let is_ordered = (0.0..1e9).contains(&begin) && end >= begin && end < 1e9;
    if !is_inside || !is_ordered {
        let what = format!("{length} bytes at {offset}, from {begin} to {end} s");
        return Err(region.corrupt(what));
    }
    let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
    Ok(TraceRecord {
        file,
        offset: offset.cast_unsigned(),
        bytes: length.cast_unsigned(),
        begin_ns: nanoseconds(begin),
        end_ns: nanoseconds(end),
        result: length,
        ..TraceRecord::new(rank, operation)
    })
}
