//! Published names: `name/<name>`, an object that says which change set the name stands for.
//!
//! Layout: docs/format/store.md, "Names". This file is its only encoder and decoder.

use esker_base::store::Store;
use esker_base::{Error, Kind, Result};
use esker_table::manifest::SetId;
use serde::{Deserialize, Serialize};

/// A name takes at most this many bytes.
pub const PUBLISHED_NAME_BYTES_MAX: usize = 200;
/// A name's object is small.
const OBJECT_BYTES_MAX: u64 = 64 << 10;

/// A published name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedName {
    /// The name.
    pub name: String,
    /// The change set it stands for, with all that one builds on.
    pub set: SetId,
    /// When it was published, in nanoseconds since the Unix epoch.
    pub published_ns: u64,
}

#[derive(Serialize, Deserialize)]
struct Object {
    set: String,
    published_ns: u64,
}

fn object_name(name: &str) -> String {
    format!("name/{name}")
}

/// Fails unless `name` can be published: letters, digits, `.`, `_`, `-`, `+`, `@`, `=` and `,`, not
/// starting with a dot, a minus or an `@`, which names open sessions.
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
            Some(bad) => format!("it has {bad:?} in it"),
        },
    };
    let context = format!(
        "{name:?} cannot be the name of a snapshot: {why}; names have letters, digits and \
         . _ - + @ = , and begin with none of . - @"
    );
    Err(Error::new(Kind::Invalid, context))
}

/// Lets `name` stand for `set`. One write; durable once it returns. Where the write fails though it
/// took effect, and where the name stands for `set` already, that is recognized by one read.
///
/// # Errors
/// `Exists` if the name stands for another set. With any other error the name may be there all the
/// same, at once or later.
pub fn publish(store: &dyn Store, name: &str, set: SetId, now_ns: u64) -> Result<()> {
    check(name)?;
    let object = Object { set: set.to_string(), published_ns: now_ns };
    let bytes = serde_json::to_vec(&object).expect("a name's object has only text and numbers");
    let Err(error) = store.put_if_absent(&object_name(name), &bytes) else {
        return Ok(());
    };
    match resolve(store, name) {
        Ok(named) if named.set == set => Ok(()),
        Ok(_) => Err(taken(name)),
        Err(_) if error.kind() == Kind::Exists => Err(taken(name)),
        Err(_) if error.kind() == Kind::Unavailable => {
            let what = "whether the name was published is not known; look at `esker names`";
            Err(error.within(format!("{name}: {what}")))
        }
        Err(_) => Err(error),
    }
}

/// Fails if `name` stands for another set than `set`. One request if it is free.
///
/// # Errors
/// `Exists`; `Corrupt` if the name is there and cannot be read.
pub fn check_free_for(store: &dyn Store, name: &str, set: SetId) -> Result<()> {
    check(name)?;
    if !is_taken(store, name)? {
        return Ok(());
    }
    match resolve(store, name) {
        Ok(named) if named.set != set => Err(taken(name)),
        // It stands for the set, or was deleted just now.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == Kind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The error that a name is taken.
pub fn taken(name: &str) -> Error {
    let context =
        format!("the name {name:?} is taken; choose another or `esker delete {name}` first");
    Error::new(Kind::Exists, context)
}

/// Whether `name` is taken. One request.
pub fn is_taken(store: &dyn Store, name: &str) -> Result<bool> {
    match store.size(&object_name(name)) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether `name` stands for `set`. One request.
pub(crate) fn stands_for(store: &dyn Store, name: &str, set: SetId) -> Result<bool> {
    match resolve(store, name) {
        Ok(named) => Ok(named.set == set),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// What `name` stands for. One request.
///
/// # Errors
/// `NotFound`, `Corrupt`.
pub fn resolve(store: &dyn Store, name: &str) -> Result<PublishedName> {
    check(name)?;
    let object_name = object_name(name);
    let bytes = store.get(&object_name, OBJECT_BYTES_MAX).map_err(|error| match error.kind() {
        Kind::NotFound => {
            Error::new(Kind::NotFound, format!("no published name {name:?}; see `esker names`"))
        }
        _ => error,
    })?;
    let corrupt = |what: String| Error::corrupt(&object_name, 0, what);
    let object: Object =
        serde_json::from_slice(&bytes).map_err(|error| corrupt(error.to_string()))?;
    let set = object.set.parse().map_err(|error: Error| corrupt(error.to_string()))?;
    Ok(PublishedName { name: name.to_owned(), set, published_ns: object.published_ns })
}

/// All published names, sorted. A listing and a request each.
pub fn all(store: &dyn Store) -> Result<Vec<PublishedName>> {
    let mut names = Vec::new();
    for name in store.list_names("name/")? {
        match resolve(store, &name) {
            // Deleted since it was listed.
            Err(error) if error.kind() == Kind::NotFound => {}
            resolved => names.push(resolved?),
        }
    }
    Ok(names)
}

/// All published names, sorted, each with what it stands for or what is wrong with it. A listing
/// and a request each.
pub fn survey(store: &dyn Store) -> Result<Vec<(String, Result<PublishedName>)>> {
    let mut names = Vec::new();
    for name in store.list_names("name/")? {
        match resolve(store, &name) {
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) if !matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => {
                return Err(error);
            }
            resolved => names.push((name, resolved)),
        }
    }
    Ok(names)
}

/// Takes back the name that was put for `set`, unless it is gone or stands for another set by now. Two
/// requests. No store deletes an object only if it is still the one that was read: a user who deletes
/// the name and publishes another set under it between the two loses it.
pub(crate) fn take_back(store: &dyn Store, name: &str, set: SetId) -> Result<()> {
    if stands_for(store, name, set)? { remove(store, name) } else { Ok(()) }
}

/// Removes a name, whatever it stands for. One request.
pub fn remove(store: &dyn Store, name: &str) -> Result<()> {
    check(name)?;
    store.delete(&object_name(name))
}
