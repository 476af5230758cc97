// SPDX-License-Identifier: Apache-2.0
//! Answer: answers to the kernel, and their encoding.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use fuser::{FileAttr, FileType};
use zerocopy::IntoBytes;

use crate::abi;

/// Time for which the kernel may cache names and attributes. They stay valid for longer, but one
/// request an hour costs nothing.
pub const KEPT_SECONDS: u64 = 3600;
/// Alignment of directory entries.
const DIRENT_ALIGNMENT: usize = 8;

/// The answer to a request that succeeded.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Done.
    Empty,
    /// A file with a name. Number 0: there is no file of that name.
    Entry(FileAttr),
    /// Attributes.
    Attr(FileAttr),
    /// An open file or directory: its handle, flags of the reply, and the kernel's number of its
    /// backing file (0: none).
    Opened(u64, u32, u32),
    /// A new file that is open, with flags and backing file as above.
    Created(FileAttr, u32, u32),
    /// Number of bytes written, or the size of an extended attribute.
    Size(u32),
    /// Bytes of a file, an attribute, a link, or a listing.
    Data(Bytes),
    /// Offset at which data or a hole begins.
    Offset(i64),
    /// Blocks of 4 KiB: in total, free, and available to ordinary users.
    Room(u64, u64, u64),
}

impl Answer {
    /// Writes this to the beginning of `payload`; returns its size, or `None` if there is no room.
    pub(crate) fn write(&self, payload: &mut [u8]) -> Option<usize> {
        let open = |handle, flags, backing| abi::OpenOut { handle, flags, backing };
        match self {
            Self::Empty => Some(0),
            Self::Entry(attr) => put(payload, entry_out(attr).as_bytes()),
            Self::Attr(attr) => {
                let (attr_seconds, attr) = (KEPT_SECONDS, attr_out(attr));
                let reply = abi::AttrReplyOut { attr_seconds, attr_ns: 0, padding: 0, attr };
                put(payload, reply.as_bytes())
            }
            Self::Opened(handle, flags, backing) => {
                put(payload, open(*handle, *flags, *backing).as_bytes())
            }
            Self::Created(attr, flags, backing) => {
                let open = open(0, *flags, *backing);
                put(payload, abi::CreateOut { entry: entry_out(attr), open }.as_bytes())
            }
            Self::Size(size) => put(payload, abi::SizeOut { size: *size, padding: 0 }.as_bytes()),
            Self::Data(bytes) => put(payload, bytes),
            Self::Offset(offset) => put(payload, abi::LseekOut { offset: *offset }.as_bytes()),
            Self::Room(blocks, free, available) => {
                // No limit on the number of files; programs check for free ones.
                let files = u64::from(u32::MAX);
                let reply = abi::StatfsOut {
                    blocks: *blocks,
                    free: *free,
                    available: *available,
                    files,
                    files_free: files,
                    block_bytes: 4096,
                    name_bytes_max: 255,
                    fragment_bytes: 4096,
                    padding: 0,
                    spare: [0; 6],
                };
                put(payload, reply.as_bytes())
            }
        }
    }
}

/// Entries of a directory, up to the size that the kernel requests.
#[derive(Debug)]
pub struct Listing {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Listing {
    /// Room for `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: u32) -> Self {
        Self { bytes: Vec::new(), bytes_max: bytes_max as usize }
    }

    /// Adds an entry without attributes; false if there is no room for it.
    pub fn add(&mut self, number: u64, cookie: u64, kind: FileType, name: &[u8]) -> bool {
        self.push(dirent_out(number, cookie, kind, name).as_bytes(), name)
    }

    /// Adds an entry with attributes; false if there is no room for it.
    pub fn add_with_attributes(&mut self, attr: &FileAttr, cookie: u64, name: &[u8]) -> bool {
        let dirent = dirent_out(attr.ino.0, cookie, attr.kind, name);
        self.push(abi::DirentPlusOut { entry: entry_out(attr), dirent }.as_bytes(), name)
    }

    fn push(&mut self, head: &[u8], name: &[u8]) -> bool {
        let end = self.bytes.len() + (head.len() + name.len()).next_multiple_of(DIRENT_ALIGNMENT);
        if end > self.bytes_max {
            return false;
        }
        self.bytes.extend_from_slice(head);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

impl From<Listing> for Answer {
    fn from(listing: Listing) -> Self {
        Self::Data(listing.bytes.into())
    }
}

fn put(payload: &mut [u8], bytes: &[u8]) -> Option<usize> {
    payload.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(bytes.len())
}

fn entry_out(attr: &FileAttr) -> abi::EntryOut {
    abi::EntryOut {
        node: attr.ino.0,
        // Inode numbers are never reused, so there is one generation.
        generation: 0,
        entry_seconds: KEPT_SECONDS,
        attr_seconds: KEPT_SECONDS,
        entry_ns: 0,
        attr_ns: 0,
        attr: attr_out(attr),
    }
}

fn attr_out(attr: &FileAttr) -> abi::AttrOut {
    let ((atime, atime_ns), (mtime, mtime_ns)) = (parts(attr.atime), parts(attr.mtime));
    let (ctime, ctime_ns) = parts(attr.ctime);
    abi::AttrOut {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime,
        mtime,
        ctime,
        atime_ns,
        mtime_ns,
        ctime_ns,
        mode: type_bits(attr.kind) | u32::from(attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        block_bytes: attr.blksize,
        flags: 0,
    }
}

fn dirent_out(ino: u64, cookie: u64, kind: FileType, name: &[u8]) -> abi::DirentOut {
    let name_bytes = u32::try_from(name.len()).expect("names have at most 255 bytes");
    abi::DirentOut { ino, cookie, name_bytes, kind: type_bits(kind) >> 12 }
}

/// The bits of a mode that encode the file type.
fn type_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::RegularFile => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
    }
}

/// Seconds since 1970, which are negative before, and nanoseconds to add to them.
fn parts(time: SystemTime) -> (i64, u32) {
    let seconds = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (seconds(since.as_secs()), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => (-seconds(before.as_secs()), 0),
                nanoseconds => (-seconds(before.as_secs()) - 1, 1_000_000_000 - nanoseconds),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_before_1970_have_nanoseconds_that_are_added() {
        assert_eq!(parts(UNIX_EPOCH - Duration::new(1, 200_000_000)), (-2, 800_000_000));
        assert_eq!(parts(UNIX_EPOCH - Duration::new(2, 0)), (-2, 0));
        assert_eq!(parts(UNIX_EPOCH + Duration::new(2, 5)), (2, 5));
    }

    #[test]
    fn listings_end_before_there_is_no_room() {
        let mut listing = Listing::new(24 + 8 + 24 + 7);
        assert!(listing.add(5, 1, FileType::Directory, b"name"));
        assert!(!listing.add(6, 2, FileType::RegularFile, b"other"));
        assert_eq!(listing.bytes.len(), 32);
        assert_eq!(listing.bytes[20..32], *b"\x04\0\0\0name\0\0\0\0");
    }

    #[test]
    fn answers_without_room_are_refused() {
        let answer = Answer::Data(Bytes::from_static(b"12345"));
        assert_eq!(answer.write(&mut [0; 4]), None);
        let mut payload = [0; 8];
        assert_eq!(answer.write(&mut payload), Some(5));
        assert_eq!(payload, *b"12345\0\0\0");
    }
}
