// SPDX-License-Identifier: Apache-2.0
//! Blocks: arbitrary bytes under a valid checksum, and valid blocks with some bytes changed.

use esker_table::block::DecodedBlock;
use esker_table::internals::{Block, BlockBuilder};
use esker_table::schema::{RowBuffer, Schema};

use crate::choices::Choices;
use crate::records;

pub fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let schema = records::schema(&mut choices);
    if choices.u8().is_multiple_of(2) {
        let mut block = choices.rest().to_vec();
        repair(&mut block);
        exercise(schema, block, &mut choices);
        return;
    }
    let rows = records::sorted(schema, &mut choices, 256);
    if rows.is_empty() {
        return;
    }
    let mut builder = BlockBuilder::new(schema);
    rows.iter().for_each(|row| builder.push(&row.row()));
    let mut block = Vec::new();
    builder.finish(&mut block);
    let changed = choices.mutate(&mut block);
    repair(&mut block);
    let found = exercise(schema, block, &mut choices);
    if !changed {
        let found = found.expect("a block of ours");
        assert!(found.len() == rows.len());
        assert!(found.iter().zip(&rows).all(|(a, b)| records::same(schema, a, b)));
    }
}

/// Recomputes the checksum.
pub fn repair(block: &mut [u8]) {
    if let Some((checksum, rest)) = block.split_first_chunk_mut::<4>() {
        *checksum = crc32c::crc32c(rest).to_le_bytes();
    }
}

/// Reads a block in every possible way, and checks that all agree. Returns its records in readable
/// form.
fn exercise(
    schema: &'static Schema,
    bytes: Vec<u8>,
    choices: &mut Choices,
) -> Option<Vec<RowBuffer>> {
    let block = Block::parse(schema, bytes.into()).ok()?;
    let mut decoded = DecodedBlock::default();
    block.decode(&mut decoded);
    assert_eq!(decoded.rows(), block.rows());
    let mut rows = Vec::new();
    for number in 0..block.rows() {
        let mut row = RowBuffer::default();
        block.read(number, true, &mut row);
        let stored = RowBuffer::from(decoded.row(number));
        assert!(records::same(schema, &row, &stored), "row {number} reads in two ways");
        let key = decoded.key(schema, number);
        assert_eq!(key.ints, block.key_ints(number));
        // In a hostile block keys need not ascend, so searches may miss.
        if let Some(found) = block.find(&key) {
            assert_eq!(decoded.key(schema, found), key);
        }
        assert!(block.lower_bound(&key) <= block.rows());
        rows.push(row);
    }
    let key = records::key(schema, choices);
    if let Some(found) = block.find(&key.key()) {
        assert_eq!(decoded.key(schema, found), key.key());
    }
    assert!(block.memory_bytes() > 0);
    Some(rows)
}
