// SPDX-License-Identifier: Apache-2.0
//! Inode: the record that a change set has for a name, and the schema that stores it.
//!
//! Layout: docs/format/inode.md. This file is its only encoder and decoder; `inode/schema.rs` has
//! the columns, `inode/stored_inode.rs` reads them. A record is keyed by (directory, xxh3 of the
//! name, name). A tombstone hides the name in layers below. A link stands for an inode that has
//! several names and is stored in the links directory.
//! Source: DESIGN §4; DeltaFS thesis §4.3 (what a log entry holds).

mod file_id;
pub mod indexed;
mod schema;
mod seat_file;
mod stored_inode;
pub mod timestamp;
pub mod xattr;

use esker_base::{Error, Kind, Result};
use esker_extent::LogPlace;
use esker_table::block::DecodedBlock;
use esker_table::manifest::SetId;
use esker_table::schema::{Key, Row, RowBuffer};

pub(crate) use self::file_id::identity_root;
pub use self::file_id::{DirId, FileId};
pub(crate) use self::schema::column;
pub use self::schema::{INODE, key, name_hash};
pub use self::seat_file::SeatFile;
use self::stored_inode::{InodeColumns, PLAIN, StoredInode};
use self::xattr::XATTR_BYTES_MAX;
use crate::file::FILE_BYTES_MAX;
use crate::stack::path::PATH_BYTES_MAX;

/// Kind of file that a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// An indexed directory: records by key, in logs of their own ([`indexed`]). Its extent
    /// has no bytes; it holds the set, the number and the checksum of the root object.
    Indexed,
}

impl FileKind {
    /// True if kernels, which have no indexed directories, see a directory.
    #[must_use]
    pub const fn is_shown_as_directory(self) -> bool {
        matches!(self, Self::Directory | Self::Indexed)
    }
}

/// The meaning of a record for its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// The name does not exist, even if lower layers have it.
    Tombstone,
    /// A file of this kind.
    Is(FileKind),
    /// One of several names of the file whose inode is in the links directory; in the set of a seat of
    /// a live namespace, also a name of a file that another seat has ([`Inode::seat_file`]).
    Link,
}

impl NameKind {
    /// Returns the number that records store for it.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::Tombstone => 0,
            Self::Is(FileKind::File) => 1,
            Self::Is(FileKind::Directory) => 2,
            Self::Is(FileKind::Symlink) => 3,
            Self::Is(FileKind::Fifo) => 4,
            Self::Is(FileKind::Socket) => 5,
            Self::Is(FileKind::CharDevice) => 6,
            Self::Is(FileKind::BlockDevice) => 7,
            Self::Link => 8,
            Self::Is(FileKind::Indexed) => 9,
        }
    }

    /// Decodes the number of an entry.
    #[must_use]
    pub const fn of_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Tombstone,
            1 => Self::Is(FileKind::File),
            2 => Self::Is(FileKind::Directory),
            3 => Self::Is(FileKind::Symlink),
            4 => Self::Is(FileKind::Fifo),
            5 => Self::Is(FileKind::Socket),
            6 => Self::Is(FileKind::CharDevice),
            7 => Self::Is(FileKind::BlockDevice),
            8 => Self::Link,
            9 => Self::Is(FileKind::Indexed),
            _ => return None,
        })
    }
}

/// Bytes of a file in a data log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The set whose folder has the log.
    pub set: SetId,
    /// Number of the log.
    pub log: u64,
    /// Offset of the bytes in the log.
    pub offset: u64,
    /// Number of bytes; the rest of a longer file is zeros.
    pub length: u64,
    /// CRC-32C of all bytes that were written.
    pub checksum: u32,
    /// Number of bytes originally written, the range that `checksum` covers; truncation only
    /// reduces `length`. Zero if the log may still be written in place, or could be when its writer
    /// died: its bytes exist, but are unverified.
    pub written: u64,
}

impl Extent {
    /// True if it has a checksum.
    #[must_use]
    pub fn is_checked(&self) -> bool {
        self.written > 0 || self.length == 0
    }

