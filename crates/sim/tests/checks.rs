// SPDX-License-Identifier: Apache-2.0
//! Checks of the store against the truth, between turns and at the end.

use std::sync::Arc;
use std::time::Duration;

use esker_base::store::{SharedStore, Store};
use esker_base::{Kind, Result};
use esker_fs::maintenance::verify::{VerifyOptions, VerifyReport, VerifyTargets};
use esker_fs::repository::Repository;
use esker_fs::retention::gc::GcOptions;
use esker_fs::session::SessionOptions;
use esker_fs::stack::identity::Identity;
use esker_sim::{ActorProcess, ShiftedClock, SimulatedMachine};
use esker_table::manifest::{Manifest, SetId, SetState};
use esker_table::tree::TreeOptions;
use parking_lot::Mutex;

use crate::history::History;
use crate::operation::{Tree, difference};
use crate::subject;
use crate::truth::{Certainty, Lineage, StackedTree, Truth};

/// State shared by all actors of a run.
#[derive(Debug)]
pub struct World {
    pub machine: Arc<SimulatedMachine>,
    pub history: History,
    pub truth: Mutex<Truth>,
}

/// The tree that the stack of `sets` shows.
pub fn tree_of(repository: &Repository, sets: &[SetId]) -> Result<Tree> {
    subject::tree(&repository.open(sets, Identity::root())?)
}

/// Options of a session in which only the caller's thread works.
pub fn options(tree: TreeOptions) -> SessionOptions {
    let tree = TreeOptions { background: false, memory_bytes: 1 << 17, log_interval: None, ..tree };
    SessionOptions {
        identity: Identity::root(),
        tree,
        // No heartbeat comes between the requests that a test counts.
        heartbeat: None,
        ..SessionOptions::default()
    }
}

pub fn verify_options() -> VerifyOptions {
    VerifyOptions { threads: 1, ..VerifyOptions::default() }
}

