// SPDX-License-Identifier: Apache-2.0
//! Name table: the set of every published name, in [`PARTS`] parts by the name's checksum.
//!
//! ```text
//! name/<part>/<number>    all names of a part; the highest number rules
//! ```
//! Layout: docs/format/store.md, "Names". This file is its only encoder and decoder.
//! A change puts the next number, so `put_if_absent` decides between racing changes, and a name is
//! replaced or removed only while it stands for what the caller has seen. The highest number is
//! never deleted: numbers never start over, and a change delayed for long cannot resurface.
//! Concurrency: any number of processes; the loser of a race reads again and repeats its change.

use std::collections::BTreeMap;

use esker_base::store::{ObjectInfo, Store, concurrent};
use esker_base::{Clock, Error, Kind, Result};
use esker_table::manifest::{NUMBER_MAX, SetId};
use serde::{Deserialize, Serialize};

use crate::names;

/// Number of parts of the table: racing changes of different names rarely collide, and a listing of
/// all names needs at most this many reads.
pub(crate) const PARTS: u32 = 256;
/// Maximum bytes of a part: some hundred thousand names.
const PART_BYTES_MAX: usize = 64 << 20;
/// Maximum number of lost races in a row.
const TRIES_MAX: usize = 64;
/// A change that takes longer than this from reading a part to putting its next version succeeds
/// only if that version is then the newest.
const CHANGE_NS_MAX: u64 = 300 * 1_000_000_000;
/// A replaced version is kept for at least this long, so that a process that read it as the newest
/// does not find the next number free again.
const REPLACED_NS_MIN: u64 = 900 * 1_000_000_000;
const _: () = assert!(CHANGE_NS_MAX < REPLACED_NS_MIN);
/// Checksum and line feeds after the names.
const TRAILER_BYTES: usize = 10;

/// Target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameEntry {
    /// The change set.
    pub(crate) set: SetId,
    /// When it was published under the name, in nanoseconds since the Unix epoch.
    pub(crate) published_ns: u64,
}

/// The names of a part with their targets.
pub(crate) type NameEntries = BTreeMap<String, NameEntry>;

/// One version of a part.
#[derive(Debug, Default)]
pub(crate) struct NamePart {
    number: u64,
    pub(crate) entries: NameEntries,
}

/// A part that was just read, for a subsequent change.
#[derive(Debug)]
pub(crate) struct SeenPart {
    names: NamePart,
    /// All its versions at that time.
    versions: Vec<ObjectInfo>,
    /// Start of the read, by the wall clock and by the monotonic clock.
    start_ns: (u64, u64),
}

impl SeenPart {
    /// The names.
    pub(crate) fn entries(&self) -> &NameEntries {
        &self.names.entries
    }

    /// True if it was read a short time ago, so that most of the time for a change is left.
    pub(crate) fn is_recent(&self, clock: &dyn Clock) -> bool {
        self.elapsed_ns(clock) < CHANGE_NS_MAX / 2
    }

    /// Time since it was read, by the clock that is further ahead.
    fn elapsed_ns(&self, clock: &dyn Clock) -> u64 {
        let (wall_ns, monotonic_ns) = self.start_ns;
        let wall_ns = clock.now_ns().saturating_sub(wall_ns);
        wall_ns.max(clock.monotonic_ns().saturating_sub(monotonic_ns))
    }
}

#[derive(Serialize, Deserialize)]
struct EncodedEntry {
    set: String,
    published_ns: u64,
}

/// Returns the part that contains `name`.
pub(crate) fn part_of(name: &str) -> u32 {
    crc32c::crc32c(name.as_bytes()) % PARTS
}

fn folder(part: u32) -> String {
    format!("name/{part:02x}/")
}

fn object(part: u32, number: u64) -> String {
    format!("{}{number:016x}", folder(part))
}

/// Parses the number in an object's name, if it is one that a change could have put.
fn number_of(name: &str) -> Option<u64> {
    let number = u64::from_str_radix(name, 16).ok()?;
    (number <= NUMBER_MAX && name == format!("{number:016x}")).then_some(number)
}

/// Parses the part and the number of an object of the table.
fn parse_object(object: &str) -> Option<(u32, u64)> {
    let (part, number) = object.strip_prefix("name/")?.split_once('/')?;
    let number_of_part = u32::from_str_radix(part, 16).ok()?;
    (part == format!("{number_of_part:02x}")).then_some((number_of_part, number_of(number)?))
}

