// SPDX-License-Identifier: Apache-2.0
//! Schema: the meaning of the bytes in a directory's keys and values.
//!
//! The writer supplies it once and readers get it from the directory alone, so numbers are parsed
//! and printed as numbers. Bytes that the schema does not mention stay bytes.
//! Layout: docs/format/imd.md, "Schema". This file is its only encoder and decoder.
//! Invariants: fields ascend by offset, do not overlap, lie within values of one length, and have
//! unique names.

mod field_type;
mod key_names;

use std::fmt;

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};
use esker_base::{Error, Kind, Result};

pub use field_type::{FieldType, FieldValue, KEY_NUMBER_BYTES};
pub use key_names::KeyNames;

use crate::record_layout::RecordLayout;

/// Maximum number of fields in a schema.
pub const FIELDS_MAX: usize = 512;

/// Maximum bytes of a name or a unit.
pub const TEXT_BYTES_MAX: usize = 64;

/// Maximum bytes of an encoded schema: two texts, an offset and a type for each field.
pub const SCHEMA_BYTES_MAX: usize = (FIELDS_MAX + 1) * (2 * TEXT_BYTES_MAX + 16);

/// Columns present in every table of records.
const COLUMNS: [&str; 2] = ["epoch", "step"];

/// Description of a directory's keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectorySchema {
    /// Name of the key.
    pub key_name: String,
    /// Unit of a numeric key; empty if it has none.
    pub key_unit: String,
    /// Type of the key.
    pub key_type: FieldType,
    /// Fields of a value, by offset. They need not cover all of its bytes.
    pub fields: Vec<SchemaField>,
}

/// One field of every value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaField {
    /// Name.
    pub name: String,
    /// Unit; empty if it has none.
    pub unit: String,
    /// Offset from the start of the value.
    pub offset: u32,
    /// Storage type.
    pub kind: FieldType,
}

impl Default for DirectorySchema {
    /// A schema that describes nothing.
    fn default() -> Self {
        let (key_name, key_unit) = ("key".to_owned(), String::new());
        Self { key_name, key_unit, key_type: FieldType::UNTYPED, fields: Vec::new() }
    }
}

impl SchemaField {
    /// Decodes the field from a value of the directory.
    ///
    /// # Panics
    /// If the value ends before the field does: the schema was not checked.
    #[must_use]
    pub fn value<'v>(&self, value: &'v [u8]) -> FieldValue<'v> {
        let start = self.offset as usize;
        self.kind.value(&value[start..start + usize::from(self.kind.bytes())])
    }

    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.kind.bytes())
    }
}

impl fmt::Display for DirectorySchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut part = |name: &str, kind: &dyn fmt::Display, unit: &str| match unit {
            "" => write!(f, "{name}: {kind}"),
            _ => write!(f, "{name}: {kind}, in {unit}"),
        };
        part(&self.key_name, &self.key_type, &self.key_unit)?;
        self.fields.iter().try_for_each(|SchemaField { name, unit, offset, kind }| {
            part(&format!("; {name}"), &format!("{kind} at byte {offset}"), unit)
        })
    }
}

impl DirectorySchema {
    /// Checks that records of `layout` can have this schema.
    ///
    /// # Errors
    /// `Invalid`, naming the field and its fault.
    pub fn check(&self, layout: RecordLayout) -> Result<()> {
        self.find_fault(layout).map_or(Ok(()), |what| Err(Error::new(Kind::Invalid, what)))
    }

