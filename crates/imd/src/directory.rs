// SPDX-License-Identifier: Apache-2.0
//! Directory: the root object, which rank 0 writes when all ranks are done and a reader opens
//! first.
//! Layout: docs/format/imd.md, "Root object".
//!
//! A directory without this object was not finished; readers then reconstruct its contents from the
//! logs.

use std::ops::Range;

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};
use esker_base::{Error, Result};

use crate::index::head::IndexLogHead;
use crate::names;
use crate::record_layout::ValueFormat;
use crate::schema::{DirectorySchema, SCHEMA_BYTES_MAX};

/// First bytes of the root object; the last is the version.
pub const ROOT_MAGIC: &[u8; 8] = b"ESKERIR3";

/// Maximum bytes of a root object: a few dozen for each of a million ranks and for each bound of an
/// epoch.
pub const ROOT_BYTES_MAX: u64 = 1 << 30;

/// Contents of the root object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryIndex {
    /// The head of partition 0's index log; the other heads differ only in their partition.
    pub head: IndexLogHead,
    /// The schema of keys and values.
    pub schema: DirectorySchema,
    /// The step of each epoch, ascending.
    pub steps: Vec<u64>,
    /// Totals of each partition.
    pub partitions: Vec<PartitionTotals>,
    /// For an ordered directory: the bounds of each epoch.
    pub bounds: Vec<PartitionBounds>,
}

/// Totals of a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionTotals {
    /// Records in its tables.
    pub rows: u64,
    /// Tables.
    pub tables: u64,
    /// Bytes of its index log.
    pub index_bytes: u64,
    /// Bytes of its data log.
    pub data_bytes: u64,
    /// Bytes of the values that its rank kept.
    pub value_bytes: u64,
    /// Bytes of its auxiliary tables.
    pub auxiliary_bytes: u64,
}

/// Partition bounds of an ordered directory: the key prefixes at which the second and later
/// partitions begin, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionBounds {
    /// One fewer than there are partitions.
    pub starts: Vec<u64>,
}

impl PartitionBounds {
    /// The partition of keys with `prefix`.
    #[inline]
    #[must_use]
    pub fn partition(&self, prefix: u64) -> u32 {
        self.starts.partition_point(|&start| start <= prefix) as u32
    }

    /// The partitions of keys with prefixes from `low` to `high`.
    #[must_use]
    pub fn partitions(&self, low: u64, high: u64) -> Range<u32> {
        let first = self.partition(low);
        first..(self.partition(high) + 1).max(first)
    }
}

impl PartitionTotals {
    /// Adds the totals of another partition.
    pub fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.tables += other.tables;
        self.index_bytes += other.index_bytes;
        self.data_bytes += other.data_bytes;
        self.value_bytes += other.value_bytes;
        self.auxiliary_bytes += other.auxiliary_bytes;
    }

    /// Bytes of all its logs.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.index_bytes + self.data_bytes + self.value_bytes + self.auxiliary_bytes
    }

    /// Name and size of each log of partition `number` in a directory of `format` below `prefix`.
    #[must_use]
    pub fn logs(&self, prefix: &str, format: ValueFormat, number: u32) -> Vec<(String, u64)> {
        let mut logs = vec![
            (names::index(prefix, number), self.index_bytes),
            (names::data(prefix, number), self.data_bytes),
        ];
        match format {
            ValueFormat::Pointer => logs.push((names::values(prefix, number), self.value_bytes)),
            ValueFormat::Lossy | ValueFormat::Static => {
                logs.push((names::auxiliary(prefix, number), self.auxiliary_bytes));
            }
            ValueFormat::Base | ValueFormat::Ordered => {}
        }
        logs
    }

    fn numbers(&self) -> [u64; 6] {
        [
            self.rows,
            self.tables,
            self.index_bytes,
            self.data_bytes,
            self.value_bytes,
            self.auxiliary_bytes,
        ]
    }

    /// Appends the encoded totals.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.numbers().into_iter().for_each(|number| put_varint(out, number));
    }

    /// Decodes totals from `input`.
    ///
    /// # Errors
    /// Damage if `input` does not begin with totals.
    pub fn decode(input: &mut WireInput<'_>) -> Result<Self, WireDamage> {
        Ok(Self {
            rows: input.varint()?,
            tables: input.varint()?,
            index_bytes: input.varint()?,
            data_bytes: input.varint()?,
            value_bytes: input.varint()?,
            auxiliary_bytes: input.varint()?,
        })
    }
}

impl DirectoryIndex {
    /// Number of epochs, equal in every partition.
    #[must_use]
    pub fn epochs(&self) -> u32 {
        u32::try_from(self.steps.len()).expect("epochs fit 32 bits")
    }

