// SPDX-License-Identifier: Apache-2.0
//! Field: location and type of a number or byte string in a header or record.

use std::fmt;
use std::str::FromStr;

use esker_base::{Error, Kind};

use crate::schema::{FieldType, FieldValue};

/// A number or byte string at an offset: `OFFSET:TYPE` in text, such as `8:u64`, `28:f32*2^100`,
/// `0:bytes16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpField {
    /// Offset from the start of the header or record.
    pub offset: u32,
    /// Storage type.
    pub kind: FieldType,
}

impl DumpField {
    /// Bytes of the field.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        self.kind.bytes() as u32
    }

    fn stored(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.offset as usize..][..usize::from(self.kind.bytes())]
    }

    /// Appends the key in `record`: 8 bytes for a number, big-endian and in numeric order.
    ///
    /// # Errors
    /// The expectation that the bytes violate, if they are not such a number.
    ///
    /// # Panics
    /// If the record ends before the field does: [`super::DumpLayout::check`] excludes that.
    #[inline]
    pub fn put_key(self, record: &[u8], key: &mut Vec<u8>) -> Result<(), &'static str> {
        self.kind.put_key(self.stored(record), key)
    }

    /// The integer in `header`.
    pub(super) fn integer(self, header: &[u8]) -> i128 {
        match self.kind.value(self.stored(header)) {
            FieldValue::Unsigned(number) => i128::from(number),
            FieldValue::Signed(number) => i128::from(number),
            FieldValue::F32(_) | FieldValue::F64(_) | FieldValue::Bytes(_) => {
                unreachable!("a checked layout has integers in its header")
            }
        }
    }
}

impl fmt::Display for DumpField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.offset, self.kind)
    }
}

impl FromStr for DumpField {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |what: String| {
            let what = format!("`{text}` is not OFFSET:TYPE: {what}");
            Error::new(Kind::Invalid, what)
        };
        let (offset, kind) =
            text.split_once(':').ok_or_else(|| invalid("it has no colon".into()))?;
        let offset = offset.parse().map_err(|_| invalid(format!("no offset `{offset}`")))?;
        let kind = kind.parse().map_err(|error: Error| invalid(error.context().to_owned()))?;
        Ok(Self { offset, kind })
    }
}
