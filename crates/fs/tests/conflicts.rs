//! Conflicts of composed bases: which files several have changed, and which version is shown.
//!
//! Symptom: if two bases had both changed a file, the first hid the work of the second without
//! notice.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{CountedStore, MemoryStore, SharedStore};
use esker_fs::conflicts::{BaseConflict, Composition};
use esker_fs::diff::Aspect;
use esker_fs::namespace::Follow;
use esker_fs::ops::Changes;
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_table::manifest::SetId;

use crate::gc::{options, repository, write};

/// Returns a set on `bases`, made by `change`.
fn set(repository: &Repository, bases: &[SetId], change: impl FnOnce(&Session)) -> SetId {
    let session = repository.begin(bases, options()).expect("begin");
    change(&session);
    session.publish(&session.set().to_string()).expect("publish")
}

fn rewrite(session: &Session, path: &str, bytes: &[u8], mtime_ns: i64) {
    let (dir, name) = session.locate(path).map(|(dir, name)| (dir, name.to_vec())).expect("path");
    match session.unlink(&dir, &name) {
        Err(error) if error.kind() == Kind::NotFound => {}
        removed => drop(removed.expect("unlink")),
    }
    write(session, path, bytes).expect("write");
    let changes = Changes { mtime_ns: Some(mtime_ns), ..Changes::default() };
    session.setattr(&dir, &name, &changes).expect("setattr");
}

fn conflicts(repository: &Repository, bases: &[SetId]) -> Vec<BaseConflict> {
    let mut found = Vec::new();
    let composition = Composition::open(repository, bases).expect("open");
    let take = &mut |_: &Composition, conflict| {
        found.push(conflict);
        Ok(())
    };
    composition.find_conflicts(take).expect("conflicts");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns the paths, each with its bases in order of precedence, and whether each has the file.
fn summary(conflicts: &[BaseConflict]) -> Vec<(String, Vec<(usize, bool)>)> {
    conflicts
        .iter()
        .map(|conflict| {
            let path = conflict.path.as_deref().unwrap_or(b"-");
            let versions = conflict.versions.iter();
            let versions = versions.map(|version| (version.base, version.inode.is_some()));
            (String::from_utf8_lossy(path).into_owned(), versions.collect())
        })
        .collect()
}

/// Returns a common base with files in directories, and two sets above it.
fn branches(repository: &Repository) -> [SetId; 3] {
    let common = set(repository, &[], |session| {
        let root = session.root().clone();
        let deep = session.mkdir(&root, b"deep", 0o755).expect("mkdir");
        session.mkdir(&deep, b"er", 0o755).expect("mkdir");
        for path in ["/same", "/only-a", "/removed", "/deep/er/both", "/linked"] {
            rewrite(session, path, &[b'c'; 900], 1_000);
        }
        session.link(&root, b"linked", &root, b"other").expect("link");
    });
    let a = set(repository, &[common], |session| {
        rewrite(session, "/only-a", b"a", 2_000);
        rewrite(session, "/deep/er/both", b"a", 5_000);
        rewrite(session, "/same", b"same", 3_000);
        rewrite(session, "/new", b"a", 6_000);
        session.unlink(session.root(), b"removed").expect("unlink");
        let changes = Changes { mode: Some(0o600), ..Changes::default() };
        session.setattr(session.root(), b"linked", &changes).expect("setattr");
    });
    let b = set(repository, &[common], |session| {
        rewrite(session, "/deep/er/both", &[b'b'; 700], 9_000);
        rewrite(session, "/same", b"same", 3_000);
        rewrite(session, "/new", b"b", 4_000);
        rewrite(session, "/removed", b"b", i64::MAX / 4);
        let changes = Changes { mode: Some(0o640), ..Changes::default() };
        session.setattr(session.root(), b"other", &changes).expect("setattr");
    });
    [common, a, b]
}

#[test]
fn what_two_bases_changed_without_each_other_is_found() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let [common, a, b] = branches(&repository);
    let found = conflicts(&repository, &[a, b]);
    let linked = found.iter().find(|conflict| conflict.is_linked).expect("the linked file");
    assert!([&b"/linked"[..], b"/other"].contains(&linked.path.as_deref().expect("a path")));
    assert_eq!(linked.aspects, [Aspect::Mode]);
    let found: Vec<BaseConflict> = found.into_iter().filter(|found| !found.is_linked).collect();
    let both = |path: &str| (path.to_owned(), vec![(0, true), (1, true)]);
    let removed = ("/removed".to_owned(), vec![(0, false), (1, true)]);
    assert_eq!(summary(&found), [both("/deep/er/both"), both("/new"), removed]);
    assert_eq!(found[0].aspects, [Aspect::Content, Aspect::Time]);
    let newest: Vec<usize> = found.iter().map(|conflict| conflict.newest().base).collect();
    assert_eq!(newest, [1, 0, 1]);
    // In the opposite order the other version is shown.
    let found = conflicts(&repository, &[b, a]);
    assert!(summary(&found).contains(&("/removed".to_owned(), vec![(0, true), (1, false)])));
    // A set that builds on another has decided about its changes.
    for chain in [[a, common], [common, a]] {
        assert_eq!(summary(&conflicts(&repository, &chain)), []);
    }
    let resolved = set(&repository, &[a, b], |session| {
        rewrite(session, "/new", b"resolved", 7_000);
    });
    assert_eq!(summary(&conflicts(&repository, &[resolved, a, b])), [], "decided");
    assert_eq!(summary(&conflicts(&repository, &[resolved, a])), []);
}

