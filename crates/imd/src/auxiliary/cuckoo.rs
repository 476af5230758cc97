// SPDX-License-Identifier: Apache-2.0
//! Cuckoo: partial-key cuckoo tables, the auxiliary tables of the thesis.
//!
//! ```text
//! bucket   0: fp source | fp source | fp source | –        a key may be in any slot of two buckets;
//!          1: …                                            the second follows from the first and the
//!          …                                               fingerprint, so that residents can move
//! ```
//! A table has a power of two of buckets and is filled to [`FULL_PERCENT`]. Pairs that do not fit
//! go to a side table, and its overflow to the next: see `bucket_bits`. A query returns the
//! sources of all slots with the key's fingerprint in the key's two buckets of every table.
//!
//! Layout: docs/format/auxiliary.md. This file is its only encoder and decoder.
//! Invariant: every pair is in a table or in the exact list, which takes the overflow of
//! [`TABLES_MAX`] tables: keys with more sources than there are slots for them.
//! Concurrency: immutable once built.
//! Source: DeltaFS thesis §5.3.2. Choices that it leaves open: 4 bits of fingerprint (with 4,096
//! sources and 95 % use they give its 18 MB for 8 M keys), and duplicate pairs are stored once.
//! Measured with 8 Mi keys of 4,096 sources, 95 % and 80 % of two tables in use (8 Mi and 512 Ki
//! slots): 17.0 bits a key and 1.93 candidates a query. The thesis reports 1.88 over 100 queries,
//! which has a standard error of 0.1. `cargo run --release -p esker-imd --example auxiliary`.
//! Deviation: a pair that finds no slot after [`MOVES_MAX`] moves goes to the side table while the
//! table still accepts others, so that one popular key does not leave a table empty.

use esker_base::packed_bits;
use esker_base::wire::WireDamage;
use esker_base::{Bytes, Error, Kind, Random, Result};

use super::exact::{self, ExactList};
use super::{AuxiliaryHeader, CHECKSUM_BYTES, HEADER_BYTES, KeyRankPair, KindByte};

/// Bits of a fingerprint as measured in the thesis.
pub const FINGERPRINT_BITS: u32 = 4;

/// Maximum bits of a fingerprint.
pub const FINGERPRINT_BITS_MAX: u32 = 16;

/// Maximum bits of a fingerprint and a source together.
pub const SLOT_BITS_MAX: u32 = 32;

/// Slots of a bucket: the thesis' b.
pub const BUCKET_SLOTS: usize = 4;

/// Moves of residents before a pair goes to the side table.
pub const MOVES_MAX: u32 = 500;

/// A table accepts no more pairs once this percentage of its slots is taken.
pub const FULL_PERCENT: usize = 95;

/// The last table may be emptier, as long as this percentage of all slots is taken.
const USED_PERCENT_MIN: usize = 90;

/// Tables of up to this many slots get no side table.
const SLOTS_SMALL: usize = 1 << 10;

/// Maximum number of tables; the exact list takes the rest.
pub const TABLES_MAX: usize = 8;

/// Seed of the choice of victims: equal pairs in equal order give equal bytes.
const VICTIM_SEED: u64 = 301;

/// Encodes `pairs`, which may repeat.
///
/// # Errors
/// `TooLarge` if fingerprint and source do not fit a slot.
pub(super) fn encode(pairs: &[KeyRankPair], fingerprint_bits: u32) -> Result<Vec<u8>> {
    let source_bits = super::source_bits(pairs);
    if source_bits + fingerprint_bits > SLOT_BITS_MAX {
        let message = format!(
            "sources of {source_bits} bits and fingerprints of {fingerprint_bits}, together \
             {SLOT_BITS_MAX} at most: use smaller fingerprints"
        );
        return Err(Error::new(Kind::TooLarge, message));
    }
    let mut left: Vec<KeyRankPair> = pairs
        .iter()
        .map(|pair| KeyRankPair { hash: super::digest(pair.hash), source: pair.source })
        .collect();
    let mut tables: Vec<CuckooFill> = Vec::new();
    let (mut placed, mut slots) = (0, 0);
    let mut random = Random::from_seed(VICTIM_SEED);
    while !left.is_empty() && tables.len() < TABLES_MAX {
        let bits = bucket_bits(left.len(), placed, slots);
        let mut table = CuckooFill::new(bits, fingerprint_bits, source_bits);
        left = table.fill(left, &mut random);
        placed += table.taken;
        slots += table.slots.len();
        tables.push(table);
    }
    left.sort_unstable();
    left.dedup();
    Ok(put(pairs.len(), &tables, &left, fingerprint_bits, source_bits))
}

