// SPDX-License-Identifier: Apache-2.0
//! Application change: a possible change of an application, as the variables that the application
//! would then have.
//!
//! The rate after a change is that of the best storage for the changed application; for an indexed
//! directory, that of the best key-value store, since keys are then found by hash in large logs.

use esker_base::shell_word;
use serde::Serialize;

use crate::features::{STRIPE_BYTES_DEFAULT, TraceFeatures};
use crate::model::advisor_model::{AdvisorModel, SystemModel};
use crate::observation::{AccessPattern, IoVariables, STORE_OPTION, StorageKind};
use crate::pattern::{PatternSize, TracePattern};

/// The request that aggregation aims at.
const AGGREGATED_BYTES: u64 = 1 << 20;

/// The predicted gain below which a change is not worth a line.
pub const GAIN_MIN: f64 = 0.05;

/// Operations of a process that opens and closes one file.
const ONE_FILE_OPERATIONS: u64 = 2;

/// The gap of aligned requests: the next multiple of a stripe.
fn align(gap_bytes: u64) -> u64 {
    gap_bytes.div_ceil(STRIPE_BYTES_DEFAULT).saturating_mul(STRIPE_BYTES_DEFAULT)
}

/// A change of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApplicationChange {
    /// Fewer, larger requests.
    Aggregate,
    /// Requests that begin and end at stripes.
    Align,
    /// Requests in the order of their offsets, without gaps.
    MakeContiguous,
    /// One file of each process instead of many.
    FewerFiles,
    /// One file of all processes.
    SharedFile,
    /// Records under keys in an indexed directory instead of small files.
    IndexedDirectory,
}

/// A change with its predicted gain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictedChange {
    /// The change.
    pub change: ApplicationChange,
    /// The system that is then the best.
    pub system: String,
    /// Its predicted rate in MB/s.
    pub rate: f64,
    /// The rate over that of the best system without the change.
    pub factor: f64,
    /// A command that tries the changed I/O.
    pub command: String,
}

impl ApplicationChange {
    /// All changes.
    pub const ALL: [Self; 6] = [
        Self::Aggregate,
        Self::Align,
        Self::MakeContiguous,
        Self::FewerFiles,
        Self::SharedFile,
        Self::IndexedDirectory,
    ];

    /// The change in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Aggregate => "aggregate requests to 1 MiB",
            Self::Align => "align requests with stripes",
            Self::MakeContiguous => "read and write in order, without gaps",
            Self::FewerFiles => "keep one file open for each process",
            Self::SharedFile => "share one file of all processes",
            Self::IndexedDirectory => "put records into an indexed directory",
        }
    }

    /// Returns the variables after the change, or nothing if the application has it already.
    #[must_use]
    pub fn apply(self, features: &TraceFeatures, run: &IoVariables) -> Option<IoVariables> {
        let mut changed = run.clone();
        let processes = u64::from(run.processes);
        match self {
            Self::Aggregate => {
                changed = run.with_request_bytes(AGGREGATED_BYTES.min(run.input_bytes));
                changed.unaligned_bytes = 0;
                changed.gap_bytes = align(run.gap_bytes);
            }
            Self::Align => {
                let stripes = run.request_bytes.div_ceil(STRIPE_BYTES_DEFAULT);
                // Rounding 1 KiB up to a stripe would be aggregation.
                if run.request_bytes >= STRIPE_BYTES_DEFAULT {
                    changed = run.with_request_bytes(stripes.saturating_mul(STRIPE_BYTES_DEFAULT));
                }
                changed.unaligned_bytes = 0;
                changed.gap_bytes = align(run.gap_bytes);
            }
            Self::MakeContiguous => {
                changed.access_pattern = AccessPattern::Contiguous;
                changed.gap_bytes = 0;
            }
            Self::FewerFiles if features.files > processes => {
                changed.metadata_operations = ONE_FILE_OPERATIONS.min(run.metadata_operations);
            }
            Self::SharedFile if features.shared_files == 0 && processes > 1 => {
                changed.metadata_operations = ONE_FILE_OPERATIONS.min(run.metadata_operations);
            }
            Self::IndexedDirectory if features.files > processes => {
                changed.metadata_operations = ONE_FILE_OPERATIONS.min(run.metadata_operations);
            }
            Self::FewerFiles | Self::SharedFile | Self::IndexedDirectory => return None,
        }
        let has_effect = changed != *run && changed.request_bytes >= run.request_bytes;
        has_effect.then_some(changed)
    }

    /// The pattern that has the variables of the changed application: its bytes, the size and the
    /// place of its requests, and its share of writes. `None` for records in an indexed directory,
    /// which are not in a file.
    #[must_use]
    pub fn pattern(
        self,
        features: &TraceFeatures,
        changed: &IoVariables,
    ) -> Option<(TracePattern, PatternSize)> {
        if self == Self::IndexedDirectory {
            return None;
        }
        let pattern = match changed.access_pattern {
            AccessPattern::Contiguous if changed.unaligned_bytes > 0 => TracePattern::OffsetShift,
            AccessPattern::Contiguous => TracePattern::IorSegmented,
            AccessPattern::Noncontiguous => TracePattern::Noncontiguous,
        };
        let requests = changed.requests();
        let last = changed.input_bytes - (requests - 1) * changed.request_bytes;
        let size = PatternSize {
            ranks: changed.processes,
            requests,
            request_bytes: changed.request_bytes,
            gap_bytes: changed.gap_bytes,
            shift_bytes: changed.unaligned_bytes,
            interval_ns: 0,
            written: written_of(features, requests),
            last_bytes: (last < changed.request_bytes).then_some(last),
            is_file_per_rank: self == Self::FewerFiles,
        };
        Some((pattern, size))
    }

    /// A command that performs the changed I/O, on the target of `system` if it is known.
    fn command(
        self,
        features: &TraceFeatures,
        changed: &IoVariables,
        system: &SystemModel,
    ) -> String {
        match self.pattern(features, changed) {
            Some((pattern, size)) => format!(
                "esker advise synth {} -o changed.arrow && esker advise replay changed.arrow {}",
                size.arguments(pattern),
                replay_arguments(&system.target)
            ),
            None => format!(
                "esker bench imd-write try:/records --store try-store --ranks {} --keys {} --value-bytes {}",
                changed.processes,
                changed.requests().saturating_mul(u64::from(changed.processes)),
                changed.request_bytes
            ),
        }
    }
}