/// Sets without a common base conflict wherever they differ; equal content is no conflict.
#[test]
fn without_a_common_base_all_files_that_differ_conflict() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let make = |text: &'static [u8]| {
        set(&repository, &[], |session| {
            rewrite(session, "/same", b"same", 1);
            rewrite(session, "/file", text, 2);
            session.mkdir(session.root(), text, 0o755).expect("mkdir");
        })
    };
    let (a, b) = (make(b"a"), make(b"b"));
    assert_eq!(
        summary(&conflicts(&repository, &[a, b])),
        [("/file".into(), vec![(0, true), (1, true)])]
    );
    assert_eq!(summary(&conflicts(&repository, &[a, b, a])).len(), 1);
}

#[test]
fn the_newest_version_is_shown_if_that_is_wanted() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let [_, a, b] = branches(&repository);
    for bases in [[a, b], [b, a]] {
        let session = repository.begin(&bases, options()).expect("begin");
        let composition = Composition::open(&repository, &bases).expect("open");
        let mut changed = 0;
        let take = &mut |composition: &Composition, conflict: BaseConflict| {
            changed += usize::from(session.show_newest(composition, &conflict)?);
            Ok(())
        };
        composition.find_conflicts(take).expect("conflicts");
        assert_eq!(changed, if bases[0] == a { 2 } else { 1 });
        let read = |path: &str| {
            let inode = session.stat(path, Follow::No).expect("stat");
            (session.read(&inode, 0, 900).expect("read").to_vec(), inode.mtime_ns)
        };
        assert_eq!(read("/deep/er/both"), (vec![b'b'; 700], 9_000));
        assert_eq!(read("/new"), (b"a".to_vec(), 6_000));
        assert_eq!(read("/removed").0, b"b");
        assert_eq!(read("/only-a").0, b"a");
        session.publish(&format!("newest-{changed}")).expect("publish");
    }
    crate::verify::assert_sound(&repository);
}

/// A base below all others costs nothing, however large it is.
#[test]
fn a_common_base_is_not_read() {
    let cost = |files: usize| {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let plain = repository(&store);
        let common = set(&plain, &[], |session| {
            for file in 0..files {
                session
                    .create(session.root(), format!("{file}").as_bytes(), 0o644)
                    .expect("create");
            }
        });
        let make =
            |name: &'static str| set(&plain, &[common], |session| rewrite(session, name, b"x", 1));
        let bases = [make("/a"), make("/b")];
        let counted = Arc::new(CountedStore::new(store.clone()));
        let other = repository(&(counted.clone() as SharedStore));
        assert_eq!(summary(&conflicts(&other, &bases)), []);
        let counts = counted.counts();
        (counts.reads, counts.read_bytes)
    };
    let (reads, bytes) = cost(20_000);
    let (few_reads, few_bytes) = cost(10);
    assert!(
        reads <= few_reads && bytes < few_bytes + 4_096,
        "{reads} {bytes}, {few_reads} {few_bytes}"
    );
}