/// The size of the next table, as a power of two of buckets, for the `left` remaining pairs, when
/// `placed` pairs occupy the `slots` slots of earlier tables.
///
/// The smallest table that holds all remaining pairs, if enough of all slots are then in use;
/// otherwise the largest table that fills up. 8 M pairs get 8 M slots and 512 K; 1.1 M get 1 M and
/// 128 K.
fn bucket_bits(left: usize, placed: usize, slots: usize) -> u32 {
    let buckets = (left * 100).div_ceil(FULL_PERCENT * BUCKET_SLOTS);
    let all = packed_bits::width_of(buckets.saturating_sub(1) as u64);
    let total = slots + (BUCKET_SLOTS << all);
    let used = (placed + left) * 100 >= USED_PERCENT_MIN * total;
    if used || total <= SLOTS_SMALL { all } else { all.saturating_sub(1) }
}

fn put(
    inserted: usize,
    tables: &[CuckooFill],
    listed: &[KeyRankPair],
    fingerprint_bits: u32,
    source_bits: u32,
) -> Vec<u8> {
    let small = |number: usize| u8::try_from(number).expect("a small number");
    let header = AuxiliaryHeader {
        kind: KindByte::Cuckoo,
        source_bits,
        small: [small(fingerprint_bits as usize), small(tables.len())],
        pairs: u32::try_from(inserted).expect("at most PAIRS_MAX"),
        large: 0,
        listed: exact::keys(listed),
    };
    let slot_bits = fingerprint_bits + source_bits;
    let slots: usize =
        tables.iter().map(|table| packed_bits::bytes(table.slots.len(), slot_bits)).sum();
    let mut out = Vec::with_capacity(HEADER_BYTES + 16 + slots + 16 * listed.len());
    header.put(&mut out);
    out.extend(tables.iter().map(|table| small(table.bucket_bits as usize)));
    for table in tables {
        packed_bits::pack(&mut out, table.slots.iter().map(|slot| u64::from(*slot)), slot_bits);
    }
    exact::put(&mut out, listed, source_bits);
    super::put_checksum(&mut out);
    out
}

/// Candidate location of a key: its fingerprint, and its two buckets in a table of any size.
#[derive(Clone, Copy)]
struct SlotCandidates {
    fingerprint: u32,
    digest: u64,
}

impl SlotCandidates {
    #[inline]
    fn of(digest: u64, fingerprint_bits: u32) -> Self {
        let values = (1_u64 << fingerprint_bits) - 1;
        let fingerprint = 1 + (((digest >> 32) * values) >> 32);
        Self { fingerprint: u32::try_from(fingerprint).expect("at most 16 bits"), digest }
    }

    /// The two buckets in a table of 2^`bucket_bits` buckets; they are the same if it has only one.
    #[inline]
    fn buckets(self, bucket_bits: u32) -> [usize; 2] {
        let first = (self.digest & ((1 << bucket_bits) - 1)) as usize;
        [first, other_bucket(first, self.fingerprint, bucket_bits)]
    }
}

/// The alternative bucket of a fingerprint in `bucket`. The function is its own inverse.
#[inline]
fn other_bucket(bucket: usize, fingerprint: u32, bucket_bits: u32) -> usize {
    let distance = super::digest(u64::from(fingerprint)) | 1;
    bucket ^ (distance & ((1 << bucket_bits) - 1)) as usize
}

/// A table while it is filled. A slot is the fingerprint above the source; 0 is free.
struct CuckooFill {
    bucket_bits: u32,
    fingerprint_bits: u32,
    source_bits: u32,
    slots: Vec<u32>,
    taken: usize,
}

impl CuckooFill {
    fn new(bucket_bits: u32, fingerprint_bits: u32, source_bits: u32) -> Self {
        let slots = vec![0; BUCKET_SLOTS << bucket_bits];
        Self { bucket_bits, fingerprint_bits, source_bits, slots, taken: 0 }
    }

    /// Inserts as many of `pairs` as fit and returns the others, in order.
    fn fill(&mut self, mut pairs: Vec<KeyRankPair>, random: &mut Random) -> Vec<KeyRankPair> {
        let capacity = self.slots.len() * FULL_PERCENT / 100;
        let mut kept = 0;
        for index in 0..pairs.len() {
            if self.taken >= capacity || !self.insert(pairs[index], random) {
                pairs[kept] = pairs[index];
                kept += 1;
            }
        }
        pairs.truncate(kept);
        pairs
    }

    /// Returns true if the pair is now in the table; on false the table is unchanged.
    fn insert(&mut self, pair: KeyRankPair, random: &mut Random) -> bool {
        let place = SlotCandidates::of(pair.hash, self.fingerprint_bits);
        let entry = place.fingerprint << self.source_bits | pair.source;
        let buckets = place.buckets(self.bucket_bits);
        let mut alike = 0;
        for bucket in buckets {
            for slot in &mut self.slots[bucket * BUCKET_SLOTS..][..BUCKET_SLOTS] {
                if *slot == 0 {
                    *slot = entry;
                    self.taken += 1;
                    return true;
                }
                if *slot == entry {
                    return true;
                }
                alike += usize::from(*slot >> self.source_bits == place.fingerprint);
            }
        }
        // Residents with this fingerprint can only move among these slots.
        alike < 2 * BUCKET_SLOTS && self.make_room(buckets[0], entry, random)
    }

