// SPDX-License-Identifier: Apache-2.0
//! Conflicts at directories of composed bases: removed, replaced, changed and moved ones.

use std::sync::Arc;

use esker_base::Kind;
use esker_base::store::{MemoryStore, SharedStore};
use esker_fs::ops::{AttributeChanges, RenameFlags};
use esker_fs::session::Session;
use esker_fs::stack::identity::Identity;
use esker_fs::stack::namespace::FollowLinks;
use esker_fs::traversal::conflicts::{ComposedBases, DirectoryConflict};
use esker_table::manifest::SetId;

use crate::conflicts::{branches, conflicts, rewrite, set, summary};
use crate::gc::{options, repository};

/// Symptom: if one base removed a directory with everything in it, and another changed a file in
/// it, the file was gone and no conflict was reported.
/// Cause: the removal is a tombstone at the directory's name, of which the other base has no
/// record.
/// Fix: a separate search finds such directories.
#[test]
fn a_removed_directory_conflicts_with_changes_in_it() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let [common, _, beside] = branches(&repository);
    // A change that leaves the times of the directories above it, and so their records, alone.
    let changed = set(&repository, &[common], |session| {
        let er = session.namespace().dir("/deep/er").expect("dir");
        let changes = AttributeChanges { mode: Some(0o640), ..AttributeChanges::default() };
        session.setattr(&er, b"both", &changes).expect("setattr");
    });
    let remove = |bases: &[SetId], path: &str| {
        set(&repository, bases, |session| {
            let (dir, name) = session.namespace().locate(path).expect("path");
            session.remove_tree(&dir, name).expect("remove");
        })
    };
    let deep = |bases: [SetId; 2]| {
        let found = conflicts(&repository, &bases);
        let found: Vec<_> = found
            .into_iter()
            .filter(|found| found.directory == Some(DirectoryConflict::Removed))
            .collect();
        summary(&found)
    };
    // The stack shows no directory, no matter which version wins and which directory above the
    // change was removed.
    for (removed, path) in
        [(remove(&[common], "/deep"), "/deep"), (remove(&[common], "/deep/er"), "/deep/er")]
    {
        let of =
            |remover: usize| vec![(path.to_owned(), vec![(remover, false), (1 - remover, true)])];
        assert_eq!(deep([removed, changed]), of(0));
        assert_eq!(deep([changed, removed]), of(1));
        // New files and removals in it are changes too.
        let made = set(&repository, &[common], |session| rewrite(session, "/deep/er/new", b"n", 1));
        let found = summary(&conflicts(&repository, &[removed, made]));
        assert!(found.contains(&of(0)[0]), "{found:?}");
        let emptied = remove(&[common], "/deep/er");
        if path == "/deep" {
            // The directory that lost an entry has a record of its own, for its time.
            let found = summary(&conflicts(&repository, &[removed, emptied]));
            assert!(found.contains(&of(0)[0]), "{found:?}");
        }
        let elsewhere = set(&repository, &[common], |session| rewrite(session, "/x", b"n", 1));
        assert_eq!(deep([removed, elsewhere]), []);
        assert_eq!(deep([removed, common]), []);
        // A set that builds on both has decided.
        let decided = set(&repository, &[removed, changed], |_| {});
        assert_eq!(deep([decided, changed]), []);
        assert_eq!(deep([decided, removed]), []);
        let composition = ComposedBases::open(&repository, &[removed, changed]).expect("open");
        let session = repository.begin(&[removed, changed], options()).expect("begin");
        let error = session.show_newest_versions(&composition, &mut |_, _| Ok(()));
        let error = error.expect_err("undecided");
        assert_eq!(error.kind(), Kind::Conflict);
        assert!(error.to_string().starts_with(path), "{error}");
    }
    // Files that are removed one by one conflict themselves.
    let one_by_one = set(&repository, &[common], |session| {
        let er = session.namespace().dir("/deep/er").expect("dir");
        session.unlink(&er, b"both").expect("unlink");
        session.rmdir(&session.namespace().dir("/deep").expect("dir"), b"er").expect("rmdir");
    });
    assert!(!conflicts(&repository, &[one_by_one, beside]).is_empty());
}

