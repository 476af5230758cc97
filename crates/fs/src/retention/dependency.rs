// SPDX-License-Identifier: Apache-2.0
//! Dependencies: the other change sets that a set needs, and therefore holds markers on.
//!
//! A set needs its bases, the sets whose tables it shows, and those to whose data logs its records
//! refer. Data is covered by tables or by the bases' own dependencies, except where compaction
//! replaced a foreign table by one of its own: the manifest then lists the foreign set for its
//! data. A squash needs none of the sets from which it was merged, but some of their data logs, and
//! keeps nothing else of those sets.

use esker_table::manifest::{LogNumbers, Manifest, SetId, SetState};
use hashbrown::HashSet;

use crate::retention::marker::MarkerHolder;

/// Another set that a set needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetDependency {
    /// The needed set.
    pub set: SetId,
    /// The marker that keeps it: [`MarkerHolder::Data`] if only some of its data logs are needed.
    pub holder: MarkerHolder,
}

/// Returns the sets that `set` needs, according to `manifest`, each once for each kind of marker.
#[must_use]
pub fn of(set: SetId, manifest: &Manifest) -> Vec<SetDependency> {
    let tables = manifest.tables.iter().map(|table| table.set);
    let whole = manifest.bases.iter().chain(&manifest.data_sets).copied().chain(tables);
    let whole = whole.map(|needed| SetDependency { set: needed, holder: MarkerHolder::Set(set) });
    let data = manifest.referenced_logs.iter().map(|logs| logs.set);
    let data = data.map(|needed| SetDependency { set: needed, holder: MarkerHolder::Data(set) });
    let mut needed: Vec<SetDependency> = whole.chain(data).collect();
    needed.sort_unstable();
    needed.dedup();
    needed.retain(|needed| needed.set != set);
    needed
}

/// Returns the data logs of `other` to which records refer, according to `manifest`, although the
/// set does not need `other` as a whole.
pub(crate) fn referenced_logs(manifest: &Manifest, other: SetId) -> Option<&LogNumbers> {
    let all = &manifest.referenced_logs;
    let at = all.binary_search_by_key(&other, |logs| logs.set).ok()?;
    Some(&all[at].numbers)
}

/// True if a complete set with this manifest does not need, and will never need, `dependency`. An
/// open set may be about to need it, and a part of a job may be opened again.
pub(crate) fn is_needless(set: SetId, manifest: &Manifest, dependency: &SetDependency) -> bool {
    let is_part = manifest.job.is_some_and(|membership| membership.rank.is_some());
    let is_final = match manifest.state {
        SetState::Sealed => !is_part,
        SetState::DataOnly => true,
        _ => false,
    };
    is_final && !of(set, manifest).contains(dependency)
}

/// Records in `manifest`, that of `set`, that all sets it needs now are needed for their data.
pub(crate) fn keep_data_of_tables(set: SetId, manifest: &mut Manifest) {
    let mut sets: Vec<SetId> = manifest.tables.iter().map(|table| table.set).collect();
    sets.append(&mut manifest.data_sets);
    sets.sort_unstable();
    sets.dedup();
    sets.retain(|other| *other != set && !manifest.bases.contains(other));
    manifest.data_sets = sets;
}

/// Records in `manifest` that it needs the data of those `sets` of which it shows no table.
pub(crate) fn keep_data_of(manifest: &mut Manifest, sets: &[SetId]) {
    let shown: HashSet<SetId> = manifest.tables.iter().map(|table| table.set).collect();
    manifest.data_sets.extend(sets.iter().filter(|set| !shown.contains(*set)));
    manifest.data_sets.sort_unstable();
    manifest.data_sets.dedup();
}
