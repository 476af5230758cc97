// SPDX-License-Identifier: Apache-2.0
//! Integers of a fixed number of bits, packed least significant bit first.

/// Appends each of `values` as `width` bits, padded to a whole byte at the end.
///
/// # Panics
/// If `width` is over 64.
pub fn pack(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64>, width: u32) {
    assert!(width <= 64, "a value has at most 64 bits");
    if width == 0 {
        return;
    }
    let end = out.len() + bytes(values.len(), width);
    let (mut pending, mut filled) = (0u64, 0u32);
    for value in values {
        debug_assert!(width == 64 || value >> width == 0, "the width covers every value");
        pending |= value << filled;
        filled += width;
        if filled >= 64 {
            out.extend_from_slice(&pending.to_le_bytes());
            filled -= 64;
            pending = if filled == 0 { 0 } else { value >> (width - filled) };
        }
    }
    out.extend_from_slice(&pending.to_le_bytes());
    out.truncate(end);
}

/// Bytes that `count` values of `width` bits take.
#[must_use]
pub const fn bytes(count: usize, width: u32) -> usize {
    (count * width as usize).div_ceil(8)
}

/// Bits needed to hold every number up to `range`.
#[must_use]
pub const fn width_of(range: u64) -> u32 {
    64 - range.leading_zeros()
}

/// Returns the value at `index` of `packed`, which may be followed by other bytes.
///
/// # Panics
/// If `packed` ends before the value does.
#[inline]
#[must_use]
pub fn get(packed: &[u8], index: usize, width: u32) -> u64 {
    if width == 0 {
        return 0;
    }
    let bit = index * width as usize;
    let (start, shift) = (bit / 8, (bit % 8) as u32);
    let mask = u64::MAX >> (64 - width);
    if let Some(word) = packed.get(start..start + 8) {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        let low = word >> shift;
        if shift + width <= 64 {
            return low & mask;
        }
        return (low | u64::from(packed[start + 8]) << (64 - shift)) & mask;
    }
    let mut word = [0u8; 16];
    let tail = &packed[start..];
    word[..tail.len()].copy_from_slice(tail);
    ((u128::from_le_bytes(word) >> shift) as u64) & mask
}

/// Appends the first `count` values of `packed`, each plus `base`, to `out`.
///
/// # Panics
/// If `packed` holds fewer than `bytes(count, width)` bytes.
pub fn unpack(packed: &[u8], count: usize, base: u64, width: u32, out: &mut Vec<u64>) {
    assert!(packed.len() >= bytes(count, width), "the caller checked the length");
    if width == 0 {
        out.resize(out.len() + count, base);
        return;
    }
    let mask = u64::MAX >> (64 - width);
    if width > 56 {
        unpack_wide(packed, count, base, width, out);
        return;
    }
    // Values whose eight bytes are all inside `packed` take one unaligned load.
    let safe =
        if packed.len() >= 8 { count.min((packed.len() - 8) * 8 / width as usize + 1) } else { 0 };
    let mut bit = 0usize;
    out.extend((0..safe).map(|_| {
        let start = bit / 8;
        let word = u64::from_le_bytes(packed[start..start + 8].try_into().expect("eight bytes"));
        let value = (word >> (bit % 8)) & mask;
        bit += width as usize;
        value.wrapping_add(base)
    }));
    out.extend((safe..count).map(|index| get(packed, index, width).wrapping_add(base)));
}

/// Does the work of [`unpack`] where a value may span nine bytes.
fn unpack_wide(packed: &[u8], count: usize, base: u64, width: u32, out: &mut Vec<u64>) {
    let mask = u64::MAX >> (64 - width);
    let safe =
        if packed.len() >= 9 { count.min((packed.len() - 9) * 8 / width as usize + 1) } else { 0 };
    let mut bit = 0usize;
    out.extend((0..safe).map(|_| {
        let (start, shift) = (bit / 8, bit % 8);
        let nine: &[u8; 9] = packed[start..].first_chunk().expect("nine bytes");
        let low = u64::from_le_bytes(*nine.first_chunk().expect("eight of nine"));
        // Shifted in two steps, since a shift by 64 bits is not defined.
        let value = low >> shift | u64::from(nine[8]) << 1 << (63 - shift);
        bit += width as usize;
        (value & mask).wrapping_add(base)
    }));
    out.extend((safe..count).map(|index| get(packed, index, width).wrapping_add(base)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_width_round_trips() {
        for width in 0..=64u32 {
            for count in [0usize, 1, 2, 7, 8, 9, 63, 64, 65, 200] {
                let mask = if width == 0 { 0 } else { u64::MAX >> (64 - width) };
                let values: Vec<u64> = (0..count as u64)
                    .map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) & mask)
                    .collect();
                let based: Vec<u64> = values.iter().map(|v| v.wrapping_add(77)).collect();
                let mut packed = Vec::new();
                pack(&mut packed, values.iter().copied(), width);
                assert_eq!(packed.len(), bytes(count, width));
                let mut unpacked = Vec::new();
                unpack(&packed, count, 77, width, &mut unpacked);
                assert_eq!(unpacked, based, "width {width}, count {count}");
                for (index, value) in values.iter().enumerate() {
                    assert_eq!(get(&packed, index, width), *value);
                }
            }
        }
    }
}