/// Symptom: a directory that one base had renamed was reported as removed; one that it had removed
/// and made again was not reported, although another base's changes in it were gone.
/// Cause: any tombstone of a directory counted as its removal, and nothing else did.
/// Fix: a directory that the base shows at another name is not removed; one that another directory
/// has replaced is.
#[test]
fn renamed_directories_are_not_removed_and_replaced_ones_are() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let [common, ..] = branches(&repository);
    let changed = set(&repository, &[common], |session| {
        let er = session.namespace().dir("/deep/er").expect("dir");
        let changes = AttributeChanges { mode: Some(0o640), ..AttributeChanges::default() };
        session.setattr(&er, b"both", &changes).expect("setattr");
    });
    let renamed = set(&repository, &[common], |session| {
        let root = session.root();
        session.rename((root, b"deep"), (root, b"moved"), RenameFlags::Replace).expect("rename");
    });
    let replaced = set(&repository, &[common], |session| {
        let root = session.root().clone();
        session.remove_tree(&root, b"deep").expect("remove");
        session.mkdir(&root, b"deep", 0o755).expect("mkdir");
    });
    let inside = |bases: [SetId; 2]| {
        let found = conflicts(&repository, &bases);
        let found: Vec<_> = found
            .into_iter()
            .filter(|found| found.directory == Some(DirectoryConflict::Removed))
            .collect();
        summary(&found)
    };
    for bases in [[renamed, changed], [changed, renamed]] {
        assert_eq!(inside(bases), []);
        let shown = repository.open(&bases, Identity::root()).expect("open");
        let both = shown.stat("/moved/er/both", FollowLinks::No).expect("stat");
        assert_eq!(both.mode & 0o777, 0o640);
    }
    let path = "/deep".to_owned();
    assert_eq!(inside([replaced, changed]), [(path.clone(), vec![(0, false), (1, true)])]);
    assert_eq!(inside([changed, replaced]), [(path, vec![(1, false), (0, true)])]);
    assert_eq!(inside([replaced, common]), []);
}

/// Symptom: `newest` showed the earlier base's directory, and its attributes, regardless of their
/// times.
/// Cause: only files were copied.
/// Fix: a directory gets the newest attributes; a version that cannot be copied is refused.
#[test]
fn the_newest_attributes_of_a_directory_are_shown() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let common = set(&repository, &[], |session| {
        session.mkdir(session.root(), b"d", 0o755).expect("mkdir");
        rewrite(session, "/d/f", b"f", 1);
    });
    let changed = |mode: u32, mtime_ns: i64| {
        set(&repository, &[common], |session| {
            let changes = AttributeChanges {
                mode: Some(mode),
                mtime_ns: Some(mtime_ns),
                ..AttributeChanges::default()
            };
            session.setattr(session.root(), b"d", &changes).expect("setattr");
        })
    };
    let (old, new) = (changed(0o700, 5_000), changed(0o750, 9_000));
    for bases in [[old, new], [new, old]] {
        let session = repository.begin(&bases, options()).expect("begin");
        let composition = ComposedBases::open(&repository, &bases).expect("open");
        session.show_newest_versions(&composition, &mut |_, _| Ok(())).expect("newest");
        let shown = session.namespace().stat("/d", FollowLinks::No).expect("stat");
        assert_eq!((shown.mode, shown.mtime_ns), (0o750, 9_000));
        assert!(session.namespace().stat("/d/f", FollowLinks::No).is_ok());
        session.publish(&format!("newest-{}", session.set())).expect("publish");
    }
    // Replaced by a newer file: the session could show the file's content, but that would not give
    // up the directory's.
    let replaced = set(&repository, &[common], |session| {
        let root = session.root().clone();
        session.remove_tree(&root, b"d").expect("remove");
        rewrite(session, "/d", b"file", 20_000);
    });
    let bases = [new, replaced];
    let session = repository.begin(&bases, options()).expect("begin");
    let composition = ComposedBases::open(&repository, &bases).expect("open");
    let error = session.show_newest_versions(&composition, &mut |_, _| Ok(()));
    let error = error.expect_err("undecided");
    assert_eq!(error.kind(), Kind::Conflict);
    assert!(error.to_string().contains("decide by the order"), "{error}");
}

