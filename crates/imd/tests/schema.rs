// SPDX-License-Identifier: Apache-2.0
//! Schema: readers get keys, values and the steps of epochs from the directory alone, finished or
//! not.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{MemoryStore, SharedStore};
use esker_comm::{Transport, threads};
use esker_imd::schema::{DirectorySchema, FieldType, SchemaField};
use esker_imd::{DirectoryOptions, DirectoryReader, DirectoryWriter, RecordLayout, ValueFormat};

const SHAPE: RecordLayout = RecordLayout::Fixed { key_bytes: 8, value_bytes: 4 };

fn options() -> DirectoryOptions {
    let field = SchemaField { name: "x".into(), unit: "m".into(), offset: 0, kind: FieldType::F32 };
    let mut options = DirectoryOptions::new(9, ValueFormat::Base, SHAPE);
    options.memory_bytes = 4 << 20;
    options.schema = DirectorySchema {
        key_name: "id".into(),
        key_type: FieldType::U64,
        fields: vec![field],
        ..DirectorySchema::default()
    };
    options
}

/// Two ranks write epochs with steps 100 and 250.
fn write(finishes: bool) -> SharedStore {
    let store: SharedStore = Arc::new(MemoryStore::new());
    threads::run(2, 2, |transport| {
        let rank = u64::from(transport.rank().0);
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options())?;
        for step in [100, 250] {
            imd.append(&rank.to_be_bytes(), &0.5_f32.to_le_bytes())?;
            imd.epoch_flush_at(step)?;
        }
        if finishes { imd.finish().map(drop) } else { Ok(()) }
    })
    .expect("written");
    store
}

#[test]
fn a_directory_tells_its_schema_and_steps() {
    for finishes in [true, false] {
        let store = write(finishes);
        let reader = DirectoryReader::open(&store, "d/", 0).expect("open");
        assert_eq!(reader.directory().is_some(), finishes);
        assert_eq!(*reader.schema(), options().schema);
        assert_eq!(reader.steps().expect("complete"), [100, 250]);
        let key = reader.key_names().key_of_name(b"1").expect("a number");
        let values = reader.get(&key).expect("get").values;
        assert_eq!(values.len(), 2);
        let x = reader.schema().fields[0].value(&values[1].bytes);
        assert_eq!(x.to_string(), "0.5");
    }
}

#[test]
fn steps_ascend_and_schemas_fit() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    threads::run(1, 1, |transport| {
        let mut imd = DirectoryWriter::create(&store, "d/", transport, &options())?;
        imd.epoch_flush_at(5)?;
        let error = imd.epoch_flush_at(5).expect_err("the same step");
        assert_eq!(error.kind(), Kind::Invalid);
        // The failure changed nothing: the writer continues with the step after the last.
        imd.epoch_flush()?;
        imd.finish()
    })
    .expect("written");
    let reader = DirectoryReader::open(&store, "d/", 0).expect("open");
    assert_eq!(reader.steps().expect("finished"), [5, 6]);
    threads::run(1, 1, |transport| {
        let mut options = options();
        options.schema.fields[0].offset = 1;
        let error = DirectoryWriter::create(&store, "e/", transport, &options)
            .expect_err("outside the value");
        assert_eq!(error.kind(), Kind::Invalid);
        Ok(())
    })
    .expect("refused");
}
