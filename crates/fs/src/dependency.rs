//! Dependencies: which other change sets one needs, and so holds markers on.
//!
//! A set needs its bases, the sets whose tables it shows, and those whose data logs its records
//! refer to. Data comes with tables or from the bases' own dependencies, except where compaction
//! replaced a foreign table by an own one: then the manifest names its set among those of data.

use esker_table::manifest::{Manifest, SetId};
use hashbrown::HashSet;

/// The sets that `set` needs, as `manifest` says, each once.
#[must_use]
pub fn of(set: SetId, manifest: &Manifest) -> Vec<SetId> {
    let tables = manifest.tables.iter().map(|table| table.set);
    let mut needed: Vec<SetId> =
        manifest.bases.iter().chain(&manifest.data_sets).copied().chain(tables).collect();
    needed.sort_unstable();
    needed.dedup();
    needed.retain(|other| *other != set);
    needed
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
