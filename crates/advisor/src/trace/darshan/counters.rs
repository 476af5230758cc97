// SPDX-License-Identifier: Apache-2.0
//! Counters: the records of the modules POSIX, STDIO and MPI-IO, one for each file and process, or
//! one for all processes with rank -1.
//!
//! ```text
//! file id u64 | rank i64 | counters i64 … | times f64 …
//! ```
//! Records of older versions lack counters; they are read as the newest version, with -1 where a
//! counter is missing.
//! Source: darshan-hpc/darshan, include/darshan-{posix,stdio,mpiio}-log-format.h, and the
//! conversions in darshan-util.

use esker_base::{Error, Kind, Result};

use super::header::DarshanModule;
use super::region_reader::RegionReader;

/// The rank of records that count all processes.
pub const RANK_SHARED: i64 = -1;

/// Positions of the counters that are used, in the newest version of each module.
pub mod posix {
    /// Calls that open, `fileno` and `dup` included.
    pub const OPENS: usize = 0;
    /// Calls of `fileno`.
    pub const FILENOS: usize = 1;
    /// Duplicates of descriptors.
    pub const DUPS: usize = 2;
    /// Reads.
    pub const READS: usize = 3;
    /// Writes.
    pub const WRITES: usize = 4;
    /// Calls that read attributes.
    pub const STATS: usize = 6;
    /// Renames from this name.
    pub const RENAME_SOURCES: usize = 10;
    /// Bytes read.
    pub const BYTES_READ: usize = 14;
    /// Bytes written.
    pub const BYTES_WRITTEN: usize = 15;
    /// Reads that begin where the one before ended.
    pub const CONSEC_READS: usize = 18;
    /// Writes that begin where the one before ended.
    pub const CONSEC_WRITES: usize = 19;
    /// Reads and writes that are not aligned in the file.
    pub const FILE_NOT_ALIGNED: usize = 25;
    /// The alignment.
    pub const FILE_ALIGNMENT: usize = 26;
    /// Reads by size, ten bins from 0–100 bytes to over 1 GiB.
    pub const SIZE_READ: usize = 29;
    /// Writes by size, likewise.
    pub const SIZE_WRITE: usize = 39;
    /// The four most common strides.
    pub const STRIDES: usize = 49;
    /// The numbers of their occurrences.
    pub const STRIDE_COUNTS: usize = 53;
    /// The four most common sizes.
    pub const ACCESSES: usize = 57;
    /// The numbers of their occurrences.
    pub const ACCESS_COUNTS: usize = 61;
    /// Seconds in reads.
    pub const READ_TIME: usize = 8;
    /// Seconds in writes.
    pub const WRITE_TIME: usize = 9;
    /// Seconds in other calls.
    pub const META_TIME: usize = 10;
    /// Seconds of the slowest rank.
    pub const SLOWEST_RANK_TIME: usize = 14;
}

/// Positions in records of streams.
pub mod stdio {
    /// Calls that open.
    pub const OPENS: usize = 0;
    /// Reads.
    pub const READS: usize = 2;
    /// Writes.
    pub const WRITES: usize = 3;
    /// Bytes written.
    pub const BYTES_WRITTEN: usize = 6;
    /// Bytes read.
    pub const BYTES_READ: usize = 7;
    /// Seconds in other calls.
    pub const META_TIME: usize = 0;
    /// Seconds in writes.
    pub const WRITE_TIME: usize = 1;
    /// Seconds in reads.
    pub const READ_TIME: usize = 2;
    /// Seconds of the slowest rank.
    pub const SLOWEST_RANK_TIME: usize = 12;
}

/// Positions in records of MPI-IO.
pub mod mpiio {
    /// Independent opens.
    pub const INDEP_OPENS: usize = 0;
    /// Collective opens.
    pub const COLL_OPENS: usize = 1;
    /// Reads: independent, collective 2 further on, split 4, nonblocking 6.
    pub const INDEP_READS: usize = 2;
    /// Writes, likewise.
    pub const INDEP_WRITES: usize = 3;
    /// Bytes read.
    pub const BYTES_READ: usize = 14;
    /// Bytes written.
    pub const BYTES_WRITTEN: usize = 15;
    /// The four most common sizes.
    pub const ACCESSES: usize = 39;
    /// The numbers of their occurrences.
    pub const ACCESS_COUNTS: usize = 43;
    /// Seconds of the slowest rank.
    pub const SLOWEST_RANK_TIME: usize = 14;
    /// Seconds in reads.
    pub const READ_TIME: usize = 8;
    /// Seconds in writes.
    pub const WRITE_TIME: usize = 9;
    /// Seconds in other calls.
    pub const META_TIME: usize = 10;
}

