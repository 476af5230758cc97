// SPDX-License-Identifier: Apache-2.0
//! Pattern: the objects that each rank accesses, exactly as in MDWorkbench §3 (Figures 1 to 3).
//!
//! ```text
//! precreate   for p < P, for d < D:  create (rank, d) p
//! benchmark   for i < I, for d < D:  stat, read, delete (rank - O (d + 1), d) i
//!                                    create (rank + O (d + 1), d) P + i          ranks modulo N
//! cleanup     for p < P, for d < D:  delete (rank, d) p
//! ```
//! All object numbers are shifted by the iterations of earlier benchmark phases, so a working set
//! can be reused. Each dataset is consumed by exactly one rank and extended by exactly one.

use std::fmt;

use esker_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

/// Largest number of ranks, datasets per rank and objects per dataset together: the numbers of
/// objects stay far from overflow.
const OBJECTS_MAX: u64 = 1 << 48;

/// The parameters of the working set, with the paper's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkingSetSize {
    /// N: number of ranks.
    pub ranks: u32,
    /// D: datasets per rank.
    pub datasets: u32,
    /// P: objects created per dataset beforehand.
    pub objects: u64,
    /// I: iterations of a benchmark phase per dataset.
    pub iterations: u64,
    /// S: bytes per object.
    pub object_bytes: u64,
    /// O: distance in ranks between writer and reader.
    pub rank_offset: u32,
}

impl WorkingSetSize {
    /// Checks that the pattern is defined.
    ///
    /// # Errors
    /// `Invalid` for zeros, for more iterations than objects, and for sizes out of bounds.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::new(Kind::Invalid, what));
        if self.ranks == 0 || self.datasets == 0 || self.objects == 0 {
            return wrong("a working set needs at least one rank, one dataset and one object");
        }
        if self.iterations > self.objects {
            return wrong(
                "more iterations than objects per dataset: an iteration would read what another \
                 rank may not have created yet; use at most as many (-I) as objects (-P)",
            );
        }
        if self.object_bytes > OBJECT_BYTES_MAX {
            return wrong("objects are larger than 64 MiB; the workbench measures metadata");
        }
        let all = u64::from(self.ranks).checked_mul(u64::from(self.datasets));
        match all.and_then(|all| all.checked_mul(self.objects)) {
            Some(all) if all <= OBJECTS_MAX => Ok(()),
            _ => wrong("the working set has more than 2^48 objects"),
        }
    }

    /// True if ranks later access datasets that they created themselves, whose entries their own
    /// node may cache: the paper assumes N > D · O.
    #[must_use]
    pub fn reaches_own_datasets(&self) -> bool {
        u64::from(self.ranks) <= u64::from(self.datasets) * u64::from(self.rank_offset)
    }

    /// The dataset that `rank` consumes in step `d` of an iteration.
    #[must_use]
    pub fn read_dataset(&self, rank: u32, number: u32) -> DatasetId {
        let distance = self.distance(number);
        let owner = (u64::from(rank) + u64::from(self.ranks) - distance) % u64::from(self.ranks);
        DatasetId { rank: owner as u32, number }
    }

    /// The dataset that `rank` extends in step `d` of an iteration.
    #[must_use]
    pub fn write_dataset(&self, rank: u32, number: u32) -> DatasetId {
        let owner = (u64::from(rank) + self.distance(number)) % u64::from(self.ranks);
        DatasetId { rank: owner as u32, number }
    }

    /// O (d + 1) modulo N.
    fn distance(&self, number: u32) -> u64 {
        u64::from(self.rank_offset) * (u64::from(number) + 1) % u64::from(self.ranks)
    }
}

/// Largest object; each rank has two buffers of this size.
pub const OBJECT_BYTES_MAX: u64 = 64 << 20;

/// A dataset: a directory on POSIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatasetId {
    /// The rank that created it.
    pub rank: u32,
    /// Its number within that rank.
    pub number: u32,
}

impl DatasetId {
    /// The object `number` in it.
    #[must_use]
    pub const fn object(self, number: u64) -> ObjectId {
        ObjectId { dataset: self, number }
    }
}

impl fmt::Display for DatasetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank-{}/set-{}", self.rank, self.number)
    }
}

/// An object: a file on POSIX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Its dataset.
    pub dataset: DatasetId,
    /// Its number within the dataset.
    pub number: u64,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/object-{}", self.dataset, self.number)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn size(ranks: u32, datasets: u32, rank_offset: u32) -> WorkingSetSize {
        let (objects, iterations) = (5, 3);
        WorkingSetSize { ranks, datasets, objects, iterations, object_bytes: 0, rank_offset }
    }

    /// The working set after a benchmark phase is the one before, with all numbers shifted by I.
    #[test]
    fn benchmarks_shift_every_dataset() {
        for (ranks, datasets, offset) in [(1, 1, 1), (2, 3, 1), (7, 2, 3), (4, 9, 5)] {
            let size = size(ranks, datasets, offset);
            let all = || (0..ranks).flat_map(|rank| (0..datasets).map(move |d| (rank, d)));
            let mut sets: BTreeMap<DatasetId, Vec<u64>> = all()
                .map(|(rank, number)| (DatasetId { rank, number }, (0..size.objects).collect()))
                .collect();
            for iteration in 0..size.iterations {
                for (rank, d) in all() {
                    let consumed = sets.get_mut(&size.read_dataset(rank, d)).expect("a dataset");
                    let at = consumed.iter().position(|number| *number == iteration);
                    consumed.remove(at.expect("read before it is deleted"));
                    let extended = sets.get_mut(&size.write_dataset(rank, d)).expect("a dataset");
                    extended.push(size.objects + iteration);
                }
            }
            for (dataset, objects) in sets {
                let shifted: Vec<u64> = (3..8).collect();
                assert_eq!(objects, shifted, "{dataset} of {size:?}");
            }
        }
    }

    #[test]
    fn ranks_are_those_of_figure_3() {
        let size = size(10, 3, 2);
        assert_eq!(size.read_dataset(1, 0), DatasetId { rank: 9, number: 0 });
        assert_eq!(size.read_dataset(9, 2), DatasetId { rank: 3, number: 2 });
        assert_eq!(size.write_dataset(9, 2), DatasetId { rank: 5, number: 2 });
        assert!(!size.reaches_own_datasets());
        assert!(self::size(6, 3, 2).reaches_own_datasets());
    }

    #[test]
    fn undefined_patterns_are_refused() {
        let good = size(2, 2, 1);
        good.check().expect("a good one");
        for bad in [
            WorkingSetSize { ranks: 0, ..good },
            WorkingSetSize { iterations: 6, ..good },
            WorkingSetSize { objects: u64::MAX, ..good },
            WorkingSetSize { object_bytes: u64::MAX, ..good },
        ] {
            assert_eq!(bad.check().expect_err("bad").kind(), Kind::Invalid);
        }
    }
}
