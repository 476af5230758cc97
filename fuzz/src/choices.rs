// SPDX-License-Identifier: Apache-2.0
//! Choices: decisions drawn from bytes, so that a fuzzer that changes bytes changes decisions.

/// Draws decisions from bytes; zeros once they are used up.
pub struct Choices<'a> {
    bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The unused bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn u8(&mut self) -> u8 {
        let Some((&first, rest)) = self.bytes.split_first() else {
            return 0;
        };
        self.bytes = rest;
        first
    }

    /// A number below `bound`, which must be positive.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = usize::from(self.u8()) << 16 | usize::from(self.u8()) << 8;
        (wide | usize::from(self.u8())) % bound
    }

    /// A number that is small more often than large, and sometimes at the end of the range.
    pub fn u64(&mut self) -> u64 {
        let kind = self.u8();
        let mut value = 0;
        for _ in 0..kind % 9 {
            value = value << 8 | u64::from(self.u8());
        }
        if kind >= 0xF0 { !value } else { value }
    }

    /// At most `bytes_max` bytes: of a small alphabet, of a large one, or one byte repeated.
    pub fn string(&mut self, bytes_max: usize) -> Vec<u8> {
        let length = usize::from(self.u8());
        let length = if length < 200 { length % 20 } else { (length - 200) * bytes_max / 55 };
        let length = length.min(bytes_max);
        match self.u8() % 4 {
            0 => vec![self.u8(); length],
            1 => (0..length).map(|_| b'0' + self.u8() % 10).collect(),
            2 => (0..length).map(|at| (at % 7) as u8).collect(),
            _ => (0..length).map(|_| self.u8()).collect(),
        }
    }

    /// Changes up to seven bytes of `bytes`, or cuts or extends it; returns whether it differs.
    pub fn mutate(&mut self, bytes: &mut Vec<u8>) -> bool {
        let before = bytes.clone();
        for _ in 0..self.u8() % 8 {
            if bytes.is_empty() {
                break;
            }
            let at = self.below(bytes.len());
            match self.u8() % 8 {
                0 => bytes[at] = 0xFF,
                1 => bytes[at] = 0,
                2 => bytes[at] = bytes[at].wrapping_add(1),
                3 => bytes[at] ^= 1 << (self.u8() % 8),
                4 => bytes.truncate(at),
                5 => bytes.insert(at, self.u8()),
                6 => drop(bytes.remove(at)),
                _ => bytes[at] = self.u8(),
            }
        }
        *bytes != before
    }
}
