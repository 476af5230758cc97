//! Dependencies: which other change sets one needs, and so holds markers on.
//!
//! A set needs its bases, the sets whose tables it shows, and those whose data logs its records
//! refer to. Data comes with tables or from the bases' own dependencies, except where compaction
//! replaced a foreign table by an own one: then the manifest names its set among those of data.
//! A squash needs none of the sets that it was merged from, but some of their data logs: of the sets
//! that have these it keeps nothing else.

use esker_table::manifest::{LogNumbers, Manifest, SetId, SetState};
use hashbrown::HashSet;

use crate::marker::Holder;

/// Another set that a set needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// The set that is needed.
    pub set: SetId,
    /// The marker by which it is kept: [`Holder::Data`] if only some of its data logs are needed.
    pub holder: Holder,
}

/// The sets that `set` needs, as `manifest` says, each once for each kind of marker.
#[must_use]
pub fn of(set: SetId, manifest: &Manifest) -> Vec<Dependency> {
    let tables = manifest.tables.iter().map(|table| table.set);
    let whole = manifest.bases.iter().chain(&manifest.data_sets).copied().chain(tables);
    let whole = whole.map(|needed| Dependency { set: needed, holder: Holder::Set(set) });
    let data = manifest.referenced_logs.iter().map(|logs| logs.set);
    let data = data.map(|needed| Dependency { set: needed, holder: Holder::Data(set) });
    let mut needed: Vec<Dependency> = whole.chain(data).collect();
    needed.sort_unstable();
    needed.dedup();
    needed.retain(|needed| needed.set != set);
    needed
}

/// Data logs of `other` to which `manifest` says that records refer, though the set does not need
/// `other` as a whole.
pub(crate) fn referenced_logs(manifest: &Manifest, other: SetId) -> Option<&LogNumbers> {
    let all = &manifest.referenced_logs;
    let at = all.binary_search_by_key(&other, |logs| logs.set).ok()?;
    Some(&all[at].numbers)
}

/// Whether a complete set with this manifest does not need, and will never need, what `dependency`
/// says. One that is written may be about to.
pub(crate) fn is_needless(set: SetId, manifest: &Manifest, dependency: &Dependency) -> bool {
    matches!(manifest.state, SetState::Published | SetState::DataOnly)
        && !of(set, manifest).contains(dependency)
}

/// Notes in `manifest`, that of `set`, that all sets it needs now are needed for their data.
pub(crate) fn keep_data_of_tables(set: SetId, manifest: &mut Manifest) {
    let mut sets: Vec<SetId> = manifest.tables.iter().map(|table| table.set).collect();
    sets.append(&mut manifest.data_sets);
    sets.sort_unstable();
    sets.dedup();
    sets.retain(|other| *other != set && !manifest.bases.contains(other));
    manifest.data_sets = sets;
}

/// Notes in `manifest` those of `sets` of which it shows no table: it needs their data.
pub(crate) fn keep_data_of(manifest: &mut Manifest, sets: &[SetId]) {
    let shown: HashSet<SetId> = manifest.tables.iter().map(|table| table.set).collect();
    manifest.data_sets.extend(sets.iter().filter(|set| !shown.contains(*set)));
    manifest.data_sets.sort_unstable();
    manifest.data_sets.dedup();
}
