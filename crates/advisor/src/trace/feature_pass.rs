// SPDX-License-Identifier: Apache-2.0
//! Feature pass: the features of a trace, in one pass over its batches.
//!
//! The state is one number for each file, and one for each pair of a rank and a file whose bytes it
//! transfers. A transfer that moved nothing, at the end of a file or because it failed, does not
//! count as a request. Records of a rank come in the order of their beginnings. Source: Kougkas et
//! al. 2016, §4.1.1 and Table 1.

use esker_base::Result;
use hashbrown::HashMap;

use super::size_counts::SizeCounts;
use super::{ColumnSelection, TraceBatch, TraceFile, TraceOperation, TraceReader, TraceSource};
use crate::features::{SMALL_REQUEST_BYTES, TraceFeatures};

/// The use of a file so far, by calls that open it or transfer bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FileUse {
    #[default]
    Unused,
    Opened,
    /// By one rank.
    Transferred(u32),
    Shared,
}

/// Counts while batches are added.
#[derive(Debug)]
pub struct FeaturePass {
    features: TraceFeatures,
    sizes: SizeCounts,
    shifts: SizeCounts,
    gap_bytes: u128,
    files: Vec<FileUse>,
    /// The end of the last transfer of a rank in a file.
    ends: HashMap<(u32, u32), u64>,
    /// The nanoseconds of each rank's calls, and whether it transfers bytes.
    ranks: HashMap<u32, (u64, bool)>,
}

impl FeaturePass {
    /// Begins a pass; alignment refers to stripes of `stripe_bytes`, at least 1.
    #[must_use]
    pub fn new(stripe_bytes: u64) -> Self {
        assert!(stripe_bytes > 0, "a stripe has bytes");
        Self {
            features: TraceFeatures { stripe_bytes, ..TraceFeatures::default() },
            sizes: SizeCounts::default(),
            shifts: SizeCounts::default(),
            gap_bytes: 0,
            files: Vec::new(),
            ends: HashMap::new(),
            ranks: HashMap::new(),
        }
    }

    /// Adds a batch.
    pub fn add(&mut self, batch: &TraceBatch) {
        let mut row = 0;
        while row < batch.len() {
            // Consecutive records are often of one rank, whose state is then found once.
            let rank = batch.rank[row];
            let (mut spent_ns, mut transfers) = (0_u64, false);
            while row < batch.len() && batch.rank[row] == rank {
                let operation = batch.operation_at(row);
                if operation != TraceOperation::Barrier {
                    let took_ns = batch.end_ns[row] - batch.begin_ns[row];
                    spent_ns = took_ns.saturating_add(spent_ns);
                }
                if operation.is_transfer() {
                    let moved = u64::try_from(batch.result[row]).unwrap_or(0);
                    let moved = moved.min(batch.bytes[row]);
                    if moved > 0 {
                        transfers = true;
                        self.transfer(operation, rank, batch.file[row], batch.offset[row], moved);
                    }
                } else {
                    self.metadata(operation, batch.file[row]);
                }
                row += 1;
            }
            let state = self.ranks.entry(rank).or_default();
            state.0 = state.0.saturating_add(spent_ns);
            state.1 |= transfers;
        }
    }

    /// The features; `path` gives the text of a file's path.
    #[must_use]
    pub fn finish<'a>(self, path: impl Fn(TraceFile) -> &'a str) -> TraceFeatures {
        let mut features = self.features;
        let ranks = self.ranks.values().filter(|(_, transfers)| *transfers).count();
        features.processes = u32::try_from(ranks).expect("ranks are numbers of 32 bits");
        features.request_bytes_median = self.sizes.median();
        features.unaligned_bytes_median = self.shifts.median();
        let jumps = features.following_requests - features.contiguous_requests;
        let mean = self.gap_bytes / u128::from(jumps.max(1));
        features.gap_bytes_mean = u64::try_from(mean).expect("offsets are numbers of 64 bits");
        let mut directories: HashMap<&str, u64> = HashMap::new();
        for (file, used) in self.files.iter().enumerate() {
            features.files += u64::from(matches!(used, FileUse::Transferred(_) | FileUse::Shared));
            features.shared_files += u64::from(*used == FileUse::Shared);
            if *used != FileUse::Unused && file > 0 {
                let path = path(TraceFile(u32::try_from(file).expect("files have 32 bits")));
                let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
                *directories.entry(directory).or_default() += 1;
            }
        }
        features.files_in_directory_max = directories.into_values().max().unwrap_or_default();
        let longest = self.ranks.values().map(|(spent_ns, _)| *spent_ns).max();
        features.io_seconds = longest.unwrap_or_default() as f64 / 1e9;
        features
    }

    fn transfer(
        &mut self,
        operation: TraceOperation,
        rank: u32,
        file: u32,
        offset: u64,
        moved: u64,
    ) {
        let features = &mut self.features;
        match operation {
            TraceOperation::Read => {
                features.reads += 1;
                features.read_bytes = features.read_bytes.saturating_add(moved);
            }
            _ => {
                features.writes += 1;
                features.written_bytes = features.written_bytes.saturating_add(moved);
            }
        }
        features.small_requests += u64::from(moved < SMALL_REQUEST_BYTES);
        self.sizes.add(moved);
        let shift = offset % features.stripe_bytes;
        if shift > 0 {
            features.unaligned_requests += 1;
            self.shifts.add(shift);
        }
        let end = offset + moved;
        if let Some(before) = self.ends.insert((rank, file), end) {
            features.following_requests += 1;
            features.contiguous_requests += u64::from(before == offset);
            self.gap_bytes += u128::from(before.abs_diff(offset));
        }
        let used = self.file_use(file);
        *used = match *used {
            FileUse::Unused | FileUse::Opened => FileUse::Transferred(rank),
            FileUse::Transferred(other) if other == rank => FileUse::Transferred(rank),
            _ => FileUse::Shared,
        };
    }

    fn metadata(&mut self, operation: TraceOperation, file: u32) {
        let features = &mut self.features;
        match operation {
            TraceOperation::Open | TraceOperation::Create => {
                features.opens += 1;
                features.creates += u64::from(operation == TraceOperation::Create);
                let used = self.file_use(file);
                if *used == FileUse::Unused {
                    *used = FileUse::Opened;
                }
            }
            TraceOperation::Close => features.closes += 1,
            TraceOperation::Read
            | TraceOperation::Write
            | TraceOperation::Seek
            | TraceOperation::Sync
            | TraceOperation::RenameTarget
            | TraceOperation::Barrier => {}
            _ => features.other_metadata += 1,
        }
    }

    fn file_use(&mut self, file: u32) -> &mut FileUse {
        let file = file as usize;
        if file >= self.files.len() {
            self.files.resize(file + 1, FileUse::Unused);
        }
        &mut self.files[file]
    }
}

/// The features of a whole trace.
///
/// # Errors
/// As [`TraceReader::read_batch`].
pub fn features<S: TraceSource>(
    trace: &TraceReader<S>,
    stripe_bytes: u64,
) -> Result<TraceFeatures> {
    let mut pass = FeaturePass::new(stripe_bytes);
    trace.for_each(ColumnSelection::Accesses, |batch| {
        pass.add(batch);
        Ok(())
    })?;
    Ok(pass.finish(|file| trace.path(file)))
}
