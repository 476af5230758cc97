//! Field: a number, or some bytes, at an offset; how it is written in text, and as a key.
//!
//! Numbers become keys of 8 bytes whose order as bytes is the order of the numbers, so that ranges
//! of an ordered directory are ranges of numbers.

use std::fmt;
use std::str::FromStr;

use esker_base::{Error, Kind};

/// Bytes of a key that was a number.
pub const KEY_NUMBER_BYTES: usize = 8;

/// How a number is stored. All are little-endian; those of the other order are said by `be`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Number {
    U8,
    U16,
    U32,
    U64,
    U16be,
    U32be,
    U64be,
    I32,
    I64,
    F32,
    F64,
    /// A non-negative integer that was multiplied with 2^-exponent and stored as a 32-bit number.
    ScaledF32 {
        exponent: u16,
    },
    /// Not a number but so many bytes, which are the key as they are.
    Bytes {
        count: u8,
    },
}

const NAMED: [(&str, Number); 11] = [
    ("u8", Number::U8),
    ("u16", Number::U16),
    ("u32", Number::U32),
    ("u64", Number::U64),
    ("u16be", Number::U16be),
    ("u32be", Number::U32be),
    ("u64be", Number::U64be),
    ("i32", Number::I32),
    ("i64", Number::I64),
    ("f32", Number::F32),
    ("f64", Number::F64),
];

/// Exponents of scaled numbers: beyond them no 32-bit number is left.
const EXPONENT_MAX: u16 = 126;

/// A number at an offset: `OFFSET:TYPE` in text, such as `8:u64`, `28:f32*2^100`, `0:bytes16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// From the start of the header or record.
    pub offset: u32,
    /// How it is stored.
    pub number: Number,
}

impl Number {
    /// Whether it is an integer, which a step or a count must be.
    #[must_use]
    pub fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::ScaledF32 { .. } | Self::Bytes { .. })
    }

    fn bytes(self) -> u8 {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::U16be => 2,
            Self::U32 | Self::U32be | Self::I32 | Self::F32 | Self::ScaledF32 { .. } => 4,
            Self::U64 | Self::U64be | Self::I64 | Self::F64 => 8,
            Self::Bytes { count } => count,
        }
    }

    /// The number as one without a sign that compares alike, or why there is none.
    fn ordered(self, stored: &[u8]) -> Result<u64, &'static str> {
        let mut word = [0; 8];
        word[..stored.len()].copy_from_slice(stored);
        let little = u64::from_le_bytes(word);
        let low = || u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        Ok(match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => little,
            Self::U16be | Self::U32be | Self::U64be => {
                u64::from_be_bytes(word) >> (64 - 8 * u32::from(self.bytes()))
            }
            Self::I32 => i64::from(low().cast_signed()).cast_unsigned() ^ 1 << 63,
            Self::I64 => little ^ 1 << 63,
            Self::F32 => order_of(f64::from(f32::from_bits(low())))?,
            Self::F64 => order_of(f64::from_bits(little))?,
            Self::ScaledF32 { exponent } => {
                let scale = f64::from_bits((1023 + u64::from(exponent)) << 52);
                let integer = f64::from(f32::from_bits(low())) * scale;
                // Every integer that a 32-bit number can be is below this.
                if !(integer >= 0.0 && integer < 2_f64.powi(63) && integer.fract() == 0.0) {
                    return Err("a number that is an integer once scaled");
                }
                integer as u64
            }
            Self::Bytes { .. } => unreachable!("bytes are no number"),
        })
    }
}

/// The bits of a number, turned so that they compare as it does.
fn order_of(number: f64) -> Result<u64, &'static str> {
    if number.is_nan() {
        return Err("a number");
    }
    // Both zeros are one key.
    let bits = (number + 0.0).to_bits();
    Ok(if bits >> 63 == 0 { bits | 1 << 63 } else { !bits })
}

impl Field {
    /// How many bytes it takes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        u32::from(self.number.bytes())
    }

    /// How many bytes its keys have.
    #[must_use]
    pub fn key_bytes(self) -> usize {
        match self.number {
            Number::Bytes { count } => usize::from(count),
            _ => KEY_NUMBER_BYTES,
        }
    }

    fn stored(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.offset as usize..][..usize::from(self.number.bytes())]
    }

    /// Appends the key that `record` has: 8 bytes for a number, big-endian and in order.
    ///
    /// # Errors
    /// Says what was expected, where the bytes are no such number.
    ///
    /// # Panics
    /// If the record ends before the field does: [`super::Layout::check`].
    #[inline]
    pub fn put_key(self, record: &[u8], key: &mut Vec<u8>) -> Result<(), &'static str> {
        let stored = self.stored(record);
        match self.number {
            Number::Bytes { .. } => key.extend_from_slice(stored),
            number => key.extend_from_slice(&number.ordered(stored)?.to_be_bytes()),
        }
        Ok(())
    }

    /// The integer that `header` has.
    pub(super) fn integer(self, header: &[u8]) -> Result<i64, &'static str> {
        let ordered = self.number.ordered(self.stored(header))?;
        match self.number {
            Number::I32 | Number::I64 => Ok((ordered ^ 1 << 63).cast_signed()),
            _ => i64::try_from(ordered).map_err(|_| "an integer below 2^63"),
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.offset)?;
        match self.number {
            Number::ScaledF32 { exponent } => write!(f, "f32*2^{exponent}"),
            Number::Bytes { count } => write!(f, "bytes{count}"),
            number => {
                let named = NAMED.iter().find(|(_, other)| *other == number);
                f.write_str(named.map_or("", |(name, _)| name))
            }
        }
    }
}

impl FromStr for Field {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parsed = text.split_once(':').and_then(|(offset, number)| {
            let offset = offset.parse().ok()?;
            if let Some(exponent) = number.strip_prefix("f32*2^") {
                let exponent = exponent.parse().ok().filter(|e| *e <= EXPONENT_MAX)?;
                return Some(Self { offset, number: Number::ScaledF32 { exponent } });
            }
            if let Some(count) = number.strip_prefix("bytes") {
                let count = count.parse().ok().filter(|count| *count > 0)?;
                return Some(Self { offset, number: Number::Bytes { count } });
            }
            let (_, number) = NAMED.iter().find(|(name, _)| *name == number)?;
            Some(Self { offset, number: *number })
        });
        parsed.ok_or_else(|| {
            let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
            let what = format!(
                "`{text}` is no OFFSET:TYPE: types are {}, bytesN, f32*2^N",
                names.join(", ")
            );
            Error::new(Kind::Invalid, what)
        })
    }
}
