// SPDX-License-Identifier: Apache-2.0
//! Dry runs report exactly what the next collection does, in random histories of snapshots,
//! squashes with and without copied data, sessions, deletions, and collections with various grace
//! periods.
//!
//! Symptom: `gc --dry-run` counted a set, and its bytes, twice if a squash and the set to whose
//! data logs it refers had both lost their names.
//! Cause: after the squash was collected, the collection returned to the other set, whose objects a
//! dry run still finds in the store.
//! Fix: a dry run omits the objects that it would already have deleted.

use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::{ManualClock, SystemClock};
use esker_base::random::Random;
use esker_base::store::{MemoryStore, SharedStore};
use esker_base::{Clock, Kind};
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::repository::Repository;
use esker_fs::retention::gc::{GcOptions, GcReport};
use esker_table::manifest::SetId;

use crate::gc::{options, write};

const HOUR: Duration = Duration::from_secs(3600);

/// A repository in which random steps make and delete snapshots.
struct History {
    repository: Repository,
    clock: Arc<ManualClock>,
    random: Random,
    /// Names that are published and not deleted.
    names: Vec<String>,
    steps: u32,
}

impl History {
    fn new(seed: u64) -> Self {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let clock = Arc::new(ManualClock::new(SystemClock.now_ns()));
        let repository = Repository::with(store, 1 << 20, clock.clone());
        Self { repository, clock, random: Random::from_seed(seed), names: Vec::new(), steps: 0 }
    }

    /// Returns the index of one of the names, if there are any.
    fn any_name(&mut self) -> Option<usize> {
        let count = self.names.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    /// Returns up to two sets of published names.
    fn any_sets(&mut self) -> Vec<SetId> {
        let mut sets = Vec::new();
        for _ in 0..self.random.below(3) {
            if let Some(at) = self.any_name() {
                let set = self.repository.resolve(&self.names[at]).expect("published").set;
                if !sets.contains(&set) {
                    sets.push(set);
                }
            }
        }
        sets
    }

    fn step(&mut self) {
        self.steps += 1;
        let name = format!("n{}", self.steps);
        match self.random.below(10) {
            0..=3 => {
                let bases = self.any_sets();
                let session = self.repository.begin(&bases, options()).expect("begin");
                let bytes = 1 + self.random.below(8_000) as usize;
                write(&session, &format!("/{name}"), &vec![7; bytes]).expect("write");
                match self.random.below(6) {
                    0 => session.end().expect("end"),
                    1 => {
                        let set = session.set();
                        drop(session);
                        self.repository.abandon(set).expect("abandon");
                    }
                    _ => {
                        session.publish(&name).expect("publish");
                        self.names.push(name);
                    }
                }
            }
            4..=5 => {
                let sets = self.any_sets();
                if sets.is_empty() {
                    return;
                }
                let copy_data = self.random.below(3) == 0;
                let single = SquashOptions { threads: 1, copy_data, ..SquashOptions::default() };
                let (set, _) = self.repository.squash(&sets, &single).expect("squash");
                self.repository.publish(set, &name).expect("publish");
                self.names.push(name);
            }
            6..=8 => {
                if let Some(at) = self.any_name() {
                    let name = self.names.swap_remove(at);
                    self.repository.delete(&name).expect("delete");
                }
            }
            _ => {
                self.clock.advance(HOUR * self.random.below(30) as u32);
                // Collecting between steps leaves sets in every phase.
                self.collect();
            }
        }
    }

    /// Runs a dry run twice and then the collection; checks that they report the same.
    fn collect(&mut self) -> GcReport {
        let grace = Duration::from_secs([0, 3600, 7200][self.random.below(3) as usize]);
        let scan_data = self.random.below(2) == 0;
        let options = GcOptions { grace, scan_data, ..GcOptions::default() };
        let dry = GcOptions { dry_run: true, ..options.clone() };
        let planned = sorted(self.repository.gc(&dry).expect("dry run"));
        let again = sorted(self.repository.gc(&dry).expect("dry run"));
        assert_eq!(format!("{planned:?}"), format!("{again:?}"), "a dry run changes nothing");
        let done = sorted(self.repository.gc(&options).expect("gc"));
        assert_eq!(format!("{planned:?}"), format!("{done:?}"));
        done
    }
}

fn sorted(mut report: GcReport) -> GcReport {
    report.sets.sort_unstable();
    report.data_only_sets.sort_unstable();
    report.problems.sort_unstable();
    report
}

#[test]
fn a_dry_run_counts_what_the_collection_frees() {
    let (mut sets, mut data_only) = (0, 0);
    for seed in 0..60 {
        let mut history = History::new(seed);
        for _ in 0..25 {
            history.step();
        }
        let report = history.collect();
        sets += report.sets.len();
        data_only += report.data_only_sets.len();
        for name in std::mem::take(&mut history.names) {
            history.repository.delete(&name).expect("delete");
        }
        history.clock.advance(HOUR * 3);
        sets += history.collect().sets.len();
        // Only sessions and the last manifests of deleted sets are left.
        history.clock.advance(HOUR * 48);
        history.collect();
    }
    assert!(sets > 100 && data_only > 5, "{sets} {data_only}");
}

/// A collection deletes the squash before the set to whose data it refers, no matter which of the
/// two has the lower id.
#[test]
fn a_squash_and_its_source_are_counted_once() {
    for seed in 0..8 {
        let mut history = History::new(seed);
        let session = history.repository.begin(&[], options()).expect("begin");
        write(&session, "/file", &[1; 5_000]).expect("write");
        let set = session.publish("source").expect("publish");
        let single = SquashOptions { threads: 1, ..SquashOptions::default() };
        let (flat, report) = history.repository.squash(&[set], &single).expect("squash");
        assert_eq!(report.referenced_sets, 1);
        history.repository.publish(flat, "flat").expect("publish");
        for name in ["source", "flat"] {
            history.repository.delete(name).expect("delete");
        }
        history.clock.advance(HOUR * 3);
        let report = history.collect();
        assert_eq!((report.sets.len(), report.data_only_sets.len()), (2, 0), "{report:?}");
        let gone = history.repository.open(&[set], esker_fs::stack::identity::Identity::root());
        assert_eq!(gone.expect_err("collected").kind(), Kind::NotFound);
    }
}