/// Symptom: a base that had replaced a directory hid the changes that another base made in it, and
/// no conflict was found.
/// Cause: two directories of one name were compared by their attributes, although they are not the
/// same directory.
/// Fix: their identities are compared.
#[test]
fn a_replaced_directory_conflicts_with_changes_in_it() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let [common, ..] = branches(&repository);
    let replaced = set(&repository, &[common], |session| {
        let (dir, name) = session.namespace().locate("/deep").expect("path");
        session.remove_tree(&dir, name).expect("remove");
        session.mkdir(&dir, name, 0o755).expect("mkdir");
    });
    let changed = set(&repository, &[common], |session| {
        rewrite(session, "/deep/new", b"n", 1);
    });
    for bases in [[replaced, changed], [changed, replaced]] {
        let found = summary(&conflicts(&repository, &bases));
        assert!(found.iter().any(|(path, _)| path == "/deep"), "{found:?}");
    }
    // Directories that bases make independently are merged.
    let make = || {
        set(&repository, &[common], |session| {
            session.mkdir(session.root(), b"made", 0o755).expect("mkdir");
        })
    };
    assert_eq!(summary(&conflicts(&repository, &[make(), make()])), []);
}

/// Symptom: no conflict was found where one base had a file or a symlink in place of a directory
/// and another had changed something deep below.
/// Cause: only tombstones and other directories counted as removals.
#[test]
fn a_directory_that_a_file_replaced_conflicts_with_changes_in_it() {
    let store: SharedStore = Arc::new(MemoryStore::new());
    let repository = repository(&store);
    let [common, ..] = branches(&repository);
    let replace = |make: &dyn Fn(&Session)| {
        set(&repository, &[common], |session| {
            session.remove_tree(session.root(), b"deep").expect("remove");
            make(session);
        })
    };
    let file = replace(&|session| rewrite(session, "/deep", b"file", 1));
    let link = replace(&|session| {
        session.symlink(session.root(), b"deep", b"elsewhere").expect("symlink");
    });
    let changed = set(&repository, &[common], |session| {
        let er = session.namespace().dir("/deep/er").expect("dir");
        let changes = AttributeChanges { mode: Some(0o640), ..AttributeChanges::default() };
        session.setattr(&er, b"both", &changes).expect("setattr");
    });
    for replaced in [file, link] {
        for bases in [[replaced, changed], [changed, replaced]] {
            let found = summary(&conflicts(&repository, &bases));
            assert!(found.iter().any(|(path, _)| path == "/deep"), "{found:?}");
        }
    }
}

/// Symptom: nothing told that bases had moved one directory to two places, or two directories into each
/// other; only `verify` found a loop of directories, once the stack was published.
/// Cause: only names of which two bases have records were compared.
/// Fix: directories that are at several paths or within themselves are conflicts.
#[test]
fn directories_that_bases_moved_apart_or_into_each_other_are_conflicts() {
    let repository = repository(&(Arc::new(MemoryStore::new()) as SharedStore));
    let common = set(&repository, &[], |session| {
        for name in [b"a", b"b", b"c"] {
            session.mkdir(session.root(), name, 0o755).expect("mkdir");
        }
    });
    let moved = |from: &str, to: &str| {
        set(&repository, &[common], |session| {
            let (from_dir, from_name) = session.namespace().locate(from).expect("from");
            let (to_dir, to_name) = session.namespace().locate(to).expect("to");
            let renamed =
                session.rename((&from_dir, from_name), (&to_dir, to_name), RenameFlags::Replace);
            renamed.expect("rename");
        })
    };
    let found = |bases: [SetId; 2]| -> Vec<(Vec<String>, bool)> {
        let moves = conflicts(&repository, &bases).into_iter();
        let moves = moves.filter_map(|conflict| match conflict.directory {
            Some(DirectoryConflict::Moved { paths, is_in_itself }) => {
                let movers = if is_in_itself { 1 } else { 2 };
                assert!(conflict.versions.len() >= movers, "those that moved it");
                assert_eq!(conflict.path.as_ref(), paths.first());
                let text = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
                Some((paths.iter().map(text).collect(), is_in_itself))
            }
            _ => None,
        });
        moves.collect()
    };
    let into_b = moved("/a", "/b/a");
    assert_eq!(found([into_b, common]), [], "one base alone moved it");
    assert_eq!(found([into_b, moved("/c", "/b/c")]), [], "two directories");
    assert_eq!(found([into_b, moved("/a", "/b/a")]), [], "to the same place");
    let apart = (vec!["/b/a".to_owned(), "/c/other".to_owned()], false);
    assert_eq!(found([into_b, moved("/a", "/c/other")]), std::slice::from_ref(&apart));
    assert_eq!(found([moved("/a", "/c/other"), into_b]), [apart]);
    let below = set(&repository, &[moved("/a", "/c/other")], |session| {
        let at = session.namespace().dir("/c/other").expect("other");
        session.mkdir(&at, b"below", 0o755).expect("mkdir");
    });
    let changed = set(&repository, &[below], |session| {
        let at = session.namespace().dir("/c/other").expect("other");
        let changes = AttributeChanges { mode: Some(0o700), ..AttributeChanges::default() };
        session.setattr(&at, b"below", &changes).expect("setattr");
    });
    let only_a = (vec!["/b/a".to_owned(), "/c/other".to_owned()], false);
    assert_eq!(found([into_b, changed]), [only_a], "what is below is not moved");
    for bases in [[into_b, moved("/b", "/a/b")], [moved("/b", "/a/b"), into_b]] {
        let looped = found(bases);
        assert_eq!(looped.len(), 2, "{looped:?}");
        assert!(looped.iter().all(|(_, is_in_itself)| *is_in_itself), "{looped:?}");
        let composition = ComposedBases::open(&repository, &bases).expect("open");
        let session = repository.begin(&bases, options()).expect("begin");
        let newest = session.show_newest_versions(&composition, &mut |_, _| Ok(()));
        assert_eq!(newest.expect_err("there is no newest").kind(), Kind::Conflict);
    }
}

