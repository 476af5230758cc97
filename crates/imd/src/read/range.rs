// SPDX-License-Identifier: Apache-2.0
//! Range: the rows of a partition of an ordered directory between two keys.

use std::ops::Range;

use bytes::Bytes;
use esker_base::{Error, Result};

use super::counts::QueryCounts;
use super::lookup::first_keys;
use super::partition::PartitionReader;
use super::scan::{TableCursor, merge};
use crate::index::epoch::IndexGroup;
use crate::partition::key_prefix;

impl PartitionReader {
    /// Passes key and value of each row of `epoch` with a key from `low` to `high` to `visit`, in
    /// order of key and arrival, until `visit` returns false.
    pub(crate) fn range(
        &self,
        low: &[u8],
        high: &[u8],
        epoch: u32,
        counts: &mut QueryCounts,
        mut visit: impl FnMut(&Bytes, &Bytes, &mut QueryCounts) -> Result<bool>,
    ) -> Result<()> {
        if epoch >= self.epochs() {
            return Ok(());
        }
        let parts = std::sync::Arc::clone(self.epoch(epoch, counts)?);
        let mut cursors = Vec::new();
        for group in &parts.groups {
            let blocks = self.blocks_of_range(group, key_prefix(low), key_prefix(high), counts)?;
            let Some(table) = group.tables.first().filter(|_| !blocks.is_empty()) else {
                continue;
            };
            counts.tables += 1;
            let (number, all) = (cursors.len(), parts.tables());
            cursors.extend(TableCursor::new(self, table, number, all, blocks, counts)?);
        }
        merge(cursors, counts, |key, value, counts| {
            if key[..] > *high {
                return Ok(false);
            }
            if key[..] < *low { Ok(true) } else { visit(key, value, counts) }
        })
    }

    /// The blocks of an index group's table that may have keys with prefixes from `low` to `high`.
    fn blocks_of_range(
        &self,
        group: &IndexGroup,
        low: u64,
        high: u64,
        counts: &mut QueryCounts,
    ) -> Result<Range<u32>> {
        let keys = &group.slot_keys;
        let Some(table) = group.tables.first().filter(|_| !keys.is_empty()) else {
            return Ok(0..0);
        };
        let end_slot = keys.partition_point(|&key| key <= high);
        if end_slot == 0 {
            return Ok(0..0);
        }
        // The first keys with an equal prefix may be in the slot before the first that starts with
        // it.
        let first_slot = keys.partition_point(|&key| key < low).saturating_sub(1);
        let places = [group.slot_range(first_slot), group.slot_range(end_slot - 1)];
        let bodies = self.slots(&places, counts)?;
        let layout = self.head().row_layout();
        let bad = |what, at: u64| self.named(Error::corrupt(&self.log.name, at, what));
        let parsed = first_keys(&bodies[0], table, layout);
        let (first, firsts) = parsed.map_err(|what| bad(what, places[0].start))?;
        let from = firsts.partition_point(|key| u64::from_le_bytes(*key) < low);
        let parsed = first_keys(&bodies[1], table, layout);
        let (last, lasts) = parsed.map_err(|what| bad(what, places[1].start))?;
        let to = lasts.partition_point(|key| u64::from_le_bytes(*key) <= high);
        Ok(first + from.saturating_sub(1) as u32..last + to as u32)
    }
}
