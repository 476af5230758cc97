// SPDX-License-Identifier: Apache-2.0
//! Change items: the fields of changes on the wire. Layout: docs/format/live.md, "Verbs".

use esker_base::wire::{WireDamage, WireInput};
use esker_fs::inode::{DirId, NameKind};
use esker_fs::ops::{NewFile, RenameFlags, XattrSet};

use super::file_moves::take_move;
use super::named_file::NamedFile;
use super::take_name;
use crate::wire::{
    AttributeRequest, MAKE_OPENS, PATH_BYTES_MAX, RangeChange, SeatFileNaming, TRANSFER_BYTES_MAX,
    Verb, WriteMode,
};
use esker_fs::inode::xattr::XATTR_VALUE_BYTES_MAX;

pub(super) fn take_mode(input: &mut WireInput) -> Result<u32, WireDamage> {
    let mode = input.varint_max(0o7777, "permission bits")?;
    Ok(u32::try_from(mode).expect("checked"))
}

/// Reads the identity of an adopted directory, and the name for it.
pub(super) fn take_adopted<'b>(input: &mut WireInput<'b>) -> Result<(DirId, &'b [u8]), WireDamage> {
    Ok((DirId(input.u128()?), take_name(input)?))
}

pub(super) fn take_flags(input: &mut WireInput) -> Result<RenameFlags, WireDamage> {
    match input.u8()? {
        0 => Ok(RenameFlags::Replace),
        1 => Ok(RenameFlags::NoReplace),
        2 => Ok(RenameFlags::Exchange),
        _ => Err(input.damage("how to rename")),
    }
}

pub(super) fn take_condition(input: &mut WireInput) -> Result<XattrSet, WireDamage> {
    match input.u8()? {
        0 => Ok(XattrSet::Any),
        1 => Ok(XattrSet::Create),
        2 => Ok(XattrSet::Replace),
        _ => Err(input.damage("a condition")),
    }
}

/// Reads a file to make, and whether to open it.
pub(super) fn take_new_file<'b>(
    input: &mut WireInput<'b>,
) -> Result<(NewFile<'b>, bool), WireDamage> {
    let code = input.u8()?;
    let kind = match NameKind::of_number((code & !MAKE_OPENS).into()) {
        Some(NameKind::Is(kind)) => kind,
        _ => return Err(input.damage("a kind of file")),
    };
    let mode = take_mode(input)?;
    let mut owner = || {
        let id = input.varint()?;
        u32::try_from(id).map_err(|_| input.damage("a number of 32 bits"))
    };
    let (uid, gid) = (owner()?, owner()?);
    let rdev = input.varint()?;
    let target = input.bytes(PATH_BYTES_MAX, "a target")?;
    Ok((NewFile { kind, mode, uid, gid, rdev, target }, code & MAKE_OPENS != 0))
}

/// Passes over an item that was carried out before.
pub(super) fn skip_change(verb: Verb, input: &mut WireInput) -> Result<(), WireDamage> {
    match verb {
        Verb::Create | Verb::MakeDirectory => {
            take_mode(input)?;
        }
        Verb::MakeSymlink => {
            input.bytes(PATH_BYTES_MAX, "a target")?;
        }
        Verb::MakeNode => {
            take_new_file(input)?;
        }
        Verb::Rename => {
            take_flags(input)?;
        }
        Verb::InsertAdopted => {
            take_adopted(input)?;
            return Ok(());
        }
        Verb::NameSeatFile => {
            SeatFileNaming::take(input)?;
            return Ok(());
        }
        Verb::RenameAcross | Verb::LinkAcross => {
            take_move(verb, input)?;
            return Ok(());
        }
        Verb::Unlink | Verb::RemoveDirectory => {}
        _ => {
            NamedFile::take(input)?;
        }
    }
    match verb {
        Verb::SetAttributes => {
            AttributeRequest::take(input)?;
        }
        Verb::Write => {
            input.varint()?;
            WriteMode::take(input)?;
            input.bytes(TRANSFER_BYTES_MAX, "bytes to write")?;
        }
        Verb::Allocate => {
            input.varint()?;
            input.varint()?;
            RangeChange::take(input)?;
        }
        Verb::Link => {
            input.u128()?;
            take_name(input)?;
        }
        Verb::Rename => {
            take_name(input)?;
            input.u128()?;
            take_name(input)?;
        }
        Verb::SetXattr => {
            take_name(input)?;
            take_condition(input)?;
            input.bytes(XATTR_VALUE_BYTES_MAX, "a value")?;
        }
        Verb::RemoveXattr => {
            take_name(input)?;
        }
        Verb::Open | Verb::Close => {}
        _ => {
            take_name(input)?;
        }
    }
    Ok(())
}