fn encode(part: u32, entries: &NameEntries) -> Result<Vec<u8>> {
    let encoded = |(name, entry): (&String, &NameEntry)| {
        let (set, published_ns) = (entry.set.to_string(), entry.published_ns);
        (name.clone(), EncodedEntry { set, published_ns })
    };
    let encoded: BTreeMap<String, EncodedEntry> = entries.iter().map(encoded).collect();
    let mut bytes = serde_json::to_vec(&encoded).expect("names are text, and keys of an object");
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(format!("\n{checksum:08x}\n").as_bytes());
    if bytes.len() > PART_BYTES_MAX {
        let what = format!(
            "{}: {} names take {} bytes, over the limit of {PART_BYTES_MAX}; delete some",
            folder(part),
            entries.len(),
            bytes.len()
        );
        return Err(Error::new(Kind::TooLarge, what));
    }
    Ok(bytes)
}

fn decode(part: u32, bytes: &[u8]) -> Result<NameEntries, String> {
    let length = bytes.len().checked_sub(TRAILER_BYTES).ok_or("it is truncated")?;
    let (names, trailer) = bytes.split_at(length);
    if trailer != format!("\n{:08x}\n", crc32c::crc32c(names)).as_bytes() {
        return Err("its checksum does not match".into());
    }
    let decoded: BTreeMap<String, EncodedEntry> =
        serde_json::from_slice(names).map_err(|error| error.to_string())?;
    let mut entries = NameEntries::new();
    for (name, EncodedEntry { set, published_ns }) in decoded {
        names::check(&name).map_err(|error| error.to_string())?;
        if part_of(&name) != part {
            return Err(format!("{name:?} belongs to part {:02x}", part_of(&name)));
        }
        let set = set.parse().map_err(|error: Error| error.to_string())?;
        entries.insert(name, NameEntry { set, published_ns });
    }
    Ok(entries)
}

fn load_number(store: &dyn Store, part: u32, number: u64) -> Result<NamePart> {
    let object = object(part, number);
    let bytes = store.get(&object, PART_BYTES_MAX as u64).map_err(|error| match error.kind() {
        Kind::TooLarge => Error::corrupt(&object, 0, "it is larger than any part"),
        _ => error,
    })?;
    let entries = decode(part, &bytes).map_err(|what| Error::corrupt(&object, 0, what))?;
    Ok(NamePart { number, entries })
}

fn newest_number(store: &dyn Store, part: u32) -> Result<u64> {
    let names = store.list_names(&folder(part))?;
    Ok(names.iter().filter_map(|name| number_of(name)).max().unwrap_or(0))
}

/// Returns the newest version of `part`, empty if there is none. Cost: a listing, and a request if
/// there is one.
///
/// # Errors
/// `Corrupt`; errors of the store.
pub(crate) fn load(store: &dyn Store, part: u32) -> Result<NamePart> {
    // A newer version may replace the listed one before it is read.
    for _ in 0..TRIES_MAX {
        match newest_number(store, part)? {
            0 => return Ok(NamePart::default()),
            number => match load_number(store, part, number) {
                Err(error) if error.kind() == Kind::NotFound => {}
                loaded => return loaded,
            },
        }
    }
    Err(keeps_changing(part))
}

fn keeps_changing(part: u32) -> Error {
    let what = format!("the published names in {} keep changing; try again", folder(part));
    Error::new(Kind::Conflict, what)
}

/// Returns the part that contains `name`, for a change that follows soon. Cost: a listing, and a
/// request if the part exists.
///
/// # Errors
/// `Corrupt`; errors of the store.
pub(crate) fn see(store: &dyn Store, clock: &dyn Clock, name: &str) -> Result<SeenPart> {
    see_part(store, clock, part_of(name))
}

fn see_part(store: &dyn Store, clock: &dyn Clock, part: u32) -> Result<SeenPart> {
    for _ in 0..TRIES_MAX {
        let start_ns = (clock.now_ns(), clock.monotonic_ns());
        let versions = store.list(&folder(part))?;
        let names = match versions.iter().filter_map(version_number).max() {
            None => NamePart::default(),
            Some(number) => match load_number(store, part, number) {
                Err(error) if error.kind() == Kind::NotFound => continue,
                loaded => loaded?,
            },
        };
        return Ok(SeenPart { names, versions, start_ns });
    }
    Err(keeps_changing(part))
}

