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
    /// True if the file replaces another one that is there.
    pub replaces: bool,
}

impl MoveTarget {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.seat.into());
        for id in [self.dir, self.top] {
            out.extend_from_slice(&id.0.to_le_bytes());
        }
        out.push(u8::from(self.replaces));
        put_bytes(out, &self.path);
        put_bytes(out, &self.name);
    }

    /// Reads one.
    ///
    /// # Errors
    /// Damage if the bytes are none.
    pub fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        let seat = u16::try_from(input.varint()?).map_err(|_| input.damage("a seat"))?;
        let (dir, top) = (DirId(input.u128()?), DirId(input.u128()?));
        let replaces = input.u8()? != 0;
        let path = input.bytes(PATH_BYTES_MAX, "a path")?.to_vec();
        let name = input.bytes(NAME_BYTES_MAX, "a name")?.to_vec();
        Ok(Self { seat, dir, top, path, name, replaces })
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
    /// True if the name may be there from an earlier attempt: then another name of the same file is
    /// replaced.
    pub replaces_same: bool,
    /// The request that asks for it.
    pub request: MoveRequest,
}

/// The request of a client that moves a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveRequest {
    /// The client: its number and the random one of its registration, combined by exclusive or.
    pub client: u64,
    /// The number of the request.
    pub number: u64,
    /// The client has all answers below this number.
    pub answered_below: u64,
}

/// The outcome of a [`SeatFileNaming`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamingOutcome {
    /// The name stands for the file, by the name among the seat roots that was given.
    Named,
    /// The name is one of the same file already.
    SameFile,
    /// The request was carried out before, for this file.
    DoneBefore(u128),
}

impl NamingOutcome {
    /// Appends it.
    pub fn put(self, out: &mut Vec<u8>) {
        match self {
            Self::Named => out.push(0),
            Self::SameFile => out.push(1),
            Self::DoneBefore(file) => {
                out.push(2);
                out.extend_from_slice(&file.to_le_bytes());
            }
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// Damage if the byte is none.
    pub fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        match input.u8()? {
            0 => Ok(Self::Named),
            1 => Ok(Self::SameFile),
            2 => Ok(Self::DoneBefore(input.u128()?)),
            _ => Err(input.damage("the outcome of a naming")),
        }
    }
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
        out.push(u8::from(self.replaces_same));
        let MoveRequest { client, number, answered_below } = self.request;
        out.extend_from_slice(&client.to_le_bytes());
        put_varint(out, number);
        put_varint(out, answered_below);
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
        let replaces_same = input.u8()? != 0;
        let (client, number, answered_below) = (input.u64()?, input.varint()?, input.varint()?);
        let request = MoveRequest { client, number, answered_below };
        let identity = take_identity(input)?;
        Ok(Self { identity, target, file, attributes, replaces_same, request })
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
            replaces: true,
        };
        let naming = SeatFileNaming {
            identity: Identity { uid: 1000, gid: 7, groups: vec![1, 2] },
            target,
            file: SeatFile::new(2, 9, u64::MAX),
            attributes: (0o640, 1, 2, 3),
            replaces_same: true,
            request: MoveRequest { client: u64::MAX, number: 7, answered_below: 5 },
        };
        let mut bytes = Vec::new();
        naming.put(&mut bytes);
        let mut input = WireInput::new(&bytes);
        assert_eq!(SeatFileNaming::take(&mut input).unwrap(), naming);
        assert_eq!(input.left(), 0);
        for length in 0..bytes.len() {
            assert!(SeatFileNaming::take(&mut WireInput::new(&bytes[..length])).is_err());
        }
        for outcome in
            [NamingOutcome::Named, NamingOutcome::SameFile, NamingOutcome::DoneBefore(u128::MAX)]
        {
            let mut bytes = Vec::new();
            outcome.put(&mut bytes);
            assert_eq!(NamingOutcome::take(&mut WireInput::new(&bytes)).unwrap(), outcome);
        }
    }
}
