// SPDX-License-Identifier: Apache-2.0
//! Inode records column by column: in readable form, and in stored form within a decoded block.
//!
//! A reader of a record in a block decodes only the columns that it uses. If the records of the
//! block differ in few columns, it does not test which of them vary.

use esker_base::wire::unzigzag;
use esker_table::block::DecodedBlock;
use esker_table::schema::{Row, RowBuffer};

use super::column;

/// The columns of a record in readable form.
pub(super) trait InodeColumns {
    fn int(&self, column: usize) -> u64;
    fn string(&self, column: usize) -> &[u8];
}

impl InodeColumns for Row<'_> {
    #[inline(always)]
    fn int(&self, column: usize) -> u64 {
        self.ints[column]
    }

    #[inline(always)]
    fn string(&self, column: usize) -> &[u8] {
        self.strings[column]
    }
}

impl InodeColumns for RowBuffer {
    #[inline(always)]
    fn int(&self, column: usize) -> u64 {
        self.ints[column]
    }

    #[inline(always)]
    fn string(&self, column: usize) -> &[u8] {
        &self.strings[column]
    }
}

/// Columns in which records usually differ, and the directory's, which are not read.
pub(super) const PLAIN: u32 =
    0b11 | 1 << column::HASH | 1 << column::SEQ | 1 << column::SIZE | 1 << column::MTIME;

/// A record in stored form, decoded column by column. The records of its block differ only in the
/// columns of `VARYING`.
pub(super) struct StoredInode<'a, const VARYING: u32> {
    pub(super) block: &'a DecodedBlock,
    pub(super) row: usize,
}

impl<const VARYING: u32> StoredInode<'_, VARYING> {
    #[inline(always)]
    fn stored(&self, column: usize) -> u64 {
        let may_vary = VARYING >> column & 1 == 1;
        if may_vary { self.block.int(column, self.row) } else { self.block.shared(column) }
    }

    #[inline(always)]
    fn follow(&self, column: usize, base: u64) -> u64 {
        unzigzag(self.stored(column)).wrapping_add(base)
    }
}

impl<const VARYING: u32> InodeColumns for StoredInode<'_, VARYING> {
    /// Decodes one column, as `Schema::restore` does for all columns of `INODE`.
    #[inline(always)]
    fn int(&self, number: usize) -> u64 {
        use column as c;
        match number {
            c::CTIME | c::ATIME => self.follow(number, self.stored(c::MTIME)),
            c::ID_LOW => self.follow(number, self.stored(c::SEQ)),
            c::LOG_LENGTH => self.follow(number, self.stored(c::SIZE)),
            // Not through a recursive call to `int`, which could not be inlined.
            c::LOG_WRITTEN => self.follow(number, self.follow(c::LOG_LENGTH, self.stored(c::SIZE))),
            _ => self.stored(number),
        }
    }

    #[inline(always)]
    fn string(&self, column: usize) -> &[u8] {
        self.block.string(column, self.row)
    }
}

#[cfg(test)]
mod tests {
    use esker_table::internals::decoded_block;

    use super::*;
    use crate::inode::INODE;

    #[test]
    fn a_column_alone_is_what_restoring_all_makes_of_it() {
        let ints = std::array::from_fn(|column| esker_base::word_hash::mix(column as u64));
        let mut row = Row { ints, ..Row::default() };
        let block = decoded_block(&INODE, &[Row::default(), row]);
        INODE.restore(&mut row.ints);
        let stored = StoredInode::<{ !0 }> { block: &block, row: 1 };
        for column in 0..INODE.ints.len() {
            assert_eq!(stored.int(column), row.ints[column]);
        }
    }
}
