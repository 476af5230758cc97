// SPDX-License-Identifier: Apache-2.0
//! Attributes: those of a file on the wire. Layout: docs/format/live.md, "Attributes".

use esker_base::wire::{WireDamage, WireInput, put_varint};
use esker_fs::inode::{DirId, FileKind, Inode, NameKind, SeatFile};

/// Attributes of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveAttributes {
    /// Kind of file.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last access, in nanoseconds since the Unix epoch.
    pub atime_ns: i64,
    /// Time of the last modification, in nanoseconds since the Unix epoch.
    pub mtime_ns: i64,
    /// Time of the last change of attributes, in nanoseconds since the Unix epoch.
    pub ctime_ns: i64,
    /// Identity of the file or directory.
    pub id: u128,
    /// The seat that has the directory, if its name is at another one; the attributes are then those that
    /// it was made with.
    pub seat: Option<u16>,
    /// The file, if its name is at another seat; the attributes are then those that it had when it was
    /// named.
    pub seat_file: Option<SeatFile>,
}

/// Appends the attributes of `inode`, which is neither a tombstone nor a link at its own seat.
pub fn put_attributes(out: &mut Vec<u8>, inode: &Inode) {
    out.push(u8::try_from(inode.entry.number()).expect("kinds of names are few"));
    out.extend_from_slice(&inode.id.to_le_bytes());
    let fields = [
        u64::from(inode.mode),
        u64::from(inode.uid),
        u64::from(inode.gid),
        u64::from(inode.nlink),
        inode.rdev,
        inode.size,
    ];
    fields.iter().for_each(|field| put_varint(out, *field));
    for time_ns in [inode.mtime_ns, inode.ctime_ns, inode.atime_ns] {
        out.extend_from_slice(&time_ns.to_le_bytes());
    }
}

/// Reads attributes.
///
/// # Errors
/// Damage if the bytes are not attributes.
pub fn take_attributes(input: &mut WireInput) -> Result<LiveAttributes, WireDamage> {
    let code = input.u8()?;
    let entry = NameKind::of_number(u64::from(code));
    let kind = match entry {
        Some(NameKind::Is(kind)) => kind,
        Some(NameKind::Link) => FileKind::File,
        _ => return Err(input.damage("a kind of file")),
    };
    let id = input.u128()?;
    let mut small = || {
        let field = input.varint()?;
        u32::try_from(field).map_err(|_| input.damage("a number of 32 bits"))
    };
    let (mode, uid, gid, nlink) = (small()?, small()?, small()?, small()?);
    let (mut rdev, size) = (input.varint()?, input.varint()?);
    let (mut seat, mut seat_file) = (None, None);
    if entry == Some(NameKind::Link) {
        let file = SeatFile::of_device(id, rdev).ok_or_else(|| input.damage("a seat"))?;
        (rdev, seat_file) = (0, Some(file));
    }
    if kind == FileKind::Directory && rdev != 0 {
        let number = u16::try_from(rdev - 1).map_err(|_| input.damage("a seat"))?;
        (rdev, seat) = (0, Some(number));
        if id == DirId::ROOT.0 || id >= DirId::SEAT_ROOTS.0 {
            return Err(input.damage("the identity of a directory at another seat"));
        }
    }
    let mut time = || input.u64().map(u64::cast_signed);
    let (mtime_ns, ctime_ns, atime_ns) = (time()?, time()?, time()?);
    Ok(LiveAttributes {
        kind,
        mode,
        uid,
        gid,
        nlink,
        rdev,
        size,
        atime_ns,
        mtime_ns,
        ctime_ns,
        id,
        seat,
        seat_file,
    })
}