    /// Returns the place of its first byte.
    #[must_use]
    pub fn log_position(&self) -> LogPlace {
        LogPlace { set: self.set, log: self.log, offset: self.offset }
    }
}

/// Content of a mapped file as of a branch of a stack (`lineage.rs`): the extents that the branch
/// and the layers below it have, under the identity in its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchContent {
    /// Index of the branch among the bases.
    pub(crate) layer: u32,
    /// The identity of the file there.
    pub(crate) file: u128,
}

/// All attributes of a file except its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Kind of entry.
    pub entry: NameKind,
    /// For a directory, how often its name was a directory before; otherwise, how often it has been
    /// one.
    pub generation: u64,
    /// Sequence number, within its set, of the operation that wrote this record.
    pub seq: u64,
    /// Permission bits with set-id and sticky bits, as the low 12 bits of `st_mode`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names; 1 for directories.
    pub nlink: u32,
    /// Device number of a device file; of a directory or link, its place at another seat.
    pub rdev: u64,
    /// Bytes of content.
    pub size: u64,
    /// Time of the last content change (`timestamp.rs`).
    pub mtime_ns: i64,
    /// Time of the last inode change.
    pub ctime_ns: i64,
    /// Time of the last access, as far as it is recorded: set explicitly or at creation.
    pub atime_ns: i64,
    /// Identity; for a directory, its [`DirId`].
    pub id: u128,
    /// True if the content of a file is in the extent table.
    pub mapped: bool,
    /// The part of the extent table that has the content, if not all of it. Not stored: it follows
    /// from the layer in which the record was found.
    pub branch: Option<Box<BranchContent>>,
    /// Content in a data log, if any.
    pub extent: Option<Extent>,
    /// Content of a small file, the target of a symbolic link, or the earlier parts of an indexed
    /// directory.
    pub content: Vec<u8>,
    /// Extended attributes, encoded (`xattr.rs`).
    pub xattrs: Vec<u8>,
}

/// The error for the record of `name` in which `what` is wrong. Out of line: the code of listings
/// stays small.
#[cold]
#[inline(never)]
fn damage(name: &[u8], what: &str) -> Error {
    let name = String::from_utf8_lossy(name);
    let context = format!("inode record of {name:?}: {what}; run `esker verify`");
    Error::new(Kind::Corrupt, context)
}

/// Permission bits with set-id and sticky bits.
const MODE_MAX: u64 = 0o7777;
/// The number that means "no change" when setting a user or group: no user or group has it.
pub(crate) const NO_ID: u32 = u32::MAX;
/// Bound of generations: reaching it would take centuries at one removal per nanosecond. The unused
/// range keeps additions from wrapping.
const GENERATION_MAX: u64 = u64::MAX >> 1;

/// Value of column [`column::RDEV`] for a regular file, which has no device number, whose content
/// is in the extent table.
pub(crate) const MAPPED: u64 = 1;

impl Inode {
    /// Returns a new inode without content, whose owner is not set yet.
    #[must_use]
    pub fn new(entry: NameKind, mode: u32, now_ns: i64) -> Self {
        Self {
            entry,
            generation: 0,
            seq: 0,
            mode,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: 0,
            mtime_ns: now_ns,
            ctime_ns: now_ns,
            atime_ns: now_ns,
            id: 0,
            mapped: false,
            branch: None,
            extent: None,
            content: Vec::new(),
            xattrs: Vec::new(),
        }
    }

    /// Returns a record that hides a name; a directory made there again has `generation`.
    #[must_use]
    pub fn tombstone(generation: u64, now_ns: i64) -> Self {
        Self { generation, nlink: 0, ..Self::new(NameKind::Tombstone, 0, now_ns) }
    }

