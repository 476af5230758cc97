// SPDX-License-Identifier: Apache-2.0
//! Conflicts of composed bases: which files several have changed, and which version is shown.
//!
//! Symptom: if two bases had both changed a file, the first hid the work of the second without
//! notice.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{CountedStore, MemoryStore, SharedStore};
use esker_fs::ops::{AttributeChanges, XattrSet};
use esker_fs::repository::Repository;
use esker_fs::session::Session;
use esker_fs::stack::namespace::FollowLinks;
use esker_fs::traversal::conflicts::{BaseConflict, ComposedBases};
use esker_fs::traversal::diff::DiffAspect;
use esker_table::manifest::SetId;

use crate::gc::{options, repository, write};

/// Returns a set on `bases`, made by `change`.
pub fn set(repository: &Repository, bases: &[SetId], change: impl FnOnce(&Session)) -> SetId {
    let session = repository.begin(bases, options()).expect("begin");
    change(&session);
    session.publish(&session.set().to_string()).expect("publish")
}

pub fn rewrite(session: &Session, path: &str, bytes: &[u8], mtime_ns: i64) {
    let (dir, name) =
        session.namespace().locate(path).map(|(dir, name)| (dir, name.to_vec())).expect("path");
    match session.unlink(&dir, &name) {
        Err(error) if error.kind() == Kind::NotFound => {}
        removed => drop(removed.expect("unlink")),
    }
    write(session, path, bytes).expect("write");
    let changes = AttributeChanges { mtime_ns: Some(mtime_ns), ..AttributeChanges::default() };
    session.setattr(&dir, &name, &changes).expect("setattr");
}

