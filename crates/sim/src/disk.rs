// SPDX-License-Identifier: Apache-2.0
//! Disk: objects, append logs and logs written in place, and the part of each that survives power
//! loss.
//!
//! Invariants: (1) an object never changes; (2) a log grows at its end, and only bytes beyond its
//! synced length are ever lost; (3) in a log written in place, power loss leaves each page either
//! as of the last sync or as it is now. Concurrency: none; the machine's lock guards it.
//! Source: reordered page writes, Pillai et al., "All file systems are not created equal", OSDI
//! 2014.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::{Bound, Range};
use std::os::unix::fs::FileExt;

use bytes::Bytes;
use esker_base::store::ObjectInfo;
use esker_base::{Error, Kind, Random, Result};
use rustix::fs::{MemfdFlags, memfd_create};

/// Unit in which a device writes or loses data, in bytes.
const PAGE_BYTES: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct SimulatedDisk {
    objects: BTreeMap<String, DiskObject>,
}

#[derive(Debug)]
struct DiskObject {
    content: DiskContent,
    modified_ns: u64,
    /// The process that put it.
    writer: u64,
}

#[derive(Debug)]
enum DiskContent {
    Object(Bytes),
    Log(DiskLog),
    InPlace(DiskInPlaceLog),
}

#[derive(Debug)]
struct DiskLog {
    bytes: Vec<u8>,
    /// Bytes that survive power loss; `None` before the first sync, when even the name may be lost.
    synced: Option<usize>,
}

/// A log that any process with its file writes, at any offset.
#[derive(Debug)]
struct DiskInPlaceLog {
    file: File,
    /// The bytes at the last sync; `None` before the first.
    synced: Option<Vec<u8>>,
}

impl DiskInPlaceLog {
    fn new(name: &str) -> Result<Self> {
        let file = memfd_create("log in place", MemfdFlags::CLOEXEC)
            .map_err(|errno| Error::io(errno.into(), name))?;
        Ok(Self { file: file.into(), synced: None })
    }

    fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let failed = |error| Error::io(error, name);
        let length = self.file.metadata().map_err(failed)?.len();
        let mut bytes = vec![0; usize::try_from(length).expect("it is in memory")];
        self.file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        Ok(bytes)
    }
}

impl DiskContent {
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        Ok(match self {
            Self::Object(bytes) => Cow::Borrowed(bytes),
            Self::Log(log) => Cow::Borrowed(&log.bytes),
            Self::InPlace(log) => Cow::Owned(log.bytes(name)?),
        })
    }
}

fn taken(name: &str) -> Error {
    Error::new(Kind::Exists, format!("{name}: the name is taken"))
}

fn missing(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("{name}: no such object in this store"))
}

impl SimulatedDisk {
    pub(crate) fn put(&mut self, name: &str, bytes: Bytes, writer: u64, now_ns: u64) -> Result<()> {
        self.insert(
            name,
            DiskObject { content: DiskContent::Object(bytes), modified_ns: now_ns, writer },
        )
    }

    pub(crate) fn open_log(&mut self, name: &str, writer: u64, now_ns: u64) -> Result<()> {
        let content = DiskContent::Log(DiskLog { bytes: Vec::new(), synced: None });
        self.insert(name, DiskObject { content, modified_ns: now_ns, writer })
    }

    /// Opens a log that is written in place; returns its file.
    pub(crate) fn open_in_place(&mut self, name: &str, writer: u64, now_ns: u64) -> Result<File> {
        let log = DiskInPlaceLog::new(name)?;
        let file = log.file.try_clone().map_err(|error| Error::io(error, name))?;
        self.insert(
            name,
            DiskObject { content: DiskContent::InPlace(log), modified_ns: now_ns, writer },
        )?;
        Ok(file)
    }

