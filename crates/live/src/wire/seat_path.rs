// SPDX-License-Identifier: Apache-2.0
//! Seat path: how far a path leads at one seat. Layout: docs/format/live.md, "Verbs".

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};
use esker_fs::inode::{DirId, Inode};

use super::{LiveAttributes, NAME_BYTES_MAX, put_attributes, take_attributes};

/// Maximum bytes of a path to which symbolic links were added, and of the path of a directory.
const LONG_PATH_BYTES_MAX: usize = 1 << 20;

/// How far a path leads at one seat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeatPath {
    /// To the end.
    Found {
        /// The directory that contains it, or that it is.
        dir: DirId,
        /// The path of that directory from where the search began, without symbolic links.
        path: Vec<u8>,
        /// Its name there; empty for the directory itself.
        name: Vec<u8>,
        /// Its attributes.
        attributes: LiveAttributes,
    },
    /// To a directory at another seat.
    Elsewhere {
        /// The seat.
        seat: u16,
        /// The directory.
        id: DirId,
        /// The path of its name from where the search began, without symbolic links.
        path: Vec<u8>,
        /// The rest of the path, from there.
        rest: Vec<u8>,
    },
    /// Out of the directory where the search began, to its parent or, by an absolute symbolic link,
    /// to the root.
    Above {
        /// The rest of the path, from that directory.
        rest: Vec<u8>,
    },
}

impl SeatPath {
    /// Appends the end of a path.
    pub fn put_found(
        out: &mut Vec<u8>,
        (dir, path): (DirId, &[u8]),
        (name, inode): (&[u8], &Inode),
    ) {
        out.push(0);
        out.extend_from_slice(&dir.0.to_le_bytes());
        put_bytes(out, path);
        put_bytes(out, name);
        put_attributes(out, inode);
    }

    /// Appends the way to another seat.
    pub fn put_elsewhere(out: &mut Vec<u8>, (seat, id): (u16, DirId), path: &[u8], rest: &[u8]) {
        out.push(1);
        put_varint(out, seat.into());
        out.extend_from_slice(&id.0.to_le_bytes());
        put_bytes(out, path);
        put_bytes(out, rest);
    }

    /// Appends the way out.
    pub fn put_above(out: &mut Vec<u8>, rest: &[u8]) {
        out.push(2);
        put_bytes(out, rest);
    }

    /// Reads one.
    ///
    /// # Errors
    /// Damage if the bytes are none.
    pub fn take(input: &mut WireInput) -> Result<Self, WireDamage> {
        Ok(match input.u8()? {
            0 => Self::Found {
                dir: DirId(input.u128()?),
                path: input.bytes(LONG_PATH_BYTES_MAX, "a path")?.to_vec(),
                name: input.bytes(NAME_BYTES_MAX, "a name")?.to_vec(),
                attributes: take_attributes(input)?,
            },
            1 => {
                let seat = input.varint()?;
                Self::Elsewhere {
                    seat: u16::try_from(seat).map_err(|_| input.damage("a seat"))?,
                    id: DirId(input.u128()?),
                    path: input.bytes(LONG_PATH_BYTES_MAX, "a path")?.to_vec(),
                    rest: input.bytes(LONG_PATH_BYTES_MAX, "a path")?.to_vec(),
                }
            }
            2 => Self::Above { rest: input.bytes(LONG_PATH_BYTES_MAX, "a path")?.to_vec() },
            _ => return Err(input.damage("how far a path leads")),
        })
    }
}
