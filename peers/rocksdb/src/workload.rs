// SPDX-License-Identifier: Apache-2.0
//! Workload: which file each operation touches, and TableFS's row for it.
//! The C++ driver's `workload.h` and Esker's bench hold the same definitions; peers/README.md
//! states them, and `make -C peers check` compares the two drivers' permutations and rows.
//!
//! ```text
//! key    directory id, 8 bytes big endian | XXH3-128 of the name, 16 bytes big endian
//! value  struct stat, 144 bytes | name
//! ```
//! Source: TableFS, Ren and Gibson, USENIX ATC 2013, section 3.2.

use xxhash_rust::xxh3::xxh3_128;

pub const KEY_BYTES: usize = 24;
pub const STAT_BYTES: usize = size_of::<libc::stat>();
pub const NAME_BYTES_MAX: usize = 64;
const _: () = assert!(STAT_BYTES == 144, "TableFS's row holds x86-64 Linux's struct stat");

/// Seeds of the permutations, one for each purpose.
pub const SEED_CREATE: u64 = 1;
pub const SEED_STAT: u64 = 2;
pub const SEED_REMOVE: u64 = 3;
pub const SEED_WARM: u64 = 4;

/// A bijection of `0..n` computed on the fly: a Feistel network of four rounds over
/// ceil(log2 n) bits (at least two), walked until it lands below n.
pub struct Permutation {
    n: u64,
    right_bits: u32,
    left_mask: u64,
    right_mask: u64,
    keys: [u64; 4],
}

impl Permutation {
    pub fn new(n: u64, mut seed: u64) -> Self {
        let mut bits = 2;
        while bits < 64 && (1u64 << bits) < n {
            bits += 1;
        }
        let right_bits = bits - bits / 2;
        let keys = std::array::from_fn(|_| {
            // splitmix64
            seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^ (z >> 31)
        });
        Permutation {
            n,
            right_bits,
            left_mask: (1 << (bits / 2)) - 1,
            right_mask: (1 << right_bits) - 1,
            keys,
        }
    }

    /// The place of `i < n`.
    pub fn at(&self, mut i: u64) -> u64 {
        loop {
            let (mut left, mut right) = (i >> self.right_bits, i & self.right_mask);
            left ^= mix(right, self.keys[0]) & self.left_mask;
            right ^= mix(left, self.keys[1]) & self.right_mask;
            left ^= mix(right, self.keys[2]) & self.left_mask;
            right ^= mix(left, self.keys[3]) & self.right_mask;
            i = left << self.right_bits | right;
            if i < self.n {
                return i;
            }
        }
    }
}

