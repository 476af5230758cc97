// SPDX-License-Identifier: Apache-2.0
//! Field type: how a number or a byte string is stored in a record, and its form as a key.
//!
//! Numbers become 8-byte keys whose byte order is the numeric order, so ranges of an ordered
//! directory are ranges of numbers.
//! Layout: docs/format/imd.md, "Schema".

use std::fmt;
use std::str::FromStr;

use esker_base::wire::{WireDamage, WireInput, put_varint};
use esker_base::{Error, Kind, Result};

/// Bytes of a numeric key.
pub const KEY_NUMBER_BYTES: usize = 8;

/// Maximum exponent of a scaled number; beyond it no 32-bit number remains.
const EXPONENT_MAX: u16 = 126;

/// Storage type of a field. Numbers are little-endian; `be` marks the other byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum FieldType {
    U8,
    U16,
    U32,
    U64,
    U16be,
    U32be,
    U64be,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
    /// A non-negative integer, stored as a 32-bit float after multiplication by 2^-exponent; keys
    /// only.
    ScaledF32 {
        exponent: u16,
    },
    /// A byte string of this length. For a key, 0 means that the type does not fix the length.
    Bytes {
        count: u8,
    },
}

/// Names and format numbers of the types without a parameter.
const NAMED: [(&str, u8, FieldType); 13] = [
    ("u8", 1, FieldType::U8),
    ("u16", 2, FieldType::U16),
    ("u32", 3, FieldType::U32),
    ("u64", 4, FieldType::U64),
    ("u16be", 5, FieldType::U16be),
    ("u32be", 6, FieldType::U32be),
    ("u64be", 7, FieldType::U64be),
    ("i8", 8, FieldType::I8),
    ("i16", 9, FieldType::I16),
    ("i32", 10, FieldType::I32),
    ("i64", 11, FieldType::I64),
    ("f32", 12, FieldType::F32),
    ("f64", 13, FieldType::F64),
];

/// Format numbers of the types with a parameter.
const BYTES: u8 = 0;
const SCALED: u8 = 14;

/// A field's value, or a numeric key's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FieldValue<'a> {
    /// An unsigned integer.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// A 32-bit floating-point number.
    F32(f32),
    /// A 64-bit floating-point number.
    F64(f64),
    /// A byte string.
    Bytes(&'a [u8]),
}

impl FieldType {
    /// The type of keys known only to be byte strings.
    pub const UNTYPED: Self = Self::Bytes { count: 0 };

    /// True for numbers.
    #[must_use]
    pub const fn is_number(self) -> bool {
        !matches!(self, Self::Bytes { .. })
    }

