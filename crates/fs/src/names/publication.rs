// SPDX-License-Identifier: Apache-2.0
//! Publication: gives names to change sets, and moves names between them.
//!
//! A publisher puts the marker of the name on the set, reads the part of the name table, then makes
//! sure that the set is complete and not being deleted, and puts the next version of that part.
//!
//! A collector that found the marker stale puts a version of the part, too, after it condemned the
//! set and before it dooms it. The publisher therefore either finds the set condemned, or loses the
//! number, or its name is in the version that the collector reads: no name ever stands for a set
//! that is being deleted. A process that reopens a part of a job does the same (`job/parts.rs`), so
//! no name ever stands for a part that is open again.
//!
//! The marker stays if the publication fails: another process may rely on it, and a collection
//! removes it.
//! Source: docs/design/0007-names.md.

use std::collections::VecDeque;

use esker_base::store::Store;
use esker_base::{Clock, Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};
use hashbrown::HashSet;

use crate::maintenance::graph::is_of_manifest;
use crate::names::delete::hold_former;
use crate::names::name_table::{self, NameEntry, SeenPart};
use crate::names::{self, IfTaken};
use crate::repository::{Repository, best_effort, given_up};
use crate::retention::condemn;
use crate::retention::marker::{self, MarkerHolder};
use crate::retention::session_marker;

impl Repository {
    /// Publishes a complete set that has no name yet, or gives it another name. Succeeds if the
    /// name already stands for the set.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Invalid` if the set is not complete.
    pub fn publish(&self, set: SetId, name: &str) -> Result<()> {
        let seen = names::see_free_for(&**self.store(), &**self.clock(), name, set)?;
        self.publish_as(set, (name, seen), IfTaken::Refuse).map(drop)
    }

    /// Like [`Repository::publish`], but gives `set` a name that stands for another set if
    /// `if_taken` allows it, in one step, so that readers find one or the other. Returns the set
    /// that lost the name, which stays for the grace period of collections. Cost: with
    /// [`IfTaken::ReplaceUnlessMoved`] a read of the manifests on which `set` builds, until the
    /// name's set is among them; if it is not, also of those on which that set builds.
    ///
    /// # Errors
    /// `Invalid` if the set is not complete; `Exists` or `Conflict` if the name must not be
    /// replaced.
    pub fn publish_replacing(
        &self,
        set: SetId,
        name: &str,
        if_taken: IfTaken,
    ) -> Result<Option<SetId>> {
        names::check(name)?;
        let seen = name_table::see(&**self.store(), &**self.clock(), name)?;
        self.publish_as(set, (name, seen), if_taken)
    }

    /// Fails if `name` has moved since work on `bases` began, in the sense of
    /// [`IfTaken::ReplaceUnlessMoved`]. The publication, which may be later, checks this again.
    ///
    /// # Errors
    /// `Conflict`; errors of the store.
    pub fn check_not_moved(&self, bases: &[SetId], name: &str) -> Result<()> {
        match names::resolve(&**self.store(), name) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            named => check_not_moved(&**self.store(), bases, named?.set, name),
        }
    }

    /// Renames the published set `old` to `new`: first adds `new`, then removes `old`, so that
    /// readers find at least one. `if_taken` tells whether `new` may already stand for another set.
    /// If this is interrupted both names may exist; it may then be repeated. Returns the set that
    /// was renamed.
    ///
    /// # Errors
    /// `NotFound` if there is no `old`; `Exists` or `Conflict` if `new` is taken and must not be
    /// replaced; `Conflict` if `old` was given to another set meanwhile: then it stays, and `new`
    /// exists too.
    pub fn rename(&self, old: &str, new: &str, if_taken: IfTaken) -> Result<SetId> {
        let (store, clock) = (&**self.store(), &**self.clock());
        let set = names::resolve(store, old)?.set;
        if old == new {
            return Ok(set);
        }
        match if_taken {
            IfTaken::Refuse => self.publish(set, new)?,
            _ => drop(self.publish_replacing(set, new, if_taken)?),
        }
        names::take_back(store, clock, old, set)?;
        if names::is_taken(store, old)? {
            let what = format!("{old} now stands for another snapshot and stays; {new} exists too");
            return Err(Error::new(Kind::Conflict, what));
        }
        Ok(set)
    }

    fn publish_as(
        &self,
        set: SetId,
        (name, seen): (&str, SeenPart),
        if_taken: IfTaken,
    ) -> Result<Option<SetId>> {
        let store = &**self.store();
        marker::hold(store, set, &MarkerHolder::Name(name.to_owned()))?;
        let known = condemn::load_live(store, set)?;
        check_publishable(set, &known, "resume and publish it")?;
        let publication =
            PendingPublication { set, known: &known, name, if_taken, seen, was_session: true };
        publish_held(store, &**self.clock(), publication)
    }
}

