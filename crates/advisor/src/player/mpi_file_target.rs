// SPDX-License-Identifier: Apache-2.0
//! MPI file: the first player of the paper by MPI-IO. Files are those of [`BigFileTarget`], which
//! loads and removes them; ranks open, read, write and sync them by MPI.
//!
//! With independent calls each rank opens files alone. With collective calls all ranks of the job
//! open, access, sync and close a file together, each at its own offset, so that the
//! implementation of MPI-IO may merge their requests; the trace must have the same calls on the
//! same files in each rank. Concurrency: a connection stays on the thread that has made it.
//! Source: Kougkas et al. 2016, §4.1.2; MPI 4.0, §14.2 and §14.4.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use esker_base::{Error, Kind, Result};
use esker_comm::mpi::MpiProcess;
use esker_workbench::backend::{MPI_IO_PREFIX, MpiFailure, MpiFile, MpiFileAccess, MpiFiles};

use super::{
    BigFileTarget, LoadState, ReplayConnection, ReplayPlan, ReplayStep, ReplayTarget, RequestLayout,
};
use crate::observation::StorageKind;
use crate::trace::TraceOperation;

/// The calls by which ranks access files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiFileCalls {
    /// Each rank by itself.
    Independent,
    /// All ranks of the job together.
    Collective,
}

/// A directory whose files MPI reads and writes.
pub struct MpiFileTarget {
    files: BigFileTarget,
    calls: MpiFileCalls,
    process: Arc<MpiProcess>,
}

impl MpiFileTarget {
    /// Replays in `directory`, as [`BigFileTarget::new`].
    ///
    /// # Errors
    /// `Invalid` for a path that MPI-IO cannot take; `Unsupported` if the thread may not call MPI.
    pub fn new(directory: &Path, calls: MpiFileCalls, process: Arc<MpiProcess>) -> Result<Self> {
        if directory.as_os_str().as_bytes().iter().any(|byte| matches!(byte, 0 | b':')) {
            let what = "MPI-IO takes what precedes a colon for the type of a file system: name a \
                        directory without";
            return Err(Error::new(Kind::Invalid, format!("{}: {what}", directory.display())));
        }
        // The first open of a process initializes ROMIO, which threads must not do at the same time.
        // It may fail.
        drop(MpiFiles::new(&process)?.open(c"/", MpiFileAccess::Read));
        Ok(Self { files: BigFileTarget::new(directory), calls, process })
    }

    fn failed(&self, file: u32) -> impl Fn(MpiFailure) -> Error + '_ {
        move |failure| failure.at(self.files.path(file).display())
    }
}

/// Fails unless all ranks make the same calls on the same files.
fn check_collective(plan: &ReplayPlan) -> Result<()> {
    let calls = |rank: usize| {
        let is_made = |step: &&ReplayStep| step.operation != TraceOperation::Stat;
        plan.ranks[rank].iter().filter(is_made).map(|step| (step.operation, step.file))
    };
    for rank in 1..plan.ranks.len() {
        let differing = (0..).zip(calls(0)).zip(calls(rank)).find(|((_, a), b)| a != b);
        let number = match differing {
            Some(((number, _), _)) => number,
            None if calls(0).count() == calls(rank).count() => continue,
            None => calls(0).count().min(calls(rank).count()),
        };
        let what = format!(
            "call {} of rank {rank} is not that of rank 0: collective I/O takes the same calls on \
             the same files in all ranks; replay independently",
            number + 1
        );
        return Err(Error::new(Kind::Unsupported, what));
    }
    Ok(())
}

impl ReplayTarget for MpiFileTarget {
    fn system(&self) -> String {
        match self.calls {
            MpiFileCalls::Independent => "mpiio-independent".to_owned(),
            MpiFileCalls::Collective => "mpiio-collective".to_owned(),
        }
    }

    fn storage_kind(&self) -> StorageKind {
        StorageKind::FileSystem
    }

    fn layout(&self) -> RequestLayout {
        RequestLayout::File
    }

    fn target(&self) -> String {
        format!("{MPI_IO_PREFIX}{}", self.files.target())
    }

    fn load_state(&self) -> Result<LoadState> {
        self.files.load_state()
    }

    fn load(&self, plan: &ReplayPlan) -> Result<()> {
        self.files.load(plan)
    }

    fn drop_caches(&self) -> Result<()> {
        self.files.drop_caches()
    }

    fn connect(&self, _rank: u32, plan: &ReplayPlan) -> Result<Box<dyn ReplayConnection + '_>> {
        let files = match self.calls {
            MpiFileCalls::Independent => MpiFiles::new(&self.process)?,
            MpiFileCalls::Collective => {
                check_collective(plan)?;
                MpiFiles::of_job(&self.process)?
            }
        };
        Ok(Box::new(MpiFileConnection { target: self, files, open: HashMap::new() }))
    }

    fn clear(&self) -> Result<()> {
        self.files.clear()
    }
}

