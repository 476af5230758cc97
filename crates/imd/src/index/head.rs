// SPDX-License-Identifier: Apache-2.0
//! Head: identity of an index log; its first frame.
//! Layout: docs/format/imd.md, "Head".

use esker_base::wire::{WireDamage, WireInput};

use crate::partition::RowOrder;
use crate::record_layout::{RecordLayout, ValueFormat};
use crate::write::POINTER_BYTES;

/// First bytes of an index log; the last is the version.
pub const INDEX_MAGIC: &[u8; 8] = b"ESKERIM3";

/// Identity of an index log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexLogHead {
    /// Id of the directory, so that logs of different directories are never mixed.
    pub directory: u128,
    /// Rank of the log's writer, which is also the number of its partition.
    pub partition: u32,
    /// Number of ranks, and of partitions, of the directory.
    pub partitions: u32,
    /// The way in which readers reach values.
    pub format: ValueFormat,
    /// The layout of the directory's records.
    pub layout: RecordLayout,
}

impl IndexLogHead {
    /// The layout of the rows of this log's tables, which may have pointers in place of values.
    #[must_use]
    pub const fn row_layout(&self) -> RecordLayout {
        match (self.format, self.layout) {
            (ValueFormat::Pointer, RecordLayout::Fixed { key_bytes, .. }) => {
                RecordLayout::Fixed { key_bytes, value_bytes: POINTER_BYTES as u32 }
            }
            _ => self.layout,
        }
    }

    /// The order of the rows.
    #[must_use]
    pub const fn row_order(&self) -> RowOrder {
        match self.format {
            ValueFormat::Ordered => RowOrder::Key,
            _ => RowOrder::Hash,
        }
    }

    /// Number of partitions that divide the hashes of this log's keys.
    #[must_use]
    pub const fn hash_partitions(&self) -> u32 {
        match self.format {
            ValueFormat::Base | ValueFormat::Pointer => self.partitions,
            ValueFormat::Lossy | ValueFormat::Static | ValueFormat::Ordered => 1,
        }
    }

    /// Appends the encoded head.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let format = ValueFormat::ALL.iter().position(|&format| format == self.format);
        let format = format.and_then(|at| u8::try_from(at).ok()).expect("every format is listed");
        let (key_bytes, value_bytes) = match self.layout {
            RecordLayout::Fixed { key_bytes, value_bytes } => (key_bytes, value_bytes),
            RecordLayout::Variable => (0, 0),
        };
        out.extend_from_slice(&self.directory.to_le_bytes());
        out.extend_from_slice(&self.partition.to_le_bytes());
        out.extend_from_slice(&self.partitions.to_le_bytes());
        out.push(format);
        out.push(key_bytes);
        out.extend_from_slice(&value_bytes.to_le_bytes());
    }

    /// Decodes the head in `bytes`.
    ///
    /// # Errors
    /// Damage if they are not a head.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(bytes);
        let (directory, partition, partitions) = (input.u128()?, input.u32()?, input.u32()?);
        let format = ValueFormat::ALL.get(usize::from(input.u8()?)).copied();
        let (key_bytes, value_bytes) = (input.u8()?, input.u32()?);
        input.end()?;
        let layout = match key_bytes {
            0 => RecordLayout::Variable,
            key_bytes => RecordLayout::Fixed { key_bytes, value_bytes },
        };
        match format {
            Some(format) if partition < partitions && layout.check().is_ok() => {
                Ok(Self { directory, partition, partitions, format, layout })
            }
            _ => Err(WireDamage { offset: 0, what: "a head that this release knows" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_round_trip() {
        for (format, layout) in [
            (ValueFormat::Base, RecordLayout::Fixed { key_bytes: 8, value_bytes: 40 }),
            (ValueFormat::Ordered, RecordLayout::Variable),
        ] {
            let head =
                IndexLogHead { directory: 7 << 90, partition: 2, partitions: 3, format, layout };
            let mut out = Vec::new();
            head.encode(&mut out);
            assert_eq!(IndexLogHead::decode(&out), Ok(head));
            for cut in 0..out.len() {
                assert!(IndexLogHead::decode(&out[..cut]).is_err());
            }
        }
    }
}
