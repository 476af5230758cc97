// SPDX-License-Identifier: Apache-2.0
//! Seat move: the items of a rename to a directory at another seat. Layout: docs/format/live.md, "Verbs".

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};
use esker_fs::inode::{DirId, SeatFile};
use esker_fs::stack::identity::Identity;

use super::hello::{encode_identity, take_identity};
use super::{NAME_BYTES_MAX, PATH_BYTES_MAX};

/// A name in a directory at another seat, which a file gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveTarget {
    /// The seat that has the name.
    pub seat: u16,
    /// The directory.
    pub dir: DirId,
    /// The directory from which the path to it leads: the root, or one whose name is at another seat.
    pub top: DirId,
    /// The path from there.
    pub path: Vec<u8>,
    /// The name.
    pub name: Vec<u8>,
    /// The identity of the file that the client has found there, which the other one replaces; 0 if it
    /// has found none.
    pub expected: u128,
}

impl MoveTarget {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.seat.into());
        for id in [self.dir.0, self.top.0, self.expected] {
            out.extend_from_slice(&id.to_le_bytes());
        }
        put_bytes(out, &self.path);
        put_bytes(out, &self.name);
    }

    /// Reads one.
    ///
    /// # Errors
    /// Damage if the bytes are none.
    pub fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        let seat = u16::try_from(input.varint()?).map_err(|_| input.damage("a seat"))?;
        let (dir, top, expected) = (DirId(input.u128()?), DirId(input.u128()?), input.u128()?);
        let path = input.bytes(PATH_BYTES_MAX, "a path")?.to_vec();
        let name = input.bytes(NAME_BYTES_MAX, "a name")?.to_vec();
        Ok(Self { seat, dir, top, path, name, expected })
    }
}

/// The request by which a server gives a file a name at another seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeatFileNaming {
    /// The user who moves the file.
    pub identity: Identity,
    /// The name.
    pub target: MoveTarget,
    /// The file, by its name among the seat roots of its seat.
    pub file: SeatFile,
    /// Permission bits, owner, group and size of the file.
    pub attributes: (u32, u32, u32, u64),
    /// True if the name may be there from an earlier attempt: then it is replaced.
    pub is_repeated: bool,
}

impl SeatFileNaming {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.target.put(out);
        out.extend_from_slice(&self.file.id.to_le_bytes());
        put_varint(out, self.file.device());
        let (mode, uid, gid, size) = self.attributes;
        let fields = [mode.into(), uid.into(), gid.into(), size];
        fields.iter().for_each(|field| put_varint(out, *field));
        out.push(u8::from(self.is_repeated));
        out.extend_from_slice(&encode_identity(&self.identity));
    }

    /// Reads one.
    ///
    /// # Errors
    /// Damage if the bytes are none.
    pub fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        let target = MoveTarget::take(input)?;
        let (id, device) = (input.u128()?, input.varint()?);
        let file = SeatFile::of_device(id, device).ok_or_else(|| input.damage("a seat"))?;
        let mut small = || {
            let field = input.varint()?;
            u32::try_from(field).map_err(|_| input.damage("a number of 32 bits"))
        };
        let (mode, uid, gid) = (small()?, small()?, small()?);
        let attributes = (mode & 0o7777, uid, gid, input.varint()?);
        let is_repeated = input.u8()? != 0;
        Ok(Self { identity: take_identity(input)?, target, file, attributes, is_repeated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_naming_comes_back() {
        let target = MoveTarget {
            seat: 3,
            dir: DirId(7),
            top: DirId::ROOT,
            path: b"a/b".to_vec(),
            name: b"c".to_vec(),
            expected: u128::MAX,
        };
        let naming = SeatFileNaming {
            identity: Identity { uid: 1000, gid: 7, groups: vec![1, 2] },
            target,
            file: SeatFile::new(2, 9, u64::MAX),
            attributes: (0o640, 1, 2, 3),
            is_repeated: true,
        };
        let mut bytes = Vec::new();
        naming.put(&mut bytes);
        let mut input = WireInput::new(&bytes);
        assert_eq!(SeatFileNaming::take(&mut input).unwrap(), naming);
        assert_eq!(input.left(), 0);
        for length in 0..bytes.len() {
            assert!(SeatFileNaming::take(&mut WireInput::new(&bytes[..length])).is_err());
        }
    }
}