/// The open files of one rank: one for each open of a file.
struct MpiFileConnection<'a> {
    target: &'a MpiFileTarget,
    files: MpiFiles,
    open: HashMap<u32, Vec<MpiFile>>,
}

impl MpiFileConnection<'_> {
    fn open(&self, file: u32) -> Result<MpiFile> {
        let path = self.target.files.path(file);
        let path = CString::new(path.as_os_str().as_bytes()).expect("checked when it was named");
        let opened = self.files.open(&path, MpiFileAccess::ReadWrite);
        opened.map_err(self.target.failed(file))
    }

    /// An open file; a trace of transfers alone has no opens.
    fn file(&mut self, file: u32) -> Result<&MpiFile> {
        if self.open.get(&file).is_none_or(Vec::is_empty) {
            let opened = self.open(file)?;
            self.open.entry(file).or_default().push(opened);
        }
        Ok(self.open[&file].last().expect("opened above"))
    }

    fn read(&mut self, step: &ReplayStep, buffer: &mut [u8]) -> Result<usize> {
        let calls = self.target.calls;
        let file = self.file(step.file)?;
        let read = match calls {
            MpiFileCalls::Independent => file.read_at(step.offset, buffer),
            MpiFileCalls::Collective => file.read_at_all(step.offset, buffer),
        };
        read.map_err(self.target.failed(step.file))
    }

    fn write(&mut self, step: &ReplayStep, bytes: &[u8]) -> Result<()> {
        let calls = self.target.calls;
        let file = self.file(step.file)?;
        let written = match calls {
            MpiFileCalls::Independent => file.write_at(step.offset, bytes),
            MpiFileCalls::Collective => file.write_at_all(step.offset, bytes),
        };
        let written = written.map_err(self.target.failed(step.file))?;
        if written == bytes.len() {
            return Ok(());
        }
        let what =
            format!("MPI wrote {written} of {} bytes; is the file system full?", bytes.len());
        let path = self.target.files.path(step.file);
        Err(Error::new(Kind::DeviceFailed, format!("{}: {what}", path.display())))
    }
}

impl ReplayConnection for MpiFileConnection<'_> {
    fn call(&mut self, step: &ReplayStep, buffer: &mut Vec<u8>) -> Result<bool> {
        match step.operation {
            TraceOperation::Open | TraceOperation::Create => {
                let opened = self.open(step.file)?;
                self.open.entry(step.file).or_default().push(opened);
            }
            TraceOperation::Close => {
                if let Some(file) = self.open.entry(step.file).or_default().pop() {
                    file.close().map_err(self.target.failed(step.file))?;
                }
            }
            TraceOperation::Read => {
                let count = self.read(step, buffer)?;
                // A short read is found by the check of its bytes.
                buffer.truncate(count);
            }
            TraceOperation::Write => self.write(step, buffer)?,
            TraceOperation::Stat => {
                let path = self.target.files.path(step.file);
                let found = path.metadata();
                found.map_err(|error| Error::io(error, path.display().to_string()))?;
            }
            TraceOperation::Sync => {
                let synced = self.file(step.file)?.sync();
                synced.map_err(self.target.failed(step.file))?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::{PatternSize, TracePattern, write_pattern};
    use crate::player::PlanOptions;
    use crate::trace::TraceReader;

    fn plan(pattern: TracePattern, is_file_per_rank: bool) -> ReplayPlan {
        let size = PatternSize {
            ranks: 4,
            requests: 5,
            request_bytes: 512,
            gap_bytes: 0,
            shift_bytes: 0,
            interval_ns: 0,
            written: 0,
            last_bytes: None,
            is_file_per_rank,
        };
        let (trace, _) = write_pattern(pattern, &size, Vec::new()).expect("a trace");
        let reader = TraceReader::open(&trace[..], "a trace").expect("a trace");
        ReplayPlan::read(&reader, PlanOptions::default()).expect("a plan")
    }

    #[test]
    fn collective_calls_are_the_same_in_all_ranks() {
        let mut plan_of_hpio = plan(TracePattern::Hpio, false);
        check_collective(&plan_of_hpio).expect("the same calls");
        let refused = |plan: &ReplayPlan| {
            let error = check_collective(plan).expect_err("they differ");
            assert_eq!(error.kind(), Kind::Unsupported);
            error.to_string()
        };
        let other_files = refused(&plan(TracePattern::Hpio, true));
        assert!(other_files.contains("call 1 of rank 1"), "{other_files}");
        plan_of_hpio.ranks[2].pop();
        let fewer = refused(&plan_of_hpio);
        assert!(fewer.contains("of rank 2 is not that of rank 0"), "{fewer}");
        let read = plan_of_hpio.ranks[0][1];
        plan_of_hpio.ranks[2].extend([read; 2]);
        refused(&plan_of_hpio);
    }
}
