//! Reference markers: `ref/<set>/<holder>`, one object for each reason to keep a change set.
//!
//! A set is garbage when no marker is left, and all of it but data logs when only markers of sets that
//! refer to such logs are. Markers instead of counters: nobody contends, and an
//! update that is cut short can only keep garbage, never lose data. Whoever wants to hold a set
//! first puts its marker and then looks whether the set is still good; the collector first
//! condemns a set and then looks for markers once more (`condemn.rs`). One of the two sees the other.
//! Source: DESIGN §3; DeltaFS thesis §4.3 (reference counting of change sets).

use std::fmt;

use esker_base::store::Store;
use esker_base::{Kind, Result};
use esker_table::manifest::SetId;

/// Why a change set is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// It has this published name.
    Name(String),
    /// This change set builds on it or shows its tables or data.
    Set(SetId),
    /// This change set refers to some of its data logs, and needs nothing else of it.
    Data(SetId),
    /// A session writes it.
    Session,
    /// It had this published name until then, in nanoseconds since the Unix epoch: the name was
    /// deleted or given to another set, and can be given back.
    Former {
        /// When it lost the name.
        since_ns: u64,
        /// The name.
        name: String,
    },
    /// Somebody reads it, and renews the marker while they do: puts one of the next count.
    Reader {
        /// Chosen at random.
        id: u64,
        /// How many markers this reader has put before.
        count: u32,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "name-{name}"),
            Self::Set(set) => write!(f, "set-{set}"),
            Self::Data(set) => write!(f, "data-{set}"),
            Self::Session => write!(f, "session"),
            Self::Former { since_ns, name } => write!(f, "former-{since_ns:016x}-{name}"),
            Self::Reader { id, count } => write!(f, "reader-{id:016x}-{count:08x}"),
        }
    }
}

impl Holder {
    /// Whether it keeps what the set shows, and not only data logs.
    #[must_use]
    pub fn keeps_tables(&self) -> bool {
        !matches!(self, Self::Data(_))
    }

    /// The holder that a marker's last component names.
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
        if let Some(former) = text.strip_prefix("former-") {
            let (since_ns, name) = former.split_once('-')?;
            let since_ns = u64::from_str_radix(since_ns, 16).ok()?;
            return Some(Self::Former { since_ns, name: name.to_owned() });
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

/// Puts the marker by which `holder` keeps `set`. Putting it again succeeds. One write.
pub fn hold(store: &dyn Store, set: SetId, holder: &Holder) -> Result<()> {
    match store.put_if_absent(&format!("{}{holder}", folder(set)), b"") {
        Err(error) if error.kind() == Kind::Exists => Ok(()),
        put => put,
    }
}

/// Removes a marker, if it is there. One request.
pub fn release(store: &dyn Store, set: SetId, holder: &Holder) -> Result<()> {
    store.delete(&format!("{}{holder}", folder(set)))
}

/// Everybody who keeps `set`. One listing.
pub fn holders(store: &dyn Store, set: SetId) -> Result<Vec<Holder>> {
    let names = store.list_names(&folder(set))?;
    // A marker of an unknown kind is somebody's reason all the same.
    Ok(names.iter().map(|name| Holder::parse(name).unwrap_or(Holder::Name(name.clone()))).collect())
}

/// Whether `holder` keeps `set`. One request.
pub fn is_held(store: &dyn Store, set: SetId, holder: &Holder) -> Result<bool> {
    match store.size(&format!("{}{holder}", folder(set))) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A marker as a listing shows it.
#[derive(Clone, Debug)]
pub struct Marker {
    /// The set that is held.
    pub set: SetId,
    /// By whom.
    pub holder: Holder,
    /// When it was put, in nanoseconds since the Unix epoch, by the store's clock.
    pub put_ns: u64,
}

/// Every marker of the store. One listing.
pub fn all(store: &dyn Store) -> Result<Vec<Marker>> {
    let parse = |object: &esker_base::store::ObjectInfo| {
        let (set, holder) = object.name.strip_prefix("ref/")?.split_once('/')?;
        let holder = Holder::parse(holder).unwrap_or(Holder::Name(holder.to_owned()));
        Some(Marker { set: set.parse().ok()?, holder, put_ns: object.modified_ns })
    };
    Ok(store.list("ref/")?.iter().filter_map(parse).collect())
}

/// Sets that have markers. One listing.
pub fn held_sets(store: &dyn Store) -> Result<Vec<SetId>> {
    Ok(store.list_names("ref/")?.iter().filter_map(|name| name.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_come_back() {
        let former = |name: &str| Holder::Former { since_ns: 7, name: name.to_owned() };
        for holder in [
            Holder::Name("a-b".into()),
            Holder::Set(SetId(5)),
            Holder::Data(SetId(6)),
            Holder::Session,
            former("a-b"),
            former(&"n".repeat(crate::names::PUBLISHED_NAME_BYTES_MAX)),
            Holder::Reader { id: u64::MAX, count: 3 },
        ] {
            let text = holder.to_string();
            assert_eq!(Holder::parse(&text), Some(holder));
            esker_base::store::name::check(&text).expect("short enough");
        }
        for unknown in ["", "former-7", "former-x-a", "reader-1-g", "reader-1"] {
            assert_eq!(Holder::parse(unknown), None, "{unknown}");
        }
    }
}