pub fn conflicts(repository: &Repository, bases: &[SetId]) -> Vec<BaseConflict> {
    let mut found = Vec::new();
    let composition = ComposedBases::open(repository, bases).expect("open");
    let take = &mut |_: &ComposedBases, conflict| {
        found.push(conflict);
        Ok(())
    };
    composition.find_conflicts(take).expect("conflicts");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns the paths, each with its bases in order of precedence, and whether each has the file.
pub fn summary(conflicts: &[BaseConflict]) -> Vec<(String, Vec<(usize, bool)>)> {
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
pub fn branches(repository: &Repository) -> [SetId; 3] {
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
        let changes = AttributeChanges { mode: Some(0o600), ..AttributeChanges::default() };
        session.setattr(session.root(), b"linked", &changes).expect("setattr");
    });
    let b = set(repository, &[common], |session| {
        rewrite(session, "/deep/er/both", &[b'b'; 700], 9_000);
        rewrite(session, "/same", b"same", 3_000);
        rewrite(session, "/new", b"b", 4_000);
        rewrite(session, "/removed", b"b", i64::MAX / 4);
        let changes = AttributeChanges { mode: Some(0o640), ..AttributeChanges::default() };
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
    assert_eq!(linked.aspects, [DiffAspect::Mode]);
    let found: Vec<BaseConflict> = found.into_iter().filter(|found| !found.is_linked).collect();
    let both = |path: &str| (path.to_owned(), vec![(0, true), (1, true)]);
    let removed = ("/removed".to_owned(), vec![(0, false), (1, true)]);
    assert_eq!(summary(&found), [both("/deep/er/both"), both("/new"), removed]);
    assert_eq!(found[0].aspects, [DiffAspect::Content, DiffAspect::Time]);
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
        let composition = ComposedBases::open(&repository, &bases).expect("open");
        let mut changed = 0;
        let count = &mut |conflict: &BaseConflict, shown: usize| {
            changed += usize::from(shown != conflict.versions[0].base);
            Ok(())
        };
        session.show_newest_versions(&composition, count).expect("newest");
        assert_eq!(changed, if bases[0] == a { 2 } else { 1 });
        let read = |path: &str| {
            let inode = session.namespace().stat(path, FollowLinks::No).expect("stat");
            (session.namespace().read(&inode, 0, 900).expect("read").to_vec(), inode.mtime_ns)
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

/// Changes the content of `path` in place, through an open file, so that its segments have it.
fn amend(session: &Session, path: &str, bytes: &[u8], mtime_ns: i64) {
    let (dir, name) = session.namespace().locate(path).expect("path");
    let file = session.open_file(&dir, name).expect("open");
    session.file(&file).truncate(0).expect("truncate");
    for (at, piece) in bytes.chunks(100_000).enumerate() {
        session.file(&file).write(100_000 * at as u64, piece).expect("write");
    }
    session.close_file(file).expect("close");
    let mode = Some(if mtime_ns == NEW { 0o640 } else { 0o600 });
    let changes =
        AttributeChanges { mtime_ns: Some(mtime_ns), mode, ..AttributeChanges::default() };
    session.setattr(&dir, name, &changes).expect("setattr");
    let attribute = (&b"user.by"[..], &bytes[..1]);
    session.set_xattr(&dir, name, attribute, XattrSet::Any).expect("attribute");
}

fn link(session: &Session, old: &str, new: &str) {
    let ((dir, name), (new_dir, new)) = (
        session.namespace().locate(old).expect("old"),
        session.namespace().locate(new).expect("new"),
    );
    session.link(&dir, name, &new_dir, new).expect("link");
}

const OLD: i64 = 5_000;
const NEW: i64 = 9_000;

/// Content of a file that is not in its inode.
fn large() -> Vec<u8> {
    vec![b'n'; 300_000]
}

/// Returns two sets on a common base, the second of which was changed later, that change files with
/// several names.
fn linked_branches(repository: &Repository) -> [SetId; 2] {
    let common = set(repository, &[], |session| {
        session.mkdir(session.root(), b"d", 0o755).expect("mkdir");
        for path in ["/x", "/single", "/moved", "/given-up"] {
            rewrite(session, path, &[b'c'; 900], 1_000);
        }
        link(session, "/x", "/d/y");
        link(session, "/given-up", "/d/left");
    });
    let old = set(repository, &[common], |session| {
        amend(session, "/x", &[b'o'; 200_000], OLD);
        link(session, "/x", "/of-old");
        // Only this base gives it a second name.
        link(session, "/single", "/d/second");
        amend(session, "/single", b"old", OLD);
        // Several names here, one there, and different files.
        rewrite(session, "/alone", b"old", OLD);
        link(session, "/alone", "/alone-2");
        rewrite(session, "/pair", b"old", OLD);
        rewrite(session, "/both", b"old", OLD);
        link(session, "/both", "/both-2");
        link(session, "/moved", "/moved-2");
        session.unlink(session.root(), b"given-up").expect("unlink");
    });
    let new = set(repository, &[common], |session| {
        amend(session, "/d/y", &large(), NEW);
        link(session, "/x", "/of-new");
        amend(session, "/single", b"new", NEW);
        rewrite(session, "/alone", b"new", NEW);
        rewrite(session, "/pair", b"new", NEW);
        link(session, "/pair", "/pair-2");
        rewrite(session, "/both", b"new", NEW);
        link(session, "/both", "/both-2");
        // The same content and attributes, but another name.
        link(session, "/moved", "/moved-3");
        amend(session, "/given-up", b"new", NEW);
    });
    [old, new]
}

/// Names of one file, its content and its mode.
type NamedGroup<'a> = (&'a [&'a str], &'a [u8], u32);

/// Fails unless the names are those of one file with this content, and it has no others.
fn check_group(session: &Session, (paths, content, mode): &NamedGroup) {
    let inodes: Vec<_> = paths
        .iter()
        .map(|path| session.namespace().stat(path, FollowLinks::No).expect("stat"))
        .collect();
    for (path, inode) in paths.iter().zip(&inodes) {
        let seen = (inode.id, inode.nlink, inode.mode, inode.mtime_ns);
        let first = &inodes[0];
        let names = paths.len() as u32;
        assert_eq!(seen, (first.id, names, *mode, first.mtime_ns), "{path}");
        if inode.is_directory() {
            continue;
        }
        let bytes = session.namespace().read(inode, 0, 1 << 20).expect("read");
        assert!(bytes == *content, "{path}: {} bytes", bytes.len());
        let mtime_ns = match *content {
            b"old" => OLD,
            [b'c', ..] => 1_000,
            _ => NEW,
        };
        assert_eq!(inode.mtime_ns, mtime_ns, "{path}");
        let xattrs = session.namespace().xattrs(inode).expect("attributes");
        let by = xattrs.get(&b"user.by"[..]).map(Vec::as_slice);
        assert_eq!(by, (*mode == 0o640).then_some(&b"n"[..]), "{path}");
    }
}

/// Symptom: `newest` showed the older version of a file with hard links at some of its names, with
/// link counts of names that it did not have, or refused.
/// Cause: such a file's time, content and attributes are in the links directory; the record of its
/// name, by which versions were compared and replaced, has none.
/// Fix: a name's version is that of the file. All names of one file get its newest content and
/// attributes, and its names are counted.
#[test]
fn the_newest_version_of_a_file_with_several_names_is_shown_at_all_of_them() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let [old, new] = linked_branches(&repository);
    for bases in [[old, new], [new, old]] {
        let session = repository.begin(&bases, options()).expect("begin");
        let composition = ComposedBases::open(&repository, &bases).expect("open");
        let shown = &mut |conflict: &BaseConflict, shown: usize| {
            assert_eq!(bases[shown], new, "{conflict:?}");
            Ok(())
        };
        session.show_newest_versions(&composition, shown).expect("newest");
        let set = session.publish(&format!("newest-{}", session.set())).expect("publish");
        let session = repository.begin(&[set], options()).expect("begin");
        let groups: [NamedGroup; 9] = [
            (&["/x", "/d/y", "/of-old", "/of-new"], &large(), 0o640),
            (&["/single", "/d/second"], b"new", 0o640),
            (&["/alone"], b"new", 0o644),
            (&["/alone-2"], b"old", 0o644),
            (&["/pair", "/pair-2"], b"new", 0o644),
            (&["/both", "/both-2"], b"new", 0o644),
            (&["/moved", "/moved-2", "/moved-3"], &[b'c'; 900], 0o644),
            (&["/d/left"], b"new", 0o640),
            (&["/d"], b"", 0o755),
        ];
        groups.iter().for_each(|group| check_group(&session, group));
        assert!(session.namespace().stat("/given-up", FollowLinks::No).is_err());
        session.end().expect("end");
    }
    crate::verify::assert_sound(&repository);
}

/// A base that removed all names of a file hides the change of another: neither loses without
/// notice.
#[test]
fn a_file_that_lost_all_names_and_was_changed_elsewhere_is_not_decided_without_notice() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let common = set(&repository, &[], |session| {
        rewrite(session, "/x", b"common", 1_000);
        link(session, "/x", "/y");
    });
    let removed = set(&repository, &[common], |session| {
        for name in [b"x", b"y"] {
            session.unlink(session.root(), name).expect("unlink");
        }
    });
    let changed = |mtime_ns: i64| {
        set(&repository, &[common], |session| amend(session, "/y", b"changed", mtime_ns))
    };
    for (changed, is_newer) in [(changed(i64::MAX / 4), true), (changed(2_000), false)] {
        for bases in [[removed, changed], [changed, removed]] {
            let session = repository.begin(&bases, options()).expect("begin");
            let composition = ComposedBases::open(&repository, &bases).expect("open");
            let shown = session.show_newest_versions(&composition, &mut |_, _| Ok(()));
            match shown {
                Ok(()) => {
                    assert!(!is_newer && session.namespace().stat("/x", FollowLinks::No).is_err())
                }
                Err(error) => {
                    assert!(is_newer && error.kind() == Kind::Conflict, "{error}");
                    assert!(error.to_string().contains("removed all names"), "{error}");
                    assert!(error.to_string().starts_with("/"), "{error}");
                }
            }
            session.end().expect("end");
        }
    }
}

/// Symptom: bases that gave the root different attributes could not be composed by `newest`.
/// Cause: the root has no name in a directory.
#[test]
fn the_newest_attributes_of_the_root_are_shown() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let common = set(&repository, &[], |session| rewrite(session, "/file", b"c", 1));
    let changed = |mode: u32, mtime_ns: i64| {
        set(&repository, &[common], |session| {
            rewrite(session, "/file", &mode.to_be_bytes(), mtime_ns);
            let (mode, mtime_ns) = (Some(mode), Some(mtime_ns));
            let changes = AttributeChanges { mode, mtime_ns, ..AttributeChanges::default() };
            session.setattr_root(&changes).expect("setattr");
        })
    };
    let (old, new) = (changed(0o700, OLD), changed(0o750, NEW));
    for bases in [[old, new], [new, old]] {
        let session = repository.begin(&bases, options()).expect("begin");
        let composition = ComposedBases::open(&repository, &bases).expect("open");
        session.show_newest_versions(&composition, &mut |_, _| Ok(())).expect("newest");
        let shown = session.namespace().stat("/", FollowLinks::No).expect("stat");
        assert_eq!((shown.mode, shown.mtime_ns), (0o750, NEW));
        session.end().expect("end");
    }
}

/// Symptom: damaged file data was read without an error after bases had been composed by time.
/// Cause: the copy of the newest version got a checksum of the bytes that were found, without a
/// check of the old one.
/// Fix: the content is checked before it is copied.
#[test]
fn damage_of_the_newest_version_is_not_copied_unseen() {
    for linked in [false, true] {
        let store: SharedStore = Arc::new(MemoryStore::new());
        let repository = Repository::new(store.clone());
        let common = set(&repository, &[], |session| {
            rewrite(session, "/f", &[b'c'; 9_000], 1_000);
            if linked {
                let root = session.root();
                session.link(root, b"f", root, b"g").expect("link");
            }
        });
        let changed = |byte: u8, mtime_ns: i64| {
            set(&repository, &[common], |session| {
                let file = session.open_file(session.root(), b"f").expect("open");
                session.file(&file).write(0, &[byte; 9_000]).expect("write");
                session.close_file(file).expect("close");
                let changes =
                    AttributeChanges { mtime_ns: Some(mtime_ns), ..AttributeChanges::default() };
                session.setattr(session.root(), b"f", &changes).expect("setattr");
            })
        };
        let bases = [changed(b'o', 5_000), changed(b'n', 9_000)];
        let show = || {
            let session = repository.begin(&bases, options()).expect("begin");
            let composition = ComposedBases::open(&repository, &bases).expect("open");
            session.show_newest_versions(&composition, &mut |_, _| Ok(()))
        };
        show().expect("whole content is copied");
        let logs = store.list(&format!("set/{}/data/", bases[1])).expect("list");
        let log = &logs.first().expect("the file has data").name;
        let mut bytes = store.get(log, u64::MAX).expect("get").to_vec();
        bytes[100] ^= 1;
        store.delete(log).expect("delete");
        store.append_log(log).expect("a new log").append(&bytes).expect("append");
        assert_eq!(show().expect_err("damage").kind(), Kind::Corrupt, "linked: {linked}");
    }
}
