// SPDX-License-Identifier: Apache-2.0
//! Auxiliary tables: map the hash of a key to the ranks that wrote it, in a few bits a key.
//!
//! In the formats lossy and static a record stays with the rank that wrote it, its source. Only the
//! key's hash and the source travel to the key's partition, which keeps them in such a table.
//!
//! | table | bits a key | candidates for a present key | source |
//! |---|---|---|---|
//! | [`cuckoo`] | (log₂ sources + 4) / 0.95 | the source, and about 0.9 others | DeltaFS thesis §5.3.2 |
//! | [`ribbon`] | log₂ sources · 1.04 | the source | beyond the thesis |
//!
//! A key that no rank wrote may have candidates too; the candidates' own tables then show its
//! absence.
//!
//! Layout: docs/format/auxiliary.md. This file has what both kinds share: the frame.
//! Invariants: (1) the candidates of an inserted hash include every source it was inserted with;
//! (2) the bytes depend only on the set of inserted pairs, for `cuckoo` also on their order.

pub mod cuckoo;
mod exact;
pub mod ribbon;

use esker_base::packed_bits;
use esker_base::wire::{WireDamage, WireInput};
use esker_base::{Bytes, Error, Kind, Result};

use cuckoo::CuckooTables;
use ribbon::RibbonTable;

/// First bytes of an encoded table; the last byte is the version.
pub const MAGIC: [u8; 8] = *b"ESKERAX1";

/// Maximum pairs of one table: positions and counts have 32 bits, with room for free slots.
pub const PAIRS_MAX: usize = 1 << 30;

/// Maximum bits of a source: a rank, or a rank and a block.
pub const SOURCE_BITS_MAX: u32 = 32;

/// Bytes before the body.
const HEADER_BYTES: usize = 24;

/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 4;

/// The hash of a key, and a rank that wrote the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRankPair {
    /// The key's hash ([`key_hash`](crate::hash::key_hash)).
    pub hash: u64,
    /// The rank, or the rank and the block.
    pub source: u32,
}

/// Encoding of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuxiliaryEncoding {
    /// Partial-key cuckoo tables. The thesis measured [`cuckoo::FINGERPRINT_BITS`] bits a
    /// fingerprint; each additional bit halves the wrong candidates.
    Cuckoo {
        /// 1 to [`cuckoo::FINGERPRINT_BITS_MAX`].
        fingerprint_bits: u32,
    },
    /// A static function.
    Ribbon,
}

/// Collects pairs and encodes them as one table.
///
/// Memory: 16 bytes a pair while collecting; up to about 32 more while finishing.
#[derive(Debug)]
pub struct AuxiliaryBuilder {
    encoding: AuxiliaryEncoding,
    pairs: Vec<KeyRankPair>,
}

impl AuxiliaryBuilder {
    /// Creates a builder of an empty table.
    ///
    /// # Panics
    /// If the fingerprint has no bits or too many.
    #[must_use]
    pub fn new(encoding: AuxiliaryEncoding) -> Self {
        if let AuxiliaryEncoding::Cuckoo { fingerprint_bits } = encoding {
            let range = 1..=cuckoo::FINGERPRINT_BITS_MAX;
            assert!(range.contains(&fingerprint_bits), "fingerprints have {range:?} bits");
        }
        Self { encoding, pairs: Vec::new() }
    }

    /// Adds a pair; duplicates are allowed.
    #[inline]
    pub fn insert(&mut self, hash: u64, source: u32) {
        self.pairs.push(KeyRankPair { hash, source });
    }

    /// Number of pairs inserted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// True if no pair was inserted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Encodes the pairs and empties the builder, keeping its memory for the next table.
    ///
    /// # Errors
    /// `TooLarge` if there are more than [`PAIRS_MAX`] pairs, or if source and fingerprint together
    /// have more than [`cuckoo::SLOT_BITS_MAX`] bits. The builder then keeps its pairs.
    pub fn finish(&mut self) -> Result<Vec<u8>> {
        if self.pairs.len() > PAIRS_MAX {
            let count = self.pairs.len();
            let message = format!(
                "an auxiliary table of {count} pairs, {PAIRS_MAX} at most: flush epochs more often"
            );
            return Err(Error::new(Kind::TooLarge, message));
        }
        let encoded = match self.encoding {
            AuxiliaryEncoding::Cuckoo { fingerprint_bits } => {
                cuckoo::encode(&self.pairs, fingerprint_bits)?
            }
            AuxiliaryEncoding::Ribbon => ribbon::encode(&mut self.pairs),
        };
        self.pairs.clear();
        Ok(encoded)
    }
}

