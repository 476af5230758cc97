// SPDX-License-Identifier: Apache-2.0
//! Golden bytes: the encoders still write exactly the bytes that docs/format shows.
//!
//! An example in a document is a fence of hexadecimal digits, with comments after `#`, that follows
//! a line `<!-- golden: NAME -->`. Larger examples are in tests/golden/. `ESKER_BLESS=1` with one
//! test thread rewrites those that differ, including the comments in a fence: write these again by
//! hand. Bytes that earlier readers could not read are a new format version.

use std::sync::Arc;

use esker_base::store::identity::StoreIdentity;
use esker_base::store::{MemoryStore, SharedStore, Store};
use esker_base::{ProcessIdentity, Random};
use esker_table::internals::BlockBuilder;
use esker_table::internals::encode_manifest;
use esker_table::internals::{ChunkOrigin, LogBlock, ShardLog};
use esker_table::internals::{ParsedInts, StringsBuilder};
use esker_table::manifest::{JobMembership, LogNumbers, Manifest, ReferencedLogs, SetId, TableRef};
use esker_table::run_writer::RunWriter;
use esker_table::schema::record::{self, RECORD};
use esker_table::schema::{KeyBuffer, RowBuffer};
use esker_table::set_writer::SetWriter;
use esker_table::{LOG_MAGIC, LogId};

use crate::golden_document::{assert_documented, fence, parse_hex, root, to_hex};
use crate::records::SET;

fn assert_golden(name: &str, bytes: &[u8]) {
    let path = root().join("crates/table/tests/golden").join(name);
    if std::env::var_os("ESKER_BLESS").is_some() {
        std::fs::write(&path, to_hex(bytes)).expect("write");
    }
    let golden = std::fs::read_to_string(&path).expect("golden bytes; make them by ESKER_BLESS=1");
    assert!(
        parse_hex(&golden) == bytes,
        "{name} differs: if that is meant, run with ESKER_BLESS=1"
    );
}

fn ints(values: &[u64]) -> Vec<u8> {
    let mut out = Vec::new();
    ParsedInts::encode(values, false, &mut out);
    out
}

#[test]
fn integer_columns() {
    let spread = |row: u64| row.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let runs: Vec<u64> = (0..40).map(|row| spread(row / 20)).collect();
    let few: Vec<u64> = (0..40).map(|row| spread((row + row / 13) % 3)).collect();
    let near: Vec<u64> =
        (0..24).map(|row| (1 << 40) + row * 1_000 + (row * row / 5) % 11).collect();
    let tiles: Vec<u64> = (0..40).map(|row| (row / 4) * 65_536 + (row % 4) * 1_024).collect();
    for (name, values) in [
        ("constant", vec![300; 5]),
        ("packed", vec![1_000, 1_003, 1_001, 1_002]),
        ("runs", runs),
        ("dictionary", few),
        ("delta", near),
        ("phrase", tiles),
    ] {
        assert_documented("table.md", name, &ints(&values));
    }
}

#[test]
fn string_columns() {
    let encode = |strings: &[&[u8]]| {
        let mut builder = StringsBuilder::default();
        strings.iter().for_each(|string| builder.push(string));
        let mut out = Vec::new();
        builder.encode(&mut out);
        out
    };
    assert_documented("table.md", "plain", &encode(&[b"abc", b"abde"]));
    let digits = [&b"n0101010"[..], b"n1010101", b"n0011001"];
    assert_documented("table.md", "alphabet", &encode(&digits));
    let every: Vec<u8> = (0..=127).collect();
    let long = [&every[..], &every, &every];
    assert_golden("lz4.hex", &encode(&long));
}

fn put(builder: &mut BlockBuilder, key: &[u8], seq: u64, value: &[u8]) {
    let mut row = record::row(key, value);
    row.ints[record::SEQ] = seq;
    RECORD.store(&mut row.ints);
    builder.push(&row);
}

const SAMPLE: [(&[u8], u64, &[u8]); 3] =
    [(b"a", 1, b"one"), (b"b", 2, b"two"), (b"exactly8", 3, b"")];

#[test]
fn block() {
    let mut builder = BlockBuilder::new(&RECORD);
    SAMPLE.iter().for_each(|(key, seq, value)| put(&mut builder, key, *seq, value));
    let mut out = Vec::new();
    builder.finish(&mut out);
    assert_documented("table.md", "block", &out);
}

/// Writes records into one run and returns the objects.
fn tables(records: &[RowBuffer]) -> Vec<Vec<u8>> {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let mut next_table = 0;
    let mut writer = RunWriter::new(&RECORD, &store, SET, 1, &mut next_table);
    records.iter().for_each(|row| writer.push(&row.row()).expect("push"));
    let references = writer.finish().expect("finish");
    let get = |reference: &TableRef| store.get(&reference.name(), u64::MAX).expect("get").to_vec();
    references.iter().map(get).collect()
}

