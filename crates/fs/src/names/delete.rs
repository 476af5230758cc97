// SPDX-License-Identifier: Apache-2.0
//! Deletion: removes names and gives up sets. The collector (`gc`) deletes sets that nothing holds
//! any more.
//!
//! Deleting a name leaves a timestamped marker on its set: collections keep the set for their grace
//! period, for its readers and for restoring the name.

use std::collections::BTreeMap;

use esker_base::store::Store;
use esker_base::{Clock, Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::set_writer::SetWriter;

use crate::names::live_namespace;
use crate::names::name_table::{self, NameEntries, NameEntry, part_of};
use crate::names::{self, PublishedName};
use crate::repository::{Repository, best_effort};
use crate::retention::condemn::{self, TRIES_MAX};
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::session_marker;
use crate::session::{Session, SessionOptions};

/// A name that was deleted, or given to another set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerName {
    /// The name.
    pub name: String,
    /// The change set for which it stood.
    pub set: SetId,
    /// When the set lost the name, in nanoseconds since the Unix epoch.
    pub since_ns: u64,
}

/// Marks `set`, which is about to lose `name`.
pub(crate) fn hold_former(
    store: &dyn Store,
    clock: &dyn Clock,
    set: SetId,
    name: &str,
) -> Result<()> {
    let holder = MarkerHolder::Former { since_ns: clock.now_ns(), name: name.to_owned() };
    marker::hold(store, set, &holder)
}

