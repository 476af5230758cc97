// SPDX-License-Identifier: Apache-2.0
//! Encoding of manifests.
//!
//! Layout: docs/format/manifest.md. This file is the only encoder and decoder of its frame; parts
//! of it are in the files of their types.

use esker_base::wire::{WireDamage, WireInput, put_bytes, put_varint};
use esker_base::{Error, Kind, Result};

use super::{ENTRIES_MAX, MANIFEST_BYTES_MAX, Manifest, PROPERTY_BYTES_MAX, SetId, SetState};
use super::{job, referenced_logs, table_ref};
use crate::set_writer;

const MAGIC: [u8; 8] = *b"ESKERMNF";
/// Version of most manifests, of those of sets with their own identities, and of those that list
/// merged sets: readers take a manifest of an earlier version than theirs.
const VERSION: u16 = 5;
const VERSION_OF_OWN_IDENTITIES: u16 = 6;
const VERSION_OF_MERGED_SETS: u16 = 7;

/// Encodes the snapshot.
///
/// # Errors
/// `TooLarge` if readers would refuse it because an entry is too long or a list too large;
/// `Invalid` if entries are out of order.
pub fn encode_manifest(manifest: &Manifest) -> Result<Vec<u8>> {
    let refused = |kind, expected: &str| {
        let context =
            format!("manifest {} is not written: readers expect {expected}", manifest.number);
        Err(Error::new(kind, context))
    };
    if let Err(expected) = manifest.check_bounds() {
        return refused(Kind::TooLarge, expected);
    }
    if let Err(expected) = manifest.check_order() {
        return refused(Kind::Invalid, expected);
    }
    let bytes = encode_manifest_unchecked(manifest);
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        return refused(Kind::TooLarge, "at most 256 MiB");
    }
    Ok(bytes)
}