/// One record, in the newest version of its module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CounterRecord {
    /// The file.
    pub file: u64,
    /// The process, or [`RANK_SHARED`].
    pub rank: i64,
    /// Integers.
    pub counters: Vec<i64>,
    /// Seconds, and moments since the job began.
    pub times: Vec<f64>,
}

/// Counters that an older version lacks: their position in the newest, and the value that stands
/// for them.
type Missing<T> = &'static [(usize, T)];

/// The numbers of a record of one version.
struct RecordLayout {
    counters: usize,
    times: usize,
    missing_counters: Missing<i64>,
    missing_times: Missing<f64>,
}

fn layout(module: DarshanModule, version: u32) -> Option<RecordLayout> {
    let newest = |counters, times| RecordLayout {
        counters,
        times,
        missing_counters: &[],
        missing_times: &[],
    };
    // FILENOS and DUPS, RENAME_SOURCES, RENAME_TARGETS and RENAMED_FROM.
    const POSIX_3: Missing<i64> = &[(1, -1), (2, -1), (10, -1), (11, -1), (12, 0)];
    // CLOSE_START and OPEN_END.
    const NO_CLOSE: Missing<f64> = &[(3, -1.0), (4, -1.0)];
    Some(match (module, version) {
        (DarshanModule::Posix, 4) => newest(69, 17),
        (DarshanModule::Posix, 3) => RecordLayout { missing_counters: POSIX_3, ..newest(69, 17) },
        (DarshanModule::Posix, 2) => {
            RecordLayout { missing_counters: POSIX_3, missing_times: NO_CLOSE, ..newest(69, 17) }
        }
        (DarshanModule::Stdio, 2) => newest(14, 15),
        (DarshanModule::Stdio, 1) => {
            RecordLayout { missing_counters: &[(1, -1)], ..newest(14, 15) }
        }
        (DarshanModule::MpiIo, 3) => newest(51, 17),
        (DarshanModule::MpiIo, 2 | 1) => RecordLayout { missing_times: NO_CLOSE, ..newest(51, 17) },
        _ => return None,
    })
}

/// Calls `visit` with each record of a module.
///
/// # Errors
/// `Corrupt` for a region that is damaged; `Invalid` for records of an unknown version; as `visit`.
pub fn for_each_record(
    mut region: RegionReader<'_>,
    object: &str,
    module: DarshanModule,
    version: u32,
    mut visit: impl FnMut(&CounterRecord) -> Result<()>,
) -> Result<()> {
    let Some(layout) = layout(module, version) else {
        let what = format!("{object}: records of {} in version {version}", module.name());
        return Err(Error::new(Kind::Invalid, format!("{what} are not read by this esker")));
    };
    let counters = layout.counters - layout.missing_counters.len();
    let times = layout.times - layout.missing_times.len();
    let mut bytes = vec![0; 8 * (2 + counters + times)];
    while region.read(&mut bytes)? {
        let words = bytes.as_chunks::<8>().0;
        let integer = |word: &[u8; 8]| i64::from_le_bytes(*word);
        let number = |word: &[u8; 8]| f64::from_le_bytes(*word);
        let mut record = CounterRecord {
            file: u64::from_le_bytes(words[0]),
            rank: integer(&words[1]),
            counters: words[2..2 + counters].iter().map(integer).collect(),
            times: words[2 + counters..].iter().map(number).collect(),
        };
        for (at, value) in layout.missing_counters {
            record.counters.insert(*at, *value);
        }
        for (at, value) in layout.missing_times {
            record.times.insert(*at, *value);
        }
        if record.rank < RANK_SHARED {
            return Err(region.corrupt(format!("rank {}", record.rank)));
        }
        visit(&record)?;
    }
    Ok(())
}
