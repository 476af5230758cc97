//! Deleting: takes names back and gives sets up; what nothing holds any more is collected (`gc`).
//!
//! A deleted name leaves a marker on its set, of the time at which that happened: the set stays for
//! the grace of collections, for those who read it and for who wants the name back.

use std::collections::BTreeMap;

use esker_base::store::Store;
use esker_base::{Clock, Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::set_writer::SetWriter;

use crate::marker::{self, Holder};
use crate::name_table::{self, NameEntries, NameEntry, part_of};
use crate::names::{self, PublishedName};
use crate::repository::Repository;
use crate::session::SessionOptions;

/// Others that commit at the same time are met at most this often in a row.
const TRIES_MAX: usize = 8;

/// A name that was deleted, or given to another set, a while ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerName {
    /// The name.
    pub name: String,
    /// The change set that it stood for.
    pub set: SetId,
    /// When it lost the name, in nanoseconds since the Unix epoch.
    pub since_ns: u64,
}

/// Marks `set`, which is about to lose `name`.
pub(crate) fn hold_former(
    store: &dyn Store,
    clock: &dyn Clock,
    set: SetId,
    name: &str,
) -> Result<()> {
    let holder = Holder::Former { since_ns: clock.now_ns(), name: name.to_owned() };
    marker::hold(store, set, &holder)
}

impl Repository {
    /// Takes the name back: nobody opens its change set by it any more. The set stays for the grace
    /// of collections, and can be given the name again ([`Repository::undelete`]); then it goes
    /// unless it has other names or others build on it. Durable once it returns. Works in a store that
    /// is full ([`Store::keep_reserve`]). Cost: a listing, a read and two writes.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` if the name cannot be read: then it is gone, and its set goes too.
    pub fn delete(&self, name: &str) -> Result<()> {
        let (store, clock) = (&**self.store(), &**self.clock());
        // One marker, however often this is tried.
        let holder = Holder::Former { since_ns: clock.now_ns(), name: name.to_owned() };
        let keep = &mut |set| marker::hold(store, set, &holder);
        for _ in 0..TRIES_MAX {
            match self.with_reserve(|| names::remove(store, clock, name, keep)) {
                Err(error) if error.kind() == Kind::Corrupt => {
                    if self.rebuild_part_without(name)? {
                        return Err(error.within("removed a name that cannot be read"));
                    }
                }
                removed => return removed.map(drop),
            }
        }
        Err(Error::new(Kind::Conflict, format!("what {name} stands for keeps changing; try again")))
    }

    /// Gives up a change set that somebody else began, or left: as [`Repository::abandon`], and it
    /// cannot be resumed any more. A writer that is still there is fenced first, so that nothing that
    /// it does brings the set back; on a full store it is fenced by the collection. Cost: a commit
    /// more. A set whose manifest cannot be read is given up all the same.
    ///
    /// # Errors
    /// `Conflict` if another process writes the set, unless `options` are to take it over, or
    /// resumed it meanwhile; `NotFound`; what the store reports.
    pub fn give_up(&self, set: SetId, options: &SessionOptions) -> Result<()> {
        let fenced = match self.fence(set, options) {
            Err(error) if [Kind::Corrupt, Kind::NoSpace].contains(&error.kind()) => None,
            fenced => fenced?,
        };
        self.abandon(set)?;
        let Some(epoch) = fenced else { return Ok(()) };
        // Whoever resumes looks for the marker after the commit by which that begins, and this looks
        // for the commit after the marker went: one of the two gives way.
        match Manifest::load(&**self.store(), set) {
            Ok(now) if now.state == SetState::Open && now.epoch > epoch => {
                marker::hold(&**self.store(), set, &Holder::Session)?;
                let what = format!("somebody resumed @{set} meanwhile: it is not given up");
                Err(Error::new(Kind::Conflict, what))
            }
            _ => Ok(()),
        }
    }

    /// Lets others go on with a complete set that a command had begun for itself
    /// ([`SessionOptions::private`]): it stays if that command dies. Cost: a commit.
    ///
    /// # Errors
    /// `Conflict` if somebody else commits to it; what the store reports.
    pub fn keep_complete(&self, set: SetId) -> Result<()> {
        let mut manifest = Manifest::load(&**self.store(), set)?;
        manifest.epoch += 1;
        manifest.writer = manifest.writer.take().map(SetWriter::released);
        manifest.claim(&**self.store(), set, self.clock().now_ns())
    }

    /// Gives a complete set a property. Cost: a commit.
    ///
    /// # Errors
    /// `Invalid` if the set is not complete; `Conflict` if somebody else commits to it; what the store
    /// reports.
    pub fn set_property(&self, set: SetId, property: String, value: String) -> Result<()> {
        let mut manifest = Manifest::load(&**self.store(), set)?;
        if manifest.state != SetState::Published {
            let what = format!("@{set} is not complete: complete it first");
            return Err(Error::new(Kind::Invalid, what));
        }
        manifest.epoch += 1;
        manifest.properties.insert(property, value);
        manifest.claim(&**self.store(), set, self.clock().now_ns())
    }

