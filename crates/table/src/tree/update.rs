// SPDX-License-Identifier: Apache-2.0
//! Updates: read some keys, decide, and write them, in one operation.
//!
//! The active memtable is read under the locks of the keys' shards. Older sources are read without
//! them, and only if the shard's key history says that they may have a record; if the memtable is
//! frozen meanwhile, it is read again.

use std::array;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use esker_base::{Error, Result};
use parking_lot::MutexGuard;

use super::commit::SHARD_LOG_BYTES;
use super::{LiveShard, Tree, TreeShared};
use crate::memtable::{KeyProbe, shard_of};
use crate::schema::{Key, Row, RowBuffer, check_text_bytes};
use crate::table::LookupKey;

/// The record that a key had before an update, if any, in readable form.
pub type CurrentRow<'a> = Option<Row<'a>>;

/// A locked shard and its number.
type OwnShard<'g> = (usize, MutexGuard<'g, LiveShard>);

/// Maximum number of keys of an update, with that of its companion.
const KEYS_MAX: usize = 4;

/// The locked shards of an update.
type OwnShards<'g> = ArrayVec<OwnShard<'g>, KEYS_MAX>;

/// The rows that an update writes.
pub struct WriteBatch<'d, 'g> {
    inner: &'d TreeShared,
    shards: &'d mut [OwnShard<'g>],
    seq: Option<u64>,
    has_put: bool,
    /// The reason that nothing was put.
    refused: Option<Error>,
    /// The place of the key of an update of one key; saves a second search.
    probe: Option<KeyProbe>,
    /// The row that becomes part of the operation if it puts any.
    companion: Option<Row<'d>>,
    /// Memory by which the shards grew.
    grown_bytes: usize,
}

impl WriteBatch<'_, '_> {
    /// The operation's sequence number.
    pub fn seq(&mut self) -> u64 {
        *self.seq.get_or_insert_with(|| self.inner.next_seq.fetch_add(1, Ordering::AcqRel))
    }

    /// Writes `rows`, in readable form, as one operation, and sets their sequence number; their
    /// keys must be among the update's. At most once per update. If a record is too long, none is
    /// written and the update fails with `TooLarge`. True if they were written: they are then in
    /// memory, and readers see them, even if the update fails because it cannot be made durable.
    ///
    /// # Panics
    /// If a key is of a shard that the update does not own, or on a second call.
    #[inline]
    pub fn put(&mut self, rows: &mut [Row]) -> bool {
        assert!(!self.has_put, "an update puts once");
        if let Some(error) = rows.iter().find_map(|row| check_text_bytes(&row.strings).err()) {
            self.refused = Some(error);
            return false;
        }
        self.has_put = true;
        let inner = self.inner;
        let schema = inner.schema;
        let seq = self.seq();
        for row in rows.iter_mut() {
            row.ints[schema.seq()] = seq;
            schema.store(&mut row.ints);
        }
        // The operation is logged with the shard of its first row.
        let log_shard = match rows.first() {
            Some(row) => shard_of(schema.last_key_int(&row.ints)),
            None => self.shards[0].0,
        };
        let mut companion = self.companion.take().filter(|_| !rows.is_empty());
        if self.inner.logs() {
            let row_count = rows.len() + usize::from(companion.is_some());
            self.shard(log_shard).log.start(seq, row_count);
        }
        let probe = self.probe;
        for row in rows {
            self.put_row(row, probe, log_shard);
        }
        if let Some(row) = &mut companion {
            row.ints[schema.seq()] = seq;
            schema.store(&mut row.ints);
            self.put_row(row, None, log_shard);
        }
        true
    }

    /// Writes one stored row, and adds it to the operation that is being logged with `log_shard`.
    #[inline]
    fn put_row(&mut self, row: &Row, probe: Option<KeyProbe>, log_shard: usize) {
        let inner = self.inner;
        let schema = inner.schema;
        let number = shard_of(schema.last_key_int(&row.ints));
        let key = schema.key(row);
        let shard = self.shard(number);
        let before = shard.rows.bytes();
        let probe = probe.unwrap_or_else(|| shard.rows.locate_key(&key));
        shard.rows.put(&probe, row);
        let grown = shard.rows.bytes() - before;
        if grown > 0 {
            inner.prefetch_targets[number].set(shard);
        }
        if inner.logs() && number == log_shard {
            let logged = &mut shard.rows.group_mut(&probe).logged;
            shard.log.row(schema, row, Some(logged));
        } else if inner.logs() {
            self.shard(log_shard).log.row(schema, row, None);
        }
        self.grown_bytes += grown;
    }

    fn shard(&mut self, number: usize) -> &mut LiveShard {
        let own = self.shards.iter_mut().find(|(own, _)| *own == number);
        &mut own.expect("an update writes only keys that it named").1
    }
}

/// The older record of a key, and the count of freezes at which it was read.
type OlderRows = Option<(u64, Option<Box<RowBuffer>>)>;

/// The active memtable's answer for a key.
struct ActiveLookup {
    /// Its record, in readable form.
    row: Option<Box<RowBuffer>>,
    /// The slot of the key, whether it is present or not.
    probe: KeyProbe,
    /// True if older sources must be read first.
    is_unknown: bool,
}

