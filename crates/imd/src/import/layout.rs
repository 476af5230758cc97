// SPDX-License-Identifier: Apache-2.0
//! Layout: the location of each field in a file of records.

use esker_base::{Error, Kind, Result};

use super::field::DumpField;
use crate::record_layout::RecordLayout;
use crate::schema::{DirectorySchema, FieldType, SchemaField};

/// Maximum bytes of a header.
const HEADER_BYTES_MAX: u32 = 1 << 20;

/// Maximum bytes of a record.
const RECORD_BYTES_MAX: u32 = 1 << 20;

/// Layout of a file of fixed-width records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpLayout {
    /// Bytes before the first record.
    pub header_bytes: u32,
    /// Bytes of each record.
    pub record_bytes: u32,
    /// The key within a record.
    pub key: DumpField,
    /// Name of the key.
    pub key_name: String,
    /// Other known fields of a record, for the directory's schema.
    pub fields: Vec<SchemaField>,
    /// The step within the header: files of one step become one epoch. Without it, all files become
    /// one epoch.
    pub step: Option<DumpField>,
    /// The number of records within the header, which must match the size of the file.
    pub count: Option<DumpField>,
}

impl DumpLayout {
    /// Particles as written by `dump_particles` of VPIC (lanl/vpic), little-endian; tracers carry
    /// their id in the weight: `id = w · 2^100`. Positions are within the cell `i`, from -1 to 1,
    /// momenta are relative to the rest mass, `p / mc`.
    #[must_use]
    pub fn vpic() -> Self {
        let field = |name: &str, unit: &str, offset, kind| SchemaField {
            name: name.into(),
            unit: unit.into(),
            offset,
            kind,
        };
        let fields = vec![
            field("dx", "half cells", 0, FieldType::F32),
            field("dy", "half cells", 4, FieldType::F32),
            field("dz", "half cells", 8, FieldType::F32),
            field("i", "", 12, FieldType::I32),
            field("ux", "mc", 16, FieldType::F32),
            field("uy", "mc", 20, FieldType::F32),
            field("uz", "mc", 24, FieldType::F32),
            field("w", "", 28, FieldType::F32),
        ];
        Self {
            header_bytes: 115,
            record_bytes: 32,
            key: DumpField { offset: 28, kind: FieldType::ScaledF32 { exponent: 100 } },
            key_name: "tracer".into(),
            fields,
            step: Some(DumpField { offset: 31, kind: FieldType::I32 }),
            count: Some(DumpField { offset: 111, kind: FieldType::I32 }),
        }
    }

    /// The layout of a directory for such records: the values are whole records.
    ///
    /// # Panics
    /// If the layout was not checked.
    #[must_use]
    pub fn record_layout(&self) -> RecordLayout {
        let key_bytes = u8::try_from(self.key.kind.key_bytes()).expect("at most 255 bytes");
        RecordLayout::Fixed { key_bytes, value_bytes: self.record_bytes }
    }

    /// The schema of such a directory.
    #[must_use]
    pub fn schema(&self) -> DirectorySchema {
        DirectorySchema {
            key_name: self.key_name.clone(),
            key_unit: String::new(),
            key_type: self.key.kind,
            fields: self.fields.clone(),
        }
    }

    /// Checks that every field is within its header or record.
    ///
    /// # Errors
    /// `Invalid`, naming the field that is not.
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
            if field.is_some_and(|field| !field.kind.is_integer()) {
                return invalid(format!("the {name} is an integer of up to 8 bytes"));
            }
        }
        if self.key.kind.bytes() == 0 {
            return invalid("keys have 1 byte at least".into());
        }
        self.schema().check(self.record_layout())
    }
}