/// An encoded table of either kind.
#[derive(Clone, Debug)]
pub enum AuxiliaryTable {
    /// Partial-key cuckoo tables.
    Cuckoo(CuckooTables),
    /// A static function.
    Ribbon(RibbonTable),
}

impl AuxiliaryTable {
    /// Parses `bytes` as one whole table.
    ///
    /// Cost: one pass over the bytes for their checksum; allocates a few bytes for any input.
    ///
    /// # Errors
    /// [`WireDamage`] if the bytes are not those that were written.
    pub fn parse(bytes: Bytes) -> Result<Self, WireDamage> {
        let header = AuxiliaryHeader::parse(&bytes)?;
        match header.kind {
            KindByte::Cuckoo => CuckooTables::parse(header, bytes).map(Self::Cuckoo),
            KindByte::Ribbon => RibbonTable::parse(header, bytes).map(Self::Ribbon),
        }
    }

    /// Appends to `found` the ranks that may have written the key with `hash`, each once.
    ///
    /// They include every rank that did. A key that nobody wrote may have candidates too.
    pub fn candidates(&self, hash: u64, found: &mut Vec<u32>) {
        match self {
            Self::Cuckoo(table) => table.candidates(hash, found),
            Self::Ribbon(table) => table.candidates(hash, found),
        }
    }

    /// Number of pairs inserted, duplicates included.
    #[must_use]
    pub fn pairs(&self) -> u32 {
        match self {
            Self::Cuckoo(table) => table.pairs(),
            Self::Ribbon(table) => table.pairs(),
        }
    }
}

/// The byte that identifies the kind of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KindByte {
    Cuckoo = 1,
    Ribbon = 2,
}

/// The header that both kinds share. The kind defines the meaning of three of its numbers.
#[derive(Clone, Copy, Debug)]
struct AuxiliaryHeader {
    kind: KindByte,
    source_bits: u32,
    small: [u8; 2],
    pairs: u32,
    large: u32,
    /// Keys in the exact list at the end.
    listed: u32,
}

impl AuxiliaryHeader {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        let source_bits = u8::try_from(self.source_bits).expect("at most SOURCE_BITS_MAX");
        out.extend_from_slice(&[self.kind as u8, source_bits, self.small[0], self.small[1]]);
        for number in [self.pairs, self.large, self.listed] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        debug_assert_eq!(out.len(), HEADER_BYTES, "the header is of a fixed size");
    }

    /// Verifies the checksum of `bytes` and decodes the header.
    fn parse(bytes: &[u8]) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(bytes);
        if input.take(MAGIC.len())? != MAGIC {
            return Err(WireDamage { offset: 0, what: "an auxiliary table of version 1" });
        }
        let Some(end) = bytes.len().checked_sub(CHECKSUM_BYTES).filter(|end| *end >= HEADER_BYTES)
        else {
            return Err(input.damage("more bytes than there are"));
        };
        let (checked, mut checksum) = (&bytes[..end], WireInput::new(&bytes[end..]));
        if checksum.u32()? != crc32c::crc32c(checked) {
            return Err(WireDamage { offset: end, what: "the checksum of an auxiliary table" });
        }
        let kind = match input.u8()? {
            1 => KindByte::Cuckoo,
            2 => KindByte::Ribbon,
            _ => return Err(WireDamage { offset: 8, what: "a known kind of auxiliary table" }),
        };
        let source_bits = u32::from(input.u8()?);
        if source_bits > SOURCE_BITS_MAX {
            return Err(WireDamage { offset: 9, what: "sources of at most 32 bits" });
        }
        let small = [input.u8()?, input.u8()?];
        let (pairs, large, listed) = (input.u32()?, input.u32()?, input.u32()?);
        Ok(Self { kind, source_bits, small, pairs, large, listed })
    }
}

/// Appends the checksum that ends an encoded table.
fn put_checksum(out: &mut Vec<u8>) {
    let checksum = crc32c::crc32c(out);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// The number of bits that hold every source of `pairs`.
fn source_bits(pairs: &[KeyRankPair]) -> u32 {
    packed_bits::width_of(pairs.iter().map(|pair| u64::from(pair.source)).max().unwrap_or(0))
}

/// Spreads a hash over all bits, since hashes of one partition share some. Injective. Source: the
/// finalizer of `MurmurHash3`, Appleby, with constants of Stafford's variant 13.
#[inline]
fn digest(hash: u64) -> u64 {
    let mut mixed = hash ^ (hash >> 30);
    mixed = mixed.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests;
