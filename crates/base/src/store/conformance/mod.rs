// SPDX-License-Identifier: Apache-2.0
//! Conformance: the behaviour of every store, as functions over the trait, so that all stores run
//! the same suite.
//!
//! Each function works below a prefix of its own, so a store may be used repeatedly and by several
//! suites at once. A violation panics with the expected behaviour. Public so that tests of other
//! crates and of external stores can call it; not part of the API.

mod log;
mod names;
mod objects;
mod races;
mod ranges;

use super::SharedStore;
use crate::{Kind, Random, Result};

/// Runs the whole suite against `store`.
///
/// # Panics
/// On the first violation by `store`.
pub fn all(store: &SharedStore) {
    let run = format!("conformance/{:032x}", Random::from_system().u128());
    let suite: &[(&str, ConformanceCheck)] = &[
        ("objects/put", objects::put_is_read_back),
        ("objects/replace", objects::put_replaces_nothing),
        ("objects/empty", objects::empty_objects_are_objects),
        ("objects/absent", objects::absent_is_not_found),
        ("objects/limit", objects::get_keeps_to_its_limit),
        ("objects/pieces", objects::pieces_become_one_object),
        ("objects/dropped", objects::dropped_writers_leave_nothing),
        ("objects/large", objects::large_objects_are_whole),
        ("objects/delete", objects::delete_is_idempotent),
        ("objects/sweep", objects::sweep_spares_what_is_finished),
        ("ranges/one", ranges::one_range),
        ("ranges/short", ranges::beyond_the_end_is_corrupt),
        ("ranges/within", ranges::a_range_may_end_with_the_object),
        ("ranges/many", ranges::many_ranges_keep_their_order),
        ("names/unicode", names::unicode_names),
        ("names/bad", names::bad_names_are_invalid),
        ("names/list", names::list_is_sorted_and_whole),
        ("names/below", names::list_names_shows_one_level),
        ("names/many", names::long_listings_are_whole),
        ("races/put", races::exactly_one_put_wins),
        ("races/finish", races::exactly_one_finish_wins),
        ("races/log", races::exactly_one_log_opens),
        ("races/list", races::listings_bear_changes),
        ("races/prune", races::puts_bear_deletions_beside_them),
        ("log/offsets", log::offsets_ascend),
        ("log/synced", log::synced_bytes_are_read_back),
        ("log/large", log::large_logs_are_whole),
        ("log/taken", log::a_log_is_opened_once),
        ("log/listed", log::a_log_is_listed_once),
        ("log/threads", log::appends_do_not_interleave),
        ("log/in place", log::a_log_in_place_is_its_file),
        ("log/delete", log::deleted_logs_are_gone),
    ];
    for (name, check) in suite {
        check(&CheckFolder { store, prefix: format!("{run}/{name}/") });
    }
    assert!(!store.url().is_empty(), "a store has a URL");
}

type ConformanceCheck = fn(&CheckFolder<'_>);

/// The store and the prefix of one check.
struct CheckFolder<'a> {
    store: &'a SharedStore,
    /// Ends in `/`.
    prefix: String,
}

impl CheckFolder<'_> {
    fn name(&self, leaf: &str) -> String {
        format!("{}{leaf}", self.prefix)
    }

    fn put(&self, leaf: &str, bytes: &[u8]) {
        self.store.put_if_absent(&self.name(leaf), bytes).expect("a put of a free name succeeds");
    }

    fn get(&self, leaf: &str) -> Vec<u8> {
        self.store.get(&self.name(leaf), u64::MAX).expect("what was put is there").to_vec()
    }
}

/// Asserts that `outcome` failed with `kind`.
#[track_caller]
fn assert_kind<T>(outcome: Result<T>, kind: Kind) {
    match outcome {
        Ok(_) => panic!("expected {kind:?}, got success"),
        Err(error) => assert_eq!(error.kind(), kind, "{error}"),
    }
}

/// Returns `bytes` bytes of noise that differ at every offset.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Random::from_seed(seed).fill(&mut noise);
    noise
}
