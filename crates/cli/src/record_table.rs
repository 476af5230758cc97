// SPDX-License-Identifier: Apache-2.0
//! Record table: prints records of an indexed directory as lines, JSON or a NumPy array.
//!
//! Columns are the key, the epoch's number and step, and the fields of the directory's schema.
//! Without fields, one column holds the value in hexadecimal digits.

use esker_base::{Error, Kind, Result};
use esker_imd::schema::{DirectorySchema, FieldType, FieldValue, KeyNames, SchemaField};
use serde_json::{Map, Value, json};

use crate::text::hex;

/// Prints the records of a directory.
pub struct RecordTable {
    schema: DirectorySchema,
    names: KeyNames,
    steps: Vec<u64>,
    /// True if keys and values are always shown in hexadecimal digits.
    is_hex: bool,
}

/// A record to print.
#[derive(Clone, Copy, Debug)]
pub struct ShownRecord<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// The number of its epoch.
    pub epoch: u32,
    /// Its value.
    pub value: &'a [u8],
}

impl RecordTable {
    /// Creates a table for records with this schema, in epochs with these steps.
    pub fn new(schema: &DirectorySchema, names: KeyNames, steps: Vec<u64>) -> Self {
        Self { schema: schema.clone(), names, steps, is_hex: false }
    }

    /// Switches keys and values to hexadecimal digits.
    pub fn in_hex(self) -> Self {
        Self { is_hex: true, ..self }
    }

    fn fields(&self) -> &[SchemaField] {
        if self.is_hex { &[] } else { &self.schema.fields }
    }

    fn key(&self, key: &[u8]) -> String {
        if self.is_hex { hex(key) } else { self.names.name_of_key(key) }
    }

    fn step(&self, epoch: u32) -> u64 {
        self.steps.get(epoch as usize).copied().unwrap_or(u64::from(epoch))
    }

    /// The header line.
    pub fn csv_head(&self) -> String {
        let mut head = format!("{},epoch,step", quoted(&self.schema.key_name));
        for field in self.fields() {
            head = head + "," + &quoted(&field.name);
        }
        if self.fields().is_empty() { head + ",value" } else { head }
    }

    /// The line of `record`.
    pub fn csv(&self, record: ShownRecord<'_>) -> String {
        let ShownRecord { key, epoch, value } = record;
        let mut line = format!("{},{epoch},{}", quoted(&self.key(key)), self.step(epoch));
        for field in self.fields() {
            line = line + "," + &field.value(value).to_string();
        }
        if self.fields().is_empty() { line + "," + &hex(value) } else { line }
    }

    /// `record` as JSON.
    pub fn json(&self, record: ShownRecord<'_>) -> Value {
        let ShownRecord { key, epoch, value } = record;
        let (key, step) = (self.key(key), self.step(epoch));
        if self.fields().is_empty() {
            return json!({"key": key, "epoch": epoch, "step": step, "value": hex(value)});
        }
        let fields = self.fields().iter();
        let fields = fields.map(|field| (field.name.clone(), json_of(field.value(value))));
        let fields: Map<String, Value> = fields.collect();
        json!({"key": key, "epoch": epoch, "step": step, "fields": fields})
    }

