// SPDX-License-Identifier: Apache-2.0
//! Checksum: covers bytes of a directory's logs together with their location.
//! Layout: docs/format/imd.md, "Checksums".
//!
//! The checksum covers the directory, the partition, the log and the offset, then the bytes. Intact
//! bytes of another directory, rank, log or offset therefore fail the check.

use esker_base::{Error, Result};

/// Bytes of a checksum.
pub const CHECKSUM_BYTES: usize = 4;

/// The logs of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogKind {
    /// The index log.
    Index,
    /// Blocks of tables.
    Data,
    /// Values that a rank kept.
    Values,
    /// Auxiliary tables.
    Auxiliary,
}

impl LogKind {
    const fn code(self) -> u8 {
        match self {
            Self::Index => 1,
            Self::Data => 2,
            Self::Values => 3,
            Self::Auxiliary => 4,
        }
    }
}

/// Computes and verifies the checksums of one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogChecksum {
    /// Checksum of everything in front of the offset.
    seed: u32,
}

impl LogChecksum {
    /// For the head of an index log, from which a reader learns the log's identity.
    pub const HEAD: Self = Self { seed: 0 };

    /// For log `kind` of `partition` of `directory`.
    #[must_use]
    pub fn new(directory: u128, partition: u32, kind: LogKind) -> Self {
        let seed = crc32c::crc32c(&directory.to_le_bytes());
        let seed = crc32c::crc32c_append(seed, &partition.to_le_bytes());
        Self { seed: crc32c::crc32c_append(seed, &[kind.code()]) }
    }

    /// The checksum of `bytes` at `offset`.
    #[inline]
    #[must_use]
    pub fn of(self, bytes: &[u8], offset: u64) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c_append(self.seed, &offset.to_le_bytes()), bytes)
    }

    /// Appends the checksum of `out[start..]`, whose offset in the log is `offset`.
    pub fn seal(self, out: &mut Vec<u8>, start: usize, offset: u64) {
        let sum = self.of(&out[start..], offset);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// Verifies `bytes`, which end in a checksum, at `offset` of the log `object`; returns them
    /// without it.
    ///
    /// # Errors
    /// `Corrupt` if they are not the bytes written there.
    pub fn open<'a>(self, bytes: &'a [u8], offset: u64, object: &str) -> Result<&'a [u8]> {
        let Some((body, sum)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err(Error::corrupt(object, offset, "fewer bytes than a checksum"));
        };
        let (expected, got) = (u32::from_le_bytes(*sum), self.of(body, offset));
        if expected != got {
            let what = format!(
                "checksum {got:08x} of {} bytes, expected {expected:08x}: damaged, or misplaced",
                bytes.len()
            );
            return Err(Error::corrupt(object, offset, what));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_elsewhere_or_of_another_log_are_corrupt() {
        let log = LogChecksum::new(7, 3, LogKind::Data);
        let mut bytes = b"rows".to_vec();
        log.seal(&mut bytes, 0, 8192);
        assert_eq!(log.open(&bytes, 8192, "log").expect("as written"), b"rows");
        assert!(log.open(&bytes, 0, "log").is_err());
        assert!(log.open(&bytes, 8192 << 32, "log").is_err());
        for (directory, partition, kind) in [
            (8, 3, LogKind::Data),
            (7 << 64, 3, LogKind::Data),
            (7, 4, LogKind::Data),
            (7, 3, LogKind::Index),
            (7, 3, LogKind::Values),
            (7, 3, LogKind::Auxiliary),
        ] {
            let other = LogChecksum::new(directory, partition, kind);
            assert!(other.open(&bytes, 8192, "log").is_err(), "{directory} {partition} {kind:?}");
        }
        assert!(LogChecksum::HEAD.open(&bytes, 8192, "log").is_err());
        for byte in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[byte] ^= 1 << bit;
                assert!(log.open(&flipped, 8192, "log").is_err());
            }
        }
        assert!(log.open(&bytes[..3], 8192, "log").is_err());
    }
}
