// SPDX-License-Identifier: Apache-2.0
//! Experiment design: the test cases that run on each system, their repetitions and their order.
//!
//! A design has all combinations of the factors, without those that differ only in a factor that
//! the pattern does not have. All cases run once, then once again, and so on, each time in a random
//! order that a seed gives: slow changes of the machine do not look like an effect of a factor, and
//! an interrupted measurement has whole repetitions, and goes on in the same order. Source: Kougkas
//! et al. 2016, §5.1 and §5.2.1 (each case five times).

use std::collections::BTreeSet;

use esker_base::{Random, Result};

use crate::features::StorageConfiguration;
use crate::observation::StorageDevice;
use crate::pattern::{PatternSize, TracePattern};

/// The values of the factors of Table 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExperimentDesign {
    /// Applications, which give the access pattern a and the metadata operations M.
    pub patterns: Vec<TracePattern>,
    /// r.
    pub request_bytes: Vec<u64>,
    /// g, for patterns with gaps.
    pub gap_bytes: Vec<u64>,
    /// A.
    pub shift_bytes: Vec<u64>,
    /// p.
    pub processes: Vec<u32>,
    /// R: bytes of each process, rounded down to whole loops of the pattern, at least one.
    pub input_bytes: u64,
    /// True if requests write.
    pub is_write: bool,
    /// s, m, c and d: the machine as it is, or configurations to emulate.
    pub storage: Vec<StorageConfiguration>,
    /// True if the storage is emulated.
    pub is_emulated: bool,
    /// Number of runs of each case on each system.
    pub repetitions: u32,
    /// Seed of the order.
    pub seed: u64,
}

/// A test case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExperimentCase {
    /// The application.
    pub pattern: TracePattern,
    /// Its parameters.
    pub size: PatternSize,
    /// The storage.
    pub storage: StorageConfiguration,
    /// True if the storage is emulated.
    pub is_emulated: bool,
}

impl ExperimentCase {
    /// The name in observations. Of the machine as it is, only the device may differ.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.size.case(self.pattern);
        let StorageConfiguration { servers, metadata_servers, clients, device } = self.storage;
        let device = match device {
            StorageDevice::Hdd => "hdd",
            StorageDevice::Ssd => "ssd",
        };
        if !self.is_emulated {
            return format!("{name} d={device}");
        }
        format!("{name} s={servers} m={metadata_servers} c={clients} d={device}")
    }
}

/// A run: the index of its case and of its system, and the repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ExperimentRun {
    /// Index of the case.
    pub case: usize,
    /// Index of the system.
    pub system: usize,
    /// From 0.
    pub repetition: u32,
}

/// Small files of a mix begin at 0, and App1 has sizes of its own.
const fn has_sizes(pattern: TracePattern) -> bool {
    !matches!(pattern, TracePattern::LanlApp1)
}

const fn has_shifts(pattern: TracePattern) -> bool {
    !matches!(pattern, TracePattern::WorkbenchMix)
}

impl ExperimentDesign {
    /// The cases.
    ///
    /// # Errors
    /// As [`PatternSize::check`].
    pub fn cases(&self) -> Result<Vec<ExperimentCase>> {
        let (mut cases, mut names) = (Vec::new(), BTreeSet::new());
        for &pattern in &self.patterns {
            for &request_bytes in &self.request_bytes {
                for &gap_bytes in &self.gap_bytes {
                    for &shift_bytes in &self.shift_bytes {
                        for &ranks in &self.processes {
                            let only = |has: bool, bytes| if has { bytes } else { 0 };
                            let request_bytes =
                                if has_sizes(pattern) { request_bytes } else { 131_072 };
                            let size = PatternSize {
                                ranks,
                                requests: pattern.requests_of(self.input_bytes, request_bytes),
                                request_bytes,
                                gap_bytes: only(pattern.has_gaps(), gap_bytes),
                                shift_bytes: only(has_shifts(pattern), shift_bytes),
                                interval_ns: 0,
                                written: if self.is_write { u64::MAX } else { 0 },
                                last_bytes: None,
                                is_file_per_rank: false,
                            };
                            size.check(pattern)?;
                            for &storage in &self.storage {
                                let is_emulated = self.is_emulated;
                                let case = ExperimentCase { pattern, size, storage, is_emulated };
                                if names.insert(case.name()) {
                                    cases.push(case);
                                }
                            }
                        }
                    }
                }
            }
        }
        Ok(cases)
    }

