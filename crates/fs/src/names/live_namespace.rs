// SPDX-License-Identifier: Apache-2.0
//! Live namespaces: open change sets with a name, which servers write for many clients.
//!
//! A live namespace has one or more *seats*: change sets, each with a server of its own. The root
//! is at seat 0; a directory and the names in it are at one seat (`ops/seat_root.rs`).
//! `live/<name>/layout` says which sets a name stands for. Each has a marker by which collections
//! and commands recognize it; the marker counts only while the layout names the set, so a crash
//! between the two leaves a session like any other. Layout: docs/format/live.md.

use esker_base::store::{Store, put_own};
use esker_base::{Error, Kind, Result};
use esker_table::manifest::SetId;
use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use crate::inode::DirId;
use crate::names;
use crate::repository::Repository;
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::provisional_markers::ProvisionalMarkers;
use crate::session::{Session, SessionOptions};

/// Prefix of the names of all objects of live namespaces.
const FOLDER: &str = "live/";
/// Version of the layout object.
const FORMAT: u32 = 1;
/// Maximum bytes of a layout object.
const LAYOUT_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of seats.
pub const SEATS_MAX: usize = 256;

/// A live namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveNamespace {
    /// Its name.
    pub name: String,
    /// The change set of each seat. The first one has the root.
    pub seats: Vec<SetId>,
    /// When it was made, in nanoseconds since the Unix epoch.
    pub created_ns: u64,
}

/// The layout object.
#[derive(Debug, Deserialize, Serialize)]
struct LayoutObject {
    format: u32,
    sets: Vec<String>,
    created_ns: u64,
}

impl LiveNamespace {
    /// Returns the folder of the addresses of servers of `seat` of the live namespace `name`.
    #[must_use]
    pub fn server_folder(name: &str, seat: u16) -> String {
        match seat {
            0 => format!("{FOLDER}{name}/server/"),
            seat => format!("{FOLDER}{name}/server.{seat}/"),
        }
    }

    /// Decides that the set whose directory has `identity` is inserted at `seat`, unless that was
    /// decided before: shown by two seats, it would have two names. Cost: a write.
    ///
    /// # Errors
    /// `Conflict` if another seat has it; errors of the store.
    pub fn claim_adopted(
        store: &dyn Store,
        name: &str,
        (identity, seat): (DirId, u16),
    ) -> Result<()> {
        let object = format!("{}{identity}", Self::adopted_folder(name));
        let own = seat.to_string();
        match put_own(store, &object, own.as_bytes()) {
            Err(error) if error.kind() == Kind::Exists => {
                let found = store.get(&object, LAYOUT_BYTES_MAX)?;
                let found = String::from_utf8_lossy(&found).into_owned();
                let what = format!(
                    "it was inserted, or was to be, in a directory at seat {found} of {name}: \
                     insert it in one there"
                );
                Err(Error::new(Kind::Conflict, what))
            }
            put => put,
        }
    }

    fn adopted_folder(name: &str) -> String {
        format!("{FOLDER}{name}/adopted/")
    }

    /// Returns the change set of `seat`.
    ///
    /// # Errors
    /// `NotFound` if there is no such seat.
    pub fn seat(&self, seat: u16) -> Result<SetId> {
        self.seats.get(usize::from(seat)).copied().ok_or_else(|| {
            let what = match self.seats.len() {
                1 => format!("{}: seat {seat}; it was made with one seat, 0", self.name),
                seats => format!("{}: seat {seat}; its seats are 0 to {}", self.name, seats - 1),
            };
            Error::new(Kind::NotFound, what)
        })
    }

    fn layout_name(name: &str) -> String {
        format!("{FOLDER}{name}/layout")
    }

    fn encode(&self) -> Vec<u8> {
        let sets = self.seats.iter().map(SetId::to_string).collect();
        let created_ns = self.created_ns;
        let layout = LayoutObject { format: FORMAT, sets, created_ns };
        serde_json::to_vec(&layout).expect("a layout is plain JSON")
    }

    fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let object = Self::layout_name(name);
        let damaged = |what: String| Error::corrupt(&object, 0, what);
        let layout: LayoutObject =
            serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
        if layout.format != FORMAT {
            let what = format!("{object}: format {}; this is Esker for {FORMAT}", layout.format);
            return Err(Error::new(Kind::Invalid, what));
        }
        if !(1..=SEATS_MAX).contains(&layout.sets.len()) {
            let what = format!("{} change sets, 1 to {SEATS_MAX} expected", layout.sets.len());
            return Err(damaged(what));
        }
        let parse =
            |set: &String| set.parse().map_err(|_| damaged(format!("{set:?} is no change set")));
        let seats = layout.sets.iter().map(parse).collect::<Result<Vec<SetId>>>()?;
        Ok(Self { name: name.to_owned(), seats, created_ns: layout.created_ns })
    }

    /// Returns the live namespace `name` of `store`. Cost: one request.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt`; errors of the store.
    pub fn load(store: &dyn Store, name: &str) -> Result<Self> {
        names::check(name)?;
        match store.get(&Self::layout_name(name), LAYOUT_BYTES_MAX) {
            Ok(bytes) => Self::decode(name, &bytes),
            Err(error) if error.kind() == Kind::NotFound => {
                let what = format!("{name}: no such live namespace; `esker live list` shows them");
                Err(Error::new(Kind::NotFound, what))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns all live namespaces of `store`, by name. Cost: a listing, and a request for each.
    ///
    /// # Errors
    /// `Corrupt`; errors of the store.
    pub fn all(store: &dyn Store) -> Result<Vec<Self>> {
        Self::each(store, |_, loaded| loaded)
    }

    /// Returns the sets of each live namespace, by name; `None` for one whose layout cannot be read.
    pub(crate) fn sets(store: &dyn Store) -> Result<HashMap<String, Option<Vec<SetId>>>> {
        let set = |name: String, loaded: Result<Self>| match loaded {
            Ok(live) => Ok((name, Some(live.seats))),
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => Ok((name, None)),
            Err(error) => Err(error),
        };
        Ok(Self::each(store, set)?.into_iter().collect())
    }

    /// Passes every live namespace with its name to `convert`, and returns the results.
    fn each<T>(
        store: &dyn Store,
        convert: impl Fn(String, Result<Self>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let name = |object: &str| {
            let name = object.strip_prefix(FOLDER)?.strip_suffix("/layout")?;
            names::check(name).is_ok().then(|| name.to_owned())
        };
        let mut converted = Vec::new();
        for name in store.list(FOLDER)?.iter().filter_map(|object| name(&object.name)) {
            match Self::load(store, &name) {
                // Removed after the listing.
                Err(error) if error.kind() == Kind::NotFound => {}
                loaded => converted.push(convert(name, loaded)?),
            }
        }
        Ok(converted)
    }
}

impl Repository {
    /// Makes the live namespace `name` with `seats` seats. Its root and the directories of `bases`,
    /// of which earlier ones win, are at seat 0. Each seat is an open session that no process writes
    /// until a server begins. Cost: for each seat that of [`Repository::begin`] and of ending the
    /// session, and a write; and a write.
    ///
    /// # Errors
    /// `Exists`, `Invalid` or `TooLarge` names; `Invalid` for a set with its own identities, and
    /// for numbers of seats other than 1 to [`SEATS_MAX`]; as [`Repository::begin`].
    pub fn create_live(
        &self,
        name: &str,
        bases: &[SetId],
        seats: usize,
        options: SessionOptions,
    ) -> Result<LiveNamespace> {
        if options.own_identities {
            // Its records of requests would become another namespace's with its tables.
            let what = "a live namespace cannot be inserted into another one";
            return Err(Error::new(Kind::Invalid, what));
        }
        if !(1..=SEATS_MAX).contains(&seats) {
            let what = format!("{seats} seats; a live namespace has 1 to {SEATS_MAX}");
            return Err(Error::new(Kind::Invalid, what));
        }
        let store = &**self.store();
        match LiveNamespace::load(store, name) {
            Ok(_) => return Err(taken(name)),
            Err(error) if error.kind() == Kind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut sessions = Vec::new();
        let mut markers = ProvisionalMarkers::new(store);
        let made = (0..seats).try_for_each(|seat| {
            let bases = if seat == 0 { bases } else { &[] };
            sessions.push(self.begin(bases, options.clone().private())?);
            Ok(())
        });
        let sets = sessions.iter().map(Session::set).collect();
        let live =
            LiveNamespace { name: name.to_owned(), seats: sets, created_ns: self.clock().now_ns() };
        if let Err(error) = made.and_then(|()| live.make(store, &sessions, &mut markers)) {
            drop(sessions);
            match LiveNamespace::load(store, name) {
                Ok(found) if found.seats == live.seats => markers.keep(),
                // Otherwise a collection does it. The claims stay: another process that makes the
                // namespace at the same time may rely on them.
                _ => live.seats.iter().for_each(|set| drop(self.give_up(*set, &options))),
            }
            return Err(error);
        }
        markers.keep();
        Ok(live)
    }

    /// Removes the live namespace `name` with everything in it that no snapshot shows. Servers are
    /// fenced. Cost: for each seat that of [`Repository::give_up`]; a listing and some deletions.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` if a server writes it, unless `options` allow a takeover.
    pub fn remove_live(&self, name: &str, options: &SessionOptions) -> Result<()> {
        let store = &**self.store();
        let live = LiveNamespace::load(store, name)?;
        for set in &live.seats {
            if let Ok(manifest) = crate::retention::condemn::load_live(store, *set) {
                self.check_not_held(*set, &manifest, options)?;
            }
        }
        // Before the layout: after it, another namespace of this name may be made.
        for seat in 0..live.seats.len() {
            let seat = u16::try_from(seat).expect("at most the maximum");
            for object in store.list(&LiveNamespace::server_folder(name, seat))? {
                store.delete(&object.name)?;
            }
        }
        live.forget_adopted(store)?;
        store.delete(&LiveNamespace::layout_name(name))?;
        for set in live.seats {
            match self.give_up(set, options) {
                // It was given up before this call was repeated.
                Err(error) if error.kind() == Kind::NotFound => {}
                done => done?,
            }
            marker::release(store, set, &MarkerHolder::Live(name.to_owned()))?;
        }
        Ok(())
    }
}

impl LiveNamespace {
    /// Removes what says at which seats sets were inserted.
    fn forget_adopted(&self, store: &dyn Store) -> Result<()> {
        let objects = store.list(&Self::adopted_folder(&self.name))?;
        objects.iter().try_for_each(|object| store.delete(&object.name))
    }

    /// Ends the `sessions`, those of the seats, and puts the layout.
    fn make(
        &self,
        store: &dyn Store,
        sessions: &[Session],
        markers: &mut ProvisionalMarkers<'_>,
    ) -> Result<()> {
        let holder = MarkerHolder::Live(self.name.clone());
        if let [first, _, ..] = sessions {
            // What bases show is at seat 0, and must not be inserted at another one, too.
            for identity in first.known_identities()? {
                Self::claim_adopted(store, &self.name, (identity, 0))?;
            }
        }
        for session in sessions {
            session.flush()?;
            markers.hold(session.set(), holder.clone())?;
        }
        match put_own(store, &Self::layout_name(&self.name), &self.encode()) {
            Err(error) if error.kind() == Kind::Exists => return Err(taken(&self.name)),
            put => put?,
        }
        for session in sessions {
            // A collection that checked before the layout existed may have removed it.
            marker::hold(store, session.set(), &holder)?;
            // Until here it has a writer, so no other process gives it up.
            session.end()?;
        }
        Ok(())
    }
}

fn taken(name: &str) -> Error {
    let what = format!("{name} is a live namespace already; `esker live serve {name}` serves it");
    Error::new(Kind::Exists, what)
}

/// Fails if `set` is a live namespace. Cost: one listing, and a request if it has such a marker.
///
/// # Errors
/// `Conflict`, which names it; errors of the store.
pub(crate) fn check_not_live(store: &dyn Store, set: SetId) -> Result<()> {
    for holder in marker::holders(store, set)? {
        let MarkerHolder::Live(name) = holder else { continue };
        match LiveNamespace::load(store, &name) {
            Ok(live) if live.seats.contains(&set) => {
                let what = format!(
                    "@{set} is part of the live namespace {name}: `esker live remove {name}` removes it"
                );
                return Err(Error::new(Kind::Conflict, what));
            }
            Err(error) if error.kind() != Kind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

impl Repository {
    /// Fails if `set` is that of a live namespace, which nothing but its server may complete. Cost: a
    /// listing.
    ///
    /// # Errors
    /// `Conflict`, which names it; errors of the store.
    pub fn check_not_live(&self, set: SetId) -> Result<()> {
        check_not_live(&**self.store(), set)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use esker_base::store::MemoryStore;

    use super::*;

    fn options() -> SessionOptions {
        SessionOptions { heartbeat: None, ..SessionOptions::default() }
    }

    /// The bytes of docs/format/live.md.
    #[test]
    fn golden() {
        let live = LiveNamespace { name: "run".into(), seats: vec![SetId(5)], created_ns: 7 };
        let text = r#"{"format":1,"sets":["00000000000000000000000000000005"],"created_ns":7}"#;
        assert_eq!(live.encode(), text.as_bytes());
        assert_eq!(LiveNamespace::decode("run", text.as_bytes()).expect("whole"), live);
        let two = LiveNamespace { seats: vec![SetId(5), SetId(6)], ..live };
        assert_eq!(LiveNamespace::decode("run", &two.encode()).expect("whole"), two);
        assert_eq!(two.seat(1).expect("the last one"), SetId(6));
        assert_eq!(two.seat(2).unwrap_err().kind(), Kind::NotFound);
        for bad in ["", "{}", r#"{"format":1,"sets":[],"created_ns":7}"#] {
            let error = LiveNamespace::decode("run", bad.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{bad}");
        }
        let newer = r#"{"format":2,"sets":[],"created_ns":7}"#;
        assert_eq!(
            LiveNamespace::decode("run", newer.as_bytes()).unwrap_err().kind(),
            Kind::Invalid
        );
    }

    #[test]
    fn a_live_namespace_is_made_once_and_given_up_only_by_its_removal() -> Result<()> {
        let repository = Repository::new(Arc::new(MemoryStore::new()));
        let insertable = SessionOptions { own_identities: true, ..options() };
        let refused = repository.create_live("run", &[], 1, insertable).unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid);
        let live = repository.create_live("run", &[], 2, options())?;
        let again = repository.create_live("run", &[], 2, options()).unwrap_err();
        assert_eq!(again.kind(), Kind::Exists);
        assert_eq!(LiveNamespace::all(&**repository.store())?, std::slice::from_ref(&live));
        for set in &live.seats {
            let refused = repository.give_up(*set, &options()).unwrap_err();
            assert_eq!(refused.kind(), Kind::Conflict);
        }
        let left = repository.give_up_left(Some(std::time::Duration::ZERO), false, &options())?;
        assert!(left.given_up.is_empty());
        let session = repository.resume(live.seats[0], options())?;
        session.create(session.root(), b"f", 0o644)?;
        session.end()?;
        repository.remove_live("run", &options())?;
        assert_eq!(LiveNamespace::all(&**repository.store())?, []);
        for set in live.seats {
            assert_eq!(repository.resume(set, options()).unwrap_err().kind(), Kind::NotFound);
        }
        let gone = repository.remove_live("run", &options()).unwrap_err();
        assert_eq!(gone.kind(), Kind::NotFound);
        Ok(())
    }
}