/// Encodes as [`encode_manifest`] does, including snapshots that readers refuse: for tests of
/// readers.
#[must_use]
pub fn encode_manifest_unchecked(manifest: &Manifest) -> Vec<u8> {
    let mut out = Vec::with_capacity(256 + manifest.tables.len() * 128);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&version_of(manifest).to_le_bytes());
    out.push(manifest.state as u8);
    for value in [
        manifest.number,
        manifest.epoch,
        manifest.created_ns,
        manifest.written_ns,
        manifest.last_seq,
        manifest.log_floor,
    ] {
        put_varint(&mut out, value);
    }
    put_sets(&mut out, &manifest.bases);
    put_varint(&mut out, manifest.tables.len() as u64);
    for table in &manifest.tables {
        table_ref::encode_table(table, &mut out);
    }
    put_varint(&mut out, manifest.obsolete.len() as u64);
    for number in &manifest.obsolete {
        put_varint(&mut out, *number);
    }
    put_sets(&mut out, &manifest.data_sets);
    referenced_logs::encode(&manifest.referenced_logs, &mut out);
    job::encode_job(manifest.job, &mut out);
    let flags = [manifest.has_unsealed_logs, manifest.is_given_up, manifest.has_own_identities];
    out.push((0..).zip(flags).map(|(bit, is_set)| u8::from(is_set) << bit).sum());
    if !manifest.merged_sets.is_empty() {
        put_sets(&mut out, &manifest.merged_sets);
    }
    put_varint(&mut out, manifest.properties.len() as u64);
    for (name, value) in &manifest.properties {
        put_bytes(&mut out, name.as_bytes());
        put_bytes(&mut out, value.as_bytes());
    }
    set_writer::encode(manifest.writer.as_ref(), &mut out);
    let checksum = crc32c::crc32c(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// The version that the content of `manifest` takes.
fn version_of(manifest: &Manifest) -> u16 {
    match (manifest.merged_sets.is_empty(), manifest.has_own_identities) {
        (false, _) => VERSION_OF_MERGED_SETS,
        (true, true) => VERSION_OF_OWN_IDENTITIES,
        (true, false) => VERSION,
    }
}

/// Decodes a snapshot.
pub fn decode_manifest(bytes: &[u8]) -> Result<Manifest, WireDamage> {
    let Some((body, checksum)) = bytes.split_last_chunk::<4>() else {
        return Err(WireDamage { offset: 0, what: "a manifest" });
    };
    let mut input = WireInput::new(body);
    if input.take(MAGIC.len())? != MAGIC {
        return Err(WireDamage { offset: 0, what: "a manifest" });
    }
    if crc32c::crc32c(body) != u32::from_le_bytes(*checksum) {
        return Err(WireDamage { offset: body.len(), what: "a manifest's checksum" });
    }
    let version = input.u16()?;
    if !(VERSION..=VERSION_OF_MERGED_SETS).contains(&version) {
        let what = "a manifest of format version 5, 6 or 7";
        return Err(WireDamage { offset: MAGIC.len(), what });
    }
    let state = match input.u8()? {
        0 => SetState::Open,
        1 => SetState::Sealed,
        2 => SetState::CondemnedOpen,
        3 => SetState::CondemnedSealed,
        4 => SetState::Doomed,
        5 => SetState::DataOnly,
        _ => return Err(input.damage("a known state")),
    };
    let mut manifest = Manifest::new(Vec::new(), 0);
    manifest.state = state;
    manifest.number = input.varint()?;
    manifest.epoch = input.varint()?;
    manifest.created_ns = input.varint()?;
    manifest.written_ns = input.varint()?;
    manifest.last_seq = input.varint()?;
    manifest.log_floor = input.varint()?;
    manifest.bases = sets(&mut input, "a number of bases")?;
    for _ in 0..input.varint_max(ENTRIES_MAX, "a number of tables")? {
        manifest.tables.push(table_ref::decode_table(&mut input)?);
    }
    for _ in 0..input.varint_max(ENTRIES_MAX, "a number of obsolete tables")? {
        manifest.obsolete.push(input.varint()?);
    }
    manifest.data_sets = sets(&mut input, "a number of sets of data")?;
    manifest.referenced_logs = referenced_logs::decode(&mut input)?;
    manifest.job = job::decode_job(&mut input)?;
    let flags = input.u8()?;
    [manifest.has_unsealed_logs, manifest.is_given_up, manifest.has_own_identities] =
        [0, 1, 2].map(|bit| flags >> bit & 1 == 1);
    if version == VERSION_OF_MERGED_SETS {
        manifest.merged_sets = sets(&mut input, "a number of merged sets")?;
    }
    if flags > 7 || version != version_of(&manifest) {
        return Err(input.damage("flags of the set's version"));
    }
    for _ in 0..input.varint_max(ENTRIES_MAX, "a number of properties")? {
        let name = decode_text(&mut input)?;
        let value = decode_text(&mut input)?;
        if manifest.properties.last_key_value().is_some_and(|(last, _)| *last >= name) {
            return Err(input.damage("properties in order of their names"));
        }
        manifest.properties.insert(name, value);
    }
    manifest.writer = set_writer::decode(&mut input)?;
    input.end()?;
    let sound = manifest.check_bounds().and_then(|()| manifest.check_order());
    sound.map_err(|what| input.damage(what))?;
    Ok(manifest)
}

fn put_sets(out: &mut Vec<u8>, sets: &[SetId]) {
    put_varint(out, sets.len() as u64);
    for set in sets {
        out.extend_from_slice(&set.0.to_le_bytes());
    }
}

fn sets(input: &mut WireInput, what: &'static str) -> Result<Vec<SetId>, WireDamage> {
    let count = input.varint_max(ENTRIES_MAX, what)?;
    (0..count).map(|_| Ok(SetId(input.u128()?))).collect()
}

fn decode_text(input: &mut WireInput) -> Result<String, WireDamage> {
    let bytes = input.bytes(PROPERTY_BYTES_MAX, "a property within bounds")?;
    String::from_utf8(bytes.to_vec()).map_err(|_| input.damage("UTF-8 text"))
}