fn stored(key: &[u8], seq: u64, value: &[u8]) -> RowBuffer {
    let mut row = record::row(key, value);
    row.ints[record::SEQ] = seq;
    RECORD.store(&mut row.ints);
    row.into()
}

#[test]
fn table() {
    let records: Vec<_> = SAMPLE.iter().map(|(key, seq, value)| stored(key, *seq, value)).collect();
    assert_documented("table.md", "table", &tables(&records)[0]);
}

#[test]
fn a_table_of_several_blocks() {
    let records: Vec<_> = (0..600u64)
        .map(|number| {
            let key = format!("key.{number:06}");
            stored(key.as_bytes(), number * 3 % 601, &number.to_be_bytes()[..number as usize % 9])
        })
        .collect();
    assert_golden("table.hex", &tables(&records)[0]);
}

/// The place of the chunks of the examples: the start of the first log of `SET`.
const FIRST_CHUNK: ChunkOrigin =
    ChunkOrigin { log: LogId { set: SET, number: 1 << 32 }, offset: LOG_MAGIC.len() as u64 };

#[test]
fn log() {
    let mut shards: [ShardLog; 2] = Default::default();
    let mut chunk = LogBlock::default();
    let mut log = LOG_MAGIC.to_vec();
    for (shard, key, seq, value) in
        [(0, &b"a"[..], 1, &b"one"[..]), (1, b"x", 2, b"two"), (0, b"ab", 3, b"one")]
    {
        shards[shard].start(seq, 1);
        shards[shard].row(&RECORD, &stored(key, seq, value).row(), None);
    }
    chunk.take(6, &mut shards[0]);
    chunk.take(7, &mut shards[1]);
    log.extend_from_slice(chunk.seal(&FIRST_CHUNK, 0));
    assert_documented("wal.md", "log", &log);
}

#[test]
fn manifest() {
    let mut manifest = Manifest::new(vec![SetId(0xB)], 1_000);
    manifest.number = 3;
    manifest.written_ns = 2_000;
    manifest.last_seq = 3;
    manifest.log_floor = (1 << 32) | 1;
    manifest.tables.push(TableRef {
        set: SET,
        number: 1 << 32,
        schema: RECORD.id,
        run: 1,
        bytes: 300,
        tail_bytes: 200,
        rows: 3,
        seq_max: 3,
        first: KeyBuffer::from(record::key(b"a")),
        last: KeyBuffer::from(record::key(b"exactly8")),
    });
    manifest.obsolete.push(5);
    manifest.data_sets.push(SetId(0xD));
    let mut numbers = LogNumbers::default();
    [1 << 32, (1 << 32) | 1, (1 << 32) | 4].into_iter().for_each(|number| numbers.insert(number));
    manifest.referenced_logs.push(ReferencedLogs { set: SetId(0xE), numbers });
    manifest.job = Some(JobMembership { job: 0x9, rank: Some(4) });
    manifest.has_unsealed_logs = true;
    manifest.properties.insert("program".into(), "7".into());
    let process = ProcessIdentity {
        host: "node7".into(),
        boot: "c0ffee".into(),
        pid_namespace: 300,
        pid: 12,
        started_ticks: 777,
    };
    let (user, command) = ("ada".into(), "esker put".into());
    let (is_writing, is_private) = (true, false);
    manifest.writer =
        Some(SetWriter { process, user, command, began_ns: 1_000, is_writing, is_private });
    assert_documented(
        "manifest.md",
        "manifest",
        &encode_manifest(&manifest).expect("within bounds"),
    );
}

/// Filters hold digests, so digests are part of the format.
#[test]
fn digests() {
    let mix = |word: u64| {
        let wide = u128::from(word ^ 0xA076_1D64_78BD_642F) * 0xE703_7ED1_A0B4_28DB;
        wide as u64 ^ (wide >> 64) as u64
    };
    let head = mix(0x9E37_79B9_7F4A_7C15 ^ 0x6100_0000_0000_0000);
    // The second is xxh3 of "a".
    assert_eq!(RECORD.digest(&record::key(b"a")), mix(head ^ 0xE6C6_32B6_1E96_4E1F));
    let eight = mix(0x9E37_79B9_7F4A_7C15 ^ u64::from_be_bytes(*b"exactly8"));
    assert_eq!(RECORD.digest(&record::key(b"exactly8")), eight);
}

#[test]
fn identity() {
    let store = MemoryStore::new();
    StoreIdentity::create(&store, &mut Random::from_seed(1)).expect("create");
    let json = store.get("esker.json", 100).expect("get");
    assert_eq!(fence("store.md", "identity").trim().as_bytes(), &json[..]);
}