impl Repository {
    /// Deletes a name: its change set can no longer be opened by it. Collections keep the set for
    /// their grace period, during which [`Repository::undelete`] restores the name; then the set is
    /// deleted unless it has other names or other sets build on it. Durable once it returns. Works
    /// in a full store ([`Store::keep_reserve`]). Cost: a listing, a read and two writes.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if the name cannot be read: the name is then gone, and its set will be
    /// deleted.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.delete_from(name, None)
    }

    /// Like [`Repository::delete`], but deletes the name only if it stands for `set`: a set that
    /// another process publishes under it meanwhile stays.
    ///
    /// # Errors
    /// As [`Repository::delete`]; `Conflict` if the name stands for another set.
    pub fn delete_if_unchanged(&self, name: &str, set: SetId) -> Result<()> {
        self.delete_from(name, Some(set))
    }

    fn delete_from(&self, name: &str, expected: Option<SetId>) -> Result<()> {
        let (store, clock) = (&**self.store(), &**self.clock());
        // One marker for all retries.
        let holder = MarkerHolder::Former { since_ns: clock.now_ns(), name: name.to_owned() };
        let keep = &mut |set| marker::hold(store, set, &holder);
        for _ in 0..TRIES_MAX {
            match self.with_reserve(|| names::remove(store, clock, name, expected, keep)) {
                Err(error) if error.kind() == Kind::Corrupt => {
                    if self.rebuild_part_without(name)? {
                        return Err(error.within("removed a name that cannot be read"));
                    }
                }
                removed => return removed.map(drop),
            }
        }
        Err(Error::new(Kind::Conflict, format!("the set of {name} keeps changing; try again")))
    }

    /// Gives up a change set that another process began or left, like [`Repository::abandon`],
    /// unless another process writes it. A set whose manifest cannot be read is given up, too.
    ///
    /// # Errors
    /// `Conflict` if another process writes the set, unless `options` allow a takeover, or if it is
    /// a live namespace; `NotFound`; as [`Repository::abandon`].
    pub fn give_up(&self, set: SetId, options: &SessionOptions) -> Result<()> {
        live_namespace::check_not_live(&**self.store(), set)?;
        self.give_up_if(set, &|manifest| match manifest.state {
            SetState::Open => self.check_not_held(set, manifest, options).map(|()| true),
            _ => Ok(true),
        })
    }

    /// Commits that the session of `set` was given up, which fences its writer and every process
    /// that is about to resume or to reopen it, and then removes its markers. Does nothing if
    /// `may_give_up` returns false of the newest manifest.
    fn give_up_if(
        &self,
        set: SetId,
        may_give_up: &dyn Fn(&Manifest) -> Result<bool>,
    ) -> Result<()> {
        let store = &**self.store();
        for _ in 0..TRIES_MAX {
            let mut manifest = match Manifest::load(store, set) {
                // No process can resume it, and its writer, if there is one, can no longer commit.
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::TooLarge) => {
                    let doom = || condemn::doom_damaged(store, set, self.clock().now_ns());
                    if !self.with_reserve(doom)? {
                        continue;
                    }
                    return session_marker::release_given_up(store, set);
                }
                loaded => loaded?,
            };
            let is_deleted = matches!(manifest.state, SetState::Doomed | SetState::DataOnly);
            if !is_deleted && !manifest.is_given_up {
                if !may_give_up(&manifest)? {
                    return Ok(());
                }
                session_marker::give_up(&mut manifest);
                let commit = || manifest.commit(store, set, self.clock().now_ns());
                match self.with_reserve(commit) {
                    Err(error) if condemn::is_race(&error) => continue,
                    committed => committed?,
                }
            }
            if manifest.state == SetState::Sealed && manifest.job.is_some() {
                self.fence_names(set)?;
            }
            return best_effort(session_marker::release_given_up(store, set));
        }
        Err(Error::new(Kind::Conflict, format!("change set {set} keeps changing; try again")))
    }

    /// Makes processes that are about to name `set`, a part of a job that was just given up, look
    /// at it again.
    fn fence_names(&self, set: SetId) -> Result<()> {
        let store = &**self.store();
        for holder in marker::holders(store, set)? {
            if let MarkerHolder::Name(name) = holder {
                let fence = || names::fence_publications(store, &**self.clock(), &name, set);
                self.with_reserve(fence)?;
            }
        }
        Ok(())
    }

    /// Makes a complete set that a command began for its own use ([`SessionOptions::private`])
    /// independent of the command: it stays if the command dies. Does nothing to a part that was
    /// reopened meanwhile, which is another process's. Cost: a commit.
    ///
    /// # Errors
    /// `Conflict` if another process commits to it; errors of the store.
    pub fn keep_complete(&self, set: SetId) -> Result<()> {
        let mut manifest = condemn::load_live(&**self.store(), set)?;
        if manifest.state != SetState::Sealed {
            return Ok(());
        }
        manifest.epoch += 1;
        manifest.writer = manifest.writer.take().map(SetWriter::released);
        manifest.commit(&**self.store(), set, self.clock().now_ns())
    }

    /// Sets a property of a complete set. Cost: a commit.
    ///
    /// # Errors
    /// `Invalid` if the set is not complete; `Conflict` if another process commits to it; errors of
    /// the store.
    pub fn set_property(&self, set: SetId, property: String, value: String) -> Result<()> {
        let mut manifest = condemn::load_live(&**self.store(), set)?;
        if manifest.state != SetState::Sealed {
            let what = format!("@{set} is not complete: complete it first");
            return Err(Error::new(Kind::Invalid, what));
        }
        manifest.epoch += 1;
        manifest.properties.insert(property, value);
        manifest.commit(&**self.store(), set, self.clock().now_ns())
    }

    /// Restores a name to the set that lost it last. Cost: a listing of all markers, and a
    /// publication.
    ///
    /// # Errors
    /// `NotFound` if no set that had the name is left; `Exists` if the name stands for another set.
    pub fn undelete(&self, name: &str) -> Result<PublishedName> {
        names::check(name)?;
        let former = self.former_names()?;
        for former in former.iter().rev().filter(|former| former.name == name) {
            match self.publish(former.set, name) {
                // Its collection has begun.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) if error.kind() == Kind::Exists => {
                    let set = former.set;
                    let spare = names::spare_name(name, set);
                    let what = format!(
                        "{name} stands for another snapshot by now: `esker publish @{set} {spare}` \
                         gives the deleted one another name, `esker publish --replace --hide-newer \
                         @{set} {name}` gives it this one, which the other loses"
                    );
                    return Err(Error::new(Kind::Exists, what));
                }
                published => {
                    published?;
                    return self.resolve(name);
                }
            }
        }
        let what = format!(
            "no deleted name {name:?}: `esker names --deleted` lists those that can be restored"
        );
        Err(Error::new(Kind::NotFound, what))
    }

    /// Returns the names that sets have lost and that can be restored, in the order in which they
    /// were lost. Cost: a listing of all markers, and as [`Repository::names`].
    ///
    /// # Errors
    /// Errors of the store.
    pub fn former_names(&self) -> Result<Vec<FormerName>> {
        let store = &**self.store();
        let markers = marker::all(store)?;
        let named = names::survey(store)?.names;
        let stands_for = |name: &str, set: SetId| {
            named.iter().any(|named| named.name == name && named.set == set)
        };
        let former = |marker: marker::Marker| match marker.holder {
            // A deletion that did not finish, or was undone, leaves a marker too.
            MarkerHolder::Former { since_ns, name } if !stands_for(&name, marker.set) => {
                Some(FormerName { name, set: marker.set, since_ns })
            }
            _ => None,
        };
        let mut former: Vec<FormerName> = markers.into_iter().filter_map(former).collect();
        // A set that lost a name twice is listed once, with the later time.
        former.sort_by(|a, b| (&a.name, a.set, b.since_ns).cmp(&(&b.name, b.set, a.since_ns)));
        former.dedup_by(|later, first| (&later.name, later.set) == (&first.name, first.set));
        former.sort_by(|a, b| (a.since_ns, &a.name).cmp(&(b.since_ns, &b.name)));
        Ok(former)
    }

    /// Gives up a change set that was begun and will not be published, or was completed and not
    /// named: no process can resume it, and the next collection deletes it. A writer that is still
    /// running then stops with `Fenced`. Cost: a commit, a listing, and a request for each marker.
    ///
    /// # Errors
    /// `NoSpace`, without a change, if the store and its reserve are full; errors of the store.
    pub fn abandon(&self, set: SetId) -> Result<()> {
        let store = &**self.store();
        let doom = || condemn::doom_missing(store, set, self.clock().now_ns());
        match self.give_up_if(set, &|_| Ok(true)) {
            // It has not begun, and never will.
            Err(error) if error.kind() == Kind::NotFound && self.with_reserve(doom)? => {
                session_marker::release_given_up(store, set)
            }
            // It has just begun.
            Err(error) if error.kind() == Kind::NotFound => self.give_up_if(set, &|_| Ok(true)),
            done => done,
        }
    }

    /// Gives `session` up, which this process writes, like [`Repository::abandon`]. If another
    /// process has taken it over, that process keeps it.
    ///
    /// # Errors
    /// As [`Repository::abandon`].
    pub fn abandon_session(&self, session: &Session) -> Result<()> {
        let epoch = session.epoch();
        // No process takes over a complete set, except for a part that is reopened.
        let is_own = |newest: &Manifest| {
            newest.epoch == epoch || (newest.state == SetState::Sealed && newest.job.is_none())
        };
        match self.give_up_if(session.set(), &|newest| Ok(is_own(newest))) {
            // It was collected.
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Replaces the damaged part of the name table that contains `name` by the version before it,
    /// plus newer names according to markers: each set that has a name has a marker for it. Returns
    /// false if the part has become readable.
    fn rebuild_part_without(&self, name: &str) -> Result<bool> {
        let store = &**self.store();
        let part = part_of(name);
        // Before the markers: a concurrent replacement knows more, and takes the next number.
        let Some(number) = name_table::damaged_number(store, part)? else { return Ok(false) };
        let mut newest: BTreeMap<String, (u64, SetId)> = BTreeMap::new();
        for marker in marker::all(store)? {
            let MarkerHolder::Name(other) = marker.holder else { continue };
            let is_wanted = part_of(&other) == part && names::check(&other).is_ok();
            if is_wanted && may_have_name(store, marker.set)? {
                let named = newest.entry(other).or_insert((0, marker.set));
                *named = (*named).max((marker.put_ns, marker.set));
            }
        }
        let before = name_table::load_before(store, part, number)?;
        let (before, before_ns) = before.unwrap_or_default();
        let mut entries = NameEntries::new();
        for (other, entry) in before {
            if may_have_name(store, entry.set)? {
                entries.insert(other, entry);
            }
        }
        for (other, (published_ns, set)) in newest {
            // A marker outlives its name, so an old one is less reliable than the version before.
            if published_ns > before_ns || !entries.contains_key(&other) {
                entries.insert(other, NameEntry { set, published_ns });
            }
        }
        entries.remove(name);
        match name_table::replace_damaged(store, part, number, &entries) {
            Err(error) if error.kind() == Kind::Conflict => Ok(false),
            replaced => replaced.map(|()| true),
        }
    }
}

/// True if a name may stand for `set`: it is complete, or cannot be read.
fn may_have_name(store: &dyn Store, set: SetId) -> Result<bool> {
    match Manifest::load(store, set) {
        Ok(manifest) => Ok(matches!(manifest.state, SetState::Sealed | SetState::CondemnedSealed)),
        Err(error) => match error.kind() {
            Kind::NotFound => Ok(false),
            Kind::Corrupt | Kind::TooLarge => Ok(true),
            _ => Err(error),
        },
    }
}
