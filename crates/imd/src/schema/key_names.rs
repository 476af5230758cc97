// SPDX-License-Identifier: Apache-2.0
//! Key names: keys as people and paths write them.
//!
//! A numeric key is named by its decimal digits. Any key can be named by `0x` and two hexadecimal
//! digits a byte. Where keys are byte strings, 16 hexadecimal digits without `0x` name an 8-byte
//! key, and any other name is the key's bytes.
//! Source: DeltaFS thesis §5.2.4.

use esker_base::{Error, Kind, Result};

use super::{FieldType, KEY_NUMBER_BYTES};
use crate::hash::{KEY_BYTES_MAX, KEY_BYTES_MIN};
use crate::record_layout::RecordLayout;

/// The naming scheme of a directory's keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyNames {
    key_type: FieldType,
    layout: RecordLayout,
}

impl KeyNames {
    /// The scheme for keys of `key_type` in records of `layout`.
    #[must_use]
    pub const fn new(key_type: FieldType, layout: RecordLayout) -> Self {
        Self { key_type, layout }
    }

    /// The key that `name` stands for.
    ///
    /// # Errors
    /// `Invalid` if `name` is not the name of a key; the message explains the scheme.
    pub fn key_of_name(&self, name: &[u8]) -> Result<Vec<u8>> {
        let text = std::str::from_utf8(name).unwrap_or_default();
        if let Some(digits) = text.strip_prefix("0x") {
            let digits = parse_hex(digits).filter(|key| self.fits(key));
            return digits.ok_or_else(|| self.misnamed(name));
        }
        if self.key_type.is_number() {
            let key = self.key_type.key_of_text(text);
            return key.map(Into::into).ok_or_else(|| self.misnamed(name));
        }
        let is_bare = self.has_bare_digits() && name.len() == 2 * KEY_NUMBER_BYTES;
        if let Some(key) = parse_hex(text).filter(|_| is_bare) {
            return Ok(key);
        }
        self.key_of_bytes(name)
    }

    /// Parses a key from hexadecimal digits, with or without `0x`.
    ///
    /// # Errors
    /// `Invalid` for any other character or the wrong key length.
    pub fn key_of_hex(&self, digits: &str) -> Result<Vec<u8>> {
        let key = parse_hex(digits.strip_prefix("0x").unwrap_or(digits));
        key.filter(|key| self.fits(key)).ok_or_else(|| self.misnamed(digits.as_bytes()))
    }

    /// Takes `bytes` as a key.
    ///
    /// # Errors
    /// `Invalid` if keys of this directory cannot have that length.
    pub fn key_of_bytes(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        if self.fits(bytes) { Ok(bytes.to_vec()) } else { Err(self.misnamed(bytes)) }
    }

    /// The name of `key`.
    #[must_use]
    pub fn name_of_key(&self, key: &[u8]) -> String {
        if self.key_type.is_number() {
            return self.key_type.value_of_key(key).to_string();
        }
        let is_plain = key.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'/');
        let is_dots = key == b"." || key == b"..";
        if is_plain && !is_dots && !key.starts_with(b"0x") && !self.has_bare_digits() {
            return String::from_utf8_lossy(key).into_owned();
        }
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.has_bare_digits() { digits } else { format!("0x{digits}") }
    }

    /// Describes the naming scheme in words: `numbers of type u64, or 0x and 16 digits`.
    #[must_use]
    pub fn description(&self) -> String {
        match self.layout {
            RecordLayout::Fixed { key_bytes, .. } if self.key_type.is_number() => format!(
                "numbers of type {}, or 0x and {} digits",
                self.key_type,
                2 * u32::from(key_bytes)
            ),
            RecordLayout::Fixed { key_bytes, .. } => format!(
                "{key_bytes} bytes each, as text or as 0x and {} digits",
                2 * u32::from(key_bytes)
            ),
            RecordLayout::Variable => format!(
                "{KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes each, as text or as 0x and two hexadecimal \
                 digits for each byte"
            ),
        }
    }

    /// True if names of 8-byte keys omit `0x`.
    const fn has_bare_digits(&self) -> bool {
        matches!(self.layout, RecordLayout::Fixed { key_bytes: 8, .. })
            && !self.key_type.is_number()
    }

    fn fits(&self, key: &[u8]) -> bool {
        match self.layout {
            RecordLayout::Fixed { key_bytes, .. } => key.len() == usize::from(key_bytes),
            RecordLayout::Variable => (KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len()),
        }
    }

    fn misnamed(&self, name: &[u8]) -> Error {
        let what = format!("keys of this directory are {}", self.description());
        Error::new(Kind::Invalid, format!("{}: {what}", String::from_utf8_lossy(name)))
    }
}

fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_keys_agree() {
        let eight = RecordLayout::Fixed { key_bytes: 8, value_bytes: 4 };
        let digits = KeyNames::new(FieldType::UNTYPED, eight);
        let key = digits.key_of_name(b"0000000000000042").expect("digits");
        assert_eq!(key, 0x42_u64.to_be_bytes());
        assert_eq!(digits.name_of_key(&key), "0000000000000042");
        assert_eq!(digits.key_of_name(b"abcdefgh").expect("bytes"), b"abcdefgh");
        assert!(digits.key_of_name(b"42").is_err());
        let text = KeyNames::new(FieldType::UNTYPED, RecordLayout::Variable);
        assert_eq!(text.key_of_name(b"0x6162").expect("digits"), b"ab");
        assert_eq!(text.key_of_name(b"ab").expect("bytes"), b"ab");
        assert_eq!(text.key_of_hex("6162").expect("digits"), b"ab");
        for (key, name) in
            [(&b"ab"[..], "ab"), (b"a\0", "0x6100"), (b"0x", "0x3078"), (b"..", "0x2e2e")]
        {
            assert_eq!(text.name_of_key(key), name);
            assert_eq!(text.key_of_name(name.as_bytes()).expect(name), key);
        }
        for bad in [&b"0x1"[..], b"0xzz", b"", &[b'a'; 256]] {
            assert_eq!(text.key_of_name(bad).expect_err("no key").kind(), Kind::Invalid);
        }
    }

    #[test]
    fn numbers_are_named_by_their_digits() {
        let eight = RecordLayout::Fixed { key_bytes: 8, value_bytes: 4 };
        let numbers = KeyNames::new(FieldType::U64, eight);
        let key = numbers.key_of_name(b"12345678").expect("a number");
        assert_eq!(key, 12_345_678_u64.to_be_bytes());
        assert_eq!(numbers.name_of_key(&key), "12345678");
        assert_eq!(
            numbers.key_of_name(b"0000000000000042").expect("a number"),
            42_u64.to_be_bytes()
        );
        assert_eq!(
            numbers.key_of_name(b"0x0000000000000042").expect("bytes"),
            66_u64.to_be_bytes()
        );
        assert_eq!(numbers.key_of_bytes(b"abcdefgh").expect("bytes"), b"abcdefgh");
        for bad in [&b"-1"[..], b"0x42", b"abcdefgh", b"", b"18446744073709551616"] {
            let error = numbers.key_of_name(bad).expect_err("no key");
            assert!(error.to_string().contains("numbers of type u64"), "{error}");
        }
        assert!(numbers.key_of_bytes(b"12").is_err());
    }
}