/// The arguments of `esker advise replay` for a target of rows, which may be anybody's.
fn replay_arguments(target: &str) -> String {
    let word = |text: &str| shell_word(text.as_bytes());
    match target.split_once(STORE_OPTION) {
        _ if target.is_empty() => "try".to_owned(),
        Some((target, store)) => format!("{}{STORE_OPTION}{}", word(target), word(store)),
        None => word(target),
    }
}

/// The number of `requests` equal requests that write, by the share of the bytes that are written.
/// An application that reads and writes keeps one of each, if there are two.
fn written_of(features: &TraceFeatures, requests: u64) -> u64 {
    let (written, all) = (features.written_bytes, features.bytes().max(1));
    let exact = u128::from(written) * u128::from(requests) + u128::from(all / 2);
    let share = u64::try_from(exact / u128::from(all)).unwrap_or(u64::MAX);
    match (features.read_bytes, written) {
        (_, 0) => 0,
        (0, _) => requests,
        _ if requests < 2 => share,
        _ => share.clamp(1, requests - 1),
    }
}

/// Returns the changes that gain at least [`GAIN_MIN`], the largest gain first; `before` is the
/// rate of the best system without a change.
#[must_use]
pub fn predicted_changes(
    model: &AdvisorModel,
    features: &TraceFeatures,
    run: &IoVariables,
    before: f64,
) -> Vec<PredictedChange> {
    let mut changes: Vec<PredictedChange> = ApplicationChange::ALL
        .into_iter()
        .filter_map(|change| {
            let changed = change.apply(features, run)?;
            let systems = model.systems.iter().filter(|system| {
                change != ApplicationChange::IndexedDirectory
                    || system.kind == StorageKind::KeyValue
            });
            let rates = systems.map(|system| (system, system.predict(&changed).rate));
            let (system, rate) = rates.max_by(|left, right| left.1.total_cmp(&right.1))?;
            Some(PredictedChange {
                change,
                system: system.system.clone(),
                rate,
                factor: rate / before,
                command: change.command(features, &changed, system),
            })
        })
        .filter(|change| change.factor >= 1.0 + GAIN_MIN)
        .collect();
    changes.sort_by(|left, right| {
        right.factor.total_cmp(&left.factor).then(left.change.cmp(&right.change))
    });
    changes
}