    /// The first fault of the schema for records of `layout`.
    fn find_fault(&self, layout: RecordLayout) -> Option<String> {
        let Self { key_name, key_unit, key_type, fields } = self;
        let (key_bytes, value_bytes) = match layout {
            RecordLayout::Fixed { key_bytes, value_bytes } => (usize::from(key_bytes), value_bytes),
            RecordLayout::Variable => (0, 0),
        };
        if *key_type != FieldType::UNTYPED && key_bytes != key_type.key_bytes() {
            let wanted = key_type.key_bytes();
            return Some(format!("keys of type {key_type} have {wanted} bytes, not {key_bytes}"));
        }
        if fields.len() > FIELDS_MAX {
            return Some(format!("{} fields: at most {FIELDS_MAX}", fields.len()));
        }
        let mut names = vec![key_name];
        let mut end = 0;
        for text in
            [key_name, key_unit].into_iter().chain(fields.iter().flat_map(SchemaField::texts))
        {
            if text.len() > TEXT_BYTES_MAX || text.contains(char::is_control) {
                let what = "names and units are at most";
                return Some(format!("`{text:.64}`: {what} {TEXT_BYTES_MAX} printable bytes"));
            }
        }
        for field in fields {
            let SchemaField { name, kind, .. } = field;
            let place = format!("field `{name}`, {kind} at byte {}", field.offset);
            if field.end() > u64::from(value_bytes) {
                return Some(format!("{place}, is not within values of {value_bytes} bytes"));
            }
            if u64::from(field.offset) < end {
                return Some(format!("{place}, begins before the field in front of it ends"));
            }
            if kind.bytes() == 0 || matches!(kind, FieldType::ScaledF32 { .. }) {
                return Some(format!("{place}: fields are numbers or some bytes, as stored"));
            }
            end = field.end();
            names.push(name);
        }
        names.sort_unstable();
        let twice = names.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let reserved = names.iter().find(|name| COLUMNS.contains(&name.as_str())).copied();
        if names[0].is_empty() {
            return Some("a key or field without a name".into());
        }
        let taken = twice.or(reserved)?;
        Some(format!("two columns would be called `{taken}`: choose another name"))
    }

    /// Appends the encoded schema.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.key_name.as_bytes());
        put_bytes(out, self.key_unit.as_bytes());
        self.key_type.encode(out);
        put_varint(out, self.fields.len() as u64);
        let mut before = 0;
        for field in &self.fields {
            put_bytes(out, field.name.as_bytes());
            put_bytes(out, field.unit.as_bytes());
            field.kind.encode(out);
            put_varint(out, u64::from(field.offset) - before);
            before = field.end();
        }
    }

    /// Decodes the schema of a directory whose records have `layout`.
    ///
    /// # Errors
    /// Damage if `bytes` are not a schema, or not one that records of `layout` can have.
    pub fn decode(bytes: &[u8], layout: RecordLayout) -> Result<Self, WireDamage> {
        let mut input = WireInput::new(bytes);
        let (key_name, key_unit) = (text(&mut input)?, text(&mut input)?);
        let key_type = FieldType::decode(&mut input)?;
        let count = input.varint_max(FIELDS_MAX, "as many fields as a schema may have")?;
        let mut fields = Vec::new();
        let mut before = 0_u64;
        for _ in 0..count {
            let (name, unit) = (text(&mut input)?, text(&mut input)?);
            let kind = FieldType::decode(&mut input)?;
            let gap = input.varint_max(u32::MAX as usize, "a field's offset")? as u64;
            let offset = u32::try_from(before + gap);
            let offset = offset.map_err(|_| input.damage("a field's offset"))?;
            let field = SchemaField { name, unit, offset, kind };
            before = field.end();
            fields.push(field);
        }
        input.end()?;
        let schema = Self { key_name, key_unit, key_type, fields };
        match schema.find_fault(layout) {
            Some(_) => Err(WireDamage { offset: 0, what: "a schema that its records can have" }),
            None => Ok(schema),
        }
    }
}

impl SchemaField {
    fn texts(&self) -> [&String; 2] {
        [&self.name, &self.unit]
    }
}

fn text(input: &mut WireInput<'_>) -> Result<String, WireDamage> {
    let bytes = input.bytes(TEXT_BYTES_MAX, "a name or unit")?.to_vec();
    String::from_utf8(bytes).map_err(|_| input.damage("a name or unit in UTF-8"))
}

#[cfg(test)]
mod tests;
