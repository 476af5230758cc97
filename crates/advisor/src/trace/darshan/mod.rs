// SPDX-License-Identifier: Apache-2.0
//! Darshan: imports logs of the I/O profiler of HPC systems.
//!
//! The counters of a log are enough for features (`counter_features`); if the job ran with
//! `DXT_ENABLE_IO_TRACE`, the log also has each read and write, for a trace (`extended_trace`). A
//! log may come from anybody: regions are checked against its length, decompressed as they are
//! read, and never held in memory as a whole. Source: darshan-hpc/darshan, versions 3.0 to 3.5.

mod counter_features;
mod counters;
mod extended_trace;
mod header;
mod region_reader;

use std::collections::HashMap;
use std::io::Write;

use esker_base::{Error, Kind, Result};

use self::counters::for_each_record;
pub use self::counters::{CounterRecord, RANK_SHARED};
use self::extended_trace::write_accesses;
pub use self::header::DarshanModule;
use self::header::{LogHeader, LogRegion};
use self::region_reader::RegionReader;
use super::{PATH_BYTES_MAX, PATHS_BYTES_MAX, TraceOrigin, TraceWriter, path_text};
use crate::features::TraceFeatures;

/// Longest job: the record with the program and the mounts.
const JOB_BYTES_MAX: usize = 1 << 16;

/// Memory of a name besides its text, so that empty names are bounded as well.
const NAME_OVERHEAD_BYTES: u64 = 64;

/// Largest log that is read.
pub const LOG_BYTES_MAX: u64 = 2 << 30;

/// A job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DarshanJob {
    /// Processes.
    pub processes: u32,
    /// The beginning since the Unix epoch.
    pub begin_ns: u64,
    /// The command.
    pub program: String,
}

/// A log in memory.
#[derive(Debug)]
pub struct DarshanLog<'a> {
    log: &'a [u8],
    object: &'a str,
    header: LogHeader,
    job: DarshanJob,
    names: HashMap<u64, String>,
}

