// SPDX-License-Identifier: Apache-2.0
//! Log of a tree: gathers the pending operations of the shards, writes and syncs them, and rotates.
//!
//! A writer's logs are numbered. Each belongs to one memtable, so that it can be deleted once the
//! memtable is in tables. `WriterLogs` is behind the tree's log mutex, which is taken before any
//! shard's and held across the write: writers that waited for it find their operations already
//! written.

use esker_base::store::{AppendLog, SharedStore, concurrent};
use esker_base::{Error, Kind, Result};

use super::Durability;
use super::no_space::is_full;
use crate::manifest::SetId;
use crate::wal::{ChunkOrigin, LOG_MAGIC, LogBlock, LogId};

/// The logs that a writer still needs, and how far each is written and synced.
pub(super) struct WriterLogs {
    store: SharedStore,
    set: SetId,
    /// Number of the next log.
    next: u64,
    /// Logs of the frozen memtables, and last that of the active one; empty at durability `None`.
    live: Vec<LiveLog>,
    /// The next log, once it has been opened.
    spare: Option<LiveLog>,
    /// The first log that is not in tables yet, while logs of an earlier writer are replayed.
    pub(super) replayed_from: Option<u64>,
    /// The chunk being gathered for one write.
    pub(super) chunk: LogBlock,
    /// The last chunk of the log before the active one, until it is written.
    unwritten_tail: LogBlock,
    /// Operations below this number are acknowledged: they were synced, and a later check found no
    /// other writer. Each chunk records it.
    pub(super) acknowledged_below: u64,
    poisoned: bool,
    /// Bytes written to logs so far.
    pub(super) written_bytes: u64,
}

struct LiveLog {
    id: LogId,
    log: Box<dyn AppendLog>,
    synced_bytes: u64,
}

impl WriterLogs {
    /// Makes a state without a log; the first will be number `next`.
    pub(super) fn new(store: SharedStore, set: SetId, next: u64) -> Self {
        Self {
            store,
            set,
            next,
            live: Vec::new(),
            spare: None,
            replayed_from: None,
            chunk: LogBlock::default(),
            unwritten_tail: LogBlock::default(),
            acknowledged_below: 0,
            poisoned: false,
            written_bytes: 0,
        }
    }

    /// Opens the first log, if `durability` needs one.
    pub(super) fn begin(&mut self, durability: Durability) -> Result<()> {
        if durability != Durability::None {
            self.prepare()?;
            self.switch();
        }
        Ok(())
    }

    /// Number of the first log that operations put from now on need.
    pub(super) fn floor(&self) -> u64 {
        let active = self.live.last().map_or(self.next, |active| active.id.number);
        self.replayed_from.unwrap_or(active)
    }

    fn check(&self) -> Result<()> {
        if self.poisoned {
            return Err(Error::new(
                Kind::Closed,
                format!("change set {}: an earlier write of its log failed; reopen it", self.set),
            ));
        }
        Ok(())
    }

    fn poison<T>(&mut self, result: Result<T>) -> Result<T> {
        self.poisoned |= result.is_err();
        result
    }

    /// Opens the log of the next memtable, unless that was done. If there is no room for it,
    /// nothing changes.
    pub(super) fn prepare(&mut self) -> Result<()> {
        self.check()?;
        if self.spare.is_some() {
            return Ok(());
        }
        let id = LogId { set: self.set, number: self.next };
        self.next += 1;
        let name = id.name();
        let log = self.store.append_log(&name).and_then(|log| {
            log.append(&LOG_MAGIC)?;
            Ok(log)
        });
        if is_full(&log) {
            // Nothing was ever in it. If part of it stays, it is collected with older logs.
            let _ = self.store.delete(&name);
            return log.map(drop);
        }
        let log = self.poison(log)?;
        self.spare = Some(LiveLog { id, log, synced_bytes: 0 });
        Ok(())
    }

    /// Switches to the prepared log; the gathered chunk belongs to the one before.
    pub(super) fn switch(&mut self) {
        assert!(
            self.unwritten_tail.is_empty(),
            "a log is written before the one after it is begun"
        );
        std::mem::swap(&mut self.unwritten_tail, &mut self.chunk);
        self.live.push(self.spare.take().expect("a log is prepared before it is used"));
    }

    /// Writes the gathered chunk to the active log, after the chunk owed to the one before. If
    /// there is no room, it stays gathered, to be written before anything else.
    pub(super) fn write(&mut self) -> Result<()> {
        self.check()?;
        let written = self.write_gathered();
        // Without room the log is unchanged, or reports at the next attempt that it is not.
        if is_full(&written) { written } else { self.poison(written) }
    }

    fn write_gathered(&mut self) -> Result<()> {
        if !self.unwritten_tail.is_empty() {
            let before = self.live.len().checked_sub(2).expect("an unwritten tail has a log");
            self.written_bytes +=
                self.live[before].append(&mut self.unwritten_tail, self.acknowledged_below)?;
        }
        if !self.chunk.is_empty() {
            let active = self.live.last().expect("a logged tree has an active log");
            self.written_bytes += active.append(&mut self.chunk, self.acknowledged_below)?;
        }
        Ok(())
    }

