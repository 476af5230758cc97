// SPDX-License-Identifier: Apache-2.0
//! Garbage collection: change sets without holders, markers of sets that are gone, and objects that
//! no manifest needs.
//!
//! Path: a survey of markers, names and manifests → sets that left markers but never began are
//! doomed, and stale markers are removed (`markers.rs`); missing markers that a name or a manifest
//! implies are restored → sets without markers are doomed (`retention/condemn.rs`) and deleted,
//! which frees others (`unheld.rs`); sets that are held only for their data logs lose everything
//! else (`data_only.rs`) → objects that live sets do not need (`sweep.rs`).
//! Invariant: nothing reachable from a published name is ever deleted, no matter what else goes
//! wrong: names and the manifests of live sets count as holders even if their markers are missing.
//! A dry run takes the same path and keeps its writes in memory, so that each step finds the state
//! that the steps before it would have left.
//! Concurrency: any number of collectors, writers and readers at once; safe to stop anywhere, and
//! the next collection continues. Source: docs/design/0002-garbage.md.

mod claims;
mod data_only;
mod markers;
mod sweep;
mod unheld;

use self::sweep::{SetFolder, SweepRules};

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use esker_base::store::{ObjectInfo, Store, concurrent};
use esker_base::{Error, Kind, Result};
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::object_name::{ObjectFolder, ObjectName};
use hashbrown::HashMap;

use crate::job::claim::{self, PartClaim};
use crate::names::live_namespace::LiveNamespace;
use crate::names::{self, NameSurvey};
use crate::repository::Repository;
use crate::retention::condemn::{self, DeletionPhase};
use crate::retention::dependency;
use crate::retention::marker::{self, MarkerHolder};

/// Default time that readers have left after the name of their snapshot was deleted or replaced, or
/// after its tables were replaced.
pub const GRACE: Duration = Duration::from_secs(3600);
/// Time for which a writer may sleep and still find out that its set was deleted: the last manifest
/// of a deleted set, which takes the number that the writer would commit, is kept for this long.
/// Unfinished uploads are left alone for as long.
const SLEEP_MAX: Duration = Duration::from_secs(24 * 3600);

/// Settings of a collection.
#[derive(Clone, Debug)]
pub struct GcOptions {
    /// Minimum age of objects that may still be in flight or in use: deletions of names, tables
    /// that compaction replaced, markers put before their holder exists, objects of unfinished
    /// work. A reader's markers protect what it reads regardless of the grace period.
    pub grace: Duration,
    /// Only report what would be collected.
    pub dry_run: bool,
    /// Also read the records of sealed sets to find unreferenced data logs. Cost: a scan of
    /// their tables and of those of sets that build on them.
    pub scan_data: bool,
    /// Sessions to treat as given up: those that the caller would have given up first if this were
    /// not a dry run.
    pub given_up: Vec<SetId>,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self { grace: GRACE, dry_run: false, scan_data: false, given_up: Vec::new() }
    }
}

/// The results of a collection or of a dry run.
#[derive(Clone, Debug, Default)]
pub struct GcReport {
    /// Sets that were deleted.
    pub sets: Vec<SetId>,
    /// Sets of which everything was deleted except data logs to which other sets refer.
    pub data_only_sets: Vec<SetId>,
    /// Objects that were deleted, not counting markers.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Markers that no longer count because their holder is gone, and claims of parts that are
    /// gone. Markers of names are removed together with their set; the others were removed.
    pub stale_markers: u64,
    /// Missing markers that were restored.
    pub restored_markers: u64,
    /// Sets held only by deleted or replaced names, until the grace period is over.
    pub former_sets: u64,
    /// Sets held only by readers.
    pub read_sets: u64,
    /// Uploads that their writers never finished.
    pub unfinished: u64,
    /// Errors of reading; the sets among [`GcReport::sets`] were deleted, everything else was left
    /// alone.
    pub problems: Vec<String>,
}

impl Repository {
    /// Deletes garbage: sets without markers, and in other sets tables and logs that no manifest
    /// lists. Safe concurrently with writers, readers and other collectors; if it is stopped, the
    /// next one continues. Works in a full store ([`Store::keep_reserve`]); without a reserve it
    /// first frees what it can without writing, and defers the rest. Cost: four listings, a
    /// request for each part of the name table that has names, two per set, and one for each
    /// deleted object. On a far store with few sets and no garbage these are four round trips.
    ///
    /// # Errors
    /// Errors of the store. A set that cannot be read is reported, and deleted only if nothing
    /// holds it: no name, no session, and no other set that can be read, or whose marker exists.
    pub fn gc(&self, options: &GcOptions) -> Result<GcReport> {
        let fences = NameFences::default();
        let report = self.with_reserve(|| self.collect_garbage(options, &fences))?;
        if !options.dry_run {
            self.store().keep_reserve();
        }
        Ok(report)
    }