    /// The header of a NumPy file of `rows` records, with keys of `key_bytes` and values of
    /// `value_bytes`.
    pub fn npy_head(&self, rows: u64, key_bytes: usize, value_bytes: usize) -> Vec<u8> {
        let key_type = match self.schema.key_type {
            _ if self.is_hex => None,
            FieldType::Bytes { .. } => None,
            FieldType::F32 => Some("<f4"),
            FieldType::F64 => Some("<f8"),
            kind if kind.is_signed() => Some("<i8"),
            _ => Some("<u8"),
        };
        let void = |bytes: usize| format!("|V{bytes}");
        let mut columns = vec![
            (&*self.schema.key_name, key_type.map_or_else(|| void(key_bytes), Into::into)),
            ("epoch", "<u4".into()),
            ("step", "<u8".into()),
        ];
        // Bytes outside all fields are padding, whose name is empty.
        let mut end = 0;
        for field in self.fields() {
            let start = field.offset as usize;
            if start > end {
                columns.push(("", void(start - end)));
            }
            columns.push((&field.name, numpy_type(field.kind)));
            end = start + usize::from(field.kind.bytes());
        }
        if self.fields().is_empty() {
            columns.push(("value", void(value_bytes)));
        } else if value_bytes > end {
            columns.push(("", void(value_bytes - end)));
        }
        let quote = |name: &str| name.replace('\\', "\\\\").replace('\'', "\\'");
        let columns: Vec<String> =
            columns.iter().map(|(name, kind)| format!("('{}', '{kind}')", quote(name))).collect();
        npy_file_head(&format!(
            "{{'descr': [{}], 'fortran_order': False, 'shape': ({rows},), }}",
            columns.join(", ")
        ))
    }

    /// Appends `record` as a row of a NumPy array.
    pub fn put_npy(&self, record: ShownRecord<'_>, out: &mut Vec<u8>) {
        let ShownRecord { key, epoch, value } = record;
        let typed = if self.is_hex { FieldType::UNTYPED } else { self.schema.key_type };
        match typed.value_of_key(key) {
            FieldValue::Unsigned(number) => out.extend_from_slice(&number.to_le_bytes()),
            FieldValue::Signed(number) => out.extend_from_slice(&number.to_le_bytes()),
            FieldValue::F32(number) => out.extend_from_slice(&number.to_le_bytes()),
            FieldValue::F64(number) => out.extend_from_slice(&number.to_le_bytes()),
            FieldValue::Bytes(bytes) => out.extend_from_slice(bytes),
        }
        out.extend_from_slice(&epoch.to_le_bytes());
        out.extend_from_slice(&self.step(epoch).to_le_bytes());
        out.extend_from_slice(value);
    }

