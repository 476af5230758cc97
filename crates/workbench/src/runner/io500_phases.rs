// SPDX-License-Identifier: Apache-2.0
//! IO500 phases: the calls of one rank in each of them.
//!
//! Easy files are in dataset 0 of their rank; hard files are in dataset 1 of rank 0, which all
//! ranks share. Directories are made between phases, as mdtest does, and are in no rate.

use esker_base::Result;

use super::RankRunner;
use crate::io500::Io500Phase;
use crate::operation::Operation;
use crate::pattern::{DatasetId, ObjectId};
use crate::result::StonewallCount;

/// The dataset of all hard files.
const HARD_DATASET: DatasetId = DatasetId { rank: 0, number: 1 };

const EASY: usize = 0;
const HARD: usize = 1;

impl RankRunner<'_, '_> {
    /// Makes the directories that `phase` writes to.
    pub(super) fn prepare_io500(&mut self, phase: Io500Phase) -> Result<()> {
        match phase {
            Io500Phase::EasyWrite => {
                self.connection.add_rank(self.rank)?;
                self.connection.mkdir(DatasetId { rank: self.rank, number: 0 })
            }
            Io500Phase::HardWrite if self.rank == 0 => self.connection.mkdir(HARD_DATASET),
            _ => Ok(()),
        }
    }

    /// Returns the number of files of each rank, and for a write the calls up to the stonewall.
    pub(super) fn io500(&mut self, phase: Io500Phase) -> Result<(u64, Option<StonewallCount>)> {
        let [easy, hard] = self.io500_files;
        let done = match phase {
            Io500Phase::EasyWrite => return self.write_files(EASY),
            Io500Phase::HardWrite => return self.write_files(HARD),
            Io500Phase::Find => self.find(),
            Io500Phase::EasyStat => self.visit(Operation::Stat, EASY, easy),
            Io500Phase::HardStat => self.visit(Operation::Stat, HARD, hard),
            Io500Phase::EasyDelete => self.visit(Operation::Delete, EASY, easy),
            Io500Phase::HardRead => self.visit(Operation::Read, HARD, hard),
            Io500Phase::HardDelete => self.visit(Operation::Delete, HARD, hard),
        };
        Ok((done, None))
    }

    fn write_files(&mut self, family: usize) -> Result<(u64, Option<StonewallCount>)> {
        let most = self.context.options.size.objects;
        let (files, stonewall) = self.until_stonewall(most, |runner, file| {
            let object = runner.io500_file(family, 0, file);
            match family {
                EASY => runner.measure(Operation::Create, object, |connection| {
                    connection.create(object, &[])
                }),
                _ => runner.call(Operation::Create, object),
            }
            runner.context.progress.add(runner.rank, 1);
        })?;
        self.io500_files[family] = files;
        Ok((files, stonewall))
    }

    /// Calls `operation` on all files of one rank: of another one for each operation.
    fn visit(&mut self, operation: Operation, family: usize, files: u64) -> u64 {
        let strides = match operation {
            Operation::Stat => 1,
            Operation::Read => 2,
            _ => 3,
        };
        for file in 0..files {
            self.call(operation, self.io500_file(family, strides, file));
            self.context.progress.add(self.rank, 1);
        }
        files
    }

    /// Lists the rank's directory, and at rank 0 the shared one.
    fn find(&mut self) -> u64 {
        let own = DatasetId { rank: self.rank, number: 0 };
        let shared = (self.rank == 0).then_some(HARD_DATASET);
        for dataset in [Some(own), shared].into_iter().flatten() {
            let mut found = 0;
            self.measure(Operation::ListAttributes, dataset, |connection| {
                found = connection.list(dataset, true)?;
                Ok(())
            });
            self.entries += found;
            self.context.progress.add(self.rank, found);
        }
        0
    }

    /// A file of the rank at a distance of `strides` times O.
    fn io500_file(&self, family: usize, strides: u64, file: u64) -> ObjectId {
        let size = &self.context.options.size;
        let ranks = u64::from(size.ranks);
        let owner = (u64::from(self.rank) + strides * u64::from(size.rank_offset)) % ranks;
        match family {
            EASY => DatasetId { rank: owner as u32, number: 0 }.object(file),
            _ => HARD_DATASET.object(file * ranks + owner),
        }
    }
}
