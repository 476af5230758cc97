// SPDX-License-Identifier: Apache-2.0
//! Published names: the change set for which a name stands.
//!
//! Names are in the name table (`name_table.rs`). Each change of a name is atomic: readers see
//! either the old snapshot or the new one.

pub mod delete;
pub mod live_namespace;
pub(crate) mod name_table;
pub(crate) mod publication;

use esker_base::store::Store;
use esker_base::{Clock, Error, Kind, Result};
use esker_table::manifest::SetId;

use self::name_table::{NameEntries, NameEntry, SeenPart, part_of};

/// Maximum bytes of a name.
pub const PUBLISHED_NAME_BYTES_MAX: usize = 200;

/// A published name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedName {
    /// The name.
    pub name: String,
    /// The change set for which it stands, with all that it builds on.
    pub set: SetId,
    /// When it was published, in nanoseconds since the Unix epoch.
    pub published_ns: u64,
}

impl PublishedName {
    fn new(name: String, entry: NameEntry) -> Self {
        Self { name, set: entry.set, published_ns: entry.published_ns }
    }
}

/// Fails unless `name` can be published: letters, digits, `.`, `_`, `-`, `+`, `@`, `=` and `,`, not
/// starting with a dot, a minus or an `@`, which denotes open sessions.
///
/// # Errors
/// `Invalid`, `TooLarge`.
pub fn check(name: &str) -> Result<()> {
    if name.len() > PUBLISHED_NAME_BYTES_MAX {
        let context = format!(
            "a name of {} bytes; at most {PUBLISHED_NAME_BYTES_MAX} are possible",
            name.len()
        );
        return Err(Error::new(Kind::TooLarge, context));
    }
    let is_bad = |letter: &char| !letter.is_alphanumeric() && !"._-+@=,".contains(*letter);
    let why = match name.chars().next() {
        None => "it is empty".to_owned(),
        Some(first @ ('.' | '-' | '@')) => format!("it begins with {first:?}"),
        _ => match name.chars().find(is_bad) {
            None => return Ok(()),
            Some(bad) => format!("it contains {bad:?}"),
        },
    };
    let context = format!(
        "{name:?} cannot be a name: {why}; names consist of letters, digits \
         and . _ - + @ = , and do not begin with . - or @"
    );
    Err(Error::new(Kind::Invalid, context))
}

/// Returns a name for advice: `stem` with the first digits of `set`, which is free unless it was
/// used.
#[must_use]
pub fn spare_name(stem: &str, set: SetId) -> String {
    let digits = &set.to_string()[..8];
    let is_long = stem.len() + digits.len() >= PUBLISHED_NAME_BYTES_MAX;
    format!("{}-{digits}", if is_long { "set" } else { stem })
}

/// Treatment of a name that stands for another set, by a publication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfTaken {
    /// The publication fails.
    Refuse,
    /// The name is given to the new set, unless it has moved since the new set began: both sets
    /// build on a common set, and the new one does not build on the other. The publication then
    /// fails.
    ReplaceUnlessMoved,
    /// The name is given to the new set.
    Replace,
}

