//! Compositions: stacks of sets that changed one base without knowledge of each other.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::MemoryStore;
use esker_fs::diff::diff;
use esker_fs::identity::Identity;
use esker_fs::namespace::{Follow, Namespace};
use esker_fs::ops::RenameFlags;
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::squash::SquashOptions;
use esker_fs::walk::{Next, Order, Step};
use esker_table::manifest::SetId;

use crate::gc::options;

fn repository() -> Repository {
    Repository::new(Arc::new(MemoryStore::new()))
}

fn begin(repository: &Repository, bases: &[SetId]) -> Session {
    repository.begin(bases, options()).expect("begin")
}

/// A published set that `change` makes over `bases`.
fn set(repository: &Repository, bases: &[SetId], change: impl FnOnce(&Session)) -> SetId {
    let session = begin(repository, bases);
    change(&session);
    session.publish(&session.set().to_string()).expect("publish")
}

fn rename(session: &Session, from: &[u8], to: &[u8]) {
    let root = session.root();
    session.rename((root, from), (root, to), RenameFlags::Replace).expect("rename");
}

fn open(repository: &Repository, sets: &[SetId]) -> Namespace {
    repository.open(sets, Identity::root()).expect("open")
}

fn squash(repository: &Repository, sets: &[SetId]) -> SetId {
    let (squashed, _) = repository.squash(sets, &SquashOptions::default()).expect("squash");
    repository.publish(squashed, &squashed.to_string()).expect("publish");
    squashed
}

/// Symptom: a directory that was made above a squashed set had the identity, and showed the entries,
/// of one that had been moved away from the same name long before. Cause: squash dropped the
/// tombstones of directories to which no path led, and with them the generations of their names;
/// another set of the stack had such a directory at another name. Fix: a generation stays while a
/// directory lives that the name could make again.
#[test]
fn a_new_directory_above_a_squashed_set_is_empty() {
    let repository = repository();
    let base = set(&repository, &[], |session| {
        session.mkdir(session.root(), b"d", 0o755).expect("mkdir");
    });
    let emptied = set(&repository, &[base], |session| {
        let d = session.dir("/d").expect("dir");
        let x = session.mkdir(&d, b"x", 0o755).expect("mkdir");
        session.create(&x, b"entry", 0o644).expect("create");
        let moved = session.rename((&d, b"x"), (session.root(), b"y"), RenameFlags::Replace);
        moved.expect("rename");
        session.rmdir(session.root(), b"d").expect("rmdir");
    });
    let kept = set(&repository, &[base], |session| rename(session, b"d", b"z"));
    for below in [emptied, squash(&repository, &[emptied])] {
        let session = begin(&repository, &[below, kept]);
        let z = session.dir("/z").expect("dir");
        let x = session.mkdir(&z, b"x", 0o755).expect("mkdir");
        let entries = session.read_dir(&x, &Default::default(), 9).expect("list");
        assert!(entries.is_empty(), "{entries:?}");
        session.stat("/y/entry", Follow::No).expect("the old one has its entry");
    }
}

/// Symptom: `find`, `du`, `diff` and `export` of a stack in which two sets had moved directories into
/// each other did not end, or only at the longest path that the file system takes. Cause: walks did
/// not know where they were. Fix: they do not enter a directory that they are in, and say so.
#[test]
fn walks_of_a_loop_of_directories_end() {
    let repository = repository();
    let base = set(&repository, &[], |session| {
        session.mkdir(session.root(), b"a", 0o755).expect("mkdir");
        session.mkdir(session.root(), b"b", 0o755).expect("mkdir");
    });
    let moved = |name: &[u8], into: &str| {
        set(&repository, &[base], |session| {
            let into = session.dir(into).expect("dir");
            let moved = session.rename((session.root(), name), (&into, name), RenameFlags::Replace);
            moved.expect("rename");
        })
    };
    let stack = open(&repository, &[moved(b"a", "/b"), moved(b"b", "/a")]);
    for order in [Order::Stored, Order::Name] {
        let (mut entered, mut left, mut loops) = (Vec::new(), Vec::new(), Vec::new());
        let walked = stack.traverse(b"/", Follow::No, order, &mut |step| {
            match step {
                Step::Entry(visit) => entered.push(visit.path.to_vec()),
                Step::Left(visit) => left.push(visit.path.to_vec()),
                Step::Unreadable(visit, error) => {
                    assert_eq!(error.kind(), Kind::Loop);
                    loops.push(visit.path.to_vec());
                }
            }
            Ok(Next::Into)
        });
        walked.expect("walk");
        assert_eq!(loops, [b"/b/a/b".to_vec()]);
        left.sort_unstable();
        entered.sort_unstable();
        assert_eq!(entered, left, "every directory is left once");
    }
    let mut problems = 0;
    let usage = stack.usage(b"/", &mut |_, _| Ok(()), &mut |_, _| problems += 1);
    usage.expect("usage");
    assert_eq!(problems, 1);
    let empty = open(&repository, &[]);
    let mut paths = Vec::new();
    let compared = diff((&empty, b"/"), (&stack, b"/"), &mut |difference| {
        paths.push(difference.path.to_vec());
        Ok(())
    });
    assert_eq!(compared.expect_err("a loop").kind(), Kind::Loop);
    assert_eq!(paths.len(), 3);
}
