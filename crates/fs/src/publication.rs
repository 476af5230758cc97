//! Publication: gives change sets names, and names to other change sets.
//!
//! A publisher puts the marker of the name on the set, reads that the set is complete and not being
//! deleted, changes the name, and reads the set's manifest once more: a collector that found the
//! marker stale asks again what the name stands for after it condemned the set, so one of the two
//! gives way. The marker stays when the publication fails: somebody else may rely on it, and a
//! collection removes it. Source: docs/design/0007-names.md.

use std::collections::VecDeque;

use esker_base::store::{Store, concurrent};
use esker_base::{Clock, Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};
use hashbrown::HashSet;

use crate::condemn;
use crate::delete::hold_former;
use crate::graph::is_of_manifest;
use crate::marker::{self, Holder};
use crate::name_table::{NameEntry, SeenPart};
use crate::names::{self, IfTaken};
use crate::repository::{Repository, best_effort};

impl Repository {
    /// Publishes a complete set that has no name yet, or a further name of one. Succeeds if the name
    /// stands for the set already.
    ///
    /// # Errors
    /// `Exists` if the name is taken; `Invalid` if the set is not complete.
    pub fn publish(&self, set: SetId, name: &str) -> Result<()> {
        names::check_free_for(&**self.store(), name, set)?;
        self.publish_as(set, name, IfTaken::Refuse).map(drop)
    }

    /// As [`Repository::publish`], but a name that stands for another set stands for `set` then, if
    /// `if_taken` lets it: in one step, so that readers find the one or the other. Returns the set
    /// that lost the name, which stays for the grace of collections. Cost: with
    /// [`IfTaken::ReplaceUnlessMoved`] a read of the manifests that `set` builds on, until one is that of
    /// the name, and if none is, those of what the name stands for.
    ///
    /// # Errors
    /// `Invalid` if the set is not complete; `Exists` or `Conflict` if the name must not be replaced.
    pub fn publish_replacing(
        &self,
        set: SetId,
        name: &str,
        if_taken: IfTaken,
    ) -> Result<Option<SetId>> {
        names::check(name)?;
        self.publish_as(set, name, if_taken)
    }

    /// Fails if `name` has moved since what builds on `bases` began, as
    /// [`IfTaken::ReplaceUnlessMoved`] has it: what is published then, which may be later, finds that
    /// out again.
    ///
    /// # Errors
    /// `Conflict`; what the store reports.
    pub fn check_not_moved(&self, bases: &[SetId], name: &str) -> Result<()> {
        match names::resolve(&**self.store(), name) {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            named => check_not_moved(&**self.store(), bases, named?.set, name),
        }
    }

    /// Gives what is published as `old` the name `new` instead: first that, then `old` goes, so that
    /// readers find at least one. `if_taken` says whether `new` may stand for another set before. If this is
    /// cut short both names may be there; then it may be repeated. Returns what was renamed.
    ///
    /// # Errors
    /// `NotFound` if there is no `old`; `Exists` or `Conflict` if `new` is taken and must not be
    /// replaced; `Conflict` if `old` was given to another set meanwhile: then it stays, and `new` is
    /// there too.
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
        names::take_back(store, clock, old, set, None)?;
        if names::is_taken(store, old)? {
            let what =
                format!("{old} stands for another snapshot by now and stays; {new} is there");
            return Err(Error::new(Kind::Conflict, what));
        }
        Ok(set)
    }

    fn publish_as(&self, set: SetId, name: &str, if_taken: IfTaken) -> Result<Option<SetId>> {
        let store = &**self.store();
        marker::hold(store, set, &Holder::Name(name.to_owned()))?;
        let known = condemn::load_live(store, set)?;
        check_complete(set, &known, "resume and publish it")?;
        let publication =
            Publication { set, known: &known, name, if_taken, seen: None, was_session: true };
        publish_held(store, &**self.clock(), publication)
    }
}

/// Releases the session's marker of `set`, which has a name. A part of a job may have lost the name
/// since, and been opened again: then the marker is put back. Whoever opens a part puts the marker after
/// the commit by which it is open, and this looks for that commit after the marker went, so the part has
/// its marker in the end; until then that of the name that it lost keeps it.
pub(crate) fn release_session(store: &dyn Store, set: SetId, is_part: bool) -> Result<()> {
    marker::release(store, set, &Holder::Session)?;
    if !is_part {
        return Ok(());
    }
    match Manifest::load(store, set) {
        Ok(manifest) if manifest.state == SetState::Open => {
            marker::hold(store, set, &Holder::Session)
        }
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            // It was collected meanwhile, or nobody can open it.
            Kind::NotFound | Kind::Corrupt | Kind::TooLarge => Ok(()),
            _ => Err(error),
        },
    }
}

fn check_complete(set: SetId, manifest: &Manifest, advice: &str) -> Result<()> {
    if manifest.state == SetState::Published {
        return Ok(());
    }
    Err(Error::new(Kind::Invalid, format!("change set {set} is not complete; {advice}")))
}

