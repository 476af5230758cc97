// SPDX-License-Identifier: Apache-2.0
//! Replay plan: a trace as the calls of each rank, with files and objects numbered.
//!
//! A request is also an object, numbered by its file, position and size: that is the key of a
//! key-value store, or the name of a small file. Calls that no player has, such as renames, are
//! left out and counted. Memory: [`STEPS_MAX`] steps of 48 bytes. Source: Kougkas et al. 2016,
//! §4.1.2.

use std::collections::BTreeMap;
use std::ops::Range;

use esker_base::{Error, Kind, Result};
use hashbrown::HashMap;

use crate::trace::{
    ColumnSelection, TraceFile, TraceOperation, TraceReader, TraceRecord, TraceSource,
};

/// Steps of all ranks.
const STEPS_MAX: usize = 1 << 26;

/// Ranks, which are threads.
const RANKS_MAX: usize = 1 << 12;

/// Largest request: players have a buffer of that size for each rank.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Buffers of all ranks, each as large as the largest request of its rank.
const BUFFERS_BYTES_MAX: u64 = 1 << 34;

/// A call of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayStep {
    /// The operation.
    pub operation: TraceOperation,
    /// The file, numbered from 0.
    pub file: u32,
    /// The position of a transfer.
    pub offset: u64,
    /// The bytes of a transfer.
    pub bytes: u64,
    /// The object of a transfer, numbered from 0 in its file.
    pub object: u64,
    /// Time at which it begins, since the first call of the trace.
    pub begin_ns: u64,
}

/// A file of the trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayFile {
    /// The path in the trace.
    pub path: String,
    /// The end of its last transfer.
    pub bytes: u64,
    /// Requests that are read, which must be there before: position and size, ascending.
    pub read: Vec<(u64, u64)>,
    /// All requests: position and size, ascending. The index is the number of the object.
    pub requests: Vec<(u64, u64)>,
}

/// Options for making a plan from a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanOptions {
    /// True if writes are replayed as reads, as in the paper.
    pub writes_as_reads: bool,
}

/// The calls of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayPlan {
    /// The steps of each rank, in order.
    pub ranks: Vec<Vec<ReplayStep>>,
    /// The files.
    pub files: Vec<ReplayFile>,
    /// Reads and writes.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Calls that are left out.
    pub skipped: u64,
    /// Opens, creates and closes.
    pub metadata_operations: u64,
    /// From the beginning of the first step to that of the last one.
    pub span_ns: u64,
    /// The largest request.
    pub request_bytes_max: u64,
    /// True for a run of a measurement: the next run may remove data that this one leaves.
    pub is_measured: bool,
}

impl ReplayFile {
    /// The parts of the file that are read, merged and ascending.
    #[must_use]
    pub fn read_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (offset, bytes) in &self.read {
            let end = offset + bytes;
            match ranges.last_mut() {
                Some(last) if *offset <= last.end => last.end = last.end.max(end),
                _ => ranges.push(*offset..end),
            }
        }
        ranges
    }
}

impl ReplayPlan {
    /// The number of ranks.
    pub(super) fn rank_count(&self) -> u32 {
        u32::try_from(self.ranks.len()).expect("bounded by the plan")
    }

    /// Plans the replay of a trace.
    ///
    /// # Errors
    /// `TooLarge` for more steps, ranks or bytes of a request than a player has; `Invalid` for a
    /// trace without requests; as [`TraceReader::read_batch`].
    pub fn read<S: TraceSource>(trace: &TraceReader<S>, options: PlanOptions) -> Result<Self> {
        let mut builder = PlanBuilder { options, ..PlanBuilder::default() };
        trace.for_each(ColumnSelection::Accesses, |batch| {
            batch.records().try_for_each(|record| builder.add(&record))
        })?;
        builder.finish(|file| trace.path(file).to_owned())
    }
}

#[derive(Default)]
struct PlanBuilder {
    options: PlanOptions,
    plan: ReplayPlan,
    steps: usize,
    /// By rank of the trace, so that ranks keep their order.
    ranks: BTreeMap<u32, Vec<ReplayStep>>,
    files: HashMap<u32, u32>,
    paths: Vec<TraceFile>,
}