impl Tree {
    /// Reads the records of `keys` and lets `decide` examine them and put new ones, all as one
    /// operation: others see the state either before or after it. `decide` may run more than once,
    /// but only the puts of its last run take effect; it must not fail after putting. If it puts
    /// rows, `companion`, in readable form, is put as part of the same operation, in place of any
    /// record of its key: a crash keeps both or neither.
    ///
    /// Once it returns, the operation survives crashes as the tree's durability promises. Cost: no
    /// store request unless an older record may exist, a share of a log write and, without a
    /// background thread, an occasional flush.
    ///
    /// # Errors
    /// `TooLarge`; `Closed`; errors of `decide` and of the store.
    #[inline]
    pub fn update<const N: usize, T>(
        &self,
        keys: [Key; N],
        companion: Option<&Row>,
        mut decide: impl FnMut([CurrentRow; N], &mut WriteBatch) -> Result<T>,
    ) -> Result<T> {
        const { assert!(N > 0 && N < KEYS_MAX, "an update has a key, and few") };
        let inner = &*self.inner;
        inner.check_writable()?;
        companion.map_or(Ok(()), |row| check_text_bytes(&row.strings))?;
        let mut older: [OlderRows; N] = array::from_fn(|_| None);
        loop {
            let mut shards = inner.lock_shards_of(&keys, companion);
            let freezes = inner.freezes.load(Ordering::Relaxed);
            let mut active: [Option<Box<RowBuffer>>; N] = array::from_fn(|_| None);
            let (mut missing, mut probe) = (false, None);
            for index in 0..N {
                let found =
                    inner.probe_active(&keys[index], &mut shards, freezes, &mut older[index]);
                active[index] = found.row;
                missing |= found.is_unknown;
                probe = (N == 1).then_some(found.probe);
            }
            if missing {
                drop(shards);
                for index in 0..N {
                    if active[index].is_none() && older[index].is_none() {
                        older[index] = Some((freezes, inner.read_older(&keys[index])?));
                    }
                }
                continue;
            }
            let current: [CurrentRow; N] = array::from_fn(|index| {
                let older = || older[index].as_ref().and_then(|(_, row)| row.as_deref());
                active[index].as_deref().or_else(older).map(RowBuffer::row)
            });
            let mut batch = WriteBatch {
                inner,
                shards: &mut shards,
                seq: None,
                has_put: false,
                refused: None,
                probe,
                companion: companion.copied(),
                grown_bytes: 0,
            };
            let decided = decide(current, &mut batch);
            debug_assert!(decided.is_ok() || !batch.has_put, "an update fails before it puts");
            if batch.seq.is_some() && !batch.has_put {
                // The number is taken: log it, or replay would stop at the gap.
                batch.put(&mut []);
            }
            let (seq, grown_bytes, refused) = (batch.seq, batch.grown_bytes, batch.refused);
            let full = shards.iter().any(|(_, own)| own.log.pending().len() >= SHARD_LOG_BYTES);
            drop(shards);
            if let Some(seq) = seq {
                inner.after_write(seq, full, grown_bytes)?;
            }
            return refused.map_or(decided, Err);
        }
    }
}

impl TreeShared {
    /// Locks the shards of `keys` and of `companion`, each once, in ascending order.
    #[inline]
    fn lock_shards_of(&self, keys: &[Key], companion: Option<&Row>) -> OwnShards<'_> {
        let of_keys = keys.iter().map(|key| &key.ints[..]);
        let of_all = of_keys.chain(companion.map(|row| &row.ints[..]));
        let mut numbers: ArrayVec<usize, KEYS_MAX> =
            of_all.map(|ints| shard_of(self.schema.last_key_int(ints))).collect();
        numbers.sort_unstable();
        let mut locked = ArrayVec::new();
        for (at, &number) in numbers.iter().enumerate() {
            if at == 0 || numbers[at - 1] != number {
                locked.push((number, self.shards[number].lock()));
            }
        }
        locked
    }

    /// Looks up a key in its locked shard. If it is absent, records in `older` whether it is
    /// certainly absent from older sources too.
    #[inline]
    fn probe_active(
        &self,
        key: &Key,
        shards: &mut [OwnShard],
        freezes: u64,
        older: &mut OlderRows,
    ) -> ActiveLookup {
        let number = shard_of(self.schema.last_key_int(&key.ints));
        let own = shards.iter_mut().find(|(own, _)| *own == number);
        let shard = &mut *own.expect("every key's shard is locked").1;
        let tag = shard.rows.prefetch(key);
        shard.history.presence().prefetch(tag);
        let probe = shard.rows.locate_key(key);
        if let Some(row) = shard.rows.at(&probe) {
            let mut buffer = Box::<RowBuffer>::default();
            buffer.set(&row);
            self.schema.restore(&mut buffer.ints);
            return ActiveLookup { row: Some(buffer), probe, is_unknown: false };
        }
        if older.as_ref().is_some_and(|(at, _)| *at == freezes) {
            return ActiveLookup { row: None, probe, is_unknown: false };
        }
        let absent = !shard.history.may_contain(tag, key) && !self.inherited_may_contain(key);
        *older = absent.then_some((freezes, None));
        ActiveLookup { row: None, probe, is_unknown: !absent }
    }

    /// Reads the record of a key below the active memtable, in readable form.
    fn read_older(&self, key: &Key) -> Result<Option<Box<RowBuffer>>> {
        let mut buffer = Box::<RowBuffer>::default();
        let wanted = LookupKey { digest: self.schema.digest(key), key: *key };
        let found = self.version.load().get(self.schema, &wanted, true, &mut buffer)?;
        Ok(found.then_some(buffer))
    }
}
