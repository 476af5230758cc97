// SPDX-License-Identifier: Apache-2.0
//! Counts: the cost of a query, in store requests and in bytes read.

use std::ops::AddAssign;

/// Cost of one or more queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueryCounts {
    /// Reads of index logs, size requests included.
    pub index_reads: u64,
    /// Bytes of those reads.
    pub index_bytes: u64,
    /// Reads of auxiliary tables.
    pub auxiliary_reads: u64,
    /// Bytes of those reads.
    pub auxiliary_bytes: u64,
    /// Reads of rows and values.
    pub data_reads: u64,
    /// Bytes of those reads.
    pub data_bytes: u64,
    /// Tables in which rows were examined, from the store or from the cache.
    pub tables: u64,
    /// Partitions queried.
    pub partitions: u64,
}

impl QueryCounts {
    /// Reads of any kind.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.index_reads + self.auxiliary_reads + self.data_reads
    }

    /// Bytes of reads of any kind.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.index_bytes + self.auxiliary_bytes + self.data_bytes
    }
}

impl AddAssign for QueryCounts {
    fn add_assign(&mut self, other: Self) {
        self.index_reads += other.index_reads;
        self.index_bytes += other.index_bytes;
        self.auxiliary_reads += other.auxiliary_reads;
        self.auxiliary_bytes += other.auxiliary_bytes;
        self.data_reads += other.data_reads;
        self.data_bytes += other.data_bytes;
        self.tables += other.tables;
        self.partitions += other.partitions;
    }
}
