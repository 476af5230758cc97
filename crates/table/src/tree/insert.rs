// SPDX-License-Identifier: Apache-2.0
//! Inserts: the fast path of creating files, for keys that do not exist yet.

use std::sync::atomic::Ordering;

use esker_base::Result;

use super::commit::SHARD_LOG_BYTES;
use super::no_space::is_full;
use super::{LiveShard, Tree};
use crate::memtable::{group_hash, shard_of};
use crate::schema::{Key, Row, check_text_bytes};

impl Tree {
    /// Prefetches what an insert of `key` will read. Worth calling as soon as the key is known,
    /// before other work.
    #[inline]
    pub fn prefetch(&self, key: &Key) {
        let schema = self.inner.schema;
        let order = schema.last_key_int(&key.ints);
        let group = group_hash(&key.ints[..schema.group_ints]);
        self.inner.prefetch_targets[shard_of(order)].prefetch(order, group);
    }

    /// Puts a row, in readable form, if certainly no record of its key exists, not even a
    /// tombstone; `complete` fills in the fields that depend on the operation's number. Returns
    /// that number, or `None` if there may be a record: the caller then needs [`Tree::update`].
    /// `inserted` is called once the row is put, and before the log can be written with it.
    ///
    /// Once it returns, the row survives crashes as the tree's durability promises. Cost: no store
    /// request but a share of a log write and, without a background thread, an occasional flush.
    ///
    /// # Errors
    /// As [`Tree::update`].
    #[inline]
    pub fn insert(
        &self,
        row: &mut Row,
        complete: impl FnOnce(u64, &mut Row),
        inserted: impl FnOnce(),
    ) -> Result<Option<u64>> {
        let inner = &*self.inner;
        inner.check_writable()?;
        check_text_bytes(&row.strings)?;
        let schema = inner.schema;
        let key = schema.key(row);
        if inner.inherited_may_contain(&key) {
            return Ok(None);
        }
        let number = shard_of(schema.last_key_int(&row.ints));
        let mut guard = inner.shards[number].lock();
        let LiveShard { rows, history, log, .. } = &mut *guard;
        // The number is certain to be used: for the put, or for a logged empty operation.
        let seq = inner.next_seq.fetch_add(1, Ordering::AcqRel);
        complete(seq, row);
        row.ints[schema.seq()] = seq;
        schema.store(&mut row.ints);
        let before = rows.bytes();
        let probe = rows.insert(&key, row, |tag| history.may_contain(tag, &key));
        let grown_bytes = rows.bytes() - before;
        if inner.logs() {
            log.start(seq, usize::from(probe.is_some()));
            if let Some(probe) = &probe {
                log.row(schema, row, Some(&mut rows.group_mut(probe).logged));
            }
        }
        if probe.is_some() {
            inserted();
        }
        let log_full = log.pending().len() >= SHARD_LOG_BYTES;
        if grown_bytes > 0 {
            inner.prefetch_targets[number].set(&guard);
        }
        drop(guard);
        if probe.is_none() {
            // Nothing was put, so there is nothing to wait for.
            if log_full {
                let written = inner.write_log(false);
                if !is_full(&written) {
                    written?;
                }
            }
            return Ok(None);
        }
        inner.after_write(seq, log_full, grown_bytes)?;
        Ok(Some(seq))
    }
}
