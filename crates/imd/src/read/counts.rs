//! Counts: what a query cost, in requests to the store and in what they brought.

use std::ops::AddAssign;

/// What one query, or several, cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Reads of index logs, the sizes of logs among them.
    pub index_reads: u64,
    /// Bytes that they brought.
    pub index_bytes: u64,
    /// Reads of auxiliary tables.
    pub auxiliary_reads: u64,
    /// Bytes that they brought.
    pub auxiliary_bytes: u64,
    /// Reads of rows and values.
    pub data_reads: u64,
    /// Bytes that they brought.
    pub data_bytes: u64,
    /// Tables in which rows were looked at, from the store or not.
    pub tables: u64,
    /// Partitions that were asked.
    pub partitions: u64,
}

impl Counts {
    /// Reads of any kind.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.index_reads + self.auxiliary_reads + self.data_reads
    }

    /// Bytes that reads of any kind brought.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.index_bytes + self.auxiliary_bytes + self.data_bytes
    }
}

impl AddAssign for Counts {
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