    /// True for integers; a step or a count must be one.
    #[must_use]
    pub const fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::ScaledF32 { .. } | Self::Bytes { .. })
    }

    /// True for signed integers.
    #[must_use]
    pub const fn is_signed(self) -> bool {
        matches!(self, Self::I8 | Self::I16 | Self::I32 | Self::I64)
    }

    /// Bytes of a field in a record.
    #[must_use]
    pub const fn bytes(self) -> u8 {
        match self {
            Self::U8 | Self::I8 => 1,
            Self::U16 | Self::U16be | Self::I16 => 2,
            Self::U32 | Self::U32be | Self::I32 | Self::F32 | Self::ScaledF32 { .. } => 4,
            Self::U64 | Self::U64be | Self::I64 | Self::F64 => 8,
            Self::Bytes { count } => count,
        }
    }

    /// Bytes of a key of this type.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Bytes { count } => count as usize,
            _ => KEY_NUMBER_BYTES,
        }
    }

    /// Decodes a field's stored bytes.
    ///
    /// # Panics
    /// If `stored` is not as long as the type.
    #[must_use]
    pub fn value(self, stored: &[u8]) -> FieldValue<'_> {
        assert_eq!(stored.len(), usize::from(self.bytes()), "the bytes of one field");
        let mut word = [0; 8];
        if self.is_number() {
            word[..stored.len()].copy_from_slice(stored);
        }
        let little = u64::from_le_bytes(word);
        let unused_bits = 64 - 8 * u32::from(self.bytes().min(8));
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => FieldValue::Unsigned(little),
            Self::U16be | Self::U32be | Self::U64be => {
                FieldValue::Unsigned(u64::from_be_bytes(word) >> unused_bits)
            }
            Self::I8 | Self::I16 | Self::I32 | Self::I64 => {
                FieldValue::Signed((little << unused_bits).cast_signed() >> unused_bits)
            }
            Self::F32 | Self::ScaledF32 { .. } => FieldValue::F32(f32::from_bits(little as u32)),
            Self::F64 => FieldValue::F64(f64::from_bits(little)),
            Self::Bytes { .. } => FieldValue::Bytes(stored),
        }
    }

    /// Appends the key form of a field's stored bytes.
    ///
    /// # Errors
    /// The expectation that the bytes violate, if they are not a number that can be a key.
    ///
    /// # Panics
    /// As [`FieldType::value`].
    #[inline]
    pub fn put_key(self, stored: &[u8], key: &mut Vec<u8>) -> Result<(), &'static str> {
        let ordered = match self.value(stored) {
            FieldValue::Bytes(bytes) => {
                key.extend_from_slice(bytes);
                return Ok(());
            }
            FieldValue::F32(number) => match self {
                Self::ScaledF32 { exponent } => scaled(number, exponent)?,
                _ => order_of(f64::from(number))?,
            },
            FieldValue::F64(number) => order_of(number)?,
            FieldValue::Unsigned(number) => number,
            FieldValue::Signed(number) => number.cast_unsigned() ^ 1 << 63,
        };
        key.extend_from_slice(&ordered.to_be_bytes());
        Ok(())
    }

    /// The number that `key` encodes, or its bytes if the type is not numeric.
    #[must_use]
    pub fn value_of_key(self, key: &[u8]) -> FieldValue<'_> {
        let Some(word) = key.as_array::<KEY_NUMBER_BYTES>().filter(|_| self.is_number()) else {
            return FieldValue::Bytes(key);
        };
        let ordered = u64::from_be_bytes(*word);
        match self {
            Self::F32 => FieldValue::F32(number_of(ordered) as f32),
            Self::F64 => FieldValue::F64(number_of(ordered)),
            _ if self.is_signed() => FieldValue::Signed((ordered ^ 1 << 63).cast_signed()),
            _ => FieldValue::Unsigned(ordered),
        }
    }

    /// The key of the decimal number in `text`; `None` if it is not a number of this type.
    #[must_use]
    pub fn key_of_text(self, text: &str) -> Option<[u8; KEY_NUMBER_BYTES]> {
        let bits = 8 * u32::from(self.bytes());
        let ordered = match self {
            Self::Bytes { .. } => return None,
            Self::F32 => order_of(f64::from(text.parse::<f32>().ok()?)).ok()?,
            Self::F64 => order_of(text.parse().ok()?).ok()?,
            Self::ScaledF32 { .. } => text.parse().ok().filter(|number: &u64| number >> 63 == 0)?,
            _ if self.is_signed() => {
                let number: i64 = text.parse().ok()?;
                let is_within = number << (64 - bits) >> (64 - bits) == number;
                is_within.then_some(number.cast_unsigned() ^ 1 << 63)?
            }
            _ => text.parse().ok().filter(|number: &u64| bits == 64 || number >> bits == 0)?,
        };
        Some(ordered.to_be_bytes())
    }

    /// Appends the encoded type.
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes { count } => out.extend_from_slice(&[BYTES, count]),
            Self::ScaledF32 { exponent } => {
                out.push(SCALED);
                put_varint(out, u64::from(exponent));
            }
            named => {
                let known = NAMED.iter().find(|(.., other)| *other == named);
                out.push(known.expect("every type is listed").1);
            }
        }
    }

    /// Decodes one type from `input`.
    pub(super) fn decode(input: &mut WireInput<'_>) -> Result<Self, WireDamage> {
        match input.u8()? {
            BYTES => Ok(Self::Bytes { count: input.u8()? }),
            SCALED => {
                let exponent = input.varint_max(usize::from(EXPONENT_MAX), "a scale")? as u16;
                Ok(Self::ScaledF32 { exponent })
            }
            number => {
                let known = NAMED.iter().find(|(_, other, _)| *other == number);
                known.map(|(.., named)| *named).ok_or(input.damage("a type that is known"))
            }
        }
    }
}