    /// Syncs every live log.
    pub(super) fn sync(&mut self) -> Result<()> {
        self.check()?;
        let mut synced = Ok(());
        for live in &mut self.live {
            let bytes = live.log.bytes();
            if bytes > live.synced_bytes {
                synced = live.log.sync();
                if synced.is_err() {
                    break;
                }
                live.synced_bytes = bytes;
            }
        }
        self.poison(synced)
    }

    /// Deletes every log: none is needed any more.
    pub(super) fn delete_all(&mut self) -> Result<()> {
        self.poisoned = true;
        let logs: Vec<String> =
            self.live.drain(..).chain(self.spare.take()).map(|log| log.id.name()).collect();
        concurrent::try_map(&*self.store, &logs, |name| self.store.delete(name)).map(drop)
    }

    /// Deletes the logs below `floor`, which no manifest needs any more. One that a full store
    /// fails to delete is deleted with the next.
    pub(super) fn delete_below(&mut self, floor: u64) -> Result<()> {
        while let Some(first) = self.live.first()
            && first.id.number < floor
        {
            let deleted = self.store.delete(&first.id.name());
            if is_full(&deleted) {
                return Ok(());
            }
            self.live.remove(0);
            if self.live.len() < 2 {
                self.unwritten_tail.clear();
            }
            deleted?;
        }
        Ok(())
    }
}

impl LiveLog {
    /// Writes `chunk`, which records that operations below `synced_below` are synced, and empties
    /// it; returns the bytes written.
    fn append(&self, chunk: &mut LogBlock, synced_below: u64) -> Result<u64> {
        let origin = ChunkOrigin { log: self.id, offset: self.log.bytes() };
        let bytes = chunk.seal(&origin, synced_below);
        let count = bytes.len() as u64;
        self.log.append(bytes)?;
        chunk.clear();
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::{FaultEffect, FaultStore, MemoryStore, Store};

    use super::*;
    use crate::family::NoFamily;
    use crate::object_name::ObjectFolder;
    use crate::schema::record::RECORD;
    use crate::wal::{LogContent, ShardLog, decode_log};

    const SET: SetId = SetId(3);

    fn gather(state: &mut WriterLogs, seq: u64) {
        let mut shard = ShardLog::default();
        shard.start(seq, 0);
        state.chunk.take(0, &mut shard);
    }

    fn operations(store: &FaultStore, number: u64) -> Vec<u64> {
        let id = LogId { set: SET, number };
        let bytes = store.get(&id.name(), 1 << 20).expect("a log");
        let mut seqs = Vec::new();
        let whole = decode_log(&RECORD, &NoFamily, id, &bytes, &mut |logged| {
            if let LogContent::Operation(seq) = logged {
                seqs.push(seq);
            }
        });
        assert_eq!(whole.expect("our own log"), bytes.len());
        seqs
    }

    fn begun() -> (Arc<FaultStore>, WriterLogs) {
        let store = Arc::new(FaultStore::new(Arc::new(MemoryStore::new()), 1));
        let mut state = WriterLogs::new(store.clone(), SET, 1);
        state.prepare().expect("a log");
        state.switch();
        (store, state)
    }

    /// Makes a state whose second log is active, on a store that is full before the first log gets
    /// the chunk that it is owed.
    fn with_unwritten_tail() -> (Arc<FaultStore>, WriterLogs) {
        let (store, mut state) = begun();
        state.prepare().expect("the next log");
        gather(&mut state, 1);
        state.switch();
        store.fill_at(1, FaultEffect::None);
        is_refused(state.write());
        (store, state)
    }

    fn is_refused(result: Result<()>) {
        assert_eq!(result.expect_err("full").kind(), Kind::NoSpace);
    }

    #[test]
    fn a_log_gets_what_it_is_owed_before_the_next_one_gets_anything() {
        let (store, mut state) = with_unwritten_tail();
        gather(&mut state, 2);
        is_refused(state.write());
        store.make_room();
        // There is room for one of the two chunks.
        store.fail_at(store.operations() + 2, Kind::NoSpace);
        is_refused(state.write());
        assert_eq!((operations(&store, 1), operations(&store, 2)), (vec![1], vec![]));
        state.write().expect("there is room");
        state.sync().expect("sync");
        assert_eq!((operations(&store, 1), operations(&store, 2)), (vec![1], vec![2]));
    }

    #[test]
    fn a_log_that_goes_is_owed_nothing() {
        let (store, mut state) = with_unwritten_tail();
        state.delete_below(state.floor()).expect("a deletion takes no room");
        store.make_room();
        gather(&mut state, 2);
        state.write().expect("there is room");
        assert_eq!(operations(&store, 2), [2]);
        assert_eq!(store.list_names(&ObjectFolder::Logs(SET).to_string()).expect("list").len(), 1);
    }

    #[test]
    fn a_log_that_could_not_be_begun_leaves_nothing_and_its_number() {
        for (failing, effect) in
            [(0, FaultEffect::None), (0, FaultEffect::Full), (1, FaultEffect::Full)]
        {
            let (store, mut state) = begun();
            store.fail_at_with(store.operations() + 1 + failing, Kind::NoSpace, effect);
            is_refused(state.prepare());
            gather(&mut state, 1);
            state.write().expect("the log before goes on");
            state.prepare().expect("there is room");
            state.switch();
            assert_eq!(state.floor(), 3);
            let names = store.list_names(&ObjectFolder::Logs(SET).to_string()).expect("list");
            assert_eq!(names, ["00000000-00000001", "00000000-00000003"]);
        }
    }
}