/// Fails unless `set` is complete and, if it is a part of a job, was not given up: its rank may
/// have begun another part.
fn check_publishable(set: SetId, manifest: &Manifest, advice: &str) -> Result<()> {
    if manifest.state != SetState::Sealed {
        let what = format!("change set {set} is not complete; {advice}");
        return Err(Error::new(Kind::Invalid, what));
    }
    check_part_stays(set, manifest)
}

/// Fails for a part of a job that was given up.
pub(crate) fn check_part_stays(set: SetId, manifest: &Manifest) -> Result<()> {
    let is_part = manifest.job.is_some_and(|membership| membership.rank.is_some());
    if is_part && manifest.is_given_up { Err(given_up(set)) } else { Ok(()) }
}

/// A complete set with the marker of a name, and how to give it the name.
pub(crate) struct PendingPublication<'a> {
    pub(crate) set: SetId,
    /// Its newest manifest, live, when it was read or committed after `seen`.
    pub(crate) known: &'a Manifest,
    pub(crate) name: &'a str,
    pub(crate) if_taken: IfTaken,
    /// The part of the name table.
    pub(crate) seen: SeenPart,
    /// True if the set may have a session's marker, which is then released.
    pub(crate) was_session: bool,
}

/// Makes a name stand for a set; returns the set that lost it. Cost: a put and a deletion; for a
/// part of a job that was reopened also a listing.
///
/// # Errors
/// As [`names::publish`]; `NotFound` if the set is being deleted, `Invalid` if it was reopened: the
/// name is then what it was.
pub(crate) fn publish_held(
    store: &dyn Store,
    clock: &dyn Clock,
    publication: PendingPublication<'_>,
) -> Result<Option<SetId>> {
    let PendingPublication { set, known, name, if_taken, seen, was_session } = publication;
    let advice = "it was reopened meanwhile; complete it first";
    check_publishable(set, known, advice)?;
    let entry = NameEntry { set, published_ns: clock.now_ns() };
    let keep = &mut |former| {
        if if_taken == IfTaken::ReplaceUnlessMoved {
            check_not_moved(store, &[set], former, name)?;
        }
        hold_former(store, clock, former, name)
    };
    let check_live = || check_publishable(set, &condemn::reload_live(store, set, known)?, advice);
    let replaced = names::publish(store, clock, (name, seen), entry, if_taken, &check_live, keep)?;
    if was_session {
        best_effort(session_marker::release_published(store, set, known))?;
    }
    Ok(replaced.map(|former| former.set))
}

/// Fails if `bases`, or a set on top of them, would hide `current`, which was published as `name`
/// since work began: `current` is not among their sets, although it shares some with them. A squash
/// has the sets that were merged into it. Unrelated snapshots replace each other, as under a name
/// for the latest one.
fn check_not_moved(store: &dyn Store, bases: &[SetId], current: SetId, name: &str) -> Result<()> {
    let own = closure(store, bases, Some(current))?;
    if own.contains(&current) || is_squash_of(store, current, &own)? {
        return Ok(());
    }
    let others = closure(store, &[current], None)?;
    if own.is_disjoint(&others) {
        return Ok(());
    }
    let what = format!(
        "{name} has moved: it now stands for @{current}, which was published from the same base \
         since this began, and would be hidden"
    );
    Err(Error::new(Kind::Conflict, what))
}

/// True if all that `set` shows is in `sets`: it is a squash of some of them, or of squashes of them.
fn is_squash_of(store: &dyn Store, set: SetId, sets: &HashSet<SetId>) -> Result<bool> {
    let mut found: HashSet<SetId> = HashSet::new();
    let mut waiting = vec![set];
    while let Some(set) = waiting.pop() {
        let merged = match Manifest::load(store, set) {
            Err(error) if is_of_manifest(error.kind()) => return Ok(false),
            manifest => manifest?.merged_sets,
        };
        if merged.is_empty() {
            return Ok(false);
        }
        let others = merged.into_iter().filter(|set| !sets.contains(set));
        waiting.extend(others.filter(|set| found.insert(*set)));
    }
    Ok(true)
}

/// Returns the sets of `roots`, and all that they build on or that was merged into them; stops early
/// once `wanted` is among them. Treats an unreadable set as one without bases.
fn closure(store: &dyn Store, roots: &[SetId], wanted: Option<SetId>) -> Result<HashSet<SetId>> {
    let mut found: HashSet<SetId> = roots.iter().copied().collect();
    let mut waiting: VecDeque<SetId> = found.iter().copied().collect();
    while let Some(set) = waiting.pop_front() {
        if wanted.is_some_and(|wanted| found.contains(&wanted)) {
            break;
        }
        let manifest = match Manifest::load(store, set) {
            Err(error) if is_of_manifest(error.kind()) => continue,
            manifest => manifest?,
        };
        // These have all sets on which they built, and all that were merged into them, in the list.
        found.extend(manifest.merged_sets);
        waiting.extend(manifest.bases.into_iter().filter(|base| found.insert(*base)));
    }
    Ok(found)
}
