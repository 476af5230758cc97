// SPDX-License-Identifier: Apache-2.0
//! Replay content: the bytes of replayed files, in which each word depends on its file and its
//! position.
//!
//! The word of eight bytes at position 8 k of file f is a mix of f and k, so neither bytes of
//! another file nor shifted, repeated or missing ones pass. Source of the mix: SplitMix64, Steele,
//! Lea and Flood, OOPSLA 2014.

use esker_base::{Error, Result};

const WORD_BYTES: u64 = 8;

/// The word at position `8 * index` of a file.
fn word(file: u32, index: u64) -> [u8; 8] {
    let mut mixed = index ^ u64::from(file).rotate_left(40);
    mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31).to_le_bytes()
}

/// Fills `buffer` with the content of `file` from `offset` on.
pub fn fill_content(file: u32, offset: u64, buffer: &mut [u8]) {
    let mut filled = 0;
    let mut position = offset;
    while filled < buffer.len() {
        let within = (position % WORD_BYTES) as usize;
        let count = (WORD_BYTES as usize - within).min(buffer.len() - filled);
        let bytes = word(file, position / WORD_BYTES);
        buffer[filled..filled + count].copy_from_slice(&bytes[within..within + count]);
        filled += count;
        position += count as u64;
    }
}

/// Checks that `found` is the content of `file`, which errors call `name`, from `offset` on.
///
/// # Errors
/// `Corrupt` names the first byte that differs.
pub fn check_content(name: &str, file: u32, offset: u64, found: &[u8]) -> Result<()> {
    let mut expected = [0; 4_096];
    for (chunk, found) in found.chunks(expected.len()).enumerate() {
        let position = offset + (chunk * expected.len()) as u64;
        let expected = &mut expected[..found.len()];
        fill_content(file, position, expected);
        if expected != found {
            let same = expected.iter().zip(found).take_while(|(expected, found)| expected == found);
            let index = same.count();
            let what = format!("expected {:02x}, read {:02x}", expected[index], found[index]);
            return Err(Error::corrupt(name, position + index as u64, what));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_of_a_file_is_the_same() {
        let mut whole = vec![0; 10_000];
        fill_content(3, 0, &mut whole);
        for (from, to) in [(0, 1), (1, 9), (7, 8), (4_095, 9_999), (10, 10)] {
            let mut part = vec![0; to - from];
            fill_content(3, from as u64, &mut part);
            assert_eq!(part, whole[from..to]);
            check_content("f", 3, from as u64, &part).expect("its own content");
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        let mut bytes = vec![0; 9_000];
        fill_content(1, 5, &mut bytes);
        bytes[8_000] ^= 1;
        let error = check_content("the file", 1, 5, &bytes).expect_err("wrong");
        assert!(error.context().starts_with("the file at byte 8005: expected "), "{error}");
        bytes[8_000] ^= 1;
        check_content("the file", 2, 5, &bytes).expect_err("another file");
        check_content("the file", 1, 6, &bytes).expect_err("shifted");
    }
}
