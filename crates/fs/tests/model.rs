// SPDX-License-Identifier: Apache-2.0
//! Random operations on sessions, compared with the reference file system: same answers, same
//! errors, same tree, with flushes, compactions, snapshots, resumes and publications in between.
//!
//! Times are compared too: both sides share a clock that stands still between operations.

use std::sync::Arc;
use std::time::Duration;

use esker_base::clock::ManualClock;
use esker_base::random::Random;
use esker_base::store::{MemoryStore, PosixStore, SharedStore};
use esker_fs::maintenance::squash::SquashOptions;
use esker_fs::maintenance::verify::VerifyOptions;
use esker_fs::ops::AttributeChanges;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_table::manifest::SetId;
use esker_table::tree::{Compaction, Durability, TreeOptions};

use crate::campaign;
use crate::operation::{Tree, difference, same_outcome};
use crate::random_operation::{Mix, pick};
use crate::reference::Reference;
use crate::subject;

/// Start of the simulated clock: later than any time that operations set.
const START_NS: u64 = 3_000_000_000_000_000_000;

/// Returns random settings of a writer.
pub fn tree_options(random: &mut Random) -> TreeOptions {
    let durabilities = [Durability::None, Durability::Async, Durability::Always];
    let compactions = [Compaction::Deferred, Compaction::Tiered, Compaction::Full];
    TreeOptions {
        durability: pick(random, &durabilities),
        compaction: pick(random, &compactions),
        memory_bytes: 1 << (16 + random.below(8)),
        background: random.one_in(2),
        ..TreeOptions::default()
    }
}

/// Returns the superuser, or an ordinary user with groups.
pub fn identity(random: &mut Random) -> Identity {
    match random.below(6) {
        0 => Identity { uid: 1_001, gid: 2_001, groups: vec![] },
        1 => Identity { uid: 1_002, gid: 2_002, groups: vec![2_001, 2_003] },
        2 => Identity { uid: 1_003, gid: 2_003, groups: vec![2_003] },
        _ => Identity::root(),
    }
}

/// Fails if anything is lost or wrong in `repository`.
pub fn check_sound(repository: &Repository) {
    let report = repository.verify(&VerifyOptions::default()).expect("verify");
    let findings = report.findings.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(report.is_sound(), "{}", findings.join("\n"));
}

struct Run {
    random: Random,
    clock: Arc<ManualClock>,
    repository: Repository,
    reference: Reference,
    identity: Identity,
    bases: Vec<SetId>,
    published: usize,
    /// Snapshots and what they must show.
    kept: Vec<(SetId, Tree)>,
}

impl Run {
    fn new(seed: u64, store: SharedStore) -> Self {
        let clock = Arc::new(ManualClock::new(START_NS));
        let cache_bytes = if seed.is_multiple_of(3) { 0 } else { 1 << 20 };
        Self {
            random: Random::from_seed(seed),
            repository: Repository::with(store, cache_bytes, clock.clone()),
            reference: Reference::new(clock.clone()),
            clock,
            identity: Identity::root(),
            bases: Vec::new(),
            published: 0,
            kept: Vec::new(),
        }
    }

    fn options(&mut self) -> SessionOptions {
        let tree = tree_options(&mut self.random);
        self.identity = identity(&mut self.random);
        self.reference.identity = self.identity.clone();
        SessionOptions { identity: self.identity.clone(), tree, ..SessionOptions::default() }
    }

    fn begin(&mut self) -> Session {
        let options = self.options();
        if self.bases.is_empty() {
            let (uid, gid) = (Some(self.identity.uid), Some(self.identity.gid));
            self.reference.set_root_attributes(&AttributeChanges {
                uid,
                gid,
                ..AttributeChanges::default()
            });
        }
        self.repository.begin(&self.bases, options).expect("begin")
    }

    fn check_set(&self, set: SetId, expected: &Tree, what: &str) {
        let namespace = self.repository.open(&[set], Identity::root()).expect("open");
        let found = subject::tree(&namespace).expect("a tree");
        if let Some(difference) = difference(&found, expected) {
            panic!("{what}: {difference}");
        }
    }

    /// Publishes, and continues on top of the published set.
    fn turn(&mut self, session: Session) -> Session {
        self.published += 1;
        let set = session.publish(&format!("n{}", self.published)).expect("publish");
        drop(session);
        let expected = self.reference.tree();
        self.check_set(set, &expected, "published");
        self.kept.push((set, expected));
        self.bases = vec![self.merged(set)];
        self.begin()
    }

    /// Returns the published set, or sometimes its squash or compaction.
    fn merged(&mut self, set: SetId) -> SetId {
        let threads = 1 + self.random.below(3) as usize;
        match self.random.below(4) {
            0 => {
                let options = SquashOptions { threads, ..SquashOptions::default() };
                let (squashed, _) = self.repository.squash(&[set], &options).expect("squash");
                self.published += 1;
                let name = format!("n{}", self.published);
                self.repository.publish(squashed, &name).expect("publish");
                self.kept.push((squashed, self.reference.tree()));
                squashed
            }
            1 => {
                self.repository.compact_set(set, threads).expect("compact");
                set
            }
            _ => set,
        }
    }

    /// Drops the session after making sure that nothing is pending, and resumes it.
    fn resume(&mut self, session: Session) -> Session {
        // Even if every operation is durable, times of directories wait for a sync.
        session.sync().expect("sync");
        let set = session.set();
        drop(session);
        let options = self.options();
        self.repository.resume(set, options).expect("resume")
    }

    fn disturb(&mut self, session: Session) -> Session {
        match self.random.below(8) {
            0 => session.flush().expect("flush"),
            1 => session.compact().expect("compact"),
            2 => session.sync().expect("sync"),
            3 => {
                self.published += 1;
                let set = session.snapshot(&format!("n{}", self.published)).expect("snapshot");
                self.kept.push((set, self.reference.tree()));
            }
            4..6 => return self.resume(session),
            _ => return self.turn(session),
        }
        session
    }

    fn steps(&mut self, steps: usize, mix: &mut Mix) {
        let mut session = self.begin();
        for step in 0..steps {
            self.clock.advance(Duration::from_nanos(self.random.below(3)));
            let operation = mix.next(&mut self.random, &self.reference);
            let expected = self.reference.run(&operation);
            let found = subject::run(&session, &operation);
            assert!(
                same_outcome(&found, &expected),
                "step {step}, as {:?}:\n{operation:?}\n   found {found:?}\nexpected {expected:?}",
                self.identity
            );
            if self.random.one_in(40) {
                session = self.disturb(session);
            }
            if self.identity.is_root() && self.random.one_in(60) {
                let found = subject::tree(session.namespace()).expect("a tree");
                if let Some(difference) = difference(&found, &self.reference.tree()) {
                    panic!("step {step}: {difference}");
                }
            }
        }
        drop(self.turn(session));
        for (set, expected) in &self.kept {
            self.check_set(*set, expected, "kept");
        }
        check_sound(&self.repository);
    }
}

fn run(seed: u64, steps: usize, large_one_in: u64) {
    let directory = tempfile::tempdir().expect("a directory");
    let store: SharedStore = if seed % 8 == 7 {
        Arc::new(PosixStore::new(directory.path()).expect("a store"))
    } else {
        Arc::new(MemoryStore::new())
    };
    Run::new(seed, store).steps(steps, &mut Mix::new(large_one_in));
}

#[test]
fn random_operations_match_the_reference() {
    campaign::quick(0..100, |seed| run(seed, 600, 1_000));
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_random_operations_match_the_reference() {
    campaign::soak(|seed| run(seed, 20_000, 2_000));
}