    /// Returns the kind of file; `None` for a tombstone or a link.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        match self.entry {
            NameKind::Is(kind) => Some(kind),
            NameKind::Tombstone | NameKind::Link => None,
        }
    }

    /// True for a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.entry == NameKind::Is(FileKind::Directory)
    }

    /// Returns the seat that has the directory or file, if its record is only a name of one at another
    /// seat of a live namespace; the other attributes are then those that it had when it was named.
    #[must_use]
    pub fn seat(&self) -> Option<u16> {
        match self.entry {
            NameKind::Is(FileKind::Directory) => u16::try_from(self.rdev.checked_sub(1)?).ok(),
            NameKind::Link => self.seat_file().map(|file| file.seat),
            _ => None,
        }
    }

    /// Returns the file for which the record is a name, if that is a file at another seat.
    #[must_use]
    pub fn seat_file(&self) -> Option<SeatFile> {
        let is_name = self.entry == NameKind::Link && self.rdev != 0;
        is_name.then(|| SeatFile::of_device(self.id, self.rdev)).flatten()
    }

    /// Makes the record the name of a directory at `seat`.
    pub(crate) fn set_seat(&mut self, seat: u16) {
        self.rdev = u64::from(seat) + 1;
    }

    /// Returns the identity as a directory's.
    #[must_use]
    pub fn dir_id(&self) -> DirId {
        DirId(self.id)
    }

    /// Returns the generation of a directory made at this name after this record.
    #[must_use]
    pub fn next_generation(&self) -> u64 {
        self.generation + u64::from(self.is_directory())
    }

    /// Returns the record of this inode under `key`, in readable form.
    #[inline]
    #[must_use]
    pub fn row<'a>(&'a self, key: &Key<'a>) -> Row<'a> {
        use column as c;
        let mut row = Row::default();
        let ints = &mut row.ints;
        ints[..3].copy_from_slice(&key.ints);
        ints[c::SEQ] = self.seq;
        ints[c::ENTRY] = self.entry.number();
        ints[c::GENERATION] = self.generation;
        ints[c::MODE] = u64::from(self.mode);
        ints[c::UID] = u64::from(self.uid);
        ints[c::GID] = u64::from(self.gid);
        ints[c::NLINK] = u64::from(self.nlink);
        ints[c::RDEV] = if self.mapped { MAPPED } else { self.rdev };
        ints[c::SIZE] = self.size;
        ints[c::MTIME] = self.mtime_ns.cast_unsigned();
        ints[c::CTIME] = self.ctime_ns.cast_unsigned();
        ints[c::ATIME] = self.atime_ns.cast_unsigned();
        ints[c::ID_HIGH] = (self.id >> 64) as u64;
        ints[c::ID_LOW] = self.id as u64;
        match &self.extent {
            Some(extent) => {
                ints[c::LOG_SET_HIGH] = (extent.set.0 >> 64) as u64;
                ints[c::LOG_SET_LOW] = extent.set.0 as u64;
                ints[c::LOG] = extent.log;
                ints[c::LOG_OFFSET] = extent.offset;
                ints[c::LOG_LENGTH] = extent.length;
                ints[c::LOG_WRITTEN] = extent.written;
                ints[c::LOG_CHECKSUM] = u64::from(extent.checksum);
            }
            // These columns follow the size, so a file without an extent costs no extra space.
            None => (ints[c::LOG_LENGTH], ints[c::LOG_WRITTEN]) = (self.size, self.size),
        }
        row.strings = [key.string, &self.content, &self.xattrs];
        row
    }

    /// Decodes a record in readable form.
    ///
    /// # Errors
    /// `Corrupt` if a number is out of range, or the content does not fit the entry.
    #[inline]
    pub fn of_row(row: &Row) -> Result<Self> {
        Self::of_columns(row)
    }

    /// Like [`Inode::of_row`], for a record in a buffer.
    #[inline]
    pub(crate) fn of_buffer(row: &RowBuffer) -> Result<Self> {
        Self::of_columns(row)
    }

    /// Decodes the record at `row` of `block`.
    pub(crate) fn of_block(block: &DecodedBlock, row: usize) -> Result<Self> {
        Self::of_columns(&StoredInode::<{ !0 }> { block, row })
    }

    /// Like [`Inode::of_block`], for a block whose records differ in few columns, as in most
    /// blocks; `None` for other blocks. Inlined, it reads only the columns that are used, without
    /// testing which of them vary.
    #[inline(always)]
    pub(crate) fn of_plain_block(block: &DecodedBlock, row: usize) -> Option<Result<Self>> {
        let is_plain = block.varies() & !PLAIN == 0;
        is_plain.then(|| Self::of_columns(&StoredInode::<PLAIN> { block, row }))
    }

    #[inline(always)]
    fn of_columns(columns: &impl InodeColumns) -> Result<Self> {
        use column as c;
        let wrong = |what: &str| damage(columns.string(c::NAME), what);
        let entry =
            NameKind::of_number(columns.int(c::ENTRY)).ok_or_else(|| wrong("unknown entry"))?;
        let small =
            |column: usize, what| u32::try_from(columns.int(column)).map_err(|_| wrong(what));
        let is_file = entry == NameKind::Is(FileKind::File);
        let extent = extent_of(columns, is_file).map_err(wrong)?;
        if columns.string(c::XATTRS).len() > XATTR_BYTES_MAX {
            return Err(wrong("extended attributes over the limit"));
        }
        let is_mapped = is_file && columns.int(c::RDEV) == MAPPED;
        if is_file && columns.int(c::RDEV) > MAPPED {
            return Err(wrong("unknown flags of a file"));
        }
        let (generation, size) = (columns.int(c::GENERATION), columns.int(c::SIZE));
        if generation > GENERATION_MAX {
            return Err(wrong("impossible generation"));
        }
        if size > FILE_BYTES_MAX {
            return Err(wrong("a size over the limit"));
        }
        // Strings that were not requested are empty.
        let content = columns.string(c::CONTENT);
        if !content.is_empty() && (content.len() as u64 > size || !is_content(entry, content)) {
            return Err(wrong("impossible content"));
        }
        if is_mapped && (extent.is_some() || !content.is_empty()) {
            return Err(wrong("content in two places"));
        }
        let is_at_no_seat = |device: u64| device != 0 && device as u16 == 0;
        if entry == NameKind::Link && is_at_no_seat(columns.int(c::RDEV)) {
            return Err(wrong("a file at no seat"));
        }
        let (uid, gid) = (small(c::UID, "owner")?, small(c::GID, "group")?);
        if uid == NO_ID || gid == NO_ID {
            return Err(wrong("an invalid owner or group"));
        }
        let mode = columns.int(c::MODE);
        if mode > MODE_MAX {
            return Err(wrong("unknown bits in its mode"));
        }
        Ok(Self {
            entry,
            generation,
            seq: columns.int(c::SEQ),
            mode: mode as u32,
            uid,
            gid,
            nlink: small(c::NLINK, "link count")?,
            rdev: if is_file { 0 } else { columns.int(c::RDEV) },
            mapped: is_mapped,
            branch: None,
            size,
            mtime_ns: columns.int(c::MTIME).cast_signed(),
            ctime_ns: columns.int(c::CTIME).cast_signed(),
            atime_ns: columns.int(c::ATIME).cast_signed(),
            id: u128::from(columns.int(c::ID_HIGH)) << 64 | u128::from(columns.int(c::ID_LOW)),
            extent,
            content: owned(content),
            xattrs: owned(columns.string(c::XATTRS)),
        })
    }
}