/// Changes the names of the part that contains `name`, like [`change_part`].
///
/// # Errors
/// As [`change_part`].
pub(crate) fn change(
    store: &dyn Store,
    clock: &dyn Clock,
    name: &str,
    edit: &mut dyn FnMut(&mut NameEntries) -> Result<bool>,
) -> Result<()> {
    change_part(store, clock, (part_of(name), None), edit)
}

/// Like [`change`], for a part that may have been `seen`. Cost: one put, if it was and nobody has
/// changed it since.
///
/// # Errors
/// As [`change_part`].
pub(crate) fn change_seen(
    store: &dyn Store,
    clock: &dyn Clock,
    (name, seen): (&str, Option<SeenPart>),
    edit: &mut dyn FnMut(&mut NameEntries) -> Result<bool>,
) -> Result<()> {
    change_part(store, clock, (part_of(name), seen), edit)
}

/// Applies `edit` to the names of `part` and makes the result its next version, durable once this
/// returns. After a lost race, calls `edit` again with newer names; if it is unknown whether the
/// change took effect, calls it once more to check. `edit` returns false if nothing is left to
/// change. Cost: a listing, a read and a put; a deletion for each long-replaced version, at most
/// two.
///
/// # Errors
/// Errors of `edit`; `TooLarge`; errors of the store, after which the change may still take effect,
/// now or later.
fn change_part(
    store: &dyn Store,
    clock: &dyn Clock,
    (part, mut seen): (u32, Option<SeenPart>),
    edit: &mut dyn FnMut(&mut NameEntries) -> Result<bool>,
) -> Result<()> {
    for _ in 0..TRIES_MAX {
        let mut seen = match seen.take() {
            Some(seen) => seen,
            None => see_part(store, clock, part)?,
        };
        let names = &mut seen.names;
        if !edit(&mut names.entries)? {
            return Ok(());
        }
        let number = names.number + 1;
        let put = store.put_if_absent(&object(part, number), &encode(part, &names.entries)?);
        match put {
            Ok(()) if seen.elapsed_ns(clock) < CHANGE_NS_MAX => {
                delete_replaced(store, &seen.versions);
                return Ok(());
            }
            Ok(()) if newest_number(store, part)? == number => return Ok(()),
            Ok(()) => return require_change(store, part, edit, keeps_changing(part)),
            Err(error) if error.kind() == Kind::Exists => {}
            Err(error) => return require_change(store, part, edit, error),
        }
    }
    Err(keeps_changing(part))
}

/// Fails with `error` unless the change that `edit` makes has taken effect.
fn require_change(
    store: &dyn Store,
    part: u32,
    edit: &mut dyn FnMut(&mut NameEntries) -> Result<bool>,
    error: Error,
) -> Result<()> {
    let Ok(mut names) = load(store, part) else { return Err(error) };
    if edit(&mut names.entries)? { Err(error) } else { Ok(()) }
}

fn version_number(version: &ObjectInfo) -> Option<u64> {
    parse_object(&version.name).map(|(_, number)| number)
}

/// Deletes the two oldest of `versions` that were replaced long before the newest was put, by the
/// store's clock: a process that still wants to put the number of one of them has taken too long.
fn delete_replaced(store: &dyn Store, versions: &[ObjectInfo]) {
    let newest_ns = versions.last().map_or(0, |newest| newest.modified_ns);
    let is_long_ago = |version: &&[ObjectInfo]| {
        newest_ns.saturating_sub(version[1].modified_ns) > REPLACED_NS_MIN
    };
    let old: Vec<&ObjectInfo> =
        versions.windows(2).take_while(is_long_ago).take(2).map(|version| &version[0]).collect();
    // A leftover version is harmless.
    drop(concurrent::try_map(store, &old, |version| {
        drop(store.delete(&version.name));
        Ok(())
    }));
}

