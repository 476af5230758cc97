// SPDX-License-Identifier: Apache-2.0
//! Particles: the records of indexed directories, as Esker's bench defines them
//! (`crates/bench/src/particles.rs`); peers/README.md states the definition.
//! Source: the benchmark of DeltaFS thesis §5.3.1.

use xxhash_rust::xxh3::xxh3_64;

const KEY_BYTES: usize = 8;
const EPOCH_BYTES: usize = 4;

/// Seeds of the order of gets, and of those that warm caches.
pub const SEED_GET: u64 = 5;
pub const SEED_WARM_GETS: u64 = 6;

#[derive(Clone, Copy)]
pub struct Particles {
    pub keys: u64,
    pub ranks: u64,
    pub epochs: u64,
    pub value_bytes: u64,
}

impl Particles {
    /// The numbers of the keys that `rank` writes in `epoch`.
    pub fn of_rank(&self, rank: u64, epoch: u64) -> impl Iterator<Item = u64> + use<> {
        (self.first(rank, epoch)..self.keys).step_by(self.ranks as usize)
    }

    fn first(&self, rank: u64, epoch: u64) -> u64 {
        (rank + self.ranks - epoch % self.ranks) % self.ranks
    }
}

/// One record. With several epochs a row's key ends in the epoch, big endian: rows are unique.
pub struct Particle {
    all: Particles,
    key: [u8; KEY_BYTES + EPOCH_BYTES],
    value: Vec<u8>,
}

impl Particle {
    pub fn new(all: Particles) -> Self {
        let value = vec![0; (all.value_bytes as usize).next_multiple_of(8)];
        Particle { all, key: [0; KEY_BYTES + EPOCH_BYTES], value }
    }

    pub fn set(&mut self, number: u64, epoch: u64) {
        let z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        let key = z ^ (z >> 31);
        self.key[..KEY_BYTES].copy_from_slice(&key.to_be_bytes());
        self.key[KEY_BYTES..].copy_from_slice(&(epoch as u32).to_be_bytes());
        let mut word = key.wrapping_add(epoch.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        for bytes in self.value.as_chunks_mut::<8>().0 {
            let mixed = word.wrapping_mul(0xFF51_AFD7_ED55_8CCD);
            *bytes = (mixed ^ (mixed >> 32)).to_le_bytes();
            word = word.wrapping_add(0x9E37_79B9_7F4A_7C15);
        }
    }

    /// The rank that indexes the key: equal ranges of its hash.
    pub fn partition(&self) -> usize {
        let product = u128::from(xxh3_64(&self.key[..KEY_BYTES])) * u128::from(self.all.ranks);
        (product >> 64) as usize
    }

    pub fn row_key(&self) -> &[u8] {
        if self.all.epochs > 1 { &self.key } else { &self.key[..KEY_BYTES] }
    }

    pub fn value(&self) -> &[u8] {
        &self.value[..self.all.value_bytes as usize]
    }
}

/// Prints values that the other driver must print, too: some records.
pub fn print() {
    let particles = Particles { keys: 1000, ranks: 7, epochs: 5, value_bytes: 44 };
    let mut particle = Particle::new(particles);
    for number in [0, 1, 999] {
        particle.set(number, 3);
        particle.row_key().iter().for_each(|byte| print!("{byte:02x}"));
        print!(" {} ", particle.partition());
        particle.value().iter().for_each(|byte| print!("{byte:02x}"));
        println!();
    }
    println!("{} {} ", particles.first(0, 12), particles.first(6, 12));
}