/// Returns the extent of a record, if it has one; on failure, what is wrong with it.
#[inline(always)]
fn extent_of(columns: &impl InodeColumns, is_file: bool) -> Result<Option<Extent>, &'static str> {
    use column as c;
    let set = SetId(
        u128::from(columns.int(c::LOG_SET_HIGH)) << 64 | u128::from(columns.int(c::LOG_SET_LOW)),
    );
    let extent = Extent {
        set,
        log: columns.int(c::LOG),
        offset: columns.int(c::LOG_OFFSET),
        length: columns.int(c::LOG_LENGTH),
        written: columns.int(c::LOG_WRITTEN),
        checksum: u32::try_from(columns.int(c::LOG_CHECKSUM)).map_err(|_| "checksum")?,
    };
    if set == SetId::default() {
        return Ok(None);
    }
    let written = if extent.is_checked() { extent.written } else { extent.length };
    let is_whole = extent.length <= written && extent.length <= columns.int(c::SIZE);
    // Only the extent of an indexed directory has no bytes.
    let is_empty = is_file && extent.length == 0;
    if is_empty || !is_whole || extent.offset.checked_add(written).is_none() {
        return Err("impossible extent");
    }
    Ok(Some(extent))
}

/// True if `entry` can have `content`.
#[inline]
fn is_content(entry: NameKind, content: &[u8]) -> bool {
    match entry {
        NameKind::Is(FileKind::File) => true,
        NameKind::Is(FileKind::Symlink) => content.len() < PATH_BYTES_MAX && !content.contains(&0),
        NameKind::Is(FileKind::Indexed) => indexed::is_list(content),
        _ => false,
    }
}