    /// A NumPy file of `records`.
    ///
    /// # Errors
    /// `Invalid` if keys or values differ in length.
    pub fn npy(&self, records: &[ShownRecord<'_>]) -> Result<Vec<u8>> {
        let lengths = |record: &ShownRecord<'_>| (record.key.len(), record.value.len());
        let (key_bytes, value_bytes) = records.first().map_or((0, 0), lengths);
        if !records.iter().all(|record| lengths(record) == (key_bytes, value_bytes)) {
            let what = "keys or values differ in length, which NumPy arrays cannot: write CSV";
            return Err(Error::new(Kind::Invalid, what));
        }
        let mut out = self.npy_head(records.len() as u64, key_bytes, value_bytes);
        records.iter().for_each(|record| self.put_npy(*record, &mut out));
        Ok(out)
    }
}

/// A JSON number if JSON can represent the value; otherwise its text.
fn json_of(value: FieldValue<'_>) -> Value {
    match value {
        FieldValue::Unsigned(number) => json!(number),
        FieldValue::Signed(number) => json!(number),
        FieldValue::F32(number) if number.is_finite() => json!(number),
        FieldValue::F64(number) if number.is_finite() => json!(number),
        other => json!(other.to_string()),
    }
}

/// NumPy's name for a field's type.
fn numpy_type(kind: FieldType) -> String {
    let bytes = kind.bytes();
    match kind {
        FieldType::U8 | FieldType::I8 => if kind.is_signed() { "|i1" } else { "|u1" }.into(),
        FieldType::U16be | FieldType::U32be | FieldType::U64be => format!(">u{bytes}"),
        FieldType::F32 | FieldType::F64 => format!("<f{bytes}"),
        FieldType::Bytes { .. } | FieldType::ScaledF32 { .. } => format!("|V{bytes}"),
        kind if kind.is_signed() => format!("<i{bytes}"),
        _ => format!("<u{bytes}"),
    }
}

/// Magic, version, length and `description`, padded to a multiple of 64 bytes. Version 1.0 has
/// ASCII and a 16-bit length, version 3.0 UTF-8 and a 32-bit length.
fn npy_file_head(description: &str) -> Vec<u8> {
    const ALIGNMENT: usize = 64;
    let is_small = description.is_ascii() && description.len() + 2 * ALIGNMENT < 1 << 16;
    let (version, length_bytes) = if is_small { (1, 2) } else { (3, 4) };
    let before = 8 + length_bytes;
    let length = (before + description.len() + 1).next_multiple_of(ALIGNMENT) - before;
    let mut out = b"\x93NUMPY".to_vec();
    out.extend_from_slice(&[version, 0]);
    out.extend_from_slice(&(length as u64).to_le_bytes()[..length_bytes]);
    out.extend_from_slice(description.as_bytes());
    out.resize(before + length - 1, b' ');
    out.push(b'\n');
    out
}

/// Quotes a field of a comma-separated line if necessary.
fn quoted(field: &str) -> String {
    if field.contains([',', '"']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_imd::RecordLayout;

    fn table() -> RecordTable {
        let field = |name: &str, offset, kind| SchemaField {
            name: name.into(),
            unit: String::new(),
            offset,
            kind,
        };
        let schema = DirectorySchema {
            key_name: "id".into(),
            key_unit: String::new(),
            key_type: FieldType::I16,
            fields: vec![
                field("x", 2, FieldType::F32),
                field("it's, n", 6, FieldType::U16be),
                field("tag", 8, FieldType::Bytes { count: 2 }),
            ],
        };
        let shape = RecordLayout::Fixed { key_bytes: 8, value_bytes: 12 };
        schema.check(shape).expect("possible");
        RecordTable::new(&schema, KeyNames::new(FieldType::I16, shape), vec![0, 500])
    }

    #[test]
    fn columns_have_types() {
        let table = table();
        let key = FieldType::I16.key_of_text("-3").expect("a number");
        let mut value = vec![0xee; 2];
        value.extend_from_slice(&0.5_f32.to_le_bytes());
        value.extend_from_slice(&[1, 2, 0xab, 0xcd, 0xee, 0xee]);
        let record = ShownRecord { key: &key, epoch: 1, value: &value };
        assert_eq!(table.csv_head(), "id,epoch,step,x,\"it's, n\",tag");
        assert_eq!(table.csv(record), "-3,1,500,0.5,258,abcd");
        let fields = json!({"x": 0.5, "it's, n": 258, "tag": "abcd"});
        let expected = json!({"key": "-3", "epoch": 1, "step": 500, "fields": fields});
        assert_eq!(table.json(record), expected);
        let npy = table.npy(&[record]).expect("one shape");
        let text = String::from_utf8_lossy(&npy[10..]);
        assert!(
            text.starts_with(
                "{'descr': [('id', '<i8'), ('epoch', '<u4'), ('step', '<u8'), ('', '|V2'), \
                 ('x', '<f4'), ('it\\'s, n', '>u2'), ('tag', '|V2'), ('', '|V2')], \
                 'fortran_order': False, 'shape': (1,), }"
            ),
            "{text}"
        );
        let row = &npy[npy.len() - 32..];
        assert_eq!(row[..8], (-3_i64).to_le_bytes());
        assert_eq!((&row[12..20], &row[20..]), (&500_u64.to_le_bytes()[..], &value[..]));
        assert_eq!((npy.len() - 32) % 64, 0);
        let bare = table.in_hex();
        assert_eq!(bare.csv_head(), "id,epoch,step,value");
        assert!(bare.csv(record).ends_with(",1,500,eeee0000003f0102abcdeeee"));
    }

    #[test]
    fn heads_of_other_letters_are_of_version_3() {
        let head = npy_file_head("{'é': 1}");
        assert!(head.starts_with(b"\x93NUMPY\x03\x00"));
        let length = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        assert_eq!((head.len() - 12, head.len() % 64), (length, 0));
    }
}
