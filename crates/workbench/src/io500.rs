// SPDX-License-Identifier: Apache-2.0
//! IO500: the metadata phases of that benchmark, in its order, and their score.
//!
//! ```text
//! mdtest-easy   empty files, a directory for each rank
//! mdtest-hard   files of 3901 bytes, one directory for all ranks
//! ```
//! A rank stats the files of its neighbour at distance O, reads those at 2 O and deletes those at
//! 3 O, as mdtest does with a stride of O, so that no rank finds its own files in its cache.
//! Differences: `find` lists every directory with attributes, one rank a directory, and tests no
//! names; the phases of IOR are absent.
//! Source: IO500 (Kunkel, Bent, Lofstead, Markomanolis: Establishing the IO-500 benchmark, 2016).

use serde::{Deserialize, Serialize};

use crate::result::{PhaseKind, PhaseResult};

/// Bytes of a file of mdtest-hard.
pub const HARD_FILE_BYTES: u64 = 3_901;

/// The meaning of a score, which summaries and reports show beside the number.
pub const SCORE_MEANING: &str = "The score is the geometric mean of the eight metadata phases in \
kIOPS. It is not a valid IO500 submission: the phases of IOR are absent, write phases may be shorter \
than 300 s, and find tests no names.";

/// A metadata phase of IO500.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Io500Phase {
    /// Each rank creates empty files in its own directory.
    #[serde(rename = "mdtest-easy-write")]
    EasyWrite,
    /// All ranks create files with content in one directory.
    #[serde(rename = "mdtest-hard-write")]
    HardWrite,
    /// All directories are listed with attributes.
    #[serde(rename = "find")]
    Find,
    /// Stats the easy files.
    #[serde(rename = "mdtest-easy-stat")]
    EasyStat,
    /// Stats the hard files.
    #[serde(rename = "mdtest-hard-stat")]
    HardStat,
    /// Deletes the easy files.
    #[serde(rename = "mdtest-easy-delete")]
    EasyDelete,
    /// Reads the hard files.
    #[serde(rename = "mdtest-hard-read")]
    HardRead,
    /// Deletes the hard files.
    #[serde(rename = "mdtest-hard-delete")]
    HardDelete,
}

impl Io500Phase {
    /// All phases, in the order in which IO500 runs them.
    pub const ALL: [Self; 8] = [
        Self::EasyWrite,
        Self::HardWrite,
        Self::Find,
        Self::EasyStat,
        Self::HardStat,
        Self::EasyDelete,
        Self::HardRead,
        Self::HardDelete,
    ];

    /// The name that IO500 gives it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EasyWrite => "mdtest-easy-write",
            Self::HardWrite => "mdtest-hard-write",
            Self::Find => "find",
            Self::EasyStat => "mdtest-easy-stat",
            Self::HardStat => "mdtest-hard-stat",
            Self::EasyDelete => "mdtest-easy-delete",
            Self::HardRead => "mdtest-hard-read",
            Self::HardDelete => "mdtest-hard-delete",
        }
    }

    /// True if the phase creates or deletes files.
    #[must_use]
    pub const fn changes(self) -> bool {
        matches!(self, Self::EasyWrite | Self::HardWrite | Self::EasyDelete | Self::HardDelete)
    }
}

/// The metadata score of IO500.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Io500Score {
    /// The geometric mean of the phases' rates, in thousands of operations per second.
    pub metadata_kiops: f64,
    /// The phases that it covers and those that it does not.
    pub meaning: String,
}

impl Io500Score {
    /// The score of `phases`; `None` unless all phases of IO500 are among them and did something.
    #[must_use]
    pub fn of_phases(phases: &[PhaseResult]) -> Option<Self> {
        let mut log_sum = 0.0;
        for phase in Io500Phase::ALL {
            let kind = PhaseKind::Io500(phase);
            let rate = phases.iter().find(|found| found.plan.kind == kind)?.rate();
            if rate <= 0.0 {
                return None;
            }
            log_sum += (rate / 1e3).ln();
        }
        let metadata_kiops = (log_sum / Io500Phase::ALL.len() as f64).exp();
        Some(Self { metadata_kiops, meaning: SCORE_MEANING.to_owned() })
    }
}