/// A set that is complete and has the marker of a name, and how it gets the name.
pub(crate) struct Publication<'a> {
    pub(crate) set: SetId,
    /// Its newest manifest a moment ago.
    pub(crate) known: &'a Manifest,
    pub(crate) name: &'a str,
    pub(crate) if_taken: IfTaken,
    /// The part of the name table, if it was read just now.
    pub(crate) seen: Option<SeenPart>,
    /// Whether the set may have a session's marker, which goes then.
    pub(crate) was_session: bool,
}

/// Lets a name stand for a set; returns the set that lost it. Cost: a put if the part of the name table
/// was seen, else a read of that before it; then, on a far store side by side, a listing and a deletion.
///
/// # Errors
/// As [`names::publish`]; `NotFound` if the set was collected meanwhile, `Invalid` if opened again:
/// then the name is what it was.
pub(crate) fn publish_held(
    store: &dyn Store,
    clock: &dyn Clock,
    publication: Publication<'_>,
) -> Result<Option<SetId>> {
    let Publication { set, known, name, if_taken, seen, was_session } = publication;
    let entry = NameEntry { set, published_ns: clock.now_ns() };
    let keep = &mut |former| {
        if if_taken == IfTaken::ReplaceUnlessMoved {
            check_not_moved(store, &[set], former, name)?;
        }
        hold_former(store, clock, former, name)
    };
    let replaced = names::publish(store, clock, name, entry, (if_taken, seen), keep)?;
    let look = || refusal(set, condemn::reload_live(store, set, known));
    let release = || match was_session {
        true => best_effort(release_session(store, set, known.job.is_some())),
        false => Ok(()),
    };
    let refused = match known.job {
        // Should it be refused, it is being deleted, and its markers with it.
        None => concurrent::try_join(store, look, release)?.0,
        // A part of a job that was opened again needs its marker.
        Some(_) => match look()? {
            None => release().map(|()| None)?,
            refused => refused,
        },
    };
    match refused {
        None => Ok(replaced.map(|former| former.set)),
        Some(refused) => {
            take_back(store, clock, name, set, replaced)?;
            Err(refused)
        }
    }
}

/// Why the name must be taken back from `set`, whose manifest was `looked` for after it had the name;
/// nothing if it stays, and an error if that is not to be decided.
fn refusal(set: SetId, looked: Result<Manifest>) -> Result<Option<Error>> {
    match looked {
        Err(error) if error.kind() == Kind::NotFound => Ok(Some(error)),
        // A part of a job was opened again, which looked for names after that.
        Ok(manifest) => {
            let advice = "it was opened again meanwhile; complete it first";
            Ok(check_complete(set, &manifest, advice).err())
        }
        Err(error) => best_effort(Err(error)).map(|()| None),
    }
}

/// Fails if what builds on `bases`, or is one of them, would hide what was published as `name` since it
/// began: `current`, which is none of its sets, though it shares some with them. Unrelated snapshots
/// replace each other, as under a name that stands for the latest.
fn check_not_moved(store: &dyn Store, bases: &[SetId], current: SetId, name: &str) -> Result<()> {
    let own = closure(store, bases, Some(current))?;
    if own.contains(&current) {
        return Ok(());
    }
    let others = closure(store, &[current], None)?;
    if own.is_disjoint(&others) {
        return Ok(());
    }
    let what = format!(
        "{name} has moved: it stands for @{current} by now, which was published since this began \
         from the same base, and would be hidden; begin again from {name}, lay this over it by \
         `esker publish --replace --base THIS --base {name} {name}`, or hide it by --hide-newer"
    );
    Err(Error::new(Kind::Conflict, what))
}

/// The sets of `roots` and all that they build on; fewer, if `wanted` is among them. What cannot be
/// read is taken for one that builds on nothing.
fn closure(store: &dyn Store, roots: &[SetId], wanted: Option<SetId>) -> Result<HashSet<SetId>> {
    let mut found: HashSet<SetId> = roots.iter().copied().collect();
    let mut waiting: VecDeque<SetId> = found.iter().copied().collect();
    while let Some(set) = waiting.pop_front() {
        if wanted.is_some_and(|wanted| found.contains(&wanted)) {
            break;
        }
        let bases = match Manifest::load(store, set) {
            Err(error) if is_of_manifest(error.kind()) => continue,
            manifest => manifest?.bases,
        };
        waiting.extend(bases.into_iter().filter(|base| found.insert(*base)));
    }
    Ok(found)
}

/// Takes `name` back from `set` and gives it to `previous`, unless that has been collected too.
fn take_back(
    store: &dyn Store,
    clock: &dyn Clock,
    name: &str,
    set: SetId,
    previous: Option<NameEntry>,
) -> Result<()> {
    names::take_back(store, clock, name, set, previous)?;
    let Some(previous) = previous else { return Ok(()) };
    match condemn::load_live(store, previous.set) {
        Err(error) if error.kind() == Kind::NotFound => {
            names::take_back(store, clock, name, previous.set, None)
        }
        looked => best_effort(looked.map(drop)),
    }
}