/// Symptom: a base that had moved a directory into another one and then removed that hid what another
/// base had put into the directory, and no conflict was found.
/// Cause: the directory's record below the removed one counted as another place of it.
/// Fix: a directory is somewhere only if a path leads there.
#[test]
fn a_directory_that_was_removed_with_its_new_parent_is_removed() {
    let repository = repository(&(Arc::new(MemoryStore::new()) as SharedStore));
    let common = set(&repository, &[], |session| {
        let dir = session.mkdir(session.root(), b"dir", 0o755).expect("mkdir");
        session.mkdir(&dir, b"sub", 0o755).expect("mkdir");
    });
    let removed = set(&repository, &[common], |session| {
        let root = session.root();
        let old = session.mkdir(root, b"old", 0o755).expect("mkdir");
        session.rename((root, b"dir"), (&old, b"dir"), RenameFlags::Replace).expect("rename");
        session.remove_tree(root, b"old").expect("remove");
    });
    let changed =
        set(&repository, &[common], |session| rewrite(session, "/dir/sub/file", b"1", 9_000));
    for bases in [[removed, changed], [changed, removed]] {
        let found = conflicts(&repository, &bases);
        let found: Vec<_> = found.iter().filter(|found| found.directory.is_some()).collect();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].path.as_deref(), Some(&b"/dir"[..]));
        assert_eq!(found[0].directory, Some(DirectoryConflict::Removed));
    }
}

/// A directory that one base alone shows at two paths is no conflict of that base with others.
#[test]
fn what_one_base_shows_twice_by_itself_is_no_conflict() {
    let repository = repository(&(Arc::new(MemoryStore::new()) as SharedStore));
    let common = set(&repository, &[], |session| {
        for name in [b"a", b"b", b"c"] {
            session.mkdir(session.root(), name, 0o755).expect("mkdir");
        }
    });
    let into = |parent: &str| {
        set(&repository, &[common], |session| {
            let parent = session.namespace().dir(parent).expect("dir");
            let renamed =
                session.rename((session.root(), b"a"), (&parent, b"a"), RenameFlags::Replace);
            renamed.expect("rename");
        })
    };
    let twice = set(&repository, &[into("/b"), into("/c")], |_| {});
    let other = set(&repository, &[common], |session| rewrite(session, "/file", b"1", 9_000));
    for bases in [[twice, other], [other, twice]] {
        let found = conflicts(&repository, &bases);
        assert!(found.iter().all(|found| found.directory.is_none()), "{found:?}");
    }
}