    /// Stops the writer of an open set by a commit of a higher epoch, which it returns; none if the
    /// set is not open.
    fn fence(&self, set: SetId, options: &SessionOptions) -> Result<Option<u64>> {
        let store = &**self.store();
        for _ in 0..TRIES_MAX {
            let mut manifest = Manifest::load(store, set)?;
            if manifest.state != SetState::Open {
                return Ok(None);
            }
            self.check_not_held(set, &manifest, options)?;
            manifest.epoch += 1;
            manifest.writer = manifest.writer.take().map(SetWriter::released);
            match manifest.claim(store, set, self.clock().now_ns()) {
                Err(error) if matches!(error.kind(), Kind::Conflict | Kind::Fenced) => {}
                claimed => return claimed.map(|()| Some(manifest.epoch)),
            }
        }
        Err(Error::new(Kind::Conflict, format!("change set {set} keeps changing; try again")))
    }

    /// Gives the name back to the set that lost it last. Cost: a listing of all markers, and a
    /// publication.
    ///
    /// # Errors
    /// `NotFound` if no set that had the name is left; `Exists` if the name stands for another.
    pub fn undelete(&self, name: &str) -> Result<PublishedName> {
        names::check(name)?;
        let former = self.former_names()?;
        for former in former.iter().rev().filter(|former| former.name == name) {
            match self.publish(former.set, name) {
                // Its collection has begun.
                Err(error) if error.kind() == Kind::NotFound => {}
                published => {
                    published?;
                    return self.resolve(name);
                }
            }
        }
        let what = format!(
            "no deleted name {name:?}: `esker names --deleted` lists those that can be given back"
        );
        Err(Error::new(Kind::NotFound, what))
    }

    /// Names that sets have lost and can be given again, those that were lost first first. Cost: a
    /// listing of all markers, and as [`Repository::names`].
    ///
    /// # Errors
    /// What the store reports.
    pub fn former_names(&self) -> Result<Vec<FormerName>> {
        let store = &**self.store();
        let markers = marker::all(store)?;
        let named = names::survey(store)?.names;
        let stands_for = |name: &str, set: SetId| {
            named.iter().any(|named| named.name == name && named.set == set)
        };
        let former = |marker: marker::Marker| match marker.holder {
            // A deletion that did not end, or was taken back, leaves a marker too.
            Holder::Former { since_ns, name } if !stands_for(&name, marker.set) => {
                Some(FormerName { name, set: marker.set, since_ns })
            }
            _ => None,
        };
        let mut former: Vec<FormerName> = markers.into_iter().filter_map(former).collect();
        // A set that lost a name twice is listed once, as of the last time.
        former.sort_by(|a, b| (&a.name, a.set, b.since_ns).cmp(&(&b.name, b.set, a.since_ns)));
        former.dedup_by(|later, first| (&later.name, later.set) == (&first.name, first.set));
        former.sort_by(|a, b| (a.since_ns, &a.name).cmp(&(b.since_ns, &b.name)));
        Ok(former)
    }

    /// Gives up a change set that was begun and will not be published, or completed and not named:
    /// it goes with the next collection. A writer that is still there stops with `Fenced` then.
    ///
    /// # Errors
    /// What the store reports.
    pub fn abandon(&self, set: SetId) -> Result<()> {
        marker::release(&**self.store(), set, &Holder::Session)
    }

    /// Replaces the part of the name table that has `name`, which cannot be read, by what the version
    /// before it has, and what markers say of names that are new since: each set that has a name has a
    /// marker of it. False if it can be read by now.
    fn rebuild_part_without(&self, name: &str) -> Result<bool> {
        let store = &**self.store();
        let part = part_of(name);
        // Before the markers: whoever replaces it meanwhile knows more, and takes the next number.
        let Some(number) = name_table::damaged_number(store, part)? else { return Ok(false) };
        let mut newest: BTreeMap<String, (u64, SetId)> = BTreeMap::new();
        for marker in marker::all(store)? {
            let Holder::Name(other) = marker.holder else { continue };
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
            // A marker stays when the name goes, so an old one says less than the version before.
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

/// Whether a name may stand for `set`: it is complete, or cannot be read.
fn may_have_name(store: &dyn Store, set: SetId) -> Result<bool> {
    match Manifest::load(store, set) {
        Ok(manifest) => {
            Ok(matches!(manifest.state, SetState::Published | SetState::CondemnedPublished))
        }
        Err(error) => match error.kind() {
            Kind::NotFound => Ok(false),
            Kind::Corrupt | Kind::TooLarge => Ok(true),
            _ => Err(error),
        },
    }
}
