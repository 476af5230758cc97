// SPDX-License-Identifier: Apache-2.0
//! Indexed export: the forms in which indexed directories are exported.

use std::sync::Arc;

use clap::ValueEnum;
use esker_base::store::SharedStore;
use esker_base::{Error, Kind, Result};
use esker_fs::inode::indexed::IndexedPart;
use esker_fs::traversal::export::IndexedForm;
use esker_imd::{IndexedReader, RecordLayout};

use crate::record_table::{RecordTable, ShownRecord};

/// Number of keys whose values are read together.
const KEYS_AT_ONCE: usize = 1024;

/// Bytes of lines or rows written together.
const PIECE_BYTES: usize = 1 << 20;

/// Receives a name and bytes.
type TakeEntry<'t> = dyn FnMut(&[u8], &[u8]) -> Result<()> + 't;

/// The form in which an indexed directory is exported.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum IndexedFormName {
    /// A directory with a file per key, which holds the key's values one after the other
    #[default]
    Files,
    /// A NumPy array of all records, with typed fields
    Npy,
    /// A table of all records, with comma-separated values
    Csv,
}

impl IndexedFormName {
    /// The form.
    pub fn form(self) -> IndexedForm {
        match self {
            Self::Files => IndexedForm::Files(Arc::new(|store, parts, take| {
                each_key(&open(store, parts)?, take)
            })),
            Self::Npy => IndexedForm::OneFile(
                ".npy",
                Arc::new(|store, parts, take| npy(&open(store, parts)?, take)),
            ),
            Self::Csv => IndexedForm::OneFile(
                ".csv",
                Arc::new(|store, parts, take| csv(&open(store, parts)?, take)),
            ),
        }
    }
}

fn open(store: &SharedStore, parts: &[IndexedPart]) -> Result<IndexedReader> {
    let prefixes: Vec<String> = parts.iter().map(IndexedPart::prefix).collect();
    IndexedReader::open(store, &prefixes, 0)
}

/// Passes the name and all values of each key to `take`.
fn each_key(reader: &IndexedReader, take: &mut TakeEntry<'_>) -> Result<()> {
    let names = reader.key_names();
    let mut batch: Vec<Vec<u8>> = Vec::new();
    let mut hand_over = |batch: &mut Vec<Vec<u8>>| -> Result<()> {
        let found = reader.get_many(batch, 0..u32::MAX, 1)?;
        for (key, values) in batch.drain(..).zip(found.values) {
            let pieces: Vec<&[u8]> = values.iter().map(|value| &value.bytes[..]).collect();
            take(names.name_of_key(&key).as_bytes(), &pieces.concat())?;
        }
        Ok(())
    };
    reader.keys(|key| {
        batch.push(key.to_vec());
        if batch.len() == KEYS_AT_ONCE {
            hand_over(&mut batch)?;
        }
        Ok(true)
    })?;
    hand_over(&mut batch)
}

/// Passes all records, epoch by epoch, to `put`, which appends them to a buffer for `take`.
fn each_record(
    reader: &IndexedReader,
    head: Vec<u8>,
    put: impl Fn(ShownRecord<'_>, &mut Vec<u8>),
    take: &mut TakeEntry<'_>,
) -> Result<()> {
    let mut bytes = head;
    for epoch in 0..reader.epochs_complete()? {
        reader.scan(epoch, |key, value| {
            put(ShownRecord { key, epoch, value }, &mut bytes);
            if bytes.len() >= PIECE_BYTES {
                take(b"", &bytes)?;
                bytes.clear();
            }
            Ok(true)
        })?;
    }
    take(b"", &bytes)
}

fn table_of(reader: &IndexedReader) -> Result<RecordTable> {
    Ok(RecordTable::new(reader.schema(), reader.key_names(), reader.steps()?))
}

fn csv(reader: &IndexedReader, take: &mut TakeEntry<'_>) -> Result<()> {
    let table = table_of(reader)?;
    let put = |record: ShownRecord<'_>, out: &mut Vec<u8>| {
        out.extend_from_slice(table.csv(record).as_bytes());
        out.push(b'\n');
    };
    each_record(reader, (table.csv_head() + "\n").into_bytes(), put, take)
}

fn npy(reader: &IndexedReader, take: &mut TakeEntry<'_>) -> Result<()> {
    let RecordLayout::Fixed { key_bytes, value_bytes } = reader.record_layout() else {
        let what = "its records differ in length, which NumPy arrays cannot: use --indexed csv";
        return Err(Error::new(Kind::Invalid, what));
    };
    let (table, rows) = (table_of(reader)?, reader.totals().rows);
    let head = table.npy_head(rows, usize::from(key_bytes), value_bytes as usize);
    each_record(reader, head, |record, out| table.put_npy(record, out), take)
}