/// Returns the number of the newest version of `part` if that is damaged. Cost: a listing and a
/// request.
///
/// # Errors
/// Errors of the store, except damage.
pub(crate) fn damaged_number(store: &dyn Store, part: u32) -> Result<Option<u64>> {
    match newest_number(store, part)? {
        0 => Ok(None),
        number => match load_number(store, part, number) {
            Err(error) if error.kind() == Kind::Corrupt => Ok(Some(number)),
            // It was replaced in the meantime.
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            loaded => loaded.map(|_| None),
        },
    }
}

/// Returns the names of the newest readable version of `part` before `number`, and when it was put,
/// by the store's clock.
///
/// # Errors
/// Errors of the store, except damage.
pub(crate) fn load_before(
    store: &dyn Store,
    part: u32,
    number: u64,
) -> Result<Option<(NameEntries, u64)>> {
    for version in store.list(&folder(part))?.iter().rev() {
        let Some(older) = version_number(version).filter(|older| *older < number) else { continue };
        match load_number(store, part, older) {
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::NotFound) => {}
            loaded => return loaded.map(|names| Some((names.entries, version.modified_ns))),
        }
    }
    Ok(None)
}

/// Replaces the damaged version `number` of `part` with `entries`.
///
/// # Errors
/// `Conflict` if another process replaced it; errors of the store.
pub(crate) fn replace_damaged(
    store: &dyn Store,
    part: u32,
    number: u64,
    entries: &NameEntries,
) -> Result<()> {
    let put = store.put_if_absent(&object(part, number + 1), &encode(part, entries)?);
    let replaced = put.and_then(|()| store.size(&object(part, number)).map(drop));
    replaced.map_err(|error| match error.kind() {
        // If the damaged version is gone, another process replaced it long ago, and the number was
        // free again.
        Kind::Exists | Kind::NotFound => keeps_changing(part),
        _ => error,
    })
}

/// A listed version of a part.
#[derive(Debug)]
pub(crate) struct ListedPart {
    pub(crate) part: u32,
    /// The object's name.
    pub(crate) object: String,
    /// True if there is no newer one.
    pub(crate) is_newest: bool,
    /// Its names, or its damage.
    pub(crate) entries: Result<NameEntries>,
}

/// Returns the newest versions of all parts, and the older ones too if `with_old`. Cost: a listing,
/// and a request for each.
///
/// # Errors
/// Errors of the store, except damage.
pub(crate) fn survey(store: &dyn Store, with_old: bool) -> Result<Vec<ListedPart>> {
    let mut numbers: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for object in store.list("name/")? {
        if let Some((part, number)) = parse_object(&object.name) {
            numbers.entry(part).or_default().push(number);
        }
    }
    let parts: Vec<(u32, Vec<u64>)> = numbers.into_iter().collect();
    let load = |(part, numbers): &(u32, Vec<u64>)| load_versions(store, *part, numbers, with_old);
    Ok(concurrent::try_map(store, &parts, load)?.into_iter().flatten().collect())
}

/// Loads the versions `numbers` of `part`, or only the newest.
fn load_versions(
    store: &dyn Store,
    part: u32,
    numbers: &[u64],
    with_old: bool,
) -> Result<Vec<ListedPart>> {
    let mut listed = Vec::new();
    let newest = *numbers.iter().max().expect("a part is listed with a number");
    let mut old: Vec<u64> = numbers.iter().copied().filter(|number| *number != newest).collect();
    old.sort_unstable();
    for number in old.into_iter().filter(|_| with_old) {
        let entries = match load_number(store, part, number) {
            Err(error) if error.kind() == Kind::NotFound => continue,
            loaded => or_damage(loaded)?,
        };
        let object = object(part, number);
        listed.push(ListedPart { part, object, is_newest: false, entries });
    }
    let (number, entries) = match load_number(store, part, newest) {
        // It was replaced meanwhile.
        Err(error) if error.kind() == Kind::NotFound => match load(store, part) {
            Ok(loaded) => (loaded.number, Ok(loaded.entries)),
            damaged => (newest, or_damage(damaged)?),
        },
        loaded => (newest, or_damage(loaded)?),
    };
    listed.push(ListedPart { part, object: object(part, number), is_newest: true, entries });
    Ok(listed)
}

