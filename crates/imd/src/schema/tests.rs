// SPDX-License-Identifier: Apache-2.0
//! Schemas: round trips, and hostile ones that decoding refuses.

use super::*;

const SHAPE: RecordLayout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 32 };

fn field(name: &str, offset: u32, kind: FieldType) -> SchemaField {
    SchemaField { name: name.into(), unit: "m/s".into(), offset, kind }
}

fn schema() -> DirectorySchema {
    DirectorySchema {
        key_name: "tracer".into(),
        key_unit: String::new(),
        key_type: FieldType::ScaledF32 { exponent: 100 },
        fields: vec![
            field("dx", 0, FieldType::F32),
            field("i", 12, FieldType::I32),
            field("tag", 20, FieldType::Bytes { count: 12 }),
        ],
    }
}

fn encoded(schema: &DirectorySchema) -> Vec<u8> {
    let mut out = Vec::new();
    schema.encode(&mut out);
    out
}

#[test]
fn schemas_round_trip() {
    let schema = schema();
    schema.check(SHAPE).expect("possible");
    let bytes = encoded(&schema);
    assert!(bytes.len() <= SCHEMA_BYTES_MAX);
    assert_eq!(DirectorySchema::decode(&bytes, SHAPE), Ok(schema));
    for cut in 0..bytes.len() {
        assert!(DirectorySchema::decode(&bytes[..cut], SHAPE).is_err());
    }
    // Any flip is refused or gives another possible schema.
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        if let Ok(other) = DirectorySchema::decode(&flipped, SHAPE) {
            other.check(SHAPE).expect("what is decoded is possible");
        }
    }
    let untyped = DirectorySchema::default();
    let bytes = encoded(&untyped);
    assert_eq!(DirectorySchema::decode(&bytes, RecordLayout::Variable), Ok(untyped.clone()));
    assert_eq!(DirectorySchema::decode(&bytes, SHAPE), Ok(untyped));
}

/// Overlapping fields, fields outside the row, a key of another length, duplicate names.
#[test]
fn hostile_schemas_are_refused() {
    let refused = |change: &dyn Fn(&mut DirectorySchema), what: &str| {
        let mut hostile = schema();
        change(&mut hostile);
        let error = hostile.check(SHAPE).expect_err(what);
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains(what), "{error}");
    };
    refused(&|schema| schema.fields[2].offset = 21, "is not within values of 32 bytes");
    refused(&|schema| schema.fields[1].offset = 3, "begins before the field in front of it ends");
    refused(&|schema| schema.fields[1].offset = u32::MAX, "is not within");
    refused(&|schema| schema.key_type = FieldType::Bytes { count: 9 }, "have 9 bytes, not 8");
    refused(&|schema| schema.fields[1].name = "dx".into(), "would be called `dx`");
    refused(&|schema| schema.fields[1].name = "tracer".into(), "would be called `tracer`");
    refused(&|schema| schema.fields[1].name = "step".into(), "would be called `step`");
    refused(&|schema| schema.fields[1].name = String::new(), "without a name");
    refused(&|schema| schema.fields[1].unit = "a\nb".into(), "printable");
    refused(&|schema| schema.fields[1].name = "n".repeat(65), "at most 64");
    refused(&|schema| schema.fields[1].kind = FieldType::UNTYPED, "as stored");
    let many = (0..=FIELDS_MAX).map(|number| field(&number.to_string(), 0, FieldType::U8));
    let many: Vec<SchemaField> = many.collect();
    refused(&|schema| schema.fields.clone_from(&many), "at most 512");

    // The same as encoded bytes; ascending fields cannot overlap.
    let outside = DirectorySchema { fields: vec![field("x", 29, FieldType::F32)], ..schema() };
    assert!(DirectorySchema::decode(&encoded(&outside), SHAPE).is_err());
    assert!(DirectorySchema::decode(&encoded(&schema()), RecordLayout::Variable).is_err());
    let mut huge = encoded(&DirectorySchema::default());
    let count = huge.pop().expect("the count of fields");
    assert_eq!(count, 0);
    put_varint(&mut huge, u64::MAX >> 1);
    assert!(DirectorySchema::decode(&huge, SHAPE).is_err());
}
