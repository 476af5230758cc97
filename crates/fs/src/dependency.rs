//! Dependencies: which other change sets one needs, and so holds markers on.
//!
//! A set needs its bases, the sets whose tables it shows, and those whose data logs its records
//! refer to. Data comes with tables or from the bases' own dependencies, except where compaction
//! replaced a foreign table by an own one: then a property of the manifest names its set.

use esker_table::manifest::{Manifest, SetId};

/// Property of a manifest that lists sets whose data is needed though no table of theirs is shown.
pub const KEEPS: &str = "esker.keeps";

/// The sets that `set` needs, as `manifest` says, each once.
#[must_use]
pub fn of(set: SetId, manifest: &Manifest) -> Vec<SetId> {
    let tables = manifest.tables.iter().map(|table| table.set);
    let mut needed: Vec<SetId> =
        manifest.bases.iter().copied().chain(tables).chain(kept(manifest)).collect();
    needed.sort_unstable();
    needed.dedup();
    needed.retain(|other| *other != set);
    needed
}

fn kept(manifest: &Manifest) -> impl Iterator<Item = SetId> {
    let text = manifest.properties.get(KEEPS).map_or("", String::as_str);
    text.split_whitespace().filter_map(|word| word.parse().ok())
}

/// Notes in `manifest`, that of `set`, that all sets it needs now are needed for their data.
pub(crate) fn keep_data_of_tables(set: SetId, manifest: &mut Manifest) {
    let mut sets: Vec<SetId> = manifest.tables.iter().map(|table| table.set).collect();
    sets.extend(kept(manifest));
    sets.sort_unstable();
    sets.dedup();
    sets.retain(|other| *other != set && !manifest.bases.contains(other));
    write_kept(manifest, &sets);
}

/// Notes in `manifest` those of `sets` of which it shows no table: it needs their data.
pub(crate) fn keep_data_of(manifest: &mut Manifest, sets: &[SetId]) {
    let is_shown = |set: &SetId| manifest.tables.iter().any(|table| table.set == *set);
    let mut kept: Vec<SetId> = kept(manifest).collect();
    kept.extend(sets.iter().filter(|set| !is_shown(set)));
    kept.sort_unstable();
    kept.dedup();
    write_kept(manifest, &kept);
}

fn write_kept(manifest: &mut Manifest, sets: &[SetId]) {
    if sets.is_empty() {
        return;
    }
    let words: Vec<String> = sets.iter().map(SetId::to_string).collect();
    manifest.properties.insert(KEEPS.into(), words.join(" "));
}
