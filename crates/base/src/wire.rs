// SPDX-License-Identifier: Apache-2.0
//! Wire: reads and writes the integers and byte strings in everything that Esker puts on disk.
//!
//! Integers are little-endian or LEB128 varints. Reading never goes past the end and never
//! allocates. Bad bytes give a [`WireDamage`], which the reader of an object turns into `Corrupt`
//! with the object's name.

use crate::Error;

/// Damage found in some bytes, with its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WireDamage {
    /// Offset from the start of the bytes being read.
    pub offset: usize,
    /// The value that was expected there.
    pub what: &'static str,
}

impl WireDamage {
    /// Returns the error for `object`, in which the bytes being read start at offset `base`.
    #[must_use]
    pub fn of(self, object: &str, base: u64) -> Error {
        Error::corrupt(object, base + self.offset as u64, self.what)
    }
}

/// A varint takes at most this many bytes.
pub const VARINT_BYTES_MAX: usize = 10;

/// Appends `value` as a LEB128 varint.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a varint length and then `bytes`.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Maps small differences, negative or positive, to small numbers.
#[inline]
#[must_use]
pub const fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ (((difference as i64) >> 63) as u64)
}

/// The inverse of [`zigzag`].
#[inline]
#[must_use]
pub const fn unzigzag(value: u64) -> u64 {
    (value >> 1) ^ (value & 1).wrapping_neg()
}

/// A byte slice being read from the front.
#[derive(Clone, Debug)]
pub struct WireInput<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> WireInput<'a> {
    /// Reads `bytes` from their start.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The offset of the next byte.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// All the bytes, including those already read.
    #[must_use]
    pub fn whole(&self) -> &'a [u8] {
        self.bytes
    }

    /// The number of bytes left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// Returns the damage `what` at the current offset.
    #[must_use]
    pub fn damage(&self, what: &'static str) -> WireDamage {
        WireDamage { offset: self.at, what }
    }

    /// Reads the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireDamage> {
        if count > self.left() {
            return Err(self.damage("more bytes than there are"));
        }
        let taken = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireDamage> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("take returns what was asked for"))
    }

    /// Reads one byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, WireDamage> {
        let byte = *self.bytes.get(self.at).ok_or(self.damage("one more byte"))?;
        self.at += 1;
        Ok(byte)
    }

    /// Reads a little-endian 16-bit integer.
    pub fn u16(&mut self) -> Result<u16, WireDamage> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads a little-endian 32-bit integer.
    pub fn u32(&mut self) -> Result<u32, WireDamage> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads a little-endian 64-bit integer.
    pub fn u64(&mut self) -> Result<u64, WireDamage> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a little-endian 128-bit integer.
    pub fn u128(&mut self) -> Result<u128, WireDamage> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// Reads a varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, WireDamage> {
        let mut value = 0u64;
        for shift in 0..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            if shift == VARINT_BYTES_MAX - 1 && byte > 1 {
                return Err(self.damage("a varint of at most 64 bits"));
            }
            value |= u64::from(byte & 0x7f) << (7 * shift);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.damage("a varint of at most 10 bytes"))
    }

    /// Reads a varint of at most `max`; `what` names it in the damage.
    #[inline]
    pub fn varint_max(&mut self, max: usize, what: &'static str) -> Result<usize, WireDamage> {
        let at = self.at;
        match usize::try_from(self.varint()?) {
            Ok(value) if value <= max => Ok(value),
            _ => Err(WireDamage { offset: at, what }),
        }
    }

    /// Reads a varint length, at most `max`, and that many bytes.
    pub fn bytes(&mut self, max: usize, what: &'static str) -> Result<&'a [u8], WireDamage> {
        let count = self.varint_max(max, what)?;
        self.take(count)
    }

    /// Succeeds if nothing is left.
    pub fn end(&self) -> Result<(), WireDamage> {
        if self.left() == 0 { Ok(()) } else { Err(self.damage("the end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_overlong_ones_are_refused() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX - 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(WireInput::new(&out).varint(), Ok(value));
            for cut in 0..out.len() {
                assert!(WireInput::new(&out[..cut]).varint().is_err());
            }
        }
        assert!(WireInput::new(&[0xff; 11]).varint().is_err());
        assert!(
            WireInput::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2])
                .varint()
                .is_err()
        );
    }

    #[test]
    fn zigzag_keeps_small_differences_small() {
        for difference in [0i64, 1, -1, 2, -2, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(difference as u64)), difference as u64);
        }
        assert_eq!(zigzag((-1i64) as u64), 1);
    }
}