/// Makes `name` stand for a set that was live after the part of the table was `seen`; returns the
/// previous target. Durable once it returns. Recognizes a change that took effect although the
/// store did not confirm it. If it has to read the part again, it calls `check_live` before it puts
/// the name: a collection that dooms the set has changed the part ([`fence_publications`]). Calls
/// `before_replacing` with a set before it loses the name. Cost: a put, if nobody has changed the
/// part since.
///
/// # Errors
/// `Exists` if the name stands for another set and must not be replaced; those of the closures,
/// without a change. After any other error the name may still appear, now or later.
pub(crate) fn publish(
    store: &dyn Store,
    clock: &dyn Clock,
    (name, seen): (&str, SeenPart),
    entry: NameEntry,
    if_taken: IfTaken,
    check_live: &dyn Fn() -> Result<()>,
    before_replacing: &mut dyn FnMut(SetId) -> Result<()>,
) -> Result<Option<NameEntry>> {
    check(name)?;
    // A flush since then may have taken longer than a change should.
    let seen = Some(seen).filter(|seen| seen.is_recent(clock));
    let (mut replaced, mut is_live) = (None, seen.is_some());
    let mut edit = |names: &mut NameEntries| {
        match names.get(name) {
            Some(other) if other.set == entry.set => return Ok(false),
            Some(_) if if_taken == IfTaken::Refuse => return Err(taken(name)),
            other => {
                if !std::mem::take(&mut is_live) {
                    check_live()?;
                }
                replaced = other.copied();
                replaced.map_or(Ok(()), |other| before_replacing(other.set))?;
            }
        }
        names.insert(name.to_owned(), entry);
        Ok(true)
    };
    let published = name_table::change_seen(store, clock, (name, seen), &mut edit);
    published.map(|()| replaced).map_err(|error| match error.kind() {
        Kind::Unavailable => {
            let what = "it is unknown whether the name was published; see `esker names`";
            error.within(format!("{name}: {what}"))
        }
        _ => error,
    })
}

/// Puts another version of the part that contains `name`, with the same names, and returns false;
/// returns true, without a change, if the name stands for `set`. A publication that read an earlier
/// version cannot put the name without reading the part, and the state of its set, again. Cost: as
/// a publication.
///
/// # Errors
/// `Corrupt` if the part cannot be read; `Conflict` if it keeps changing; errors of the store.
pub(crate) fn fence_publications(
    store: &dyn Store,
    clock: &dyn Clock,
    name: &str,
    set: SetId,
) -> Result<bool> {
    let mut stands_for_set = false;
    name_table::change(store, clock, name, &mut |names| {
        stands_for_set = names.get(name).is_some_and(|entry| entry.set == set);
        Ok(!stands_for_set)
    })?;
    Ok(stands_for_set)
}

/// Removes `name` if it stands for `set`.
///
/// # Errors
/// Errors of the store.
pub(crate) fn take_back(
    store: &dyn Store,
    clock: &dyn Clock,
    name: &str,
    set: SetId,
) -> Result<()> {
    name_table::change(store, clock, name, &mut |names| {
        let stands_for_set = names.get(name).is_some_and(|entry| entry.set == set);
        if stands_for_set {
            names.remove(name);
        }
        Ok(stands_for_set)
    })
}

/// Removes `name` and returns its set. If an `expected` set is given, removes the name only from
/// that set. Calls `before` with a set before it loses the name. Durable once it returns.
///
/// # Errors
/// `NotFound`; `Conflict` if the name stands for another set than expected; `Corrupt`; errors of
/// the store.
pub(crate) fn remove(
    store: &dyn Store,
    clock: &dyn Clock,
    name: &str,
    expected: Option<SetId>,
    before: &mut dyn FnMut(SetId) -> Result<()>,
) -> Result<SetId> {
    check(name)?;
    let mut removed = None;
    name_table::change(store, clock, name, &mut |names| match names.remove(name) {
        Some(entry) if expected.is_some_and(|expected| expected != entry.set) => {
            // If this change has removed it before, another process has published it since.
            let what = || format!("{name} stands for another snapshot, @{}, and stays", entry.set);
            removed.map_or_else(|| Err(Error::new(Kind::Conflict, what())), |_| Ok(false))
        }
        Some(entry) => {
            removed = Some(entry.set);
            before(entry.set).map(|()| true)
        }
        // By this change, or by another process meanwhile.
        None if removed.is_some() => Ok(false),
        None => Err(not_found(name)),
    })?;
    Ok(removed.expect("a name that was there is removed"))
}

/// Fails if `name` stands for a set other than `set`. Cost: one request if its part has no names,
/// otherwise two.
///
/// # Errors
/// `Exists`; `Corrupt` if the part of the table for the name cannot be read.
pub fn check_free_for(store: &dyn Store, name: &str, set: SetId) -> Result<()> {
    check(name)?;
    match find(store, name)? {
        Some(entry) if entry.set != set => Err(taken(name)),
        _ => Ok(()),
    }
}

