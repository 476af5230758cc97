// SPDX-License-Identifier: Apache-2.0
//! Record layout: the lengths of a directory's keys and values, and the formats a directory can be
//! created with.

use std::fmt;

use esker_base::{Error, Kind, Result};

use crate::hash::{KEY_BYTES_MAX, KEY_BYTES_MIN};

/// Maximum bytes of a value: a block that contains it is read whole.
pub const VALUE_BYTES_MAX: usize = 256 << 20;

/// Lengths of the keys and values of all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordLayout {
    /// All keys have `key_bytes`, all values `value_bytes`. This is the fast path, and no lengths
    /// are stored.
    Fixed {
        /// Bytes of every key, 1 to 255.
        key_bytes: u8,
        /// Bytes of every value, at most [`VALUE_BYTES_MAX`].
        value_bytes: u32,
    },
    /// Lengths differ.
    Variable,
}

/// The way in which readers reach values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueFormat {
    /// Whole records move to their key's partition.
    Base,
    /// Values stay where they were appended; the key and an exact pointer move.
    Pointer,
    /// Records stay where they were appended; the key's hash and the rank move into partial-key
    /// cuckoo tables.
    Lossy,
    /// Records stay where they were appended; a static function maps a key to its rank.
    Static,
    /// Whole records move to the partition of their key range, so that ranges can be read.
    Ordered,
}

impl ValueFormat {
    /// Name in commands and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Pointer => "pointer",
            Self::Lossy => "lossy",
            Self::Static => "static",
            Self::Ordered => "ordered",
        }
    }

    /// All formats.
    pub const ALL: [Self; 5] =
        [Self::Base, Self::Pointer, Self::Lossy, Self::Static, Self::Ordered];

    /// The format with that name.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn of_name(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::new(Kind::Invalid, format!("no format `{name}`: choose one of {names}"))
        })
    }
}

impl RecordLayout {
    /// Checks that the layout is possible.
    ///
    /// # Errors
    /// `Invalid` if it is not.
    pub fn check(self) -> Result<()> {
        let Self::Fixed { key_bytes, value_bytes } = self else { return Ok(()) };
        if key_bytes == 0 || value_bytes as usize > VALUE_BYTES_MAX {
            let what = format!(
                "records of {key_bytes} + {value_bytes} bytes: keys have {KEY_BYTES_MIN} to \
                 {KEY_BYTES_MAX}, values up to {VALUE_BYTES_MAX}"
            );
            return Err(Error::new(Kind::Invalid, what));
        }
        Ok(())
    }

    /// Checks that a record fits the layout.
    ///
    /// # Errors
    /// `Invalid` if it does not, `TooLarge` if it fits no layout.
    #[inline]
    pub fn check_record(self, key: &[u8], value: &[u8]) -> Result<()> {
        let fits = match self {
            Self::Fixed { key_bytes, value_bytes } => {
                key.len() == usize::from(key_bytes) && value.len() == value_bytes as usize
            }
            Self::Variable => {
                (KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&key.len())
                    && value.len() <= VALUE_BYTES_MAX
            }
        };
        if fits { Ok(()) } else { Err(self.misfit(key, value)) }
    }

    #[cold]
    fn misfit(self, key: &[u8], value: &[u8]) -> Error {
        let got = format!("a record of {} + {} bytes", key.len(), value.len());
        match self {
            Self::Fixed { key_bytes, value_bytes } => Error::new(
                Kind::Invalid,
                format!("{got}, but all of this directory have {key_bytes} + {value_bytes}"),
            ),
            Self::Variable => Error::new(
                Kind::TooLarge,
                format!(
                    "{got}: keys have {KEY_BYTES_MIN} to {KEY_BYTES_MAX}, values up to \
                     {VALUE_BYTES_MAX}"
                ),
            ),
        }
    }
}

impl fmt::Display for RecordLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed { key_bytes, value_bytes } => {
                write!(f, "{key_bytes} + {value_bytes} bytes")
            }
            Self::Variable => f.write_str("any length"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_must_fit() {
        let fixed = RecordLayout::Fixed { key_bytes: 8, value_bytes: 2 };
        fixed.check().expect("possible");
        fixed.check_record(b"12345678", b"ab").expect("fits");
        assert_eq!(fixed.check_record(b"1", b"ab").expect_err("no").kind(), Kind::Invalid);
        RecordLayout::Variable.check_record(b"1", b"").expect("fits");
        assert_eq!(
            RecordLayout::Variable.check_record(b"", b"").expect_err("no").kind(),
            Kind::TooLarge
        );
        let key = [0; 256];
        assert_eq!(
            RecordLayout::Variable.check_record(&key, b"").expect_err("no").kind(),
            Kind::TooLarge
        );
        assert!(RecordLayout::Fixed { key_bytes: 0, value_bytes: 1 }.check().is_err());
    }

    #[test]
    fn formats_have_names() {
        for format in ValueFormat::ALL {
            assert_eq!(ValueFormat::of_name(format.name()).expect("known"), format);
        }
        assert!(ValueFormat::of_name("bas").is_err());
    }
}