fn mix(x: u64, key: u64) -> u64 {
    let z = (x ^ key).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let z = (z ^ (z >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    z >> 32
}

/// One row: the name's buffer doubles as the tail of the value.
pub struct Row {
    key: [u8; KEY_BYTES],
    value: [u8; STAT_BYTES + NAME_BYTES_MAX],
    value_bytes: usize,
    number: u64,
}

impl Row {
    pub fn new() -> Self {
        Row {
            key: [0; KEY_BYTES],
            value: [0; STAT_BYTES + NAME_BYTES_MAX],
            value_bytes: STAT_BYTES,
            number: 0,
        }
    }

    /// Becomes the row of the file numbered `number`, created by `rank`.
    pub fn set(&mut self, rank: u64, number: u64, directories: u64) {
        const STEM: &[u8] = b"file.mdtest.";
        let mut end = STAT_BYTES + STEM.len();
        self.value[STAT_BYTES..end].copy_from_slice(STEM);
        end += put_decimal(&mut self.value[end..], rank);
        self.value[end] = b'.';
        end += 1;
        end += put_decimal(&mut self.value[end..], number);
        self.value_bytes = end;
        self.number = number;
        let hash = xxh3_128(&self.value[STAT_BYTES..end]);
        self.key[..8].copy_from_slice(&(1 + number % directories).to_be_bytes());
        self.key[8..].copy_from_slice(&hash.to_be_bytes());
    }

    /// Stamps the struct stat of a new, empty, regular file.
    pub fn stamp(&mut self) {
        // SAFETY: struct stat is plain integers, for which zero is a value; clock_gettime only
        // fills the timespec it is given.
        let (mut attributes, mut now): (libc::stat, libc::timespec) = unsafe { std::mem::zeroed() };
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &mut now) };
        attributes.st_ino = self.number + 2;
        attributes.st_nlink = 1;
        attributes.st_mode = libc::S_IFREG | 0o644;
        attributes.st_uid = 1000;
        attributes.st_gid = 1000;
        attributes.st_blksize = 4096;
        (attributes.st_atime, attributes.st_atime_nsec) = (now.tv_sec, now.tv_nsec);
        (attributes.st_mtime, attributes.st_mtime_nsec) = (now.tv_sec, now.tv_nsec);
        (attributes.st_ctime, attributes.st_ctime_nsec) = (now.tv_sec, now.tv_nsec);
        // SAFETY: a zeroed struct stat has no uninitialised bytes, and the lengths agree.
        let bytes: [u8; STAT_BYTES] = unsafe { std::mem::transmute(attributes) };
        self.value[..STAT_BYTES].copy_from_slice(&bytes);
    }

    pub fn key(&self) -> &[u8] {
        &self.key
    }

    pub fn value(&self) -> &[u8] {
        &self.value[..self.value_bytes]
    }

    pub fn name(&self) -> &[u8] {
        &self.value[STAT_BYTES..self.value_bytes]
    }
}

/// The numbers that `create` stored: enough to regenerate the name of any of its files.
#[derive(Clone, Copy)]
pub struct Shape {
    pub files: u64,
    pub directories: u64,
    pub ranks: u64,
}

/// Insertion `i` of the shape made file `permutation.at(i)`, by rank `i mod ranks`.
pub struct Files {
    shape: Shape,
    permutation: Permutation,
}

impl Files {
    pub fn new(shape: Shape) -> Self {
        Files { shape, permutation: Permutation::new(shape.files, SEED_CREATE) }
    }

    pub fn existing(&self, insertion: u64, row: &mut Row) {
        let number = self.permutation.at(insertion);
        row.set(insertion % self.shape.ranks, number, self.shape.directories);
    }

    /// A name that was never created, in a directory that was.
    pub fn absent(&self, insertion: u64, row: &mut Row) {
        let number = self.shape.files + self.permutation.at(insertion);
        row.set(insertion % self.shape.ranks, number, self.shape.directories);
    }
}

/// The attributes and the name in a value; `None` if it's too short to hold them.
pub fn decode_value(value: &[u8]) -> Option<(libc::stat, &[u8])> {
    let (attributes, name) = value.split_first_chunk::<STAT_BYTES>()?;
    // SAFETY: struct stat is plain integers of the same total size; every bit pattern is one.
    Some((unsafe { std::mem::transmute::<[u8; STAT_BYTES], libc::stat>(*attributes) }, name))
}

fn put_decimal(to: &mut [u8], mut value: u64) -> usize {
    let mut digits = [0u8; 20];
    let mut first = digits.len();
    loop {
        first -= 1;
        digits[first] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    let count = digits.len() - first;
    to[..count].copy_from_slice(&digits[first..]);
    count
}

/// Prints values that the other driver must print, too: permutations and one row.
pub fn print() {
    for n in [1, 2, 10, 1000, 1_000_003] {
        for seed in [SEED_CREATE, SEED_STAT] {
            let permutation = Permutation::new(n, seed);
            print!("{n} {seed}:");
            (0..n.min(10)).for_each(|i| print!(" {}", permutation.at(i)));
            println!();
        }
    }
    let mut row = Row::new();
    row.set(3, 12_345_678, 1000);
    print!("{} ", String::from_utf8_lossy(row.name()));
    row.key().iter().for_each(|byte| print!("{byte:02x}"));
    println!();
}
