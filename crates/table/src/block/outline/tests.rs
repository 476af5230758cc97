// SPDX-License-Identifier: Apache-2.0
//! Outlines of generated blocks: reads find the records of a block and nothing else, and never use
//! a bit that differs from the parsed block.

use proptest::prelude::*;

use super::*;
use crate::block::{BLOCK_ROWS_MAX, BlockBuilder};
use crate::schema::{IntColumn, Row};

fn hash(name: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name)
}

/// Like that of inodes: groups of one integer, a derived hash, a column that follows another.
static NAMED: Schema = Schema {
    id: 9,
    name: "named",
    ints: &[
        IntColumn::plain("group"),
        IntColumn::plain("hash"),
        IntColumn::plain("seq"),
        IntColumn::plain("a"),
        IntColumn::follows("b", 3),
        IntColumn::plain("c"),
        IntColumn::plain("d"),
        IntColumn::plain("e"),
    ],
    strings: &["name", "content"],
    key_ints: 2,
    group_ints: 1,
    hash_of: Some(hash),
    has_filters: true,
};

const GROUP: u64 = 77;

/// A name, values of the columns after the hash, and content.
type Named = (Vec<u8>, [u64; 6], Vec<u8>);

fn row((name, values, content): &Named) -> Row<'_> {
    let mut row = Row::default();
    row.ints[..2].copy_from_slice(&[GROUP, hash(name)]);
    row.ints[2..8].copy_from_slice(values);
    row.ints[4] = values[1].wrapping_add(values[2] % 5);
    row.strings = [name, content, &[]];
    row
}

fn block(records: &mut Vec<Named>) -> Block {
    records.sort_by_key(|record| (hash(&record.0), record.0.clone()));
    records.dedup_by(|a, b| a.0 == b.0);
    let mut builder = BlockBuilder::new(&NAMED);
    for record in records.iter() {
        let mut row = row(record);
        NAMED.store(&mut row.ints);
        builder.push(&row);
    }
    let mut bytes = Vec::new();
    builder.finish(&mut bytes);
    Block::parse(&NAMED, bytes.into()).expect("our own block")
}

fn outline(block: &Block) -> Option<Outline> {
    Outline::of(block, &[GROUP], |form| Some(Arc::new(form)))
}

/// Files as a benchmark makes them: names of digits, some shorter, and times at random.
fn files() -> Vec<Named> {
    let file = |number: u64| {
        let spread = esker_base::word_hash::mix(number);
        let name = format!("file.mdtest.0.{}", spread % 40_000_000);
        (name.into_bytes(), [spread >> 40, 1 << 60 | spread >> 30, 0, 7, 8, 9], Vec::new())
    };
    (0..BLOCK_ROWS_MAX as u64).map(file).collect()
}

/// Reads `name` from `bytes`, of which `copied` counts those that are copied.
fn get(
    outline: &Outline,
    bytes: &[u8],
    name: &[u8],
    copied: &mut usize,
) -> Option<Option<RowBuffer>> {
    let (mut out, mut buffer) = (RowBuffer::default(), [0xA5; size_of::<PartsBuffer>()]);
    let key = Key { ints: [GROUP, hash(name), 0], string: name };
    outline.prefetch(hash(name), |offset| assert!(offset < 2 * OUTLINED_BYTES_MAX));
    let copy = |range: Range<usize>, out: &mut [u8]| {
        *copied += out.len();
        bytes.get(range).map(|bytes| out.copy_from_slice(bytes)).is_some()
    };
    let has_strings = !outline.form.has_more_strings;
    let found = outline.get(&NAMED, &key, (has_strings, &mut out), (copy, &mut buffer))?;
    Some(found.then_some(out))
}

fn assert_is(found: &RowBuffer, record: &Named, has_strings: bool) {
    assert_eq!(found.ints, row(record).ints);
    assert!(!has_strings || found.strings[0] == record.0);
}

#[test]
fn a_read_takes_a_fraction_of_the_block() {
    let mut records = files();
    let block = block(&mut records);
    let outline = outline(&block).expect("an outline");
    let mut copied = 0;
    for record in &records {
        let found = get(&outline, block.bytes(), &record.0, &mut copied);
        assert_is(&found.expect("all parts are good").expect("a record"), record, true);
    }
    assert!(copied / records.len() < block.bytes().len() * 2 / 5, "{copied}");
}