/// Like [`check_free_for`], but returns the part of the table for a subsequent publication. The
/// publisher makes sure that the set is live after this.
///
/// # Errors
/// As [`check_free_for`].
pub(crate) fn see_free_for(
    store: &dyn Store,
    clock: &dyn Clock,
    name: &str,
    set: SetId,
) -> Result<SeenPart> {
    check(name)?;
    let seen = name_table::see(store, clock, name)?;
    match seen.entries().get(name) {
        Some(entry) if entry.set != set => Err(taken(name)),
        _ => Ok(seen),
    }
}

/// Returns the error for a name that is taken.
pub fn taken(name: &str) -> Error {
    Error::new(Kind::Exists, format!("the name {name:?} is taken"))
}

fn not_found(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("no published name {name:?}; see `esker names`"))
}

fn find(store: &dyn Store, name: &str) -> Result<Option<NameEntry>> {
    Ok(name_table::load(store, part_of(name))?.entries.get(name).copied())
}

/// True if `name` is taken. Cost: one or two requests.
///
/// # Errors
/// As [`check_free_for`].
pub fn is_taken(store: &dyn Store, name: &str) -> Result<bool> {
    find(store, name).map(|entry| entry.is_some())
}

/// True if `name` stands for `set`. Cost: one or two requests.
pub(crate) fn stands_for(store: &dyn Store, name: &str, set: SetId) -> Result<bool> {
    find(store, name).map(|entry| entry.is_some_and(|entry| entry.set == set))
}

/// Returns the set for which `name` stands. Cost: two requests.
///
/// # Errors
/// `NotFound`, `Corrupt`.
pub fn resolve(store: &dyn Store, name: &str) -> Result<PublishedName> {
    check(name)?;
    let entry = find(store, name)?.ok_or_else(|| not_found(name))?;
    Ok(PublishedName::new(name.to_owned(), entry))
}

/// Returns all published names, sorted. Cost: a listing, and a request for each part of the table.
///
/// # Errors
/// `Corrupt` if a part of the table cannot be read.
pub fn all(store: &dyn Store) -> Result<Vec<PublishedName>> {
    let surveyed = survey(store)?;
    match surveyed.damaged.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(surveyed.names),
    }
}

/// All names that can be read.
#[derive(Debug, Default)]
pub(crate) struct NameSurvey {
    /// The names, sorted.
    pub(crate) names: Vec<PublishedName>,
    /// Parts of the table that cannot be read, with the errors.
    pub(crate) damaged: Vec<(u32, Error)>,
}

impl NameSurvey {
    /// True if `name` would be in an unreadable part, so that it may stand for any set.
    pub(crate) fn may_have(&self, name: &str) -> bool {
        let part = part_of(name);
        self.damaged.iter().any(|(damaged, _)| *damaged == part)
    }
}

/// Returns all published names that can be read, sorted, and the errors of parts of the table that
/// cannot. Cost: as [`all`].
///
/// # Errors
/// Errors of the store, except damage.
pub fn readable(store: &dyn Store) -> Result<(Vec<PublishedName>, Vec<Error>)> {
    let surveyed = survey(store)?;
    let damaged = surveyed.damaged.into_iter().map(|(_, error)| error).collect();
    Ok((surveyed.names, damaged))
}

/// Returns all published names, and the damage of the table. Cost: a listing, and a request for
/// each part.
///
/// # Errors
/// Errors of the store, except damage.
pub(crate) fn survey(store: &dyn Store) -> Result<NameSurvey> {
    let mut surveyed = NameSurvey::default();
    for part in name_table::survey(store, false)? {
        match part.entries {
            Ok(entries) => surveyed
                .names
                .extend(entries.into_iter().map(|(name, entry)| PublishedName::new(name, entry))),
            Err(error) => surveyed.damaged.push((part.part, error)),
        }
    }
    surveyed.names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    Ok(surveyed)
}