    /// Puts `entry` in `bucket` or its alternative by moving residents to theirs, at most
    /// `MOVES_MAX`.
    fn make_room(&mut self, bucket: usize, entry: u32, random: &mut Random) -> bool {
        let (mut bucket, mut carried) = (bucket, entry);
        let mut moved = Vec::new();
        for _ in 0..MOVES_MAX {
            let victim = bucket * BUCKET_SLOTS + (random.next_u64() % BUCKET_SLOTS as u64) as usize;
            std::mem::swap(&mut self.slots[victim], &mut carried);
            moved.push(victim);
            bucket = other_bucket(bucket, self.fingerprint(carried), self.bucket_bits);
            let slots = &mut self.slots[bucket * BUCKET_SLOTS..][..BUCKET_SLOTS];
            if let Some(free) = slots.iter_mut().find(|slot| **slot == 0) {
                *free = carried;
                self.taken += 1;
                return true;
            }
        }
        for victim in moved.into_iter().rev() {
            std::mem::swap(&mut self.slots[victim], &mut carried);
        }
        debug_assert_eq!(carried, entry, "every move was taken back");
        false
    }

    #[inline]
    fn fingerprint(&self, slot: u32) -> u32 {
        slot >> self.source_bits
    }
}

/// Encoded cuckoo tables.
#[derive(Clone, Debug)]
pub struct CuckooTables {
    header: AuxiliaryHeader,
    tables: Vec<CuckooSlots>,
    exact: ExactList,
}

/// The slots of one table.
#[derive(Clone, Debug)]
struct CuckooSlots {
    bucket_bits: u32,
    slots: Bytes,
}

impl CuckooTables {
    pub(super) fn parse(header: AuxiliaryHeader, bytes: Bytes) -> Result<Self, WireDamage> {
        let fingerprint_bits = u32::from(header.small[0]);
        let slot_bits = fingerprint_bits + header.source_bits;
        if !(1..=FINGERPRINT_BITS_MAX).contains(&fingerprint_bits) || slot_bits > SLOT_BITS_MAX {
            return Err(WireDamage { offset: 10, what: "fingerprints of 1 to 16 bits" });
        }
        let count = usize::from(header.small[1]);
        if count > TABLES_MAX || header.large != 0 {
            return Err(WireDamage { offset: 11, what: "at most 8 tables" });
        }
        let end = bytes.len() - CHECKSUM_BYTES;
        let mut at = HEADER_BYTES + count;
        let mut tables = Vec::new();
        for index in 0..count {
            let damage =
                WireDamage { offset: HEADER_BYTES + index, what: "tables that fit the bytes" };
            let bucket_bits = u32::from(*bytes.get(HEADER_BYTES + index).ok_or(damage)?);
            if bucket_bits > usize::BITS / 2 {
                return Err(damage);
            }
            let next = at + packed_bits::bytes(BUCKET_SLOTS << bucket_bits, slot_bits);
            if next > end {
                return Err(damage);
            }
            tables.push(CuckooSlots { bucket_bits, slots: bytes.slice(at..next) });
            at = next;
        }
        if at > end {
            return Err(WireDamage { offset: HEADER_BYTES, what: "more bytes than there are" });
        }
        let exact = ExactList::parse(&bytes.slice(at..end), at, header.listed, header.source_bits)?;
        Ok(Self { header, tables, exact })
    }

    /// Appends the sources of all slots that match the key with `hash`, each once.
    pub fn candidates(&self, hash: u64, found: &mut Vec<u32>) {
        let digest = super::digest(hash);
        let before = found.len();
        let place = SlotCandidates::of(digest, u32::from(self.header.small[0]));
        for table in &self.tables {
            let buckets = place.buckets(table.bucket_bits);
            let distinct = if buckets[0] == buckets[1] { 1 } else { 2 };
            for bucket in &buckets[..distinct] {
                for index in 0..BUCKET_SLOTS {
                    let (fingerprint, source) = self.slot(table, bucket * BUCKET_SLOTS + index);
                    if fingerprint == place.fingerprint && !found[before..].contains(&source) {
                        found.push(source);
                    }
                }
            }
        }
        for source in self.exact.sources(digest) {
            if !found[before..].contains(&source) {
                found.push(source);
            }
        }
    }

    fn slot(&self, table: &CuckooSlots, index: usize) -> (u32, u32) {
        let source_bits = self.header.source_bits;
        let slot =
            packed_bits::get(&table.slots, index, source_bits + u32::from(self.header.small[0]));
        let slot = u32::try_from(slot).expect("at most SLOT_BITS_MAX bits");
        (slot >> source_bits, slot & ((1 << source_bits) - 1))
    }

    /// Number of pairs inserted, duplicates included.
    #[must_use]
    pub fn pairs(&self) -> u32 {
        self.header.pairs
    }

    /// Number of keys in the exact list.
    #[must_use]
    pub fn listed(&self) -> u32 {
        self.header.listed
    }

    /// Number of slots of each table: the main one first, then the side tables.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.tables.iter().map(|table| BUCKET_SLOTS << table.bucket_bits)
    }
}