    fn insert(&mut self, name: &str, stored: DiskObject) -> Result<()> {
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

    /// Appends to a log; bytes appended to a deleted log are lost, as with an unlinked file.
    pub(crate) fn append(&mut self, name: &str, bytes: &[u8], now_ns: u64) {
        let Some(stored) = self.objects.get_mut(name) else { return };
        if let DiskContent::Log(log) = &mut stored.content {
            log.bytes.extend_from_slice(bytes);
            stored.modified_ns = now_ns;
        }
    }

    pub(crate) fn sync(&mut self, name: &str) -> Result<()> {
        match self.objects.get_mut(name).map(|stored| &mut stored.content) {
            Some(DiskContent::Log(log)) => log.synced = Some(log.bytes.len()),
            Some(DiskContent::InPlace(log)) => log.synced = Some(log.bytes(name)?),
            Some(DiskContent::Object(_)) | None => {}
        }
        Ok(())
    }

    pub(crate) fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        self.objects.get(name).ok_or_else(|| missing(name))?.content.bytes(name)
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

    pub(crate) fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let range = self.objects.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        range
            .take_while(|(name, _)| name.starts_with(prefix))
            .map(|(name, stored)| {
                let bytes = stored.content.bytes(name)?.len() as u64;
                Ok(ObjectInfo { name: name.clone(), bytes, modified_ns: stored.modified_ns })
            })
            .collect()
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.objects.remove(name);
    }

    /// Applies power loss. Logs of processes that died earlier are lost like the others: their
    /// bytes were in the machine's memory.
    pub(crate) fn lose_power(&mut self, random: &mut Random) {
        self.tear(random, |_| true, lose_pages);
        self.objects.retain(|name, stored| match &mut stored.content {
            DiskContent::InPlace(log) if log.synced.is_none() && random.one_in(2) => false,
            DiskContent::InPlace(log) => {
                *log = lose_pages_in_place(random, log, name).expect("memory takes it");
                true
            }
            DiskContent::Object(_) | DiskContent::Log(_) => true,
        });
    }

    /// Applies the death of `process` with logs buffered in its memory: a prefix of each survives.
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
            let DiskContent::Log(log) = &mut stored.content else { return true };
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

/// Returns `found` with its unsynced end written partially and out of order.
fn lose_pages(random: &mut Random, mut found: Vec<u8>, synced: usize) -> Vec<u8> {
    let kept = found.len();
    if kept == synced {
        return found;
    }
    let from = synced + below(random, kept - synced);
    match below(random, 4) {
        0 => {}
        // The size reached the disk, but the bytes did not.
        1 => found[from..].fill(0),
        2 => random.fill(&mut found[from..]),
        // A page was lost, but later ones were not.
        _ => {
            let end = (from / PAGE_BYTES + 1) * PAGE_BYTES;
            found[from..end.min(kept)].fill(0);
        }
    }
    found
}

/// Returns `log` with each page either current or as last synced. Holders of the old file can no
/// longer change it.
fn lose_pages_in_place(
    random: &mut Random,
    log: &DiskInPlaceLog,
    name: &str,
) -> Result<DiskInPlaceLog> {
    let mut bytes = log.bytes(name)?;
    let synced = log.synced.as_deref().unwrap_or_default();
    // An unsynced size may be the old or the new one.
    if random.one_in(2) {
        bytes.resize(synced.len(), 0);
    }
    for (at, page) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
        if random.one_in(2) {
            let before = synced.get(at * PAGE_BYTES..).unwrap_or_default();
            let kept = before.len().min(page.len());
            page[..kept].copy_from_slice(&before[..kept]);
            page[kept..].fill(0);
        }
    }
    let torn = DiskInPlaceLog::new(name)?;
    torn.file.write_all_at(&bytes, 0).map_err(|error| Error::io(error, name))?;
    Ok(DiskInPlaceLog { synced: Some(bytes), ..torn })
}

fn below(random: &mut Random, bound: usize) -> usize {
    usize::try_from(random.below(bound as u64)).expect("below a number that fits")
}
