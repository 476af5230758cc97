// SPDX-License-Identifier: Apache-2.0
//! Race phase: all ranks create the same objects exclusively, and one rank wins each.
//!
//! Winners and losers have distributions of their own: [`Operation::Create`] and
//! [`Operation::CreateLost`]. The winner deletes its objects once all ranks have raced for them, so
//! the working set is left as it was.

use std::ops::Range;

use esker_base::{Error, Kind, Result};
use esker_comm::Rank;
use esker_comm::collective::Reduction;

use super::{RankRunner, SPARE_NUMBERS};
use crate::operation::Operation;
use crate::pattern::DatasetId;
use crate::recorder::OperationTiming;

/// Races between two meetings of all ranks, which bound the objects that a rank remembers.
const BLOCK_RACES: u64 = 1 << 16;

/// All races are in this dataset.
const RACE_DATASET: DatasetId = DatasetId { rank: 0, number: 0 };

impl RankRunner<'_, '_> {
    /// Returns 0 iterations.
    pub(super) fn races(&mut self) -> Result<u64> {
        let races = self.context.options.size.iterations;
        let mut begin = 0;
        while begin < races {
            let end = races.min(begin + BLOCK_RACES);
            self.race_block(begin..end)?;
            begin = end;
        }
        Ok(0)
    }

    fn race_block(&mut self, races: Range<u64>) -> Result<()> {
        let expected = races.end - races.start;
        let mut won = Vec::new();
        for race in races {
            let object = RACE_DATASET.object(2 * SPARE_NUMBERS + race);
            let content = self.content.of(object);
            let start_ns = self.context.clock.monotonic_ns();
            let done = self.connection.create(object, content);
            let end_ns = self.context.clock.monotonic_ns();
            let timing = OperationTiming { intended_ns: None, start_ns, end_ns, late_ns: 0 };
            let path = || object.to_string();
            match done {
                Err(error) if error.kind() == Kind::Exists => {
                    self.record(Operation::CreateLost, &timing, Ok(()), path);
                }
                done => {
                    won.extend(done.is_ok().then_some(object));
                    self.record(Operation::Create, &timing, done, path);
                }
            }
            self.context.progress.add(self.rank, 1);
        }
        let wins = won.len() as u64;
        // No rank deletes an object that another has yet to race for.
        let wins = self.collectives.all_reduce_u64(Rank(0), wins, Reduction::Sum)?;
        for object in won {
            self.call(Operation::Delete, object);
        }
        if wins > expected && self.context.backend.keeps_content() {
            let target = self.context.backend.target();
            let what = format!(
                "{target}: {expected} objects were each created exclusively by all ranks, and {wins} \
                 creates succeeded; the service does not make creates exclusive"
            );
            return Err(Error::new(Kind::Corrupt, what));
        }
        Ok(())
    }
}
