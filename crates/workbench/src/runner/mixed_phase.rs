// SPDX-License-Identifier: Apache-2.0
//! Mixed phase: operations in random order at given shares, on the datasets of a benchmark phase.
//!
//! ```text
//! stat, read   a random object that was there when the phase began and is not deleted
//! delete       the oldest object of the datasets that the rank consumes, in turn
//! create       the next object of the datasets that the rank extends, in turn
//! list         a dataset that the rank consumes
//! ```
//! One rank consumes a dataset, so an object is there until that rank deletes it. Invariant:
//! afterwards all ranks have deleted and created equally many objects of each dataset. If a time
//! limit ends the phase, a rank makes its missing calls outside the measured time.

use esker_base::Result;
use esker_comm::Rank;
use esker_comm::collective::Reduction;

use super::RankRunner;
use crate::mix::{ITERATION_CALLS, MixedCalls};
use crate::operation::Operation;
use crate::pattern::ObjectId;
use crate::result::StonewallCount;

/// Distinguishes the generator of operations from that of arrivals, which has the same seed.
const MIX_SEED: u64 = 0x6d69_785f_6361_6c6c;

/// Objects that a rank has deleted and created in a mixed phase, over all its datasets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChangeCounts {
    deleted: u64,
    created: u64,
}

impl RankRunner<'_, '_> {
    /// Returns the number of iterations, and the calls up to the stonewall.
    pub(super) fn mixed(&mut self) -> Result<(u64, Option<StonewallCount>)> {
        let options = self.context.options;
        let mix = options.mix.as_ref().expect("a mixed phase has a mix");
        let seed = self.phase_seed() ^ MIX_SEED ^ u64::from(self.rank) << 32;
        let mut calls = MixedCalls::new(mix.calls(&options.size), seed);
        self.changed = ChangeCounts::default();
        let per_iteration = ITERATION_CALLS * u64::from(options.size.datasets);
        self.until_stonewall(options.size.iterations, |runner, _| {
            for _ in 0..per_iteration {
                let operation = calls.next().expect("as many calls as the iterations have");
                runner.mixed_call(operation, &mut calls);
            }
            runner.context.progress.add(runner.rank, per_iteration);
        })
    }

    fn mixed_call(&mut self, operation: Operation, calls: &mut MixedCalls) {
        let size = &self.context.options.size;
        match operation {
            Operation::Delete => {
                self.call(operation, self.consumed(self.changed.deleted));
                self.changed.deleted += 1;
            }
            Operation::Create => {
                self.call(operation, self.extended(self.changed.created));
                self.changed.created += 1;
            }
            Operation::List | Operation::ListAttributes => {
                let number = calls.below(u64::from(size.datasets)) as u32;
                let dataset = size.read_dataset(self.rank, number);
                let with_attributes = operation == Operation::ListAttributes;
                self.measure(operation, dataset, |connection| {
                    connection.list(dataset, with_attributes).map(drop)
                });
            }
            _ => {
                let datasets = u64::from(size.datasets);
                let number = calls.below(datasets);
                // Datasets take turns: those of lower numbers are one delete ahead.
                let deleted = (self.changed.deleted + datasets - 1 - number) / datasets;
                let object = deleted + calls.below(size.objects - deleted);
                let dataset = size.read_dataset(self.rank, number as u32);
                self.call(operation, dataset.object(self.shift + object));
            }
        }
    }

    /// The object that the rank's delete number `change` deletes.
    fn consumed(&self, change: u64) -> ObjectId {
        let size = &self.context.options.size;
        let datasets = u64::from(size.datasets);
        let dataset = size.read_dataset(self.rank, (change % datasets) as u32);
        dataset.object(self.shift + change / datasets)
    }

    /// The object that the rank's create number `change` creates.
    fn extended(&self, change: u64) -> ObjectId {
        let size = &self.context.options.size;
        let datasets = u64::from(size.datasets);
        let dataset = size.write_dataset(self.rank, (change % datasets) as u32);
        dataset.object(self.shift + size.objects + change / datasets)
    }

    /// Deletes and creates until all ranks have changed each dataset equally often; returns how
    /// often. These calls are in no latency; those that fail are counted.
    pub(super) fn complete_changes(&mut self) -> Result<u64> {
        let ChangeCounts { deleted, created } = self.changed;
        let datasets = u64::from(self.context.options.size.datasets);
        let most = deleted.max(created).div_ceil(datasets);
        let most = self.collectives.all_reduce_u64(Rank(0), most, Reduction::Max)?;
        for change in deleted..most * datasets {
            let done = self.connection.delete(self.consumed(change));
            let _ = done.inspect_err(|error| self.recorder(Operation::Delete).fail(error));
        }
        for change in created..most * datasets {
            let object = self.extended(change);
            let done = self.connection.create(object, self.content.of(object));
            let _ = done.inspect_err(|error| self.recorder(Operation::Create).fail(error));
        }
        Ok(most)
    }
}