    fn collect_garbage(&self, options: &GcOptions, fences: &NameFences) -> Result<GcReport> {
        let mut collection = GarbageCollection::survey(self, options.clone(), fences)?;
        loop {
            let freed = collection.report.objects;
            collection.sweep_markers()?;
            collection.restore_held()?;
            collection.restore_markers()?;
            collection.collect_sets()?;
            collection.sweep_claims()?;
            collection.sweep_sets()?;
            match collection.no_space.take() {
                Some(error) if collection.report.objects == freed => return Err(error),
                // Retry steps that found no room, if others have made some.
                Some(_) => {}
                None => break,
            }
        }
        collection.count_held_for_a_while();
        let age = options.grace.max(SLEEP_MAX);
        let before_ns = collection.now_ns.saturating_sub(ns(age));
        let unfinished = self.store().sweep_unfinished(before_ns, options.dry_run);
        collection.report.unfinished = unfinished?;
        Ok(collection.report)
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Knowledge about a set's manifest.
enum KnownSet {
    Manifest(Box<Manifest>),
    Missing,
    Damaged,
}

impl KnownSet {
    /// Returns what a dry run knows about a set that it would doom.
    fn doomed(manifest: Manifest) -> Self {
        Self::Manifest(Box::new(Manifest { state: SetState::Doomed, ..manifest }))
    }
}

/// A set as found by a survey.
struct FoundSet {
    set: SetId,
    /// Its newest manifest, or the error of reading it.
    known: Result<KnownSet, String>,
    is_littered: bool,
}

/// Returns every set that has an object in the store, and those in `held`. Cost: a listing, and a
/// listing and a read for each set, concurrently on a far store.
fn survey_sets(
    repository: &Repository,
    held: BTreeSet<SetId>,
    rules: &SweepRules,
) -> Result<Vec<FoundSet>> {
    let mut ids = held;
    ids.extend(repository.sets()?);
    let ids: Vec<SetId> = ids.into_iter().collect();
    let store = &**repository.store();
    concurrent::try_map(store, &ids, |set| find_set(store, *set, rules))
}

fn find_set(store: &dyn Store, set: SetId, rules: &SweepRules) -> Result<FoundSet> {
    let objects = store.list(&ObjectFolder::All(set).to_string())?;
    let number = |object: &ObjectInfo| match object.name.parse() {
        Ok(ObjectName::Manifest(_, number)) => Some(number),
        _ => None,
    };
    let newest = objects.iter().filter_map(number).max();
    let loaded = match newest.map(|number| Manifest::load_number(store, set, number)) {
        None => Manifest::load(store, set),
        // Another one has replaced it since.
        Some(Err(error)) if error.kind() == Kind::NotFound => Manifest::load(store, set),
        Some(loaded) => loaded,
    };
    let mut is_littered = false;
    let known = match loaded {
        Ok(manifest) => {
            let folder = SetFolder::new(set, manifest, objects);
            is_littered = folder.may_shrink(rules);
            Ok(KnownSet::Manifest(Box::new(folder.manifest)))
        }
        Err(error) if error.kind() == Kind::NotFound => Ok(KnownSet::Missing),
        Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::TooLarge) => {
            Err(error.to_string())
        }
        Err(error) => return Err(error),
    };
    Ok(FoundSet { set, known, is_littered })
}

/// Names of which publications were fenced, each with the set and the manifest that condemned it.
/// Kept when a collection in a full store is tried again, so that each attempt takes less room.
type NameFences = RefCell<BTreeSet<(SetId, u64, String)>>;

/// One collection.
struct GarbageCollection<'a> {
    repository: &'a Repository,
    options: GcOptions,
    now_ns: u64,
    /// Holders by set, each with the time of its marker; updated as markers are removed and
    /// restored.
    markers: BTreeMap<SetId, BTreeMap<MarkerHolder, u64>>,
    /// Names, as holders, that did not stand for the set. Their markers stay until the set is
    /// doomed: a concurrent publication of such a name relies on them.
    stale_names: BTreeMap<SetId, BTreeSet<MarkerHolder>>,
    fences: &'a NameFences,
    /// The set of each name.
    names: BTreeMap<String, SetId>,
    /// Parts of the name table that cannot be read.
    damaged_names: NameSurvey,
    /// The sets of each live namespace; `None` for one that cannot be read.
    live: HashMap<String, Option<Vec<SetId>>>,
    sets: BTreeMap<SetId, KnownSet>,
    /// Claims of parts that were not examined yet, each with the time when it was put.
    claims: Vec<(PartClaim, u64)>,
    /// Objects that a dry run would already have deleted.
    counted: BTreeSet<String>,
    /// Markers missing in the store, which had no room for them.
    unrestored: BTreeSet<(SetId, MarkerHolder)>,
    /// The error because of which a step was deferred that has to write before it frees anything.
    no_space: Option<Error>,
    /// Live sets whose folders had objects that may go.
    littered: BTreeSet<SetId>,
    report: GcReport,
}