/// Recovers the integer stored as `number`.
fn scaled(number: f32, exponent: u16) -> Result<u64, &'static str> {
    let scale = f64::from_bits((1023 + u64::from(exponent)) << 52);
    let integer = f64::from(number) * scale;
    // Every integer that fits a 32-bit float is below this.
    if !(integer >= 0.0 && integer < 2_f64.powi(63) && integer.fract() == 0.0) {
        return Err("a number that is an integer once scaled");
    }
    Ok(integer as u64)
}

/// The bits of a number, transformed so that they compare as the number does.
fn order_of(number: f64) -> Result<u64, &'static str> {
    if number.is_nan() {
        return Err("a number");
    }
    // Both zeros map to one key.
    let bits = (number + 0.0).to_bits();
    Ok(if bits >> 63 == 0 { bits | 1 << 63 } else { !bits })
}

/// Inverts [`order_of`].
fn number_of(ordered: u64) -> f64 {
    f64::from_bits(if ordered >> 63 == 1 { ordered ^ 1 << 63 } else { !ordered })
}

impl fmt::Display for FieldType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ScaledF32 { exponent } => write!(f, "f32*2^{exponent}"),
            Self::Bytes { count: 0 } => f.write_str("bytes"),
            Self::Bytes { count } => write!(f, "bytes{count}"),
            named => {
                let known = NAMED.iter().find(|(.., other)| other == named);
                f.write_str(known.map_or("", |(name, ..)| name))
            }
        }
    }
}

impl FromStr for FieldType {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = if let Some(exponent) = text.strip_prefix("f32*2^") {
            let exponent = exponent.parse().ok().filter(|e| *e <= EXPONENT_MAX);
            exponent.map(|exponent| Self::ScaledF32 { exponent })
        } else if let Some(count) = text.strip_prefix("bytes") {
            let count = count.parse().ok().filter(|count| *count > 0);
            count.map(|count| Self::Bytes { count })
        } else {
            NAMED.iter().find(|(name, ..)| *name == text).map(|(.., named)| *named)
        };
        parsed.ok_or_else(|| {
            let names: Vec<&str> = NAMED.iter().map(|(name, ..)| *name).collect();
            let what = format!("no type `{text}`: types are {}, bytesN, f32*2^N", names.join(", "));
            Error::new(Kind::Invalid, what)
        })
    }
}

impl fmt::Display for FieldValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsigned(number) => number.fmt(f),
            Self::Signed(number) => number.fmt(f),
            Self::F32(number) => number.fmt(f),
            Self::F64(number) => number.fmt(f),
            Self::Bytes(bytes) => bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keys_and_texts_agree() {
        let agree = |name: &str, stored: &[u8], text: &str| {
            let kind: FieldType = name.parse().expect(name);
            assert_eq!(kind.to_string(), name);
            let mut key = Vec::new();
            kind.put_key(stored, &mut key).expect("a number");
            assert_eq!(kind.value_of_key(&key).to_string(), text, "{name}");
            assert_eq!(kind.key_of_text(text).expect(text)[..], key, "{name}");
            let mut out = Vec::new();
            kind.encode(&mut out);
            assert_eq!(FieldType::decode(&mut WireInput::new(&out)), Ok(kind));
        };
        agree("u8", &[200], "200");
        agree("u16be", &[1, 2], "258");
        agree("u64", &u64::MAX.to_le_bytes(), "18446744073709551615");
        agree("i8", &[0x80], "-128");
        agree("i16", &(-2_i16).to_le_bytes(), "-2");
        agree("i64", &i64::MIN.to_le_bytes(), "-9223372036854775808");
        agree("f32", &0.1_f32.to_le_bytes(), "0.1");
        agree("f32", &f32::NEG_INFINITY.to_le_bytes(), "-inf");
        agree("f64", &(-1e-30_f64).to_le_bytes(), "-0.000000000000000000000000000001");
        agree("f32*2^100", &(5.0 * 2_f32.powi(-100)).to_le_bytes(), "5");
        for (name, text) in
            [("u8", "256"), ("i8", "128"), ("u16", "-1"), ("f64", "NaN"), ("u8", "")]
        {
            let kind: FieldType = name.parse().expect(name);
            assert_eq!(kind.key_of_text(text), None, "{name} {text}");
        }
        assert_eq!(FieldType::Bytes { count: 2 }.value(b"\x01\xff").to_string(), "01ff");
        assert!(FieldType::decode(&mut WireInput::new(&[15])).is_err());
        assert!(FieldType::decode(&mut WireInput::new(&[SCALED, 127])).is_err());
    }
}