impl<'a> DarshanLog<'a> {
    /// Opens a log and reads its job and names; errors name it `object`.
    ///
    /// # Errors
    /// `Corrupt` with the place for bytes that are not a log, or only a part of one; `Invalid` for
    /// a version, a byte order or a compression that is not read; `TooLarge` for names over the
    /// limits of a trace.
    pub fn open(log: &'a [u8], object: &'a str) -> Result<Self> {
        let header = LogHeader::parse(log, object)?;
        let (job, names) = (DarshanJob::default(), HashMap::new());
        let mut opened = Self { log, object, header, job, names };
        opened.job = opened.read_job()?;
        opened.names = opened.read_names()?;
        Ok(opened)
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> &DarshanJob {
        &self.job
    }

    /// The name of a file; its id if the log has none.
    #[must_use]
    pub fn name(&self, file: u64) -> String {
        self.names.get(&file).cloned().unwrap_or_else(|| format!("<file {file}>"))
    }

    /// True if the log has records of `module`.
    #[must_use]
    pub fn has(&self, module: DarshanModule) -> bool {
        self.header.module(module).is_some()
    }

    /// Calls `visit` with each record of counters of `module`; with none if the log has none.
    ///
    /// # Errors
    /// `Corrupt` with the place; `Invalid` for records of an unknown version; as `visit`.
    pub fn for_each(
        &self,
        module: DarshanModule,
        visit: impl FnMut(&CounterRecord) -> Result<()>,
    ) -> Result<()> {
        let Some((region, version)) = self.header.module(module) else { return Ok(()) };
        let reader = self.reader(module.name(), region);
        for_each_record(reader, self.object, module, version, visit)
    }

    /// The features that follow from the counters.
    ///
    /// # Errors
    /// As [`DarshanLog::for_each`].
    pub fn features(&self) -> Result<TraceFeatures> {
        counter_features::features(self)
    }

    /// Writes the reads and writes of the log as a trace, those of POSIX if it has them and else
    /// those of MPI-IO. Returns the output and the number of records.
    ///
    /// # Errors
    /// `NotFound` if the log has none; `Corrupt` with the place; as the output answers.
    pub fn write_trace<W: Write>(&self, output: W) -> Result<(W, u64)> {
        let modules = [DarshanModule::ExtendedPosix, DarshanModule::ExtendedMpiIo];
        let found =
            modules.into_iter().find_map(|module| Some((module, self.header.module(module)?)));
        let Some((module, (region, version))) = found else {
            let what = format!(
                "{}: the log has counters only, and no reads and writes to replay; run the job with \
                 DXT_ENABLE_IO_TRACE=1",
                self.object
            );
            return Err(Error::new(Kind::NotFound, what));
        };
        if !(1..=2).contains(&version) {
            let what = format!("{}: {} of version {version}", self.object, module.name());
            return Err(Error::new(Kind::Invalid, what));
        }
        let (program, epoch_ns) = (self.job.program.clone(), self.job.begin_ns);
        let origin = TraceOrigin { program, source: "darshan".to_owned(), epoch_ns };
        let trace = format!("the trace of {}", self.object);
        let mut writer = TraceWriter::new(output, trace, origin)?;
        let reader = self.reader(module.name(), region);
        let records = write_accesses(reader, self.object, |file| self.name(file), &mut writer)?;
        Ok((writer.finish()?, records))
    }

    fn reader(&self, name: &'static str, region: LogRegion) -> RegionReader<'a> {
        RegionReader::new(self.log, self.object, name, region, self.header.compression)
    }

    /// `uid | begin | end | processes | job id | metadata[1024] | command \n mounts`, with seconds
    /// and nanoseconds of the times from version 3.41 on.
    fn read_job(&self) -> Result<DarshanJob> {
        let mut reader = self.reader("job", self.header.job);
        let has_nanoseconds = self.header.version >= 341;
        let words = if has_nanoseconds { 7 } else { 5 };
        let mut record = vec![0; 8 * words];
        if !reader.read(&mut record)? {
            return Err(reader.corrupt("no job"));
        }
        let words: Vec<i64> =
            record.as_chunks::<8>().0.iter().map(|word| i64::from_le_bytes(*word)).collect();
        let (seconds, nanoseconds, processes) =
            if has_nanoseconds { (words[1], words[2], words[5]) } else { (words[1], 0, words[3]) };
        let Some(processes) = u32::try_from(processes).ok().filter(|count| *count > 0) else {
            return Err(reader.corrupt(format!("{processes} processes")));
        };
        let mut metadata = [0; 1_024];
        reader.read(&mut metadata)?;
        let mut program = Vec::new();
        let mut byte = [0];
        while program.len() < JOB_BYTES_MAX
            && reader.read(&mut byte)?
            && !matches!(byte, [0 | b'\n'])
        {
            program.push(byte[0]);
        }
        let begin_ns = u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000);
        let begin_ns = begin_ns.saturating_add(u64::try_from(nanoseconds).unwrap_or(0));
        Ok(DarshanJob { processes, begin_ns, program: path_text(&program) })
    }

    /// `file id u64 | name, and a zero byte` for each file.
    fn read_names(&self) -> Result<HashMap<u64, String>> {
        let mut names = HashMap::new();
        if self.header.names.bytes == 0 {
            return Ok(names);
        }
        let mut reader = self.reader("names", self.header.names);
        let (mut id, mut byte, mut total) = ([0; 8], [0], 0);
        while reader.read(&mut id)? {
            total += NAME_OVERHEAD_BYTES;
            let mut name = Vec::new();
            loop {
                if !reader.read(&mut byte)? {
                    return Err(reader.corrupt("a name without an end"));
                }
                if byte[0] == 0 {
                    break;
                }
                total += 1;
                if name.len() == PATH_BYTES_MAX / 4 || total > PATHS_BYTES_MAX {
                    return Err(reader.corrupt("a name, or all names, longer than paths are"));
                }
                name.push(byte[0]);
            }
            // The processes have the same names.
            names.entry(u64::from_le_bytes(id)).or_insert_with(|| path_text(&name));
        }
        Ok(names)
    }
}