/// Copies `bytes`, which are usually empty.
#[inline(always)]
fn owned(bytes: &[u8]) -> Vec<u8> {
    if bytes.is_empty() { Vec::new() } else { bytes.to_vec() }
}

#[cfg(test)]
mod tests {
    use esker_table::internals::decoded_block;

    use super::*;

    #[test]
    fn inodes_round_trip_through_rows() {
        let mut inode = Inode::new(NameKind::Is(FileKind::File), 0o4755, 1_700_000_000_000_000_123);
        inode.id = FileId::new(SetId(7 << 64), 9).0;
        inode.size = 4_000;
        inode.extent = Some(Extent {
            set: SetId(5),
            log: 1 << 32,
            offset: 77,
            length: 3_000,
            checksum: 0xDEAD_BEEF,
            written: 5_000,
        });
        inode.xattrs = b"x".to_vec();
        (inode.mtime_ns, inode.atime_ns) = (-1, i64::MIN);
        let mut row = inode.row(&key(DirId(3), b"name"));
        INODE.store(&mut row.ints);
        INODE.restore(&mut row.ints);
        assert_eq!(Inode::of_row(&row).expect("our own record"), inode);
        row.ints[column::ENTRY] = 99;
        assert_eq!(Inode::of_row(&row).expect_err("no such entry").kind(), Kind::Corrupt);
    }

    /// Adds `row` to `rows`, and returns all of them as a block.
    fn with_row(rows: &mut Vec<RowBuffer>, row: &Row) -> DecodedBlock {
        rows.push((*row).into());
        decoded_block(&INODE, &rows.iter().map(RowBuffer::row).collect::<Vec<Row>>())
    }

    #[test]
    fn a_plain_block_says_what_any_block_says() {
        let mut inode = Inode::new(NameKind::Is(FileKind::File), 0o640, 1_000);
        (inode.uid, inode.gid, inode.id, inode.content) = (7, 8, 9 << 64, b"x".to_vec());
        let mut rows: Vec<RowBuffer> = Vec::new();
        for at in 0..3 {
            (inode.seq, inode.size, inode.id) = (at, 5 * at + 1, inode.id + u128::from(at));
            (inode.mtime_ns, inode.ctime_ns) = (1_000 + at as i64, 1_000 + at as i64);
            let mut row = inode.row(&key(DirId(u128::from(at)), b"name"));
            INODE.store(&mut row.ints);
            let block = with_row(&mut rows, &row);
            let inode = Inode::of_plain_block(&block, at as usize);
            // Access times do not follow from the second row on: their column then varies.
            assert_eq!(inode.is_some(), at == 0);
        }
        rows.clear();
        inode.atime_ns = inode.mtime_ns;
        for at in 0..3 {
            (inode.seq, inode.id, inode.size) = (at, 9 << 64 | u128::from(at), 5 * at + 1);
            let mut row = inode.row(&key(DirId(u128::from(at)), b"name"));
            INODE.store(&mut row.ints);
            let block = with_row(&mut rows, &row);
            let plain = Inode::of_plain_block(&block, at as usize).expect("a plain block");
            assert_eq!(plain.expect("our own record"), inode);
            assert_eq!(Inode::of_block(&block, at as usize).expect("our own record"), inode);
        }
    }
}
