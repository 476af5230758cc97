// SPDX-License-Identifier: Apache-2.0
//! Dump: the batches of segments that `esker bench segment --dump` wrote, and a segment's row.
//! All engines read the same file, so that all of them get the same batches in the same order.
//!
//! ```text
//! dump    "ESKERSEG" | version = 1, u32 | clients, u32 | segments, u64 | batches, u64
//!         then for each batch, in order of arrival:
//!         client, u32 | segments, u32 | for each: offset, u64 | length, u64 | log offset, u64
//! key     file, u64 | offset, u64                             big endian
//! value   client, u32 | log offset, u64 | length, u64         little endian
//! ```
//!
//! Numbers of a dump are little endian; all its segments are of file 1, no two at one offset.
//! Source: MetaKV §II-B: a segment's key is its file and offset, its value names the log.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::process::{die, require};

pub const FILE: u64 = 1;
pub const KEY_BYTES: usize = 16;
pub const VALUE_BYTES: usize = 20;
const SEED_SHUFFLE: u64 = 42;
const BATCH_SEGMENTS_MAX: u32 = 1 << 20;
const BUFFER_BYTES: usize = 1 << 20;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub length: u64,
    pub log_offset: u64,
    pub client: u32,
}

impl Segment {
    pub fn key(&self) -> [u8; KEY_BYTES] {
        key(FILE, self.offset)
    }

    pub fn value(&self) -> [u8; VALUE_BYTES] {
        let mut value = [0; VALUE_BYTES];
        value[..4].copy_from_slice(&self.client.to_le_bytes());
        value[4..12].copy_from_slice(&self.log_offset.to_le_bytes());
        value[12..].copy_from_slice(&self.length.to_le_bytes());
        value
    }

    /// `None` if the row isn't as long as a segment's.
    pub fn decode(key: &[u8], value: &[u8]) -> Option<Segment> {
        let key: &[u8; KEY_BYTES] = key.try_into().ok()?;
        let value: &[u8; VALUE_BYTES] = value.try_into().ok()?;
        Some(Segment {
            offset: u64::from_be_bytes(key[8..].try_into().ok()?),
            length: u64::from_le_bytes(value[12..].try_into().ok()?),
            log_offset: u64::from_le_bytes(value[4..12].try_into().ok()?),
            client: u32::from_le_bytes(value[..4].try_into().ok()?),
        })
    }
}

pub fn key(file: u64, offset: u64) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    key[..8].copy_from_slice(&file.to_be_bytes());
    key[8..].copy_from_slice(&offset.to_be_bytes());
    key
}

pub struct Dump {
    pub segments: Vec<Segment>,
    /// The end of each batch in `segments`.
    ends: Vec<usize>,
}

impl Dump {
    pub fn read(path: &Path) -> Self {
        let name = path.display();
        let mut file = BufReader::with_capacity(BUFFER_BYTES, require(File::open(path)));
        let mut head = [0; 32];
        let known = file.read_exact(&mut head).is_ok() && head.starts_with(b"ESKERSEG");
        if !known || u32_at(&head, 8) != 1 {
            die(format!(
                "{name} is no dump of segments: make one by `esker bench segment --dump {name}`"
            ));
        }
        let (segments, batches) = (u64_at(&head, 16), u64_at(&head, 24));
        let mut dump = Dump { segments: Vec::new(), ends: Vec::new() };
        let mut bytes = Vec::new();
        for _ in 0..batches {
            if dump.read_batch(&mut file, &mut bytes).is_err() {
                die(format!("{name}: a batch is cut off or too large"));
            }
        }
        let ends = matches!(file.read(&mut [0]), Ok(0));
        if dump.segments.len() as u64 != segments || !ends {
            die(format!("{name}: it doesn't hold the segments that it says"));
        }
        dump
    }

    fn read_batch(&mut self, file: &mut impl Read, bytes: &mut Vec<u8>) -> std::io::Result<()> {
        let mut head = [0; 8];
        file.read_exact(&mut head)?;
        let (client, count) = (u32_at(&head, 0), u32_at(&head, 4));
        if count > BATCH_SEGMENTS_MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        bytes.resize(24 * count as usize, 0);
        file.read_exact(bytes)?;
        self.segments.extend(bytes.as_chunks::<24>().0.iter().map(|entry| Segment {
            offset: u64_at(entry, 0),
            length: u64_at(entry, 8),
            log_offset: u64_at(entry, 16),
            client,
        }));
        self.ends.push(self.segments.len());
        Ok(())
    }

    /// All batches in order of arrival, cut into pieces of at most `most` segments.
    pub fn batches(&self, most: usize) -> Vec<&[Segment]> {
        let mut begin = 0;
        let whole = self.ends.iter().map(|&end| {
            let batch = &self.segments[begin..end];
            begin = end;
            batch
        });
        whole.flat_map(|batch| batch.chunks(most)).collect()
    }

    /// Puts the segments into a random order and drops the batches.
    pub fn shuffle(&mut self) {
        shuffle(&mut self.segments);
        self.ends = vec![self.segments.len()];
    }
}

/// A random order, the same every time: Fisher and Yates, by xorshift64*.
fn shuffle(segments: &mut [Segment]) {
    let mut state = SEED_SHUFFLE;
    for i in (2..=segments.len()).rev() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let j = state.wrapping_mul(0x2545_F491_4F6C_DD1D) % i as u64;
        segments.swap(i - 1, j as usize);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Prints values that the other driver must print, too: a row, and the order after a shuffle.
pub fn print() {
    let number = |i: u32| Segment {
        offset: u64::from(i) * 4096,
        length: 4096,
        log_offset: u64::from(i) * 8192,
        client: i,
    };
    let mut segments: Vec<Segment> = (0..10).map(number).collect();
    segments[9].key().iter().for_each(|byte| print!("{byte:02x}"));
    print!(" ");
    segments[9].value().iter().for_each(|byte| print!("{byte:02x}"));
    shuffle(&mut segments);
    segments.iter().for_each(|segment| print!(" {}", segment.client));
    println!();
}
