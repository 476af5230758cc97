//! Layout: where in a file of records what is.

use esker_base::{Error, Kind, Result};

use super::field::{Field, Number};
use crate::hash::KEY_BYTES_MAX;

/// Headers have at most this many bytes.
const HEADER_BYTES_MAX: u32 = 1 << 20;

/// Records have at most this many bytes.
const RECORD_BYTES_MAX: u32 = 1 << 20;

/// What a file of records of a fixed width looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes before the first record.
    pub header_bytes: u32,
    /// Bytes of each record.
    pub record_bytes: u32,
    /// The key within a record.
    pub key: Field,
    /// The step within the header: files of one step become one epoch. Without it all files do.
    pub step: Option<Field>,
    /// The number of records within the header, to be compared with the size of the file.
    pub count: Option<Field>,
}

impl Layout {
    /// Particles as `dump_particles` of VPIC (lanl/vpic) writes them, little-endian; tracers carry
    /// their id in the weight: `id = w · 2^100`.
    #[must_use]
    pub const fn vpic() -> Self {
        Self {
            header_bytes: 115,
            record_bytes: 32,
            key: Field { offset: 28, number: Number::ScaledF32 { exponent: 100 } },
            step: Some(Field { offset: 31, number: Number::I32 }),
            count: Some(Field { offset: 111, number: Number::I32 }),
        }
    }

    /// Fails unless every field is where there are bytes.
    ///
    /// # Errors
    /// `Invalid` says which is not.
    pub fn check(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::new(Kind::Invalid, what));
        if !(1..=RECORD_BYTES_MAX).contains(&self.record_bytes) {
            let bytes = self.record_bytes;
            return invalid(format!("records of {bytes} bytes: 1 to {RECORD_BYTES_MAX}"));
        }
        if self.header_bytes > HEADER_BYTES_MAX {
            let bytes = self.header_bytes;
            return invalid(format!("a header of {bytes} bytes: at most {HEADER_BYTES_MAX}"));
        }
        for (name, field, bytes) in [
            ("key", Some(self.key), self.record_bytes),
            ("step", self.step, self.header_bytes),
            ("count", self.count, self.header_bytes),
        ] {
            let Some(field) = field else { continue };
            if u64::from(field.offset) + u64::from(field.bytes()) > u64::from(bytes) {
                return invalid(format!("the {name}, {field}, is not within {bytes} bytes"));
            }
        }
        for (name, field) in [("step", self.step), ("count", self.count)] {
            if field.is_some_and(|field| !field.number.is_integer()) {
                return invalid(format!("the {name} is an integer of up to 8 bytes"));
            }
        }
        if let Number::Bytes { count } = self.key.number
            && !(1..=KEY_BYTES_MAX).contains(&usize::from(count))
        {
            return invalid(format!("keys have 1 to {KEY_BYTES_MAX} bytes, not {count}"));
        }
        Ok(())
    }
}
