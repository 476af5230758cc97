// SPDX-License-Identifier: Apache-2.0
//! Mix: the share of each operation in the calls of a mixed phase.
//!
//! The shares give each rank a fixed number of calls of each operation, and the rank draws without
//! replacement until all are used. So the order is random, the numbers are exact, and a phase
//! creates as many objects as it deletes: the working set keeps its size.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use esker_base::{Error, Kind, Random, Result};
use serde::{Deserialize, Serialize};

use crate::operation::Operation;
use crate::pattern::WorkingSetSize;

/// Calls of an iteration in each dataset: as many as those of a benchmark phase.
pub const ITERATION_CALLS: u64 = 4;

/// The operations that a mix can have.
pub const MIXED_OPERATIONS: [Operation; 6] = [
    Operation::Create,
    Operation::Stat,
    Operation::Read,
    Operation::Delete,
    Operation::List,
    Operation::ListAttributes,
];

/// Largest weight; sums of weights stay exact enough.
const WEIGHT_MAX: f64 = 1e9;

/// Weights of operations, at least one; their sum is any number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationMix {
    weights: BTreeMap<Operation, f64>,
}

impl OperationMix {
    /// True if the mix creates and deletes objects.
    #[must_use]
    pub fn changes(&self) -> bool {
        self.weights.contains_key(&Operation::Delete)
    }

    /// True if the mix neither changes nor lists datasets.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.weights.keys().all(|operation| matches!(operation, Operation::Stat | Operation::Read))
    }

    /// The operations with their shares, which add up to 1.
    pub fn shares(&self) -> impl Iterator<Item = (Operation, f64)> {
        let sum: f64 = self.weights.values().sum();
        self.weights.iter().map(move |(operation, weight)| (*operation, weight / sum))
    }

    /// Objects that a phase deletes from each dataset, and adds to it.
    #[must_use]
    pub fn changes_per_dataset(&self, size: &WorkingSetSize) -> u64 {
        let share = self.shares().find(|(operation, _)| *operation == Operation::Delete);
        let calls = (ITERATION_CALLS * size.iterations) as f64;
        share.map_or(0, |(_, share)| (share * calls).round() as u64)
    }

    /// The number of calls of each operation by one rank in a phase: 4 · I · D calls together.
    #[must_use]
    pub fn calls(&self, size: &WorkingSetSize) -> Vec<(Operation, u64)> {
        let datasets = u64::from(size.datasets);
        let changes = self.changes_per_dataset(size) * datasets;
        let left = ITERATION_CALLS * size.iterations * datasets - 2 * changes;
        let is_change = |operation| matches!(operation, Operation::Create | Operation::Delete);
        let others = self.shares().filter(|(operation, _)| !is_change(*operation));
        let others_share: f64 = others.map(|(_, share)| share).sum();
        // Rounding the running sum leaves no call over.
        let (mut share_before, mut calls_before) = (0.0, 0);
        let calls = self.shares().map(|(operation, share)| {
            if is_change(operation) {
                return (operation, changes);
            }
            share_before += share;
            let calls_until = (share_before / others_share * left as f64).round() as u64;
            let calls = calls_until.min(left) - calls_before;
            calls_before += calls;
            (operation, calls)
        });
        calls.collect()
    }

    /// Checks that a phase of `size` is defined.
    ///
    /// # Errors
    /// `Invalid` for other operations than [`MIXED_OPERATIONS`], unless creates balance deletes, if
    /// the phase is too short for a share, or so long that it deletes all objects.
    pub fn check(&self, size: &WorkingSetSize) -> Result<()> {
        let wrong = |what: String| Err(Error::new(Kind::Invalid, what));
        for (operation, weight) in &self.weights {
            if !MIXED_OPERATIONS.contains(operation) {
                return wrong(format!("{operation} cannot be mixed; use --names or --races"));
            }
            if !(*weight > 0.0 && *weight <= WEIGHT_MAX) {
                return wrong(format!("the mix has {operation}={weight}: a weight is over 0"));
            }
        }
        let weight = |operation| self.weights.get(&operation).copied().unwrap_or(0.0);
        let (create, delete) = (weight(Operation::Create), weight(Operation::Delete));
        if create != delete {
            return wrong(format!(
                "the mix has create={create} and delete={delete}: give both the same weight, so \
                 that the working set keeps its size"
            ));
        }
        let calls = self.calls(size);
        if let Some((operation, _)) = calls.iter().find(|(_, calls)| *calls == 0) {
            let all: u64 = calls.iter().map(|(_, calls)| calls).sum();
            return wrong(format!(
                "a mixed phase of {all} calls a rank is too short for the share of {operation}; \
                 use more iterations (-I)"
            ));
        }
        let (deleted, objects) = (self.changes_per_dataset(size), size.objects);
        if deleted >= objects {
            return wrong(format!(
                "a mixed phase deletes {deleted} objects of each dataset, which has {objects}, and \
                 none is left to read; use fewer iterations (-I) or more objects (-P)"
            ));
        }
        Ok(())
    }
}

impl FromStr for OperationMix {
    type Err = Error;

    /// Reads weights such as `stat=60,read=30,create=5,delete=5`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = |what: String| Error::new(Kind::Invalid, what);
        let mut weights = BTreeMap::new();
        for part in text.split(',') {
            let (name, weight) = part.split_once('=').ok_or_else(|| {
                wrong(format!("{part:?} is no share; expected, for example, stat=60,read=40"))
            })?;
            let found = MIXED_OPERATIONS.into_iter().find(|operation| operation.name() == name);
            let operation = found.ok_or_else(|| {
                let names = MIXED_OPERATIONS.map(Operation::name).join(", ");
                wrong(format!("{name:?} cannot be mixed; expected one of {names}"))
            })?;
            let weight: Option<f64> = weight.parse().ok();
            let weight = weight.filter(|weight| (0.0..=WEIGHT_MAX).contains(weight));
            let weight = weight
                .ok_or_else(|| wrong(format!("{part:?}: a weight is a number from 0 to 1e9")))?;
            if weights.insert(operation, weight).is_some() {
                return Err(wrong(format!("the mix has {operation} twice")));
            }
        }
        weights.retain(|_, weight| *weight > 0.0);
        if weights.is_empty() {
            return Err(wrong("the mix has no operation with a weight over 0".to_owned()));
        }
        Ok(Self { weights })
    }
}

impl fmt::Display for OperationMix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (operation, share)) in self.shares().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            let percent = (share * 1e4).round() / 100.0;
            write!(f, "{separator}{operation} {percent} %")?;
        }
        Ok(())
    }
}

/// The calls of one rank in a mixed phase, in the order in which a generator draws them.
#[derive(Debug)]
pub struct MixedCalls {
    left: Vec<(Operation, u64)>,
    all: u64,
    random: Random,
}

impl MixedCalls {
    /// Draws from `calls`; a seed always gives the same order.
    #[must_use]
    pub fn new(calls: Vec<(Operation, u64)>, seed: u64) -> Self {
        let all = calls.iter().map(|(_, calls)| calls).sum();
        Self { left: calls, all, random: Random::from_seed(seed) }
    }

    /// A number below `bound`, which is over 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }
}

impl Iterator for MixedCalls {
    type Item = Operation;

    fn next(&mut self) -> Option<Operation> {
        if self.all == 0 {
            return None;
        }
        let mut at = self.random.below(self.all);
        self.all -= 1;
        for (operation, left) in &mut self.left {
            if at < *left {
                *left -= 1;
                return Some(*operation);
            }
            at -= *left;
        }
        unreachable!("`all` is the sum of the calls that are left")
    }
}