    /// Encodes the root object.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = ROOT_MAGIC.to_vec();
        let mut head = Vec::new();
        self.head.encode(&mut head);
        put_varint(&mut out, head.len() as u64);
        out.extend_from_slice(&head);
        let mut schema = Vec::new();
        self.schema.encode(&mut schema);
        put_bytes(&mut out, &schema);
        put_varint(&mut out, self.steps.len() as u64);
        let mut before = 0;
        for &step in &self.steps {
            put_varint(&mut out, step - before);
            before = step;
        }
        self.partitions.iter().for_each(|totals| totals.encode(&mut out));
        put_varint(&mut out, self.bounds.len() as u64);
        for bounds in &self.bounds {
            let mut before = 0;
            for &start in &bounds.starts {
                put_varint(&mut out, start - before);
                before = start;
            }
        }
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the root object `object` from `bytes`.
    ///
    /// # Errors
    /// `Corrupt` if they are not a root object.
    pub fn decode(bytes: &[u8], object: &str) -> Result<Self> {
        let covered = bytes.split_last_chunk::<4>();
        let Some((covered, _)) =
            covered.filter(|(covered, sum)| crc32c::crc32c(covered) == u32::from_le_bytes(**sum))
        else {
            return Err(Error::corrupt(object, 0, "a root object whose checksum is wrong"));
        };
        Self::decode_covered(covered).map_err(|damage| damage.of(object, 0))
    }

    fn decode_covered(bytes: &[u8]) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(bytes);
        if input.take(ROOT_MAGIC.len())? != ROOT_MAGIC {
            let what = "ESKERIR3, the root of an indexed directory of the version read here";
            return Err(WireDamage { offset: 0, what });
        }
        let head = IndexLogHead::decode(input.bytes(256, "a head")?)?;
        let schema = input.bytes(SCHEMA_BYTES_MAX, "a schema")?;
        let schema = DirectorySchema::decode(schema, head.layout)?;
        let epochs = input.varint_max(input.left(), "a byte for each epoch")?;
        let mut steps: Vec<u64> = Vec::new();
        for epoch in 0..epochs {
            let before = steps.last().copied().unwrap_or(0);
            let step = input.varint()?.checked_add(before);
            let step = step.filter(|step| epoch == 0 || *step > before);
            steps.push(step.ok_or(input.damage("steps that ascend"))?);
        }
        let mut partitions = Vec::new();
        for _ in 0..head.partitions {
            partitions.push(PartitionTotals::decode(&mut input)?);
        }
        let count = input.varint_max(bytes.len(), "bounds")?;
        let mut bounds = Vec::new();
        for _ in 0..count {
            let mut starts = Vec::new();
            let mut start = 0_u64;
            for _ in 1..head.partitions {
                let step = input.varint()?;
                start = start.checked_add(step).ok_or(input.damage("bounds that ascend"))?;
                starts.push(start);
            }
            bounds.push(PartitionBounds { starts });
        }
        input.end()?;
        Ok(Self { head, schema, steps, partitions, bounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_layout::RecordLayout;

    #[test]
    fn directories_round_trip() {
        let head = IndexLogHead {
            directory: 5,
            partition: 0,
            partitions: 3,
            format: ValueFormat::Ordered,
            layout: RecordLayout::Variable,
        };
        let totals = PartitionTotals { rows: 7, index_bytes: 300, ..PartitionTotals::default() };
        let bounds = PartitionBounds { starts: vec![5, u64::MAX] };
        let directory = DirectoryIndex {
            head,
            schema: DirectorySchema { key_name: "id".into(), ..DirectorySchema::default() },
            steps: vec![0, 700],
            partitions: vec![totals; 3],
            bounds: vec![bounds; 2],
        };
        let bytes = directory.encode();
        assert_eq!(DirectoryIndex::decode(&bytes, "root").expect("whole"), directory);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(DirectoryIndex::decode(&flipped, "root").is_err());
        }
        for cut in 0..bytes.len() {
            assert!(DirectoryIndex::decode(&bytes[..cut], "root").is_err());
        }
    }

    #[test]
    fn bounds_divide_prefixes() {
        let bounds = PartitionBounds { starts: vec![10, 20] };
        assert_eq!([0, 9, 10, 19, 20, u64::MAX].map(|p| bounds.partition(p)), [0, 0, 1, 1, 2, 2]);
        assert_eq!(bounds.partitions(9, 10), 0..2);
        assert_eq!(bounds.partitions(12, 12), 1..2);
    }
}
