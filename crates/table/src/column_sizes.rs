// SPDX-License-Identifier: Apache-2.0
//! Column sizes: the space that each column of a schema's tables takes.

use esker_base::Result;
use esker_base::wire::{WireDamage, WireInput};

use crate::block::Block;
use crate::column::{ParsedInts, ParsedStrings};
use crate::manifest::TableRef;
use crate::schema::Schema;
use crate::tables::{TableHandle, TableSource};

/// Returns the total bytes of each column over those of `tables` that have `schema`, by name, in
/// the order of the schema, followed by the bytes of block headers and of filters and indexes.
/// Cost: a read of every table.
///
/// # Errors
/// `Corrupt`, and errors of the store.
pub fn column_bytes(
    source: &TableSource,
    schema: &'static Schema,
    tables: &[TableRef],
) -> Result<Vec<(String, u64)>> {
    let ints = schema.ints.iter().map(|column| column.name);
    let names = ints.chain(schema.strings.iter().copied());
    let mut sums: Vec<(String, u64)> = names.map(|name| (name.to_owned(), 0)).collect();
    let (mut headers, mut tails) = (0, 0);
    for reference in tables.iter().filter(|table| table.schema == schema.id) {
        let handle = TableHandle::new(reference.clone(), schema, source.clone());
        let table = handle.open()?;
        tails += reference.tail_bytes;
        for number in 0..table.index().blocks() {
            let block = table.block(number)?;
            let rest = measure(schema, &block, &mut sums).map_err(|damage| {
                damage.of(table.name(), table.index().block_range(number).start)
            })?;
            headers += rest;
        }
    }
    sums.push(("(block headers)".to_owned(), headers));
    sums.push(("(filters and index)".to_owned(), tails));
    Ok(sums)
}

/// Adds the bytes of each column of a block to `sums`; returns the rest.
fn measure(schema: &Schema, block: &Block, sums: &mut [(String, u64)]) -> Result<u64, WireDamage> {
    let (bytes, rows) = (block.bytes(), block.rows());
    let mut input = WireInput::new(bytes);
    // Checksum and number of rows, which the block's own parser has checked.
    input.u32()?;
    input.u16()?;
    let mut left = input.left();
    let header = bytes.len() - left;
    for (column, sum) in sums.iter_mut().enumerate() {
        if column < schema.ints.len() {
            ParsedInts::parse(&mut input, rows)?;
        } else {
            ParsedStrings::parse(&mut input, rows)?;
        }
        sum.1 += (left - input.left()) as u64;
        left = input.left();
    }
    Ok(header as u64)
}
