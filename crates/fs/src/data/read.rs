// SPDX-License-Identifier: Apache-2.0
//! Reading file data.

use std::ops::Range;

use esker_base::store::Store;
use esker_base::{Bytes, Error, Kind, Result};

use esker_extent::{LogPlace, Segment};
use esker_table::object_name::ObjectName;

use crate::inode::{Extent, Inode};

/// Whole files are read in requests of this size.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;

/// Reads a range of the log of an extent.
pub(crate) type ExtentRead<'a> = &'a dyn Fn(&Extent, Range<u64>) -> Result<Bytes>;

/// Returns up to `bytes_max` bytes of `inode` from `offset`. Calls `fetch` at most once.
pub(crate) fn read_with(
    fetch: ExtentRead<'_>,
    inode: &Inode,
    offset: u64,
    bytes_max: usize,
) -> Result<Bytes> {
    let end = inode.size.min(offset.saturating_add(bytes_max as u64));
    if offset >= end {
        return Ok(Bytes::new());
    }
    let count = usize::try_from(end - offset).expect("at most bytes_max");
    let stored = match &inode.extent {
        Some(extent) if offset < extent.length => {
            let start = extent.offset + offset;
            let stop = extent.offset + end.min(extent.length);
            fetch(extent, start..stop)?
        }
        Some(_) => Bytes::new(),
        None => {
            let content = &inode.content[..inode.content.len().min(end as usize)];
            Bytes::copy_from_slice(content.get(offset as usize..).unwrap_or_default())
        }
    };
    if stored.len() == count {
        return Ok(stored);
    }
    // Beyond the stored bytes a file is zeros.
    let mut padded = stored.to_vec();
    padded.resize(count, 0);
    Ok(padded.into())
}

/// Returns the bytes of `range`, read from the places of `pieces`, which are in order; all others
/// are zeros. Cost: a store request per log, or more if its pieces are far apart.
///
/// # Errors
/// `NotFound` if a log is gone; other errors of the store.
///
/// # Panics
/// If a piece is not within the range.
pub fn read_mapped(store: &dyn Store, range: Range<u64>, pieces: &[Segment]) -> Result<Bytes> {
    let stored = |piece: &Segment| piece.place.map(|place| (place.set, place.log));
    let span = |piece: &Segment| {
        let start = piece.place.map_or(0, |place| place.offset);
        start..start + piece.length
    };
    if let [only] = pieces
        && let Some((set, log)) = stored(only)
        && (only.offset, only.end()) == (range.start, range.end)
    {
        return store.get_range(&ObjectName::Data(set, log).to_string(), span(only));
    }
    let index = |at: u64| usize::try_from(at - range.start).expect("a range that was asked for");
    let mut bytes = vec![0; index(range.end)];
    let mut placed: Vec<&Segment> = pieces.iter().filter(|piece| piece.place.is_some()).collect();
    placed.sort_by_key(|piece| (stored(piece), span(piece).start));
    for of_log in placed.chunk_by(|a, b| stored(a) == stored(b)) {
        let Some((set, log)) = stored(of_log[0]) else { continue };
        let ranges: Vec<Range<u64>> = of_log.iter().map(|piece| span(piece)).collect();
        let read = store.get_ranges(&ObjectName::Data(set, log).to_string(), &ranges)?;
        for (piece, piece_bytes) in of_log.iter().zip(read) {
            bytes[index(piece.offset)..index(piece.end())].copy_from_slice(&piece_bytes);
        }
    }
    Ok(bytes.into())
}

/// Returns whether the `length` bytes at `place` have `checksum`. Reads them in pieces.
pub(crate) fn has_checksum(
    store: &dyn Store,
    place: LogPlace,
    length: u64,
    checksum: u32,
) -> Result<bool> {
    let name = ObjectName::Data(place.set, place.log).to_string();
    let (mut at, end, mut found) = (place.offset, place.offset + length, 0);
    while at < end {
        let stop = at + PIECE_BYTES.min(end - at);
        found = crc32c::crc32c_append(found, &store.get_range(&name, at..stop)?);
        at = stop;
    }
    Ok(found == checksum)
}

/// Passes all bytes of `inode` to `take` and verifies their checksum, if there is one; for that,
/// truncated bytes are read too.
pub fn read_all(
    store: &dyn Store,
    inode: &Inode,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let fetch = |extent: &Extent, range| {
        store.get_range(&ObjectName::Data(extent.set, extent.log).to_string(), range)
    };
    read_all_with(&fetch, inode, take)
}

/// Like [`read_all`], reading through `fetch`.
pub(crate) fn read_all_with(
    fetch: ExtentRead<'_>,
    inode: &Inode,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (mut offset, mut checksum) = (0, 0);
    let stored = inode.extent.map_or(0, |extent| extent.length);
    while offset < inode.size {
        // Pieces end where the stored bytes do, so that the checksum covers only those.
        let stop = if offset < stored { stored } else { inode.size };
        let count = (stop - offset).min(PIECE_BYTES);
        let bytes = read_with(fetch, inode, offset, count as usize)?;
        if offset < stored {
            checksum = crc32c::crc32c_append(checksum, &bytes);
        }
        offset += count;
        take(&bytes)?;
    }
    match &inode.extent {
        Some(extent) if extent.is_checked() => check_rest(fetch, extent, checksum),
        _ => Ok(()),
    }
}

/// Fails unless the bytes written as `extent` have its checksum, given the checksum of those still
/// visible.
fn check_rest(fetch: ExtentRead<'_>, extent: &Extent, mut checksum: u32) -> Result<()> {
    let name = ObjectName::Data(extent.set, extent.log).to_string();
    let (mut at, end) = (extent.offset + extent.length, extent.offset + extent.written);
    while at < end {
        let stop = end.min(at + PIECE_BYTES);
        checksum = crc32c::crc32c_append(checksum, &fetch(extent, at..stop)?);
        at = stop;
    }
    if checksum == extent.checksum {
        return Ok(());
    }
    let context = format!(
        "{name} at byte {}: {} bytes with checksum {checksum:08x}, expected {:08x}",
        extent.offset, extent.written, extent.checksum
    );
    Err(Error::new(Kind::Corrupt, context))
}
