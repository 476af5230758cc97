//! Inserts: a new key, which nothing is known of; the fast path of creating files.

use std::sync::atomic::Ordering;

use esker_base::Result;

use super::Tree;
use super::update::SHARD_LOG_BYTES;
use crate::memtable::{group_hash, shard_of};
use crate::schema::{Key, Row};

impl Tree {
    /// Starts fetching what an insert of `key` will read. Worth calling as soon as the key is
    /// known, before other work.
    #[inline]
    pub fn prefetch(&self, key: &Key) {
        let schema = self.inner.schema;
        let order = schema.order(&key.ints);
        let group = group_hash(&key.ints[..schema.group_ints]);
        self.inner.hints[shard_of(order)].prefetch(order, group, schema.digest(key));
    }

    /// Puts a row, in readable form, if certainly no record of its key exists, not even a
    /// tombstone; `complete` sets what depends on the operation's number. Returns that number, or
    /// `None` if there may be a record: then [`Tree::update`] finds out.
    ///
    /// Survives what the tree's durability promises once it returns. Cost: no store request but a
    /// share of a log write, and at times, without a background thread, a flush.
    ///
    /// # Errors
    /// As [`Tree::update`].
    #[inline]
    pub fn insert(
        &self,
        row: &mut Row,
        complete: impl FnOnce(u64, &mut Row),
    ) -> Result<Option<u64>> {
        let inner = &*self.inner;
        inner.check_writable()?;
        if !inner.presence_covers.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let schema = inner.schema;
        let key = schema.key(row);
        let digest = schema.digest(&key);
        let number = shard_of(schema.order(&row.ints));
        let mut guard = inner.shards[number].lock();
        let shard = &mut *guard;
        let older = inner.freezes.load(Ordering::Relaxed) > 0;
        if older && shard.presence.may_contain(digest) {
            return Ok(None);
        }
        // The operation's number is certain to be put or to be logged as nothing.
        let seq = inner.next_seq.fetch_add(1, Ordering::AcqRel);
        complete(seq, row);
        row.ints[schema.seq()] = seq;
        schema.store(&mut row.ints);
        let before = shard.rows.bytes();
        let place = shard.rows.insert(&key, row);
        let grown_bytes = shard.rows.bytes() - before;
        if inner.logs() {
            shard.log.start(seq, usize::from(place.is_some()));
        }
        if let Some(place) = &place {
            if inner.logs() {
                let logged = &mut shard.rows.group_mut(place).logged;
                shard.log.row(schema, row, Some(logged));
            }
            shard.presence.insert(digest);
        }
        if grown_bytes > 0 {
            inner.hints[number].set(shard);
        }
        let log_full = shard.log.pending().len() >= SHARD_LOG_BYTES;
        drop(guard);
        inner.settle(seq, log_full, grown_bytes)?;
        Ok(place.map(|_| seq))
    }
}