impl<'a> GarbageCollection<'a> {
    /// Reads markers first, then their holders: anything created in between is younger than any
    /// grace period.
    fn survey(
        repository: &'a Repository,
        options: GcOptions,
        fences: &'a NameFences,
    ) -> Result<Self> {
        let store = &**repository.store();
        let now_ns = repository.clock().now_ns();
        let mut markers: BTreeMap<SetId, BTreeMap<MarkerHolder, u64>> = BTreeMap::new();
        for marker in marker::all(store)? {
            let is_given_up = marker.holder.is_session() && options.given_up.contains(&marker.set);
            if !is_given_up {
                markers.entry(marker.set).or_default().insert(marker.holder, marker.put_ns);
            }
        }
        let mut report = GcReport::default();
        let rules = SweepRules::new(&options, now_ns);
        let sets = || survey_sets(repository, markers.keys().copied().collect(), &rules);
        let claims_and_live =
            || concurrent::try_join(store, || claim::all(store), || LiveNamespace::sets(store));
        let sets_and_claims = || concurrent::try_join(store, sets, claims_and_live);
        let (mut damaged_names, (found, (claims, live))) =
            concurrent::try_join(store, || names::survey(store), sets_and_claims)?;
        report.problems.extend(damaged_names.damaged.iter().map(|(_, error)| error.to_string()));
        let names = std::mem::take(&mut damaged_names.names).into_iter();
        let names = names.map(|named| (named.name, named.set)).collect();
        let (mut sets, mut littered) = (BTreeMap::new(), BTreeSet::new());
        for FoundSet { set, known, is_littered } in found {
            let known = known.unwrap_or_else(|damage| {
                report.problems.push(damage);
                KnownSet::Damaged
            });
            sets.insert(set, known);
            littered.extend(is_littered.then_some(set));
        }
        let stale_names = BTreeMap::new();
        Ok(Self {
            repository,
            options,
            now_ns,
            markers,
            stale_names,
            fences,
            names,
            damaged_names,
            live,
            sets,
            claims,
            counted: BTreeSet::new(),
            unrestored: BTreeSet::new(),
            no_space: None,
            littered,
            report,
        })
    }

    fn rules(&self) -> SweepRules {
        SweepRules::new(&self.options, self.now_ns)
    }

