// SPDX-License-Identifier: Apache-2.0
//! Open files: descriptors of objects being read, kept so that a read is one pread.
//!
//! Invariant: [`DescriptorCache::forget`] invalidates all descriptors opened before it returns.
//! Processes do not notify each other of deletions: another process may continue to read the
//! deleted object by range, as any POSIX reader of a removed file does. Objects are immutable, so
//! those bytes are right; but a name that is put, deleted and put again must be read whole
//! ([`read_whole`] opens it anew).

use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use quick_cache::sync::Cache;
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, OFlags, Stat, fstat};
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::process::{Resource, getrlimit};

use super::beneath;
use super::directories::DirectoryCache;
use super::failure::failed;
use crate::store::{coalesce, over_limit};
use crate::{Error, Kind, Result};

/// Maximum descriptors kept, and the share of the process's limit that they may take: the rest
/// belongs to the program that uses this library.
const OPEN_MAX: u64 = 4096;
const SHARE_OF_LIMIT: u64 = 4;

#[derive(Debug)]
pub(super) struct DescriptorCache {
    cache: Cache<String, Arc<CachedDescriptor>>,
    /// Number of forgotten names. A reader that sees it change does not trust a descriptor that it
    /// opened.
    forgotten: AtomicU64,
}

#[derive(Debug)]
struct CachedDescriptor {
    file: OwnedFd,
    /// The size when last checked; logs grow.
    bytes: AtomicU64,
}

impl DescriptorCache {
    pub(super) fn new() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let open_max = (limit / SHARE_OF_LIMIT).clamp(1, OPEN_MAX);
        let open_max = usize::try_from(open_max).expect("at most OPEN_MAX");
        Self { cache: Cache::new(open_max), forgotten: AtomicU64::new(0) }
    }

    /// Reads `range` of `name`.
    pub(super) fn read(
        &self,
        directories: &DirectoryCache,
        name: &str,
        range: &Range<u64>,
    ) -> Result<Bytes> {
        let open = self.open(directories, name)?;
        if range.end > open.bytes.load(Ordering::Relaxed) {
            let stat = fstat(&open.file)
                .map_err(|errno| failed("look at", &directories.path_of(name), errno))?;
            open.bytes.store(size_of(&stat), Ordering::Relaxed);
            if range.end > size_of(&stat) {
                return Err(coalesce::too_short(name, range, size_of(&stat)));
            }
        }
        read_at(&open.file, directories, name, range)
    }

    /// Closes the descriptors of `name`, whose object is gone.
    pub(super) fn forget(&self, name: &str) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        self.cache.remove(name);
    }

    /// Closes all descriptors that are kept and not in use; returns whether there were any.
    pub(super) fn close_all(&self) -> bool {
        let had_some = !self.cache.is_empty();
        self.cache.clear();
        had_some
    }

    fn open(&self, directories: &DirectoryCache, name: &str) -> Result<Arc<CachedDescriptor>> {
        if let Some(open) = self.cache.get(name) {
            return Ok(open);
        }
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        let (file, stat) = open_regular(directories, name, OFlags::RDONLY)?;
        let open = Arc::new(CachedDescriptor { file, bytes: AtomicU64::new(size_of(&stat)) });
        self.cache.insert(name.into(), Arc::clone(&open));
        if self.forgotten.load(Ordering::SeqCst) != forgotten {
            self.cache.remove(name);
        }
        Ok(open)
    }
}

/// Opens `name` anew and reads all its bytes; `TooLarge` if they are more than `bytes_max`.
pub(super) fn read_whole(
    directories: &DirectoryCache,
    name: &str,
    bytes_max: u64,
) -> Result<Bytes> {
    let (file, stat) = open_regular(directories, name, OFlags::RDONLY)?;
    let bytes = size_of(&stat);
    if bytes > bytes_max {
        return Err(over_limit(name, bytes, bytes_max));
    }
    read_at(&file, directories, name, &(0..bytes))
}

/// Opens `name` anew.
pub(super) fn anew(directories: &DirectoryCache, name: &str) -> Result<File> {
    open_regular(directories, name, OFlags::RDONLY).map(|(file, _)| file.into())
}

/// The size of `name`.
pub(super) fn size(directories: &DirectoryCache, name: &str) -> Result<u64> {
    open_regular(directories, name, OFlags::PATH).map(|(_, stat)| size_of(&stat))
}

fn open_regular(
    directories: &DirectoryCache,
    name: &str,
    flags: OFlags,
) -> Result<(OwnedFd, Stat)> {
    let absent = || Error::new(Kind::NotFound, format!("{name}: no such object in this store"));
    let path = || directories.path_of(name);
    let file = beneath::open(directories.root(), name, flags).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => absent(),
        // A socket, or a device without a driver.
        Errno::NXIO => not_an_object(name),
        _ => failed("open", &path(), errno),
    })?;
    let stat = fstat(&file).map_err(|errno| failed("look at", &path(), errno))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((file, stat)),
        FileType::Directory => Err(absent()),
        FileType::Symlink => Err(failed("open", &path(), Errno::LOOP)),
        _ => Err(not_an_object(name)),
    }
}

fn not_an_object(name: &str) -> Error {
    Error::corrupt(name, 0, "expected a regular file, got a special one: remove it")
}

fn read_at(
    file: &OwnedFd,
    directories: &DirectoryCache,
    name: &str,
    range: &Range<u64>,
) -> Result<Bytes> {
    let wanted = range.end - range.start;
    let mut bytes: Vec<u8> = Vec::new();
    let reserved = usize::try_from(wanted).ok().map(|wanted| bytes.try_reserve_exact(wanted));
    if !matches!(reserved, Some(Ok(()))) {
        let what = format!("{name}: a read of {wanted} bytes does not fit in memory");
        return Err(Error::new(Kind::TooLarge, what));
    }
    while (bytes.len() as u64) < wanted {
        let at = range.start + bytes.len() as u64;
        match retry_on_intr(|| pread(file, spare_capacity(&mut bytes), at)) {
            Ok(0) => return Err(coalesce::too_short(name, range, at)),
            Ok(_) => {}
            Err(errno) => return Err(failed("read", &directories.path_of(name), errno)),
        }
    }
    // An allocator may reserve more than was asked for, and the file may have more bytes than its
    // size.
    bytes.truncate(usize::try_from(wanted).expect("it was reserved"));
    Ok(bytes.into())
}

fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}