pub fn findings(report: &VerifyReport) -> String {
    report.findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl World {
    /// A repository of `process`, without a cache, so that it reads from the store.
    pub fn repository(&self, process: &Arc<ActorProcess>) -> Repository {
        let store: SharedStore = process.clone();
        let offset_s = self.history.clock_offsets_s.get(process.actor().0).copied().unwrap_or(0);
        let clock = ShiftedClock::new(self.machine.clock().clone(), offset_s * 1_000_000_000);
        let seed = self.history.seed ^ process.number();
        Repository::with(store, 0, Arc::new(clock)).with_set_ids(seed)
    }

    /// A repository that reads between turns.
    pub fn observer(&self) -> Repository {
        self.repository(&self.machine.observer())
    }

    pub fn fail(&self, text: impl AsRef<str>) {
        self.machine.fail(text.as_ref());
    }

    /// Updates the lineage of `set`, if process `owner` still writes it.
    pub fn with_lineage(&self, set: SetId, owner: u64, change: impl FnOnce(&mut Lineage)) {
        let mut truth = self.truth.lock();
        if let Some(lineage) = truth.lineages.get_mut(&set)
            && lineage.owner == owner
        {
            change(lineage);
        }
    }

    /// Records the acknowledgement to process `owner` that the first `states` states of `set`
    /// survive.
    pub fn acknowledge(&self, set: SetId, owner: u64, states: usize) {
        let mut truth = self.truth.lock();
        let Some(lineage) = truth.lineages.get_mut(&set) else { return };
        if lineage.owner == owner {
            lineage.durable = lineage.durable.max(states - 1);
            return;
        }
        // The states that the other writer found are durable; any beyond them are lost.
        if lineage.states.len() < states {
            drop(truth);
            let what = "operations that a takeover lost were acknowledged as durable";
            self.fail(format!("process {owner}: {what}"));
        }
    }

    pub fn gc_options(&self) -> GcOptions {
        GcOptions {
            grace: self.history.grace,
            dry_run: false,
            scan_data: true,
            ..GcOptions::default()
        }
    }

    /// Checks that every published name shows the published tree; with `with_verify`, also that
    /// `verify` finds nothing wrong.
    pub fn check(&self, with_verify: bool) {
        let repository = self.observer();
        let names: Vec<String> = self.truth.lock().names.keys().cloned().collect();
        for name in names {
            match self.check_name(&repository, &name) {
                Ok(None) => {}
                Ok(Some(reason)) => {
                    return self.fail(format!("the name {name} shows something else: {reason}"));
                }
                Err(error) if !self.may_be_unreadable(&repository, &name) => {
                    return self.fail(format!("the name {name} cannot be read: {error:?}"));
                }
                Err(_) => {}
            }
        }
        self.check_stacks(&repository);
        if with_verify {
            // Without a grace period, sessions lose their bases meanwhile, and markers are swept and
            // put back beside the sets that they keep.
            self.check_sound(&repository, self.history.is_eager());
        }
    }

    /// Returns how the tree of `name` differs from the expected one, if it does.
    pub fn check_name(&self, repository: &Repository, name: &str) -> Result<Option<String>> {
        let set = repository.resolve(name)?.set;
        let found = tree_of(repository, &[set])?;
        let mut truth = self.truth.lock();
        Ok(truth.names.get_mut(name).and_then(|named| named.compare(&found)))
    }

    /// Returns whether `name` may be unreadable: only if it does not exist.
    fn may_be_unreadable(&self, repository: &Repository, name: &str) -> bool {
        let certainty = self.truth.lock().names.get(name).map(|named| named.certainty);
        certainty != Some(Certainty::Published) && repository.resolve(name).is_err()
    }

    /// Checks that the stacks of published sets never change.
    fn check_stacks(&self, repository: &Repository) {
        let stacks = {
            let truth = self.truth.lock();
            let is_there = |name: &String| truth.is_published(name);
            let there = truth.stacks.iter().filter(|stack| stack.names.iter().all(is_there));
            there.cloned().collect::<Vec<_>>()
        };
        for StackedTree { names, tree } in stacks {
            let found = self.stacked_tree(repository, &names);
            let reason = match &found {
                Ok(found) => difference(found, &tree),
                Err(error) => Some(format!("{error:?}")),
            };
            if let Some(reason) = reason {
                return self.fail(format!("the stack of {names:?} shows something else: {reason}"));
            }
        }
    }

    pub fn stacked_tree(&self, repository: &Repository, names: &[String; 2]) -> Result<Tree> {
        let [upper, lower] = names;
        tree_of(repository, &[repository.resolve(upper)?.set, repository.resolve(lower)?.set])
    }

    /// Checks that `verify` finds nothing wrong; with `only_published`, nothing wrong with what is
    /// published, except markers.
    fn check_sound(&self, repository: &Repository, only_published: bool) {
        let mut options = verify_options();
        if only_published {
            let truth = self.truth.lock();
            let names = truth.names.keys().filter(|name| truth.is_published(name));
            options.targets = VerifyTargets::Names(names.cloned().collect());
        }
        match repository.verify(&options) {
            Ok(mut report) => {
                report.findings.retain(|found| !(only_published && found.expected == "a marker"));
                if !report.is_sound() {
                    self.fail(format!("verify finds damage:\n{}", findings(&report)));
                }
            }
            Err(error) => self.fail(format!("verify: {error:?}")),
        }
    }

    /// Checks at the end that every promise holds, and that nothing remains once everything is
    /// given up.
    pub fn check_end(&self) {
        self.check(false);
        let repository = self.observer();
        let lineages = std::mem::take(&mut self.truth.lock().lineages);
        for (set, mut lineage) in lineages {
            let is_gone = Manifest::load(&**repository.store(), set)
                .is_ok_and(|manifest| !matches!(manifest.state, SetState::Open | SetState::Sealed));
            if is_gone && self.history.is_eager() {
                // A collector without a grace period took it when it had just begun.
                continue;
            }
            if let Err(reason) = recover_at_end(&repository, set, &mut lineage) {
                return self.fail(format!("set {set}, at the end: {reason}"));
            }
        }
        if self.machine.has_failed() {
            return;
        }
        if let Err(error) = repository.gc(&self.gc_options()) {
            return self.fail(format!("a collection at the end: {error:?}"));
        }
        self.check(false);
        self.check_sound(&repository, false);
        if !self.machine.has_failed()
            && let Err(error) = self.check_nothing_stays(&repository)
        {
            self.fail(format!("giving everything up: {error:?}"));
        }
    }

    fn check_nothing_stays(&self, repository: &Repository) -> Result<()> {
        for name in repository.names()? {
            repository.delete(&name.name)?;
        }
        let sets = repository.sets()?;
        for set in &sets {
            repository.abandon(*set)?;
        }
        // A set that only another set keeps is deleted after that one, and its last manifest a day
        // later.
        for _ in 0..2 * sets.len() + 2 {
            self.machine.clock().advance(Duration::from_secs(2 * 86_400));
            let report = repository.gc(&self.gc_options())?;
            if !report.problems.is_empty() {
                self.fail(format!("a collection has problems: {}", report.problems.join("\n")));
            }
        }
        let mut left = self.machine.observer().list("")?;
        // Numbers of the name table are never reused.
        left.retain(|info| !info.name.starts_with("name/"));
        if !left.is_empty() {
            let names: Vec<String> = left.into_iter().map(|info| info.name).collect();
            self.fail(format!("garbage stays for ever:\n{}", names.join("\n")));
        }
        Ok(())
    }
}

fn recover_at_end(
    repository: &Repository,
    set: SetId,
    lineage: &mut Lineage,
) -> std::result::Result<(), String> {
    let resumed = repository.resume(set, options(TreeOptions::default()));
    let found = match resumed {
        Err(error) if error.kind() == Kind::Invalid && lineage.is_publishing => {
            tree_of(repository, &[set])
        }
        resumed => resumed.and_then(|session| subject::tree(session.namespace())),
    };
    lineage.recover(&found.map_err(|error| format!("{error:?}"))?, 0)
}