    fn store(&self) -> &'a dyn Store {
        &**self.repository.store()
    }

    /// True if an event at `then_ns` is older than the grace period.
    fn is_old(&self, then_ns: u64) -> bool {
        self.rules().is_old(then_ns)
    }

    /// Returns the holders of `set` now, and those at the start of the collection that it did not
    /// collect: one listing may show neither of two markers if one is put before the other is
    /// released. In a dry run, returns the remaining holders.
    fn holders(&self, set: SetId) -> Result<BTreeSet<MarkerHolder>> {
        let known = self.markers.get(&set).into_iter().flat_map(BTreeMap::keys).cloned();
        let mut holders: BTreeSet<MarkerHolder> = known.collect();
        if !self.options.dry_run {
            holders.extend(marker::holders(self.store(), set)?);
        }
        Ok(holders)
    }

    /// True if another set refers to data logs of `set`.
    fn is_data_needed(&self, set: SetId) -> bool {
        let mut holders = self.markers.get(&set).into_iter().flat_map(BTreeMap::keys);
        holders.any(|holder| !holder.keeps_tables())
    }

    /// Returns the state of deletion of `set`, if its manifest can be read.
    fn phase(&self, set: SetId) -> Option<DeletionPhase> {
        match self.sets.get(&set) {
            Some(KnownSet::Manifest(manifest)) => Some(condemn::phase(manifest)),
            _ => None,
        }
    }

    /// Returns the manifest of a set of which nothing has been deleted.
    fn live(&self, set: SetId) -> Option<&Manifest> {
        match self.sets.get(&set) {
            Some(KnownSet::Manifest(manifest)) => {
                let phase = condemn::phase(manifest);
                matches!(phase, DeletionPhase::Live | DeletionPhase::Condemned)
                    .then_some(&**manifest)
            }
            _ => None,
        }
    }

    fn is_doomed(&self, set: SetId) -> bool {
        self.phase(set) == Some(DeletionPhase::Doomed)
    }

    /// Defers a failure for lack of room: later steps may free some.
    fn put_off(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(error) if error.kind() == Kind::NoSpace => {
                self.no_space.get_or_insert(error);
                Ok(())
            }
            done => done,
        }
    }

    /// Dooms `set`, which had no manifest, so that it cannot begin and need the markers it left;
    /// false if it has begun.
    fn doom_missing(&mut self, set: SetId) -> Result<bool> {
        if self.is_doomed(set) {
            return Ok(true);
        }
        if self.options.dry_run {
            let manifest = Manifest::new(Vec::new(), self.now_ns);
            self.sets.insert(set, KnownSet::doomed(manifest));
            return Ok(true);
        }
        if !condemn::doom_missing(self.store(), set, self.now_ns)? {
            return Ok(false);
        }
        let manifest = Manifest::load(self.store(), set)?;
        self.sets.insert(set, KnownSet::Manifest(Box::new(manifest)));
        Ok(true)
    }

    /// Restores markers that names and manifests imply, from names down to the sets that they need.
    fn restore_markers(&mut self) -> Result<()> {
        for (set, holder) in std::mem::take(&mut self.unrestored) {
            self.put_marker(set, holder)?;
        }
        let named: Vec<(SetId, MarkerHolder)> =
            self.names.iter().map(|(name, set)| (*set, MarkerHolder::Name(name.clone()))).collect();
        for (set, holder) in named {
            self.restore_marker(set, holder)?;
        }
        let mut waiting: Vec<SetId> = self.markers.keys().copied().collect();
        let mut seen = BTreeSet::new();
        while let Some(set) = waiting.pop() {
            let is_held = self.is_held(set);
            let Some(manifest) = self.live(set).filter(|_| is_held && seen.insert(set)) else {
                continue;
            };
            for needed in dependency::of(set, manifest) {
                self.restore_marker(needed.set, needed.holder)?;
                waiting.push(needed.set);
            }
        }
        Ok(())
    }

    fn restore_marker(&mut self, set: SetId, holder: MarkerHolder) -> Result<()> {
        let can_be_held = match self.phase(set) {
            Some(DeletionPhase::Live | DeletionPhase::Condemned) => true,
            Some(DeletionPhase::DataOnly) => !holder.keeps_tables(),
            Some(DeletionPhase::Doomed) => false,
            None => matches!(self.sets.get(&set), Some(KnownSet::Damaged)),
        };
        if !can_be_held
            || self.markers.get(&set).is_some_and(|holders| holders.contains_key(&holder))
        {
            return Ok(());
        }
        // This collection respects it whether or not there is room for it.
        self.markers.entry(set).or_default().insert(holder.clone(), self.now_ns);
        self.put_marker(set, holder)
    }

    fn put_marker(&mut self, set: SetId, holder: MarkerHolder) -> Result<()> {
        let put = match self.options.dry_run {
            true => Ok(()),
            false => marker::hold(self.store(), set, &holder),
        };
        match put {
            Ok(()) => self.report.restored_markers += 1,
            Err(_) => drop(self.unrestored.insert((set, holder))),
        }
        self.put_off(put)
    }

    /// Counts sets that will go once readers end and the grace period of deleted names is over.
    fn count_held_for_a_while(&mut self) {
        let (mut former, mut read) = (0, 0);
        for (set, holders) in self.markers.iter().filter(|(set, _)| self.live(**set).is_some()) {
            let is_reader = |holder: &&MarkerHolder| matches!(holder, MarkerHolder::Reader { .. });
            let is_former = |holder: &MarkerHolder| match holder {
                MarkerHolder::Former { .. } => true,
                // The marker of a name that was deleted soon after it was published.
                MarkerHolder::Name(_) => self.is_stale(*set, holder),
                _ => false,
            };
            let holders = holders.keys().filter(|holder| holder.keeps_tables());
            let (readers, others): (Vec<_>, Vec<_>) = holders.partition(is_reader);
            let is_held = !readers.is_empty() || !others.is_empty();
            if others.into_iter().all(is_former) && is_held {
                *if readers.is_empty() { &mut former } else { &mut read } += 1;
            }
        }
        (self.report.former_sets, self.report.read_sets) = (former, read);
    }

    fn delete(&mut self, name: &str, bytes: u64) -> Result<()> {
        if self.options.dry_run {
            self.counted.insert(name.to_owned());
        } else {
            self.store().delete(name)?;
        }
        self.report.objects += 1;
        self.report.bytes += bytes;
        Ok(())
    }

    fn problem(&mut self, error: &Error) {
        let problem = error.to_string();
        if !self.report.problems.contains(&problem) {
            self.report.problems.push(problem);
        }
    }
}
