// SPDX-License-Identifier: Apache-2.0
//! Random operations, compared with a real directory of the machine: same errors, same tree. The
//! reference file system is checked in the same way, since other tests rely on it.
//!
//! Allowed differences, which are not compared: a directory has one link and size 0; a hard link to
//! a directory fails with `IsADirectory` instead of `NotPermitted`; `remove_tree` has no system
//! call; times that were not set come from two clocks; access times depend on mount options. As the
//! superuser the test acts as several users; otherwise only as its own, without privileged
//! operations.

use std::sync::Arc;

use esker_base::clock::{ManualClock, SystemClock};
use esker_base::random::Random;
use esker_base::store::MemoryStore;
use esker_base::{Clock, Kind};
use esker_fs::inode::timestamp;
use esker_fs::ops::AttributeChanges;
use esker_fs::repository::Repository;
use esker_fs::session::{Session, SessionOptions};
use esker_fs::stack::identity::Identity;
use esker_table::manifest::SetId;

use crate::campaign;
use crate::model::{identity, tree_options};
use crate::operation::{ANY_TIME, Answer, Attributes, Operation, Outcome, Tree, difference};
use crate::random_operation::Mix;
use crate::real::{RealDirectory, become_identity, is_supported, kind_of_errno};
use crate::reference::Reference;
use crate::subject;

/// Operations set times before this one; clocks are after it.
const SET_NS_MAX: i64 = 1_500_000_000_000_000_000;

/// Number of consecutive operations of one identity.
const TURN: usize = 60;

fn comparable(attributes: &mut Attributes) {
    if attributes.mtime_ns > SET_NS_MAX {
        attributes.mtime_ns = ANY_TIME;
    }
    (attributes.ctime_ns, attributes.atime_ns) = (ANY_TIME, ANY_TIME);
}

fn comparable_outcome(mut outcome: Outcome) -> Outcome {
    if let Ok(Answer::Attributes(attributes)) = &mut outcome {
        comparable(attributes);
    }
    outcome
}

fn comparable_tree(mut tree: Tree) -> Tree {
    tree.values_mut().for_each(|leaf| comparable(&mut leaf.attributes));
    tree
}

fn same_tree(found: Tree, expected: Tree, who: &str) {
    if let Some(difference) = difference(&comparable_tree(found), &comparable_tree(expected)) {
        panic!("{who}: {difference}");
    }
}

/// Removes mode bits that would keep a user without privileges from cleaning up, or whose effect
/// depends on a policy of the machine.
fn tamed(mut operation: Operation) -> Operation {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let policy = read("/proc/sys/fs/protected_symlinks").trim() == "1";
    let privileged = Identity::of_process().is_root();
    let tame = |mode: &mut u32| {
        *mode |= if privileged { 0 } else { 0o700 };
        *mode &= if policy { !0o1000 } else { 0o7777 };
    };
    use Operation as O;
    match &mut operation {
        O::Create { mode, .. }
        | O::Write { mode, .. }
        | O::Mkdir { mode, .. }
        | O::Mknod { mode, .. }
        | O::SetAttributes { changes: AttributeChanges { mode: Some(mode), .. }, .. } => tame(mode),
        _ => {}
    }
    operation
}

struct Compared {
    random: Random,
    repository: Repository,
    reference: Reference,
    real: RealDirectory,
    bases: Vec<SetId>,
}

impl Compared {
    fn begin(&mut self, identity: Identity) -> Session {
        let tree = tree_options(&mut self.random);
        let options = SessionOptions { identity, tree, ..SessionOptions::default() };
        self.repository.begin(&self.bases, options).expect("begin")
    }

    fn publish(&mut self, session: Session, name: &str) {
        self.bases = vec![session.publish(name).expect("publish")];
    }

    /// Runs random operations as `identity`, in a thread that may have become it.
    fn turn(&mut self, identity: &Identity, name: &str, mix: &mut Mix) {
        let session = self.begin(identity.clone());
        self.reference.identity = identity.clone();
        for step in 0..TURN {
            let operation = tamed(mix.next(&mut self.random, &self.reference));
            if self.real.skips(&operation) {
                continue;
            }
            let real = self.real.run(&operation).map_err(kind_of_errno);
            let reference = self.reference.run(&operation);
            let found = subject::run(&session, &operation);
            let lawful = |found: &Outcome| match (&operation, found, &real) {
                (Operation::Link { .. }, Err(Kind::IsADirectory), Err(Kind::NotPermitted)) => true,
                _ => comparable_outcome(found.clone()) == comparable_outcome(real.clone()),
            };
            assert!(
                lawful(&reference) && lawful(&found),
                "turn {name}, step {step}, as {identity:?}:\n{operation:?}\n    found {found:?}\n\
                 reference {reference:?}\n     real {real:?}"
            );
        }
        self.publish(session, name);
    }

    fn compare(&self) {
        let namespace = self.repository.open(&self.bases, Identity::root()).expect("open");
        same_tree(self.reference.tree(), self.real.tree(), "reference");
        same_tree(subject::tree(&namespace).expect("a tree"), self.real.tree(), "found");
    }
}

fn run(seed: u64, turns: usize) {
    let directory = tempfile::tempdir().expect("a directory");
    if !is_supported(directory.path()) {
        println!("skipped: the kernel cannot resolve paths below a root");
        return;
    }
    let clock = Arc::new(ManualClock::new(SystemClock.now_ns()));
    let mut compared = Compared {
        random: Random::from_seed(seed),
        repository: Repository::with(Arc::new(MemoryStore::new()), 1 << 20, clock.clone()),
        real: RealDirectory::new(directory.path(), timestamp::of_clock(clock.now_ns())),
        reference: Reference::new(clock),
        bases: Vec::new(),
    };
    let owner = Identity::of_process();
    let changes = AttributeChanges {
        uid: Some(owner.uid),
        gid: Some(owner.gid),
        mode: Some(0o777),
        ..AttributeChanges::default()
    };
    compared.reference.set_root_attributes(&changes);
    let session = compared.begin(Identity::root());
    session.setattr_root(&changes).expect("the superuser may");
    compared.publish(session, "root");
    std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("the directory is ours");
    let mut mix = Mix::new(0);
    for turn in 0..turns {
        let identity = if owner.is_root() { identity(&mut compared.random) } else { owner.clone() };
        let name = format!("turn-{turn}");
        in_thread(|| {
            become_identity(&identity);
            compared.turn(&identity, &name, &mut mix);
        });
        in_thread(|| {
            become_identity(&owner);
            compared.compare();
        });
    }
}

/// Runs `work` in a thread, which has its own identity, and propagates its panic.
fn in_thread(work: impl FnOnce() + Send) {
    let outcome = std::thread::scope(|scope| scope.spawn(work).join());
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn random_operations_match_a_real_directory() {
    campaign::quick(0..25, |seed| run(seed, 10));
}

#[test]
#[ignore = "long: see scripts/soak.sh"]
fn soak_random_operations_match_a_real_directory() {
    campaign::soak(|seed| run(seed, 100));
}
