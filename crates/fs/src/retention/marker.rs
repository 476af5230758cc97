// SPDX-License-Identifier: Apache-2.0
//! Reference markers: `ref/<set>/<holder>`, one object for each reason to keep a change set.
//!
//! A set without markers is garbage; if only markers of sets that refer to its data logs are left,
//! everything but those logs is. Markers, unlike counters, are free of contention, and an
//! interrupted update can only keep garbage, never lose data. To hold a set, put its marker first
//! and then check that the set is still live. The collector first condemns a set and then checks
//! for markers once more (`condemn.rs`). One of the two sees the other.
//! Source: DESIGN §3; DeltaFS thesis §4.3 (reference counting of change sets).

use std::fmt;

use esker_base::store::Store;
use esker_base::{Kind, Result};
use esker_table::manifest::SetId;

/// A reason to keep a change set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkerHolder {
    /// The set has this published name.
    Name(String),
    /// This change set builds on it, or shows its tables or data.
    Set(SetId),
    /// This change set refers to some of its data logs, and needs nothing else of it.
    Data(SetId),
    /// A session writes it.
    Session,
    /// A process reopens the complete part of a job, or has done so.
    Reopened {
        /// The first epoch that the process commits.
        epoch: u64,
        /// Random identity of this attempt: several processes may aim at one epoch.
        id: u64,
    },
    /// The set is the live namespace of this name, whether a server runs or not.
    Live(String),
    /// The set had this published name, which was deleted or given to another set, and can be
    /// restored.
    Former {
        /// When it lost the name, in nanoseconds since the Unix epoch.
        since_ns: u64,
        /// The name.
        name: String,
    },
    /// A reader, which renews the marker by putting one with the next count.
    Reader {
        /// Random identity of the reader.
        id: u64,
        /// Number of markers this reader put before.
        count: u32,
    },
}

impl fmt::Display for MarkerHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "name-{name}"),
            Self::Set(set) => write!(f, "set-{set}"),
            Self::Data(set) => write!(f, "data-{set}"),
            Self::Session => write!(f, "session"),
            Self::Reopened { epoch, id } => write!(f, "reopened-{epoch:016x}-{id:016x}"),
            Self::Live(name) => write!(f, "live-{name}"),
            Self::Former { since_ns, name } => write!(f, "former-{since_ns:016x}-{name}"),
            Self::Reader { id, count } => write!(f, "reader-{id:016x}-{count:08x}"),
        }
    }
}

impl MarkerHolder {
    /// True if it keeps everything that the set shows, not only data logs.
    #[must_use]
    pub fn keeps_tables(&self) -> bool {
        !matches!(self, Self::Data(_))
    }

    /// True if it is of a session that writes the set.
    #[must_use]
    pub fn is_session(&self) -> bool {
        matches!(self, Self::Session | Self::Reopened { .. })
    }

    /// Parses the last component of a marker's name.
    fn parse(text: &str) -> Option<Self> {
        if text == "session" {
            return Some(Self::Session);
        }
        if let Some(set) = text.strip_prefix("set-") {
            return set.parse().ok().map(Self::Set);
        }
        if let Some(set) = text.strip_prefix("data-") {
            return set.parse().ok().map(Self::Data);
        }
        if let Some(name) = text.strip_prefix("live-") {
            return Some(Self::Live(name.to_owned()));
        }
        if let Some(former) = text.strip_prefix("former-") {
            let (since_ns, name) = former.split_once('-')?;
            let since_ns = u64::from_str_radix(since_ns, 16).ok()?;
            return Some(Self::Former { since_ns, name: name.to_owned() });
        }
        if let Some(reopened) = text.strip_prefix("reopened-") {
            let (epoch, id) = reopened.split_once('-')?;
            let (epoch, id) = (u64::from_str_radix(epoch, 16), u64::from_str_radix(id, 16));
            return Some(Self::Reopened { epoch: epoch.ok()?, id: id.ok()? });
        }
        if let Some(reader) = text.strip_prefix("reader-") {
            let (id, count) = reader.split_once('-')?;
            let (id, count) = (u64::from_str_radix(id, 16), u32::from_str_radix(count, 16));
            return Some(Self::Reader { id: id.ok()?, count: count.ok()? });
        }
        text.strip_prefix("name-").map(|name| Self::Name(name.to_owned()))
    }
}

fn folder(set: SetId) -> String {
    format!("ref/{set}/")
}

/// Puts the marker by which `holder` keeps `set`. Putting it again succeeds. Cost: one write.
pub fn hold(store: &dyn Store, set: SetId, holder: &MarkerHolder) -> Result<()> {
    match store.put_if_absent(&format!("{}{holder}", folder(set)), b"") {
        Err(error) if error.kind() == Kind::Exists => Ok(()),
        put => put,
    }
}

/// Removes a marker if it exists. Cost: one request.
pub fn release(store: &dyn Store, set: SetId, holder: &MarkerHolder) -> Result<()> {
    store.delete(&format!("{}{holder}", folder(set)))
}

/// Returns all holders of `set`. Cost: one listing.
pub fn holders(store: &dyn Store, set: SetId) -> Result<Vec<MarkerHolder>> {
    let names = store.list_names(&folder(set))?;
    // A marker of an unknown kind still holds the set.
    Ok(names
        .iter()
        .map(|name| MarkerHolder::parse(name).unwrap_or(MarkerHolder::Name(name.clone())))
        .collect())
}

/// True if `holder` keeps `set`. Cost: one request.
pub fn is_held(store: &dyn Store, set: SetId, holder: &MarkerHolder) -> Result<bool> {
    match store.size(&format!("{}{holder}", folder(set))) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A marker in a listing.
#[derive(Clone, Debug)]
pub struct Marker {
    /// The set that is held.
    pub set: SetId,
    /// The holder.
    pub holder: MarkerHolder,
    /// When it was put, in nanoseconds since the Unix epoch, by the store's clock.
    pub put_ns: u64,
}

/// Returns every marker of the store. Cost: one listing.
pub fn all(store: &dyn Store) -> Result<Vec<Marker>> {
    let parse = |object: &esker_base::store::ObjectInfo| {
        let (set, holder) = object.name.strip_prefix("ref/")?.split_once('/')?;
        let holder = MarkerHolder::parse(holder).unwrap_or(MarkerHolder::Name(holder.to_owned()));
        Some(Marker { set: set.parse().ok()?, holder, put_ns: object.modified_ns })
    };
    Ok(store.list("ref/")?.iter().filter_map(parse).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_come_back() {
        let former = |name: &str| MarkerHolder::Former { since_ns: 7, name: name.to_owned() };
        for holder in [
            MarkerHolder::Name("a-b".into()),
            MarkerHolder::Set(SetId(5)),
            MarkerHolder::Data(SetId(6)),
            MarkerHolder::Session,
            MarkerHolder::Reopened { epoch: 1 << 40, id: u64::MAX },
            MarkerHolder::Live("a-b".into()),
            former("a-b"),
            former(&"n".repeat(crate::names::PUBLISHED_NAME_BYTES_MAX)),
            MarkerHolder::Reader { id: u64::MAX, count: 3 },
        ] {
            let text = holder.to_string();
            assert_eq!(MarkerHolder::parse(&text), Some(holder));
            esker_base::store::name::check(&text).expect("short enough");
        }
        for unknown in
            ["", "former-7", "former-x-a", "reopened-1", "reopened-x-1", "reader-1-g", "reader-1"]
        {
            assert_eq!(MarkerHolder::parse(unknown), None, "{unknown}");
        }
    }
}