/// Returns the entries or the damage; fails with any other error.
fn or_damage(loaded: Result<NamePart>) -> Result<Result<NameEntries>> {
    match loaded {
        Err(error) if error.kind() == Kind::Corrupt => Ok(Err(error)),
        loaded => loaded.map(|part| Ok(part.entries)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use esker_base::clock::ManualClock;
    use esker_base::store::MemoryStore;

    use super::*;

    fn entries(names: &[(&str, u128)]) -> NameEntries {
        let entry = |set| NameEntry { set: SetId(set), published_ns: 7 };
        names.iter().map(|(name, set)| ((*name).to_owned(), entry(*set))).collect()
    }

    #[test]
    fn parts_come_back() {
        let part = part_of("climate");
        let names = entries(&[("climate", 5)]);
        let bytes = encode(part, &names).expect("small");
        assert_eq!(decode(part, &bytes), Ok(names));
        for cut in 0..bytes.len() {
            decode(part, &bytes[..cut]).expect_err("cut short");
        }
        for at in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[at / 8] ^= 1 << (at % 8);
            decode(part, &flipped).expect_err("a bit is flipped");
        }
        decode((part + 1) % PARTS, &bytes).expect_err("of another part");
    }

    #[test]
    fn bytes_are_golden() {
        let bytes = encode(part_of("climate"), &entries(&[("climate", 5)])).expect("small");
        let text = std::str::from_utf8(&bytes).expect("text");
        let documented = include_str!("../../../../docs/format/store.md");
        assert!(documented.contains(&format!("<!-- golden: names -->\n```\n{text}```")), "{text}");
    }

    /// Makes the name `a` stand for `set`.
    fn put(store: &MemoryStore, clock: &ManualClock, set: u128) {
        change(store, clock, "a", &mut |names| {
            names.extend(entries(&[("a", set)]));
            Ok(true)
        })
        .expect("change");
    }

    /// A writer that slept between reading a part and putting its next version may find that number
    /// free again: its change must not count as done.
    #[test]
    fn a_change_that_fills_a_hole_fails() {
        let (store, clock) = (MemoryStore::new(), ManualClock::new(1));
        let part = part_of("a");
        put(&store, &clock, 1);
        let mut calls = 0;
        let late = change(&store, &clock, "a", &mut |names| {
            calls += 1;
            if calls == 1 {
                (2..6).for_each(|set| put(&store, &clock, set));
                store.delete(&object(part, 2)).expect("replaced long ago");
                clock.advance(Duration::from_secs(1_000));
            }
            let is_done = names["a"].set == SetId(100);
            names.extend(entries(&[("a", 100)]));
            Ok(!is_done)
        });
        assert_eq!(late.expect_err("late").kind(), Kind::Conflict);
        assert_eq!(load(&store, part).expect("load").entries, entries(&[("a", 5)]));
    }

    /// Objects with names that no change puts are not versions, even if they look like numbers.
    #[test]
    fn numbers_that_no_change_puts_are_passed_over() {
        let (store, clock) = (MemoryStore::new(), ManualClock::new(1));
        put(&store, &clock, 1);
        let folder = folder(part_of("a"));
        for name in ["ffffffffffffffff", "+00000000000000f", "000000000000000F", "f"] {
            store.put_if_absent(&format!("{folder}{name}"), b"").expect("put");
            put(&store, &clock, 2);
            let newest = load(&store, part_of("a")).expect("load");
            assert_eq!(newest.entries, entries(&[("a", 2)]), "{name}");
            assert_eq!(survey(&store, false).expect("survey").len(), 1, "{name}");
        }
    }

    #[test]
    fn versions_that_were_replaced_long_ago_go() {
        let store = MemoryStore::new();
        let versions = |times: &[u64]| -> Vec<ObjectInfo> {
            let numbered = times.iter().zip(1..);
            let version = |(seconds, number): (&u64, u64)| {
                let name = object(3, number);
                store.put_if_absent(&name, b"").expect("put");
                ObjectInfo { name, bytes: 0, modified_ns: seconds * 1_000_000_000 }
            };
            numbered.map(version).collect()
        };
        delete_replaced(&store, &versions(&[1, 2, 3, 4, 1_000]));
        let left: Vec<_> = store.list_names(&folder(3)).expect("list");
        assert_eq!(left, [3, 4, 5].map(|number| format!("{number:016x}")));
        delete_replaced(&store, &versions(&[]));
    }
}
