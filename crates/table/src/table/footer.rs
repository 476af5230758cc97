// SPDX-License-Identifier: Apache-2.0
//! Footer: the last 64 bytes of a table, which locate the rest of its tail.
//!
//! Layout: docs/format/table.md, "Footer". This file is its only encoder and decoder.

use esker_base::wire::{WireDamage, WireInput};

/// Bytes of the footer.
pub const FOOTER_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"ESKERTBL";
/// The format version that is written, and the newest that is read.
const VERSION: u16 = 1;

/// The contents of a table's footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFooter {
    /// [`crate::schema::Schema::id`] of its records.
    pub schema: u16,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of records.
    pub rows: u64,
    /// The highest sequence number of a record.
    pub seq_max: u64,
    /// Bytes of the filters, which start the tail.
    pub filter_bytes: u64,
    /// Bytes of the index, which follows them.
    pub index_bytes: u64,
    /// CRC-32C of filters and index.
    pub tail_checksum: u32,
}

impl TableFooter {
    /// Appends the footer to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.schema.to_le_bytes());
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&self.rows.to_le_bytes());
        out.extend_from_slice(&self.seq_max.to_le_bytes());
        out.extend_from_slice(&self.filter_bytes.to_le_bytes());
        out.extend_from_slice(&self.index_bytes.to_le_bytes());
        out.extend_from_slice(&self.tail_checksum.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        let checksum = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&checksum.to_le_bytes());
        debug_assert_eq!(out.len() - start, FOOTER_BYTES);
    }

    /// Decodes the footer from exactly its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(bytes);
        if bytes.len() != FOOTER_BYTES || input.take(8)? != MAGIC {
            return Err(WireDamage { offset: 0, what: "a table's footer" });
        }
        let body = &bytes[..FOOTER_BYTES - 4];
        if WireInput::new(&bytes[FOOTER_BYTES - 4..]).u32()? != crc32c::crc32c(body) {
            return Err(WireDamage { offset: FOOTER_BYTES - 4, what: "a footer's checksum" });
        }
        if input.u16()? != VERSION {
            return Err(WireDamage { offset: 8, what: "a table of format version 1" });
        }
        Ok(Self {
            schema: input.u16()?,
            blocks: input.u32()?,
            rows: input.u64()?,
            seq_max: input.u64()?,
            filter_bytes: input.u64()?,
            index_bytes: input.u64()?,
            tail_checksum: input.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses_every_flipped_bit() {
        let footer = TableFooter {
            schema: 1,
            blocks: 2,
            rows: 300,
            seq_max: 4,
            filter_bytes: 5,
            index_bytes: 6,
            tail_checksum: 7,
        };
        let mut bytes = Vec::new();
        footer.encode(&mut bytes);
        assert_eq!(TableFooter::decode(&bytes), Ok(footer));
        for at in 0..bytes.len() {
            assert!(TableFooter::decode(&bytes[..at]).is_err());
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert!(TableFooter::decode(&flipped).is_err(), "byte {at}");
        }
    }
}