impl PlanBuilder {
    fn add(&mut self, record: &TraceRecord) -> Result<()> {
        let operation = match record.operation {
            TraceOperation::Write if self.options.writes_as_reads => TraceOperation::Read,
            TraceOperation::Create if self.options.writes_as_reads => TraceOperation::Open,
            operation => operation,
        };
        let is_done = record.result >= 0;
        let has_step = match operation {
            TraceOperation::Read | TraceOperation::Write => record.bytes_moved() > 0,
            TraceOperation::Open
            | TraceOperation::Create
            | TraceOperation::Close
            | TraceOperation::Stat
            | TraceOperation::Sync => is_done,
            TraceOperation::Barrier => true,
            // Positions are those of the transfers; a rename has two records.
            TraceOperation::Seek | TraceOperation::RenameTarget => return Ok(()),
            _ => false,
        };
        if !has_step {
            self.plan.skipped += 1;
            return Ok(());
        }
        let is_transfer = operation.is_transfer();
        let bytes = if is_transfer { record.bytes_moved() } else { 0 };
        self.steps += 1;
        if bytes > REQUEST_BYTES_MAX || self.steps > STEPS_MAX {
            let what = format!(
                "request {} of {bytes} bytes: a replay has at most {STEPS_MAX} calls, of at most \
                 {REQUEST_BYTES_MAX} bytes",
                self.steps
            );
            return Err(Error::new(Kind::TooLarge, what));
        }
        let file = match operation {
            TraceOperation::Barrier => 0,
            _ => self.file(record.file),
        };
        if is_transfer {
            let found = &mut self.plan.files[file as usize];
            let request = (record.offset, bytes);
            found.bytes = found.bytes.max(record.offset + bytes);
            found.requests.push(request);
            if operation == TraceOperation::Read {
                found.read.push(request);
            }
            self.plan.requests += 1;
            self.plan.bytes += bytes;
            self.plan.request_bytes_max = self.plan.request_bytes_max.max(bytes);
        }
        self.plan.metadata_operations += u64::from(operation.is_open_close());
        let step = ReplayStep {
            operation,
            file,
            offset: if is_transfer { record.offset } else { 0 },
            bytes,
            object: 0,
            begin_ns: record.begin_ns,
        };
        self.ranks.entry(record.rank).or_default().push(step);
        if self.ranks.len() > RANKS_MAX {
            let what = format!("more than {RANKS_MAX} ranks, which a replay has as threads");
            return Err(Error::new(Kind::TooLarge, what));
        }
        Ok(())
    }

    /// The number of a file of the trace.
    fn file(&mut self, file: TraceFile) -> u32 {
        *self.files.entry(file.0).or_insert_with(|| {
            self.paths.push(file);
            self.plan.files.push(ReplayFile::default());
            u32::try_from(self.plan.files.len() - 1).expect("files of a trace have 32 bits")
        })
    }

    fn finish(self, path: impl Fn(TraceFile) -> String) -> Result<ReplayPlan> {
        let mut plan = self.plan;
        if plan.requests == 0 {
            let what = "the trace has no reads or writes to replay";
            return Err(Error::new(Kind::Invalid, what));
        }
        for (file, traced) in plan.files.iter_mut().zip(&self.paths) {
            file.path = path(*traced);
            for requests in [&mut file.read, &mut file.requests] {
                requests.sort_unstable();
                requests.dedup();
            }
        }
        plan.ranks = self.ranks.into_values().collect();
        let largest = |steps: &Vec<ReplayStep>| steps.iter().map(|step| step.bytes).max();
        let buffers: u64 = plan.ranks.iter().filter_map(largest).sum();
        if buffers > BUFFERS_BYTES_MAX {
            let what = format!(
                "the largest requests of all ranks have {buffers} bytes; a replay has buffers of at \
                 most {BUFFERS_BYTES_MAX}"
            );
            return Err(Error::new(Kind::TooLarge, what));
        }
        // A rank that waits at a barrier more than another would wait for ever.
        let barriers = |steps: &Vec<ReplayStep>| {
            steps.iter().filter(|step| step.operation == TraceOperation::Barrier).count()
        };
        let first = barriers(&plan.ranks[0]);
        if plan.ranks.iter().any(|steps| barriers(steps) != first) {
            for steps in &mut plan.ranks {
                plan.skipped += barriers(steps) as u64;
                steps.retain(|step| step.operation != TraceOperation::Barrier);
            }
        }
        let begins = || plan.ranks.iter().flatten().map(|step| step.begin_ns);
        let first_ns = begins().min().unwrap_or_default();
        plan.span_ns = begins().max().unwrap_or_default() - first_ns;
        for step in plan.ranks.iter_mut().flatten() {
            step.begin_ns -= first_ns;
            if step.operation.is_transfer() {
                let requests = &plan.files[step.file as usize].requests;
                let object = requests.binary_search(&(step.offset, step.bytes));
                step.object = object.expect("every request is in its file") as u64;
            }
        }
        Ok(plan)
    }
}
