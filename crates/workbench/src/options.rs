// SPDX-License-Identifier: Apache-2.0
//! Options: the parameters of a run.

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::mix::OperationMix;
use crate::pace::Arrivals;
use crate::pattern::WorkingSetSize;
use crate::recorder::OUTLIER_NS;

/// The options of a run, which a result repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunOptions {
    /// The name of the run in comparisons and reports.
    pub label: String,
    /// Parameters of the working set.
    pub size: WorkingSetSize,
    /// Number of repetitions of each benchmark phase.
    pub repeat: u32,
    /// Waiting factors of the closed loops.
    pub waiting_factors: Vec<f64>,
    /// Also doubles the waiting factor, from 1, until the mean latency no longer falls.
    pub adaptive: bool,
    /// Rates of the open loops, in operations per second of all ranks.
    pub rates: Vec<f64>,
    /// Also runs open loops at shares of the rate of the closed loop.
    pub saturation: bool,
    /// Arrivals of the open loops.
    pub arrivals: Arrivals,
    /// Benchmark phases only stat and read.
    pub read_only: bool,
    /// Benchmark phases call operations in random order at these shares.
    pub mix: Option<OperationMix>,
    /// Also lists, renames, makes and removes datasets.
    pub names: bool,
    /// Also lets all ranks race to create the same objects.
    pub races: bool,
    /// Runs the metadata phases of IO500 instead of the benchmark.
    pub io500: bool,
    /// Benchmark phases, and the write phases of IO500, end after this time, once all ranks have
    /// done as much as the fastest.
    pub stonewall_ns: Option<u64>,
    /// The working set stays for later runs.
    pub keep: bool,
    /// Latency from which each operation is kept with its path.
    pub outlier_ns: u64,
    /// Points per timeline that all ranks sample together.
    pub points_max: u32,
    /// Seed of arrivals and samples.
    pub seed: u64,
}

impl RunOptions {
    /// A run of `size` in a closed loop.
    #[must_use]
    pub fn new(size: WorkingSetSize) -> Self {
        Self {
            label: String::new(),
            size,
            repeat: 1,
            waiting_factors: vec![0.0],
            adaptive: false,
            rates: Vec::new(),
            saturation: false,
            arrivals: Arrivals::Constant,
            read_only: false,
            mix: None,
            names: false,
            races: false,
            io500: false,
            stonewall_ns: None,
            keep: false,
            outlier_ns: OUTLIER_NS,
            points_max: 100_000,
            seed: 1,
        }
    }

    /// Checks that a write-once service can do the run: it creates no objects after the first
    /// phase, and deletes and renames none.
    ///
    /// # Errors
    /// `Unsupported` names `target`.
    pub fn check_write_once(&self, target: &str) -> Result<()> {
        let only_reads = self.read_only || self.mix.as_ref().is_some_and(OperationMix::only_reads);
        if only_reads && !(self.names || self.races || self.io500) {
            return Ok(());
        }
        let what = "objects are written once, all together, and then only read: use --read-only, or \
                    a mix of stat and read";
        Err(Error::new(Kind::Unsupported, format!("{target}: {what}")))
    }

    /// Checks that the run is defined.
    ///
    /// # Errors
    /// `Invalid` names the option.
    pub fn check(&self) -> Result<()> {
        self.size.check()?;
        if self.waiting_factors.iter().any(|factor| !(0.0..=1e6).contains(factor)) {
            return Err(Error::new(Kind::Invalid, "a waiting factor is from 0 to 1000000"));
        }
        if self.rates.iter().any(|rate| !(1e-3..=1e9).contains(rate)) {
            return Err(Error::new(Kind::Invalid, "a rate is from 0.001 to 1e9 operations/s"));
        }
        if self.repeat == 0 || self.size.iterations == 0 {
            return Err(Error::new(
                Kind::Invalid,
                "a benchmark has at least one repetition and one iteration",
            ));
        }
        if let Some(mix) = &self.mix {
            mix.check(&self.size)?;
            if self.read_only || self.io500 {
                return Err(Error::new(
                    Kind::Invalid,
                    "a mix replaces the calls of a benchmark phase, which is neither read-only nor of \
                     IO500 then",
                ));
            }
        }
        if self.io500 && self.keep {
            return Err(Error::new(
                Kind::Invalid,
                "the phases of IO500 delete their files: keep none",
            ));
        }
        Ok(())
    }
}
