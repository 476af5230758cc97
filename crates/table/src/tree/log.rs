//! Log of a tree: gathers what the shards have pending, writes it, syncs it, rotates.
//!
//! Logs of a writer are numbered; one belongs to each memtable, so that it can go once the
//! memtable is in tables. `LogState` is behind the tree's log mutex, which is taken before any
//! shard's and held across the write: those who come next find their operations written already.

use esker_base::store::{AppendLog, SharedStore};
use esker_base::{Error, Kind, Result};

use crate::manifest::SetId;
use crate::wal::{Chunk, LOG_MAGIC};

/// The folder of a set's logs.
pub(super) fn folder(set: SetId) -> String {
    format!("set/{set}/wal/")
}

/// The name of log `number` of `set`; the number's high half is the writer's epoch.
pub(super) fn name(set: SetId, number: u64) -> String {
    format!("{}{:08x}-{:08x}", folder(set), number >> 32, number as u32)
}

/// The number of a log of that name in its folder.
pub(super) fn number(name: &str) -> Option<u64> {
    let (epoch, count) = name.split_once('-')?;
    let part = |text: &str| (text.len() == 8).then(|| u32::from_str_radix(text, 16).ok()).flatten();
    Some(u64::from(part(epoch)?) << 32 | u64::from(part(count)?))
}

/// The logs that a writer still needs, and how far they are written and synced.
pub(super) struct LogState {
    store: SharedStore,
    set: SetId,
    /// Number of the next log.
    next: u64,
    /// Logs of frozen memtables, and last the active one; none at durability `None`.
    live: Vec<LiveLog>,
    /// What is being gathered for one write.
    pub(super) chunk: Chunk,
    /// Operations below this number are synced.
    pub(super) synced_below: u64,
    poisoned: bool,
    /// Bytes written to logs so far.
    pub(super) written_bytes: u64,
}

struct LiveLog {
    number: u64,
    log: Box<dyn AppendLog>,
    synced_bytes: u64,
}

impl LogState {
    /// No log yet; the first will be number `next`.
    pub(super) fn new(store: SharedStore, set: SetId, next: u64) -> Self {
        Self {
            store,
            set,
            next,
            live: Vec::new(),
            chunk: Chunk::default(),
            synced_below: 0,
            poisoned: false,
            written_bytes: 0,
        }
    }

    /// Number that the next log will get.
    pub(super) fn next(&self) -> u64 {
        self.next
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

    /// Starts the log of a new memtable.
    pub(super) fn rotate(&mut self) -> Result<()> {
        self.check()?;
        let log = self.store.append_log(&name(self.set, self.next)).and_then(|log| {
            log.append(&LOG_MAGIC)?;
            Ok(log)
        });
        let log = self.poison(log)?;
        self.live.push(LiveLog { number: self.next, log, synced_bytes: 0 });
        self.next += 1;
        Ok(())
    }

    /// Writes the gathered chunk to the active log. If there is no room for it, it stays gathered,
    /// to be written before anything else.
    pub(super) fn write(&mut self) -> Result<()> {
        self.check()?;
        if self.chunk.is_empty() {
            return Ok(());
        }
        let active = self.live.last().expect("a logged tree has an active log");
        let bytes = self.chunk.seal(active.synced_bytes);
        let count = bytes.len() as u64;
        match active.log.append(bytes) {
            // The log is as it was, or says at the next attempt that it is not.
            Err(error) if error.kind() == Kind::NoSpace => return Err(error),
            written => self.poison(written)?,
        };
        self.written_bytes += count;
        self.chunk.clear();
        Ok(())
    }

    /// Syncs every live log; operations below `written_below` are then durable.
    pub(super) fn sync(&mut self, written_below: u64) -> Result<()> {
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
        self.poison(synced)?;
        self.synced_below = self.synced_below.max(written_below);
        Ok(())
    }

    /// Deletes logs below `floor`, which no manifest needs any more.
    pub(super) fn delete_below(&mut self, floor: u64) -> Result<()> {
        while let Some(first) = self.live.first()
            && first.number < floor
        {
            let number = self.live.remove(0).number;
            self.store.delete(&name(self.set, number))?;
        }
        Ok(())
    }
}