    /// All runs of `cases` cases on `systems` systems: each repetition as a whole, in an order of the
    /// seed.
    #[must_use]
    pub fn runs(&self, cases: usize, systems: usize) -> Vec<ExperimentRun> {
        let mut random = Random::from_seed(self.seed);
        let mut runs = Vec::new();
        for repetition in 0..self.repetitions {
            let first = runs.len();
            for case in 0..cases {
                runs.extend((0..systems).map(|system| ExperimentRun { case, system, repetition }));
            }
            let block = &mut runs[first..];
            for last in (1..block.len()).rev() {
                block.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REAL: StorageConfiguration = StorageConfiguration {
        servers: 1,
        metadata_servers: 1,
        clients: 1,
        device: StorageDevice::Ssd,
    };

    fn design() -> ExperimentDesign {
        ExperimentDesign {
            patterns: vec![TracePattern::RequestSize, TracePattern::Hpio, TracePattern::LanlApp1],
            request_bytes: vec![4_096, 65_536],
            gap_bytes: vec![0, 512],
            shift_bytes: vec![0],
            processes: vec![1, 2],
            input_bytes: 1 << 20,
            is_write: false,
            storage: vec![REAL],
            is_emulated: false,
            repetitions: 3,
            seed: 7,
        }
    }

    #[test]
    fn cases_differ() {
        let cases = design().cases().expect("valid");
        // Two sizes for request-size, four for hpio, one for App1; two numbers of processes.
        assert_eq!(cases.len(), 2 * (2 + 4 + 1));
        let transferred = |case: &ExperimentCase| -> u64 {
            (0..case.size.requests).map(|i| case.pattern.request(&case.size, 0, i).bytes).sum()
        };
        assert!(cases.iter().all(|case| transferred(case) == 1 << 20));
        let storage = vec![REAL, StorageConfiguration { servers: 4, ..REAL }];
        let emulated = ExperimentDesign { storage, is_emulated: true, ..design() };
        let emulated = emulated.cases().expect("valid");
        assert_eq!(emulated.len(), 2 * cases.len());
        let names = emulated[..2].iter().map(ExperimentCase::name).collect::<Vec<_>>();
        let name = cases[0].size.case(cases[0].pattern);
        assert_eq!(cases[0].name(), format!("{name} d=ssd"));
        assert_eq!(names[0], format!("{name} s=1 m=1 c=1 d=ssd"));
        assert_eq!(names[1], format!("{name} s=4 m=1 c=1 d=ssd"));
        for wrong in [
            ExperimentDesign { processes: vec![0], ..design() },
            ExperimentDesign { input_bytes: 0, ..design() },
        ] {
            assert!(wrong.cases().is_err());
        }
    }

    #[test]
    fn orders_are_complete_random_and_repeatable() {
        let runs = design().runs(5, 2);
        assert_eq!(runs, design().runs(5, 2));
        let mut sorted = runs.clone();
        sorted.sort_unstable();
        assert_ne!(runs, sorted);
        let blocks: Vec<_> = runs.chunks(5 * 2).map(|block| block[0].repetition).collect();
        assert!(runs.is_sorted_by_key(|run| run.repetition) && blocks == [0, 1, 2]);
        sorted.dedup();
        assert_eq!(sorted.len(), 5 * 2 * 3);
        assert_ne!(runs, ExperimentDesign { seed: 8, ..design() }.runs(5, 2));
    }
}
