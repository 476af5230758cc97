//! Disk: objects and append logs, and how much of each log would survive power loss.
//!
//! Invariants: (1) an object never changes; (2) a log grows at its end, and only what is behind its
//! synced length is ever lost. Concurrency: none; the machine's lock guards it.
//! Source: order of pages lost, Pillai et al., "All file systems are not created equal", OSDI 2014.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};

use bytes::Bytes;
use esker_base::store::ObjectInfo;
use esker_base::{Error, Kind, Random, Result};

/// What a device writes or loses at once, in bytes.
const PAGE_BYTES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    objects: BTreeMap<String, Stored>,
}

#[derive(Debug)]
struct Stored {
    content: Content,
    modified_ns: u64,
    /// The process that put it.
    writer: u64,
}

#[derive(Debug)]
enum Content {
    Object(Bytes),
    Log(Log),
}

#[derive(Debug)]
struct Log {
    bytes: Vec<u8>,
    /// Bytes that survive power loss; `None` until the first sync: not even the name does.
    synced: Option<usize>,
}

fn taken(name: &str) -> Error {
    Error::new(Kind::Exists, format!("{name}: the name is taken"))
}

fn missing(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("{name}: no such object in this store"))
}

impl Disk {
    pub(crate) fn put(&mut self, name: &str, bytes: Bytes, writer: u64, now_ns: u64) -> Result<()> {
        self.insert(name, Stored { content: Content::Object(bytes), modified_ns: now_ns, writer })
    }

    pub(crate) fn open_log(&mut self, name: &str, writer: u64, now_ns: u64) -> Result<()> {
        let content = Content::Log(Log { bytes: Vec::new(), synced: None });
        self.insert(name, Stored { content, modified_ns: now_ns, writer })
    }

    fn insert(&mut self, name: &str, stored: Stored) -> Result<()> {
        if self.objects.contains_key(name) {
            return Err(taken(name));
        }
        self.objects.insert(name.into(), stored);
        Ok(())
    }

    /// The process that put the last of the objects whose names start with `prefix`.
    pub(crate) fn last_writer(&self, prefix: &str) -> Option<u64> {
        let range = self.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let below = range.take_while(|(name, _)| name.starts_with(prefix));
        below.last().map(|(_, stored)| stored.writer)
    }

    /// Appends to a log; what goes to one that was deleted is lost, as on a file without a name.
    pub(crate) fn append(&mut self, name: &str, bytes: &[u8], now_ns: u64) {
        let Some(stored) = self.objects.get_mut(name) else { return };
        if let Content::Log(log) = &mut stored.content {
            log.bytes.extend_from_slice(bytes);
            stored.modified_ns = now_ns;
        }
    }

    pub(crate) fn sync(&mut self, name: &str) {
        if let Some(Stored { content: Content::Log(log), .. }) = self.objects.get_mut(name) {
            log.synced = Some(log.bytes.len());
        }
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<&[u8]> {
        match &self.objects.get(name).ok_or_else(|| missing(name))?.content {
            Content::Object(bytes) => Ok(bytes),
            Content::Log(log) => Ok(&log.bytes),
        }
    }

    pub(crate) fn slice(&self, name: &str, range: &Range<u64>) -> Result<Bytes> {
        if range.start > range.end {
            return Err(Error::new(Kind::Invalid, format!("{name}: {range:?} runs backwards")));
        }
        let bytes = self.bytes(name)?;
        let bounds = |at: u64| usize::try_from(at).ok().filter(|&at| at <= bytes.len());
        match (bounds(range.start), bounds(range.end)) {
            (Some(start), Some(end)) => Ok(Bytes::copy_from_slice(&bytes[start..end])),
            _ => {
                let what = format!("{name}: {range:?} is asked for, of {} bytes", bytes.len());
                Err(Error::new(Kind::Corrupt, what))
            }
        }
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<ObjectInfo> {
        let range = self.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        range
            .take_while(|(name, _)| name.starts_with(prefix))
            .map(|(name, stored)| {
                let bytes = match &stored.content {
                    Content::Object(bytes) => bytes.len(),
                    Content::Log(log) => log.bytes.len(),
                };
                ObjectInfo {
                    name: name.clone(),
                    bytes: bytes as u64,
                    modified_ns: stored.modified_ns,
                }
            })
            .collect()
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.objects.remove(name);
    }

    /// What power loss leaves. Logs of processes that died before are lost with the others: their
    /// bytes were in the machine's memory.
    pub(crate) fn lose_power(&mut self, random: &mut Random) {
        self.tear(random, |_| true, lose_pages);
    }

    /// What is left when `process` dies whose logs gather bytes in its memory: a prefix of each.
    pub(crate) fn lose_buffers(&mut self, process: u64, random: &mut Random) {
        self.tear(random, |writer| writer == process, |_, found, _| found);
    }

    fn tear(
        &mut self,
        random: &mut Random,
        is_torn: impl Fn(u64) -> bool,
        garble: impl Fn(&mut Random, Vec<u8>, usize) -> Vec<u8>,
    ) {
        self.objects.retain(|_, stored| {
            let Content::Log(log) = &mut stored.content else { return true };
            if !is_torn(stored.writer) {
                return true;
            }
            if log.synced.is_none() && random.one_in(2) {
                return false;
            }
            let synced = log.synced.unwrap_or(0);
            let mut found = std::mem::take(&mut log.bytes);
            found.truncate(synced + below(random, found.len() - synced + 1));
            log.bytes = garble(random, found, synced);
            log.synced = Some(log.bytes.len());
            true
        });
    }
}

/// `found` after its unsynced end was written in part and out of order.
fn lose_pages(random: &mut Random, mut found: Vec<u8>, synced: usize) -> Vec<u8> {
    let kept = found.len();
    if kept == synced {
        return found;
    }
    let from = synced + below(random, kept - synced);
    match below(random, 4) {
        0 => {}
        // The size reached the disk and the bytes did not.
        1 => found[from..].fill(0),
        2 => random.fill(&mut found[from..]),
        // A page was lost and later ones were not.
        _ => {
            let end = (from / PAGE_BYTES + 1) * PAGE_BYTES;
            found[from..end.min(kept)].fill(0);
        }
    }
    found
}

fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a number that fits")
}