#[test]
fn no_flipped_bit_and_no_cut_is_used() {
    let mut records = files();
    let block = block(&mut records);
    let (outline, bytes) = (outline(&block).expect("an outline"), block.bytes());
    let mut refused = 0;
    let mut check = |bytes: &[u8], record: &Named| match get(&outline, bytes, &record.0, &mut 0) {
        None => refused += 1,
        Some(found) => assert_is(&found.expect("a record"), record, true),
    };
    for at in 0..bytes.len() {
        let mut flipped = bytes.to_vec();
        flipped[at] ^= 1 << (at % 8);
        for record in records.iter().skip(at % 16).step_by(16) {
            check(&flipped, record);
            check(&bytes[..at], record);
        }
    }
    assert!(refused > bytes.len(), "{refused}");
}

/// Every bit of the parts that a read copies counts: with any of them flipped it is refused.
#[test]
fn every_flipped_bit_of_a_part_that_is_read_is_noticed() {
    let mut records = files();
    let block = block(&mut records);
    let (outline, name) = (outline(&block).expect("an outline"), records[99].0.clone());
    let key = Key { ints: [GROUP, hash(&name), 0], string: &name };
    let read = |flipped: Option<usize>, read_from: &mut Vec<Range<usize>>| {
        let (mut out, mut buffer) = (RowBuffer::default(), [0; size_of::<PartsBuffer>()]);
        let copy = |range: Range<usize>, out: &mut [u8]| {
            out.copy_from_slice(&block.bytes()[range.clone()]);
            if let Some(bit) = flipped.filter(|bit| range.contains(&(bit / 8))) {
                out[bit / 8 - range.start] ^= 1 << (bit % 8);
            }
            read_from.push(range);
            true
        };
        outline.get(&NAMED, &key, (true, &mut out), (copy, &mut buffer))
    };
    let mut ranges = Vec::new();
    assert_eq!(read(None, &mut ranges), Some(true));
    for bit in ranges.into_iter().flat_map(|range| range.start * 8..range.end * 8) {
        assert_eq!(read(Some(bit), &mut Vec::new()), None, "bit {bit}");
    }
}

#[test]
fn blocks_that_do_not_suit_have_no_outline() {
    let mut records = files();
    let suits = block(&mut records);
    assert!(Outline::of(&suits, &[GROUP + 1], |form| Some(Arc::new(form))).is_none());
    assert!(Outline::of(&suits, &[GROUP], |_| None).is_none());
    assert!(outline(&block(&mut vec![records[0].clone()])).is_none());
    // Names that make the block larger than the parts of an outline can cover.
    let long = |number: u64| {
        (0..16)
            .flat_map(|word| esker_base::word_hash::mix(number << 8 | word).to_le_bytes())
            .collect()
    };
    let mut long_names: Vec<Named> = records
        .iter()
        .zip(0..)
        .map(|(record, number)| (long(number), record.1, Vec::new()))
        .collect();
    let large = block(&mut long_names);
    assert!(large.bytes().len() > OUTLINED_BYTES_MAX && outline(&large).is_none());
}

#[test]
fn a_read_is_due_from_time_to_time() {
    let outline = outline(&block(&mut files())).expect("an outline");
    let due = (0..1024).filter(|_| outline.is_due()).count();
    assert_eq!(due, 1024 / usize::from(READS_UNTIL_DUE));
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![Just(5u64), 0u64..4, any::<u64>(), (0u64..200).prop_map(|v| v << 30)]
}

proptest! {
    #[test]
    fn any_record_is_found_and_no_other(
        mut records in proptest::collection::vec(
            ("[a-z]{0,3}/?[0-9]{0,9}".prop_map(String::into_bytes), proptest::array::uniform6(value()),
                prop_oneof![Just(Vec::new()), proptest::collection::vec(any::<u8>(), 0..3)]),
            2..BLOCK_ROWS_MAX),
        constant in any::<bool>(),
        others in proptest::collection::vec("[a-z]{0,3}/?[0-9]{0,9}", 20),
    ) {
        if constant {
            records.iter_mut().for_each(|record| (record.1, record.2) = ([3; 6], Vec::new()));
        }
        let block = block(&mut records);
        let Some(outline) = outline(&block) else { return Ok(()) };
        for record in &records {
            let found = get(&outline, block.bytes(), &record.0, &mut 0);
            let found = found.expect("all parts are good").expect("a record");
            assert_is(&found, record, !outline.form.has_more_strings);
        }
        for name in others.iter().map(String::as_bytes) {
            let found = get(&outline, block.bytes(), name, &mut 0).expect("all parts are good");
            let expected = records.iter().find(|record| record.0 == name);
            prop_assert_eq!(found.map(|found| found.ints), expected.map(|record| row(record).ints));
        }
    }
}
